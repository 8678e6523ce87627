"""What the files of each country say, kept between parses: read again only if a file has changed.

Of every country a table lies in `index/`: `countries/<country>.jsonl`, a line each with the head, the audio
files and the recordings; and `alignments/<country>.json`, the facts of its alignment files.
Large corpora are read by several processes.
"""

from __future__ import annotations

import gc
import hashlib
import marshal
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from millrace.common import atomic
from millrace.common.workflow.partitions import DigestCache
from millrace.common.workflow.path_map import PathMap
from millrace.speech.corpus import country as country_folder
from millrace.speech.corpus.country import Country, Recording
from millrace.speech.corpus.media import MediaFolder, signature
from millrace.speech.names import safe_name

# With fewer alignment files than this, starting processes takes longer than reading.
_MANY = 5000
# Raise it when the facts change their meaning.
_VERSION = 3


class Head(NamedTuple):
    """A country without its recordings.

    `state` tells whether any of its files has changed, `outside` has the signatures of files elsewhere.
    """

    name: str
    language: str
    files: int
    rejected: list[dict]
    notes: list[str]
    unmatched: list[str]
    example: str
    state: str
    outside: dict[str, list[int] | None]


def refresh(
    folders: Sequence[Path], index: Path, path_map: Mapping, language_map: Mapping, suspects: Collection[str]
) -> None:
    """Bring the tables of these countries in step with their files; OSError for what may not be read.

    `suspects` are alignment files that a job could not read: they are read whole.
    """
    sizes = {folder: len(country_folder.list_names(folder)) for folder in folders}
    count = min(len(folders), 8, max(2, os.cpu_count() or 1)) if sum(sizes.values()) >= _MANY else 0
    settings = {"index": str(index), "path_map": dict(path_map), "language_map": dict(language_map)}
    task = {**settings, "suspects": sorted(suspects)}
    if not count:
        for folder in folders:
            refresh_one(folder, **task)
        return
    # On a network file system most of the time is waiting: so up to 8 processes, the largest countries first.
    ordered = sorted(folders, key=lambda folder: -sizes[folder])
    package = str(Path(__file__).parents[3])
    code = f"import sys; sys.path.insert(0, {package!r}); import {__name__} as t; t.serve()"
    started = []
    for number in range(count):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", code], **pipes)
        process.stdin.write(
            marshal.dumps(task | {"folders": [str(folder) for folder in ordered[number::count]]})
        )
        process.stdin.close()
        started.append(process)
    replies = [(process.stdout.read(), process.wait()) for process in started]
    for reply, code in replies:
        if reply:
            raise OSError(*marshal.loads(reply))
        if code:
            raise RuntimeError(f"reading the countries ended with code {code}")


def serve() -> None:
    """Refresh the countries that stdin names; what may not be read goes to stdout."""
    gc.disable()  # half of the time, with so many objects that all live to the end
    task = marshal.loads(sys.stdin.buffer.read())
    try:
        for folder in task.pop("folders"):
            refresh_one(Path(folder), **task)
    except OSError as error:
        sys.stdout.buffer.write(marshal.dumps((error.errno, error.strerror, error.filename)))


def refresh_one(folder: Path, index: str, path_map: dict, language_map: dict, suspects: list[str]) -> None:
    name, mapped = safe_name(country_folder.shown(folder.name)), PathMap(path_map)
    listing, media = country_folder.list_alignments(folder), MediaFolder(folder, mapped)
    stats = sorted((stat.path, *stat.signature) for stat in media.stats.values())
    suspects = [path for path in suspects if path.startswith(f"{folder}/")]
    settings = [_VERSION, path_map, country_folder.language_of(folder.name, language_map), suspects]
    state = hashlib.blake2b(marshal.dumps([*settings, listing, stats], 2), digest_size=16).hexdigest()
    last = head(Path(index), name)
    if last and last.state == state and all(signature(path) == was for path, was in last.outside.items()):
        return
    path = Path(index, "alignments", f"{name}.json")
    old = path.with_name("..") / "alignments.json"  # of all countries, as earlier versions had it
    known = DigestCache(path if path.exists() or not old.exists() else old, 2)
    known.path = path
    country = country_folder.read(folder, listing, media, language_map, known, suspects)
    known.save()
    # What may not be read has the same signature when it may be.
    if any(each["reason"] == "json_unreadable" for each in country.rejected):
        state = ""
    audio = [[a["size"], r.video_id, a["path"]] for r in country.recordings.values() for a in r.audio_files()]
    found = country.files, country.rejected, country.notes
    unmatched = sorted(mapped.unmatched), mapped.example
    lines = [Head(country.name, country.language, *found, *unmatched, state, media.outside), audio, []]
    for recording in country.recordings.values():
        transcripts = [
            [*t.values()][:4] + [t["audio"] and [*t["audio"].values()]] for t in recording.transcripts
        ]
        lines[2].append([recording.video_id, recording.hours, transcripts])
    content = b"\n".join(orjson.dumps(tuple(line)) for line in lines)
    atomic.write_bytes(Path(index, "countries", f"{name}.jsonl"), content)


def head(index: Path, name: str) -> Head | None:
    """The head of a country's table; None if there is none, or one of an earlier version."""
    try:
        with open(index / "countries" / f"{name}.jsonl", "rb") as handle:
            return Head(*orjson.loads(handle.readline()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def audio(index: Path, name: str) -> list[list]:
    """Size, video id and path of every audio file of a country."""
    with open(index / "countries" / f"{name}.jsonl", "rb") as handle:
        handle.readline()
        return orjson.loads(handle.readline())


def load(index: Path, name: str) -> Country:
    """A country, as its table has it."""
    first, _, last = (index / "countries" / f"{name}.jsonl").read_bytes().split(b"\n")
    top = Head(*orjson.loads(first))
    country = Country(top.name, top.language, {}, top.files, top.rejected, top.notes)
    keys, facts = ("transcript_id", "path", "digest", "audio_file"), ("path", "size", "mtime_ns")
    for video_id, hours, rows in orjson.loads(last):
        transcripts: list[dict[str, Any]] = [
            dict(zip(keys, row, strict=False), audio=row[4] and dict(zip(facts, row[4], strict=True)))
            for row in rows
        ]
        country.recordings[video_id] = Recording(top.name, video_id, hours, transcripts)
    return country


def history(index: Path, name: str) -> DigestCache:
    """The facts of a country's alignment files."""
    return DigestCache(index / "alignments" / f"{name}.json", 2)
