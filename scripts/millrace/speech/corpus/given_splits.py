"""Splits that were drawn elsewhere: a published or former <country>_splits.csv, or a list of
recordings."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from millrace.common.errors import MillraceError

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
    """The splits of `speech.splits_file`, by (country, video_id); the country is "" if none is
    said."""

    def of(self, country: str, video_id: str) -> GivenSplit | None:
        return self.get((country, video_id)) or self.get(("", video_id))

    def unknown(self, recordings: Collection[tuple[str, str]]) -> str:
        """A note on those that are none of `recordings` (country, video_id); "" if there are
        none."""
        known = {*recordings, *(("", video_id) for _, video_id in recordings)}
        missing = [key for key in self if key not in known]
        if not missing:
            return ""
        count = (
            f"{len(missing)} of {len(self)} recordings of speech.splits_file are not in the corpus"
        )
        return f"{count}, such as {'/'.join(filter(None, missing[0]))} ({self[missing[0]].place})"


def read(path: str) -> GivenSplits:
    """The splits of a file, or of all `*_splits.csv` in a folder; none for "".

    A CSV has a header with video_id (or source_audio_path) and split, and perhaps country and
    subset_id; the file's name may say the country. A list has a recording and a split a line, by a
    tab, comma or blank, the recording as `country/video_id` or video_id. Raises MillraceError.
    """
    result = GivenSplits()
    files = sorted(Path(path).glob(f"*{_SUFFIX}")) if path and Path(path).is_dir() else [Path(path)]
    for file in files if path else ():
        try:
            rows = list(_rows(file, file.read_text(encoding="utf-8-sig").splitlines()))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            problem = f"speech.splits_file cannot be read ({error})"
            raise MillraceError(problem, str(file), "Name a file of text") from None
        for line, *labels, word, subset in rows:
            split, (country, video_id) = _WORDS.get(word.strip().lower()), map(str.strip, labels)
            if not video_id or split is None or not _SUBSET.fullmatch(subset):
                problem = f"recording {video_id!r}, split {word!r}, subset {subset!r}"
                remedy = f"Give a recording and one of {', '.join(_WORDS)} in each line"
                raise MillraceError(problem, f"{file}, line {line}", remedy)
            number = int(float(subset)) if subset and split == "train" else None
            given = GivenSplit(split, number, f"{file}, line {line}")
            earlier = result.setdefault((country, video_id), given)
            if earlier[:2] != given[:2]:
                problem = f"{video_id} is in {earlier.split} there and in {given.split} here"
                raise MillraceError(
                    problem, f"{earlier.place} and {given.place}", "Keep one of them"
                )
    if path and not result:
        remedy = "Give a CSV with video_id and split, lines of recording and split, or a folder of "
        raise MillraceError("speech.splits_file names no recording", path, f"{remedy}*{_SUFFIX}")
    return result


def _rows(file: Path, lines: list[str]) -> Iterator[tuple[int, str, str, str, str]]:
    """Line, country, video_id, split and subset of each row."""
    header = next(csv.reader(lines[:1]), [])
    if "split" in header and {"video_id", "source_audio_path"} & {*header}:
        named = unquote(file.name.removesuffix(_SUFFIX)) if file.name.endswith(_SUFFIX) else ""
        rows = csv.DictReader(lines, restval="")
        for row in rows:
            video_id = row.get("video_id") or Path(row.get("source_audio_path", "")).stem
            yield (
                rows.line_num,
                row.get("country") or named,
                video_id,
                row["split"],
                row.get("subset_id", ""),
            )
        return
    for number, line in enumerate(map(str.strip, lines), 1):
        if line and not line.startswith("#"):
            mark = next((mark for mark in "\t," if mark in line), None)
            name, word = [*(part.strip() for part in line.rsplit(mark, 1)), ""][:2]
            country, _, video_id = name.rpartition("/")
            yield number, country, video_id, word, ""
