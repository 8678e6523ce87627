"""Recordings known by the content of their audio: twins under two names, or renamed ones."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor

from millrace.common import jsonl
from millrace.common.workflow.partitions import Assignment, DigestCache, Placement, Stat
from millrace.speech.corpus.tables import Head


def find(heads: Sequence[Head], assignment: Assignment, digests: DigestCache) -> dict[str, str]:
    """Recordings whose audio is the same file under another name, in whichever country, and that other name.

    The one assigned first is the original; later ones, and all new ones, are its twins. `digests` caches the
    digests of audio files, by head and tail.
    """
    seen: set[int] = set()
    several: set[int] = set()
    for size in (audio[0] for head in heads for audio in head.audio):
        (several if size in seen else seen).add(size)
    by_size: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for head in heads:
        for size, video_id, path in head.audio:
            if size and size in several:
                by_size[size].append((f"{head.name}/{video_id}", path))
    # By the assignment file, not by `content`: old lines lack it, or name audio that was replaced since.
    names = {name for same in by_size.values() for name, _ in same}
    order = {name: rank for rank, name in enumerate(assignment.placements) if name in names}
    twins: dict[str, str] = {}
    for same in by_size.values():
        if len({name for name, _ in same}) < 2:
            continue
        same.sort(key=lambda pair: order.get(pair[0], len(assignment.placements)))
        first: dict[str, str] = {}
        for name, path in same:
            try:
                digest = digests.get(Stat.of(path), jsonl.head_tail_digest)
            except OSError:
                continue
            original = first.setdefault(digest, name)
            if original != name and name not in twins:
                twins[name] = twins.get(original, original)
    return twins


def contents(
    heads: Sequence[Head], wanted: Container[str], digests: DigestCache, sizes: Container[int] | None = None
) -> dict[str, str]:
    """The content of the audio of the recordings in `wanted`: size and digest, of a few blocks of its file.

    With `sizes`, only of those whose audio has one of them.
    """
    first: dict[str, tuple[int, str]] = {}
    for head in heads:
        for size, video_id, path in head.audio:
            if size and (name := f"{head.name}/{video_id}") in wanted:
                first.setdefault(name, (size, path))

    def digest(path: str) -> str | None:
        with contextlib.suppress(OSError):
            return digests.get(Stat.of(path), jsonl.head_tail_digest)
        return None

    chosen = {name: pair for name, pair in first.items() if sizes is None or pair[0] in sizes}
    with ThreadPoolExecutor(8) as pool:
        pairs = zip(chosen.items(), pool.map(digest, [path for _, path in chosen.values()]), strict=True)
        return {name: f"{size}-{value}" for (name, (size, _)), value in pairs if value}


def other_split(twin_of: str | None, placement: Placement, assignment: Assignment) -> str | None:
    """The split of the identical recording if it is another one: then the later of the two is not used."""
    twin = assignment.get(twin_of) if twin_of else None
    return twin.labels["split"] if twin and twin.labels["split"] != placement.labels["split"] else None
