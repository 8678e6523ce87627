"""Samples of a split, out of what people keep them in: folders, webdataset tars, tables; which
files and columns are read."""

from __future__ import annotations

import json
import logging
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from millrace.audit.splits.samples import MEDIA, Place, Sample, described, first
from millrace.common import jsonl
from millrace.common.errors import MillraceError
from millrace.common.loading import links

log = logging.getLogger("millrace")
Read = Callable[[Path], Iterator[Sample]]

_PATHS = ("audio_filepath", "audio_path", "image_path", "file_name", "file", "path", "audio")
_EMBEDDED = ("audio", "image", "bytes", "flac", "wav", "mp3", "opus", "jpg", "png")
_TEXTS = (".txt", ".json")  # what says something of a sample, by its ending
_ROWS_AT_ONCE = 256
_ACCEPTED = "a folder of audio or images, webdataset tars, parquet, or JSONL as NeMo's manifests"


def read(paths: Iterable[Path]) -> Iterator[Sample]:
    """The samples of a split, in the order of their names. Raises MillraceError for what is none of
    the kinds that are read, and for a split without samples."""
    count = 0
    paths = list(paths)
    for path in paths:
        for sample in _read_one(path):
            count += 1
            yield sample
    if not count:
        names = ", ".join(map(str, paths))
        raise MillraceError("no sample is there", names, f"Give {_ACCEPTED}")


def _read_one(path: Path) -> Iterator[Sample]:
    if path.is_dir():
        yield from _folder(path)
        return
    if not path.exists():
        raise MillraceError("is not there", str(path), f"Give {_ACCEPTED}")
    reader = _KINDS.get(path.suffix.lower())
    if reader is None:
        problem = f"files that end in {path.suffix or 'nothing'} are not read"
        raise MillraceError(problem, str(path), f"Give {_ACCEPTED}")
    yield from reader(path)


def _folder(folder: Path) -> Iterator[Sample]:
    """Audio and images below a folder, with the `.txt` or `.json` beside them; or else the tars and
    tables in it."""
    paths = (Path(place, name) for place, names in links.walk(folder) for name in names)
    files = sorted(path for path in paths if path.is_file())
    files = [path for path in files if not path.name.startswith(".")]
    media = [path for path in files if path.suffix.lower() in MEDIA]
    if media:
        read_too = set(media)
        for path in media:
            sample = Sample(path.relative_to(folder).as_posix(), Place(str(path)))
            texts = _texts(path)
            read_too.update(texts.values())
            contents = {ending: text.read_bytes() for ending, text in texts.items()}
            yield _with_words(sample, contents)
    else:
        kinds = _KINDS.keys() - {".json"}  # any file may be called so
        read_too = {path for path in files if path.suffix.lower() in kinds}
        for path in sorted(read_too):
            yield from _KINDS[path.suffix.lower()](path)

    others = [path for path in files if path not in read_too]
    if others:
        log.warning("%s: %d files are not read, such as %s", folder, len(others), others[0].name)


def _texts(path: Path) -> dict[str, Path]:
    """The texts beside a file, by their endings. A name may be too long to have any."""
    texts = {ending: path.with_suffix(ending) for ending in _TEXTS}
    return {ending: text for ending, text in texts.items() if os.path.isfile(text)}


def _with_words(sample: Sample, texts: Mapping[str, bytes]) -> Sample:
    """The sample with its transcript (`.txt`) and the fields of its `.json`, if it holds an
    object."""
    if ".txt" in texts:
        sample = sample._replace(transcript=texts[".txt"].decode(errors="replace"))
    if ".json" in texts:
        try:
            fields = json.loads(texts[".json"])
        except ValueError:
            return sample
        if isinstance(fields, dict):
            return described(sample, fields)
    return sample


def _tar(path: Path) -> Iterator[Sample]:
    """The samples of a webdataset tar: neighbours whose names are equal up to the first dot."""
    try:
        with tarfile.open(path, "r:") as archive:
            files = (member for member in archive if member.isfile())
            for key, members in groupby(files, _key):
                yield from _of_tar(archive, f"{path.name}:{key}", members)
    except tarfile.TarError as error:
        problem = f"cannot be read as a plain tar ({error})"
        raise MillraceError(problem, str(path), "Unpack it, or write it again") from None


def _key(member: tarfile.TarInfo) -> str:
    folder, slash, base = member.name.rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}"


def _of_tar(
    archive: tarfile.TarFile, name: str, members: Iterable[tarfile.TarInfo]
) -> Iterator[Sample]:
    places = []
    texts = {}
    for member in members:
        lower = member.name.lower()
        _, dot, field = lower.rpartition("/")[2].partition(".")
        ending = dot + field
        if ending.endswith(MEDIA):
            places.append(Place(str(archive.name), member.offset_data, member.size))
        elif ending in _TEXTS:
            file = archive.extractfile(member)
            texts[ending] = file.read() if file else b""
    if texts and not places:
        yield _with_words(Sample(name, None), texts)
    for place in places:
        yield _with_words(Sample(name, place), texts)


def _jsonl(path: Path) -> Iterator[Sample]:
    """The rows of a manifest. An object a line, with the path of a file; a row with an `offset` is
    a segment of its file."""
    for number, fields, _ in jsonl.lines(path):
        if isinstance(fields, jsonl.BadJson):
            problem = f"line {number} is not JSON ({fields})"
            raise MillraceError(problem, str(path), "One JSON object a line is read")
        if not isinstance(fields, dict):
            raise MillraceError(f"line {number} is not a JSON object", str(path))
        yield _row(fields, path, number)


def _parquet(path: Path) -> Iterator[Sample]:
    """The rows of a table: bytes in a column (or `bytes` in a struct, as datasets does), or the
    path of a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as table:
            for batch in table.iter_batches(_ROWS_AT_ONCE):
                for fields in batch.to_pylist():
                    number += 1
                    yield _row(fields, path, number)
    except pa.ArrowException as error:
        problem = f"cannot be read as parquet ({error})"
        raise MillraceError(problem, str(path), "Write it again") from None


def _row(fields: Mapping[str, Any], path: Path, number: int) -> Sample:
    """The sample of a row. Raises MillraceError for one that says nothing of a sample."""
    name = f"{path.name}:{number}"
    embedded = first(fields, _EMBEDDED)
    if isinstance(embedded, dict):  # as datasets stores audio and images
        inner = embedded
        embedded = inner.get("bytes")
        if embedded is None:
            fields = {**fields, "path": inner.get("path")}
    if isinstance(embedded, bytes):
        return described(Sample(name, Place(name, content=embedded)), fields)

    files = [fields[key] for key in _PATHS if isinstance(fields.get(key), str)]
    file = files[0] if files else None
    sample = described(Sample(name, None), fields)
    if file is None:
        if not sample.transcript and not sample.recording:
            problem = f"row {number} has no audio, no image, no path, no transcript, no recording"
            raise MillraceError(problem, str(path), f"Its columns are {', '.join(fields)}")
        return sample
    place = os.path.join(path.parent, file)
    start = fields.get("offset")
    if isinstance(start, int | float):
        recording = sample.recording or os.path.realpath(place)
        sample = sample._replace(start=float(start), recording=recording)
    return sample._replace(place=Place(place))


_KINDS: dict[str, Read] = {
    ".tar": _tar,
    ".parquet": _parquet,
    ".jsonl": _jsonl,
    ".json": _jsonl,
    ".ndjson": _jsonl,
}
