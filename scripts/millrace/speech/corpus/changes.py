"""What was built of recordings before, and what of them differs now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.speech.corpus import alignment
from millrace.speech.names import Partition

# The stage of the manifests.
FIRST_STAGE = "manifest"


def country_of(partition: str) -> str:
    """The country of a partition, as it stands in paths; what is no partition stays."""
    parsed = Partition.parse(partition)
    return parsed.country if parsed else partition


def kinds(old: Mapping, new: Mapping) -> list[str]:
    """What differs between two states of a recording, in words."""
    words = _differing(("partition", "language"), old, new)
    before = {transcript["transcript_id"]: transcript for transcript in old["transcripts"]}
    after = {transcript["transcript_id"]: transcript for transcript in new["transcripts"]}
    if before.keys() != after.keys():
        words.append("transcripts")
    for name in before.keys() & after.keys():
        was = before[name]
        now = after[name]
        words += _differing(alignment.PARTS, was.get("digests", {}), now["digests"])
        words += _differing(("path", "audio_file", "audio"), was, now)
    return list(dict.fromkeys(words))


def _differing(names: Iterable[str], old: Mapping, new: Mapping) -> list[str]:
    return [name for name in names if old.get(name) != new.get(name)]
