"""What the files of each country say, kept between parses: read again only if a file has changed,
and by how many processes.

Of every country a table lies in `index/`: `countries/<country>.jsonl`, a line each with the head
and the recordings; and `alignments/<country>.json`, the facts of its alignment
files. Large corpora are read by several processes.
"""

from __future__ import annotations

import hashlib
import marshal
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from millrace.common import atomic
from millrace.common.path_map import PathMap
from millrace.common.workflow.partitions import DigestCache
from millrace.speech.corpus import country_folder, languages
from millrace.speech.corpus.country_folder import Country, Recording
from millrace.speech.corpus.media import MediaFolder, signature

# With fewer alignment files than this, starting processes takes longer than reading.
_MANY = 5000
# Raise it when the facts change their meaning.
_VERSION = 6


def refresh(folders: Sequence[Path], index: Path, **task: Any) -> None:
    """Bring the tables of these countries in step with their files; OSError for what may not be
    read.

    `task` are further arguments of `refresh_one`.
    """
    sizes = {folder: len(country_folder.list_names(folder)) for folder in folders}
    refresh_each: Callable[[Path], object] = partial(refresh_one, index=index, **task)
    if sum(sizes.values()) < _MANY:
        for folder in folders:
            refresh_each(folder)
        return
    # On a network file system most of the time is waiting: so up to 8 processes, the largest
    # countries first.
    ordered = sorted(folders, key=lambda folder: -sizes[folder])
    count = min(len(folders), 8, max(2, os.cpu_count() or 1))
    with ProcessPoolExecutor(count, multiprocessing.get_context("fork")) as pool:
        list(pool.map(refresh_each, ordered))


def refresh_one(
    folder: Path,
    index: Path,
    path_map: Mapping,
    audio_roots: Sequence[str],
    language_map: Mapping,
) -> None:
    """Bring the table of a country in step."""
    name = country_folder.id_of(folder)
    listing = country_folder.list_alignments(folder)
    media = MediaFolder(folder, PathMap(path_map), audio_roots)
    stats = sorted((stat.path, *stat.signature) for stat in media.stats.values())
    settings = [_VERSION, dict(path_map), languages.of(folder.name, language_map)]
    seen = marshal.dumps([*settings, media.audio_roots.folders, listing, stats], 2)
    state = hashlib.blake2b(seen, digest_size=16).hexdigest()
    if _is_current(head(index, name), state):
        return
    known = facts(index, name)
    country = country_folder.read(folder, listing, media, language_map, known)
    known.save()
    # What may not be read has the same signature when it may be.
    is_readable = all(reject["reason"] != "json_unreadable" for reject in country.rejected)
    country.state = state if is_readable else ""
    country.outside = media.outside
    _write(index / "countries" / f"{name}.jsonl", country)


def _is_current(last: Country | None, state: str) -> bool:
    """Whether a table was made of what lies there now, within the country's folder and outside."""
    if last is None or last.state != state:
        return False
    return all(signature(path) == was for path, was in last.outside.items())


def _write(path: Path, country: Country) -> None:
    """Write a country's table: itself, and its recordings. Takes the recordings out of it."""
    recordings = country.recordings.values()
    country.recordings = {}
    rows = [[each.video_id, each.hours, each.transcripts] for each in recordings]
    content = b"\n".join(map(orjson.dumps, (vars(country), rows)))
    atomic.write_bytes(path, content)


def head(index: Path, name: str) -> Country | None:
    """A country without its recordings; None if it has no table, or one of an earlier version."""
    try:
        with open(index / "countries" / f"{name}.jsonl", "rb") as handle:
            return Country(**orjson.loads(handle.readline()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def load(index: Path, name: str) -> Country:
    """A country, as its table has it."""
    first, last = (index / "countries" / f"{name}.jsonl").read_bytes().split(b"\n")
    country = Country(**orjson.loads(first))
    country.recordings = {row[0]: Recording(country.name, *row) for row in orjson.loads(last)}
    return country


def facts(index: Path, name: str) -> DigestCache:
    """What a country's alignment files say."""
    return DigestCache(index / "alignments" / f"{name}.json", 4)
