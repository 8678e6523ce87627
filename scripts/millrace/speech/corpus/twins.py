"""Recordings known by the content of their audio: the same under two names, or come back under another
one."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence

from millrace.common import jsonl
from millrace.common.workflow import partitions
from millrace.speech.corpus.country import Country, Recording


def find(
    countries: Sequence[Country], assignment: partitions.Assignment, digests: partitions.DigestCache
) -> None:
    """Mark recordings whose audio is the same file under another name, in whichever country (`twin_of`).

    The one assigned first is the original; the others, and new ones above all, are its twins. `digests`
    caches those of audio files, by head and tail.
    """
    order = {name: rank for rank, name in enumerate(assignment.placements)}
    by_size: dict[int, list[tuple[Recording, dict]]] = defaultdict(list)
    for country in countries:
        for recording in country.recordings.values():
            for audio in {
                t["audio"]["path"]: t["audio"] for t in recording.transcripts if t["audio"]
            }.values():
                if audio["size"]:
                    by_size[audio["size"]].append((recording, audio))
    for same in by_size.values():
        if len({recording.name for recording, _ in same}) < 2:
            continue
        same.sort(key=lambda pair: order.get(pair[0].name, len(order)))
        first: dict[str, Recording] = {}
        for recording, audio in same:
            try:
                seen = digests.get(partitions.Stat.of(audio["path"]), jsonl.head_tail_digest)
            except OSError:
                continue
            twin = first.setdefault(seen, recording)
            if twin is not recording and recording.twin_of is None:
                recording.twin_of = twin.twin_of or twin.name


def note_contents(
    countries: Sequence[Country], assignment: partitions.Assignment, digests: partitions.DigestCache
) -> None:
    """Digest the audio of new recordings: once in the life of each, a few blocks of its file."""
    for country in countries:
        for recording in country.recordings.values():
            audio = next(
                (t["audio"] for t in recording.transcripts if t["audio"] and t["audio"]["size"]), None
            )
            if audio and assignment.get(recording.name) is None:
                with contextlib.suppress(OSError):
                    digest = digests.get(partitions.Stat.of(audio["path"]), jsonl.head_tail_digest)
                    recording.content = f"{audio['size']}-{digest}"


def other_split(
    recording: Recording, placement: partitions.Placement, assignment: partitions.Assignment
) -> str | None:
    """The split of an identical recording when it is another one: then the later one must not be used."""
    twin = assignment.get(recording.twin_of) if recording.twin_of else None
    return twin.labels["split"] if twin and twin.labels["split"] != placement.labels["split"] else None
