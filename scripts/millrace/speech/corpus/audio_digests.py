"""Recordings known by the content of their audio, whatever their name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from millrace.common import jsonl
from millrace.common.workflow.partitions import DigestCache, Stat

# Country by country: size, video id and path of its audio files.
Audio = Iterable[tuple[str, list[list]]]


# As `of` writes it: the size in bytes, and a digest.
_CONTENT = re.compile(r"(\d+)-.*")


def size_of(content: object) -> int | None:
    """The size in bytes that a content begins with; None if this is none."""
    match = _CONTENT.fullmatch(str(content))
    return int(match[1]) if match else None


def of(audio: Audio, wanted: Callable[[str, int], bool], digests: DigestCache) -> dict[str, str]:
    """The content of the audio of recordings that are `wanted`, by name and size: size, and digest
    of a few blocks."""
    first: dict[str, tuple[int, str]] = {}
    for country, files in audio:
        for size, video_id, path in files:
            name = f"{country}/{video_id}"
            if size and wanted(name, size):
                first.setdefault(name, (size, path))

    def content(file: tuple[int, str]) -> str | None:
        size, path = file
        try:
            digest = digests.get(Stat.of(path), jsonl.head_tail_digest)
        except OSError:  # it is gone
            return None
        return f"{size}-{digest}"

    with ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(content, first.values()))
    known = zip(first, contents, strict=True)
    return {name: value for name, value in known if value}
