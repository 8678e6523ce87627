"""Splits that were drawn elsewhere: a published or former <country>_splits.csv, the words that it
may use, and lines that contradict each other."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from millrace.common.errors import MillraceError
from millrace.speech.names import safe_name

_WORDS = dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
_WORDS |= {"train": "train", "test": "test"}
_SUFFIX = "_splits.csv"
_SUBSET = re.compile(r"(\d{1,6}(\.0*)?)?")


class GivenSplit(NamedTuple):
    """The split, and of train perhaps the subset, of a recording; `place` is the file and its
    line."""

    split: str
    subset: int | None
    place: str


class GivenSplits(dict[tuple[str, str], GivenSplit]):
    """The splits of `speech.splits_file`, by (country as it stands in paths, video_id); the country
    is "" if none is said."""

    def of(self, country: str, video_id: str) -> GivenSplit | None:
        key = _key(country, video_id)
        return self.get(key) or self.get(("", key[1]))


def _key(country: str, video_id: str) -> tuple[str, str]:
    """The name of a file says a country as it stands in paths, which may be cut."""
    return safe_name(country.strip()), video_id.strip()


def read(path: str) -> GivenSplits:
    """The splits of a CSV, or of all `*_splits.csv` in a folder; none for "".

    The header has video_id (or source_audio_path) and split, and perhaps country and subset_id; the
    file's name may say the country. Raises MillraceError.
    """
    result = GivenSplits()
    if not path:
        return result
    if Path(path).is_dir():
        files = sorted(Path(path).glob(f"*{_SUFFIX}"))
    else:
        files = [Path(path)]
    for file in files:
        for key, given in _rows(file):
            earlier = result.setdefault(key, given)
            if earlier[:2] != given[:2]:
                there, here = (f"{split.split} {split.subset or ''}" for split in (earlier, given))
                problem = f"{key[1]} is in {there.strip()} there and in {here.strip()} here"
                where = f"{earlier.place} and {given.place}"
                raise MillraceError(problem, where, "Keep one of them")
    if not result:
        remedy = f"Give a CSV with video_id and split, or a folder of *{_SUFFIX}"
        raise MillraceError("speech.splits_file names no recording", path, remedy)
    return result


def _rows(file: Path) -> Iterator[tuple[tuple[str, str], GivenSplit]]:
    """Country, video_id and split of each row."""
    named = ""
    if file.name.endswith(_SUFFIX):
        named = unquote(file.name.removesuffix(_SUFFIX))
    try:
        with open(file, newline="", encoding="utf-8-sig") as handle:
            rows = csv.DictReader(handle, restval="")
            columns = set(rows.fieldnames or ())
            if "split" not in columns or not {"video_id", "source_audio_path"} & columns:
                problem = "speech.splits_file has no header with video_id and split"
                raise MillraceError(problem, str(file), "Write these names in its first line")
            for row in rows:
                video_id = row.get("video_id") or Path(row.get("source_audio_path", "")).stem
                key = _key(row.get("country") or named, video_id)
                yield key, _given(key[1], row, f"{file}, line {rows.line_num}")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problem = f"speech.splits_file cannot be read ({error})"
        raise MillraceError(problem, str(file), "Name a CSV") from None


def _given(video_id: str, row: dict[str, str], place: str) -> GivenSplit:
    """What a row says of its recording."""
    word = row["split"]
    subset = row.get("subset_id", "")
    split = _WORDS.get(word.strip().lower())
    if not video_id or split is None or not _SUBSET.fullmatch(subset):
        problem = f"recording {video_id!r}, split {word!r}, subset {subset!r}"
        remedy = f"Give a recording and one of {', '.join(_WORDS)} in each line"
        raise MillraceError(problem, place, remedy)
    number = int(float(subset)) if subset and split == "train" else None
    return GivenSplit(split, number, place)
