"""Recordings known by the content of their audio: twins under two names, or renamed ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from millrace.common import jsonl
from millrace.common.workflow.partitions import Assignment, DigestCache, Placement, Stat

# Country by country: size, video id and path of its audio files.
Audio = Iterable[tuple[str, list[list]]]


def find(
    audio: Callable[[], Audio], assignment: Assignment, digests: DigestCache
) -> dict[str, str]:
    """Recordings whose audio is the same file under another name, in whichever country, and that
    other name.

    The one assigned first is the original; later ones, and all new ones, are its twins. `audio`
    gives all audio files; `digests` caches their digests, by head and tail.
    """
    by_size = _of_equal_size(audio)
    # By the assignment file, not by `content`: old lines lack it, or name audio that was replaced
    # since.
    names = {name for same in by_size for name, _ in same}
    order = {name: rank for rank, name in enumerate(assignment.placements) if name in names}
    twins: dict[str, str] = {}
    for same in by_size:
        same.sort(key=lambda pair: order.get(pair[0], len(assignment.placements)))
        first: dict[str, str] = {}
        for name, path in same:
            digest = _digest(path, digests)
            if digest is None:
                continue
            original = first.setdefault(digest, name)
            if original != name and name not in twins:
                twins[name] = twins.get(original, original)
    return twins


def _of_equal_size(audio: Callable[[], Audio]) -> list[list[tuple[str, str]]]:
    """Names of recordings and paths of their audio, where several recordings have files of a
    size."""
    counts = Counter(file[0] for _, files in audio() for file in files)
    by_size: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for country, files in audio():
        for size, video_id, path in files:
            if size and counts[size] > 1:
                by_size[size].append((f"{country}/{video_id}", path))
    return [same for same in by_size.values() if len({name for name, _ in same}) > 1]


def _digest(path: str, digests: DigestCache) -> str | None:
    """The digest of a file's head and tail; None if it is gone."""
    try:
        return digests.get(Stat.of(path), jsonl.head_tail_digest)
    except OSError:
        return None


def contents(
    audio: Audio, wanted: Callable[[str, int], bool], digests: DigestCache
) -> dict[str, str]:
    """The content of the audio of recordings that are `wanted`, by name and size: size, and digest
    of a few blocks.
    """
    first: dict[str, tuple[int, str]] = {}
    for country, files in audio:
        for size, video_id, path in files:
            if size and wanted(name := f"{country}/{video_id}", size):
                first.setdefault(name, (size, path))

    def content(file: tuple[int, str]) -> str | None:
        size, path = file
        digest = _digest(path, digests)
        return None if digest is None else f"{size}-{digest}"

    with ThreadPoolExecutor(8) as pool:
        known = zip(first, pool.map(content, first.values()), strict=True)
        return {name: value for name, value in known if value}


def other_split(twin_of: str | None, placement: Placement, assignment: Assignment) -> str | None:
    """The split of the identical recording if it is another one: then the later of the two is not
    used."""
    twin = assignment.get(twin_of) if twin_of else None
    if twin is None or twin.labels["split"] == placement.labels["split"]:
        return None
    return twin.labels["split"]
