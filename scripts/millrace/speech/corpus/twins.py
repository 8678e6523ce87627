"""Recordings known by the content of their audio: twins under two names, or renamed ones."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence

from millrace.common import jsonl
from millrace.common.workflow.partitions import Assignment, DigestCache, Placement, Stat
from millrace.speech.corpus.country import Country, Recording


def find(countries: Sequence[Country], assignment: Assignment, digests: DigestCache) -> None:
    """Mark recordings whose audio is the same file under another name, in whichever country (`twin_of`).

    The one assigned first is the original; later ones, and all new ones, are its twins. `digests` caches the
    digests of audio files, by head and tail.
    """
    order = {name: rank for rank, name in enumerate(assignment.placements)}
    by_size: dict[int, list[tuple[Recording, dict]]] = defaultdict(list)
    for recording in (recording for country in countries for recording in country.recordings.values()):
        for audio in recording.audio_files():
            if audio["size"]:
                by_size[audio["size"]].append((recording, audio))
    for same in by_size.values():
        if len({recording.name for recording, _ in same}) < 2:
            continue
        # By the assignment file, not by `content`: old lines lack it, or name audio that was replaced since.
        same.sort(key=lambda pair: order.get(pair[0].name, len(order)))
        first: dict[str, Recording] = {}
        for recording, audio in same:
            try:
                digest = digests.get(Stat.of(audio["path"]), jsonl.head_tail_digest)
            except OSError:
                continue
            original = first.setdefault(digest, recording)
            if original is not recording and recording.twin_of is None:
                recording.twin_of = original.twin_of or original.name


def note_contents(countries: Sequence[Country], assignment: Assignment, digests: DigestCache) -> None:
    """Digest the audio of new recordings: once in the life of each, a few blocks of its file."""
    for recording in (recording for country in countries for recording in country.recordings.values()):
        audio = next((audio for audio in recording.audio_files() if audio["size"]), None)
        if audio and assignment.get(recording.name) is None:
            with contextlib.suppress(OSError):
                digest = digests.get(Stat.of(audio["path"]), jsonl.head_tail_digest)
                recording.content = f"{audio['size']}-{digest}"


def other_split(recording: Recording, placement: Placement, assignment: Assignment) -> str | None:
    """The split of the identical recording if it is another one: then the later of the two is not used."""
    twin = assignment.get(recording.twin_of) if recording.twin_of else None
    return twin.labels["split"] if twin and twin.labels["split"] != placement.labels["split"] else None
