"""Conversion of an image folder: which finished record files are kept, which are written again,
what becomes of leaks, how many images may be rejected; then the index."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from millrace.common import atomic, cli, jsonl
from millrace.common.errors import MillraceError, Unusable, counted
from millrace.common.leaks import leakage
from millrace.common.leaks.leakage import Shared
from millrace.common.ledger import Ledger
from millrace.image.records import leaks, prints
from millrace.image.records.conversion import CONVERT_AGAIN, Conversion
from millrace.image.records.deal import FilePlan, without
from millrace.image.records.folder import Row
from millrace.image.records.pixels import read_image, resized
from millrace.image.records.prints import Print
from millrace.image.records.record_file import (
    RecordFile,
    RecordWriter,
    multiset_digest,
    read_facts,
    record_writer,
)
from millrace.image.records.record_set import INDEX, RecordSet

_BATCH = 64  # images in memory at a time


class _Loaded(NamedTuple):
    """An image as a record holds it, or why it is unusable; what is odd about it; its print."""

    record: Any
    odd: list[str]
    print: Print | None = None


class _Written(NamedTuple):
    """A record file that was written: what it notes, and the prints of its images."""

    facts: dict[str, Any]
    prints: list[Print]


@dataclass
class _Outcome:
    """What became of the images of a record file: rejects as (path, reason, detail), how many are
    odd in which way, and the prints of the others."""

    rejects: list[list[str]] = field(default_factory=list)
    odd: Counter[str] = field(default_factory=Counter)
    prints: list[Print] = field(default_factory=list)

    def append(
        self, writer: RecordWriter, plan: FilePlan, start: int, images: Iterable[_Loaded]
    ) -> int:
        """Write images, the first of which is that of row `start`; how many were rejected."""
        rejects_before = len(self.rejects)
        records = []
        labels = []
        ids = []
        for number, loaded in enumerate(images, start):
            name, *_, label = plan.rows[number]
            self.odd.update(loaded.odd)
            if isinstance(loaded.record, Unusable):
                self.rejects.append([name, loaded.record.reason, str(loaded.record)])
                continue
            records.append(loaded.record)
            labels.append(label)
            ids.append(plan.first + number * plan.step)
            if loaded.print:
                self.prints.append(loaded.print)
        writer.append(records, labels, ids)
        return len(self.rejects) - rejects_before


def convert(conversion: Conversion, threads: int) -> list[dict]:
    """Write the record files of a split into their folder, with their prints, but for those that
    are right already.

    Returns what each file notes: its rejects (path, reason, detail), and how many images are odd.
    """
    plans, split, folder = conversion
    facts = []
    kept = 0
    total = sum(len(plan.rows) for plan in plans)
    with cli.Progress(total, "images", "convert") as progress, ThreadPoolExecutor(threads) as pool:
        for plan in plans:
            dealt = plan.digest(split["pixels"])
            noted = read_facts(folder / plan.name)
            if _is_kept(folder / plan.name, noted, dealt):
                kept += 1
                progress.advance(len(plan.rows), len(noted["rejects"]))
            else:
                # An index never lists files that are not its own.
                (folder / INDEX).unlink(missing_ok=True)
                noted, known = _write(plan, conversion, pool, progress)
                prints.write(folder / plan.name, dealt, known)
            facts.append(noted)
    cli.log.info("%s, %d of them kept", counted(len(plans), "record file"), kept)
    return facts


def _is_kept(path: Path, noted: Mapping, dealt: str) -> bool:
    """Whether a record file and its prints are of the plan with the digest `dealt`."""
    if noted.get("dealt") != dealt or prints.read(path, dealt) is None:
        return False
    # What could not be read may be readable now.
    return all(reason != "unreadable" for _, reason, _ in noted["rejects"])


def _write(
    plan: FilePlan,
    conversion: Conversion,
    pool: Executor,
    progress: Any = None,
    facts: Any = None,
) -> _Written:
    """Write one file; its facts stay those that are given, if it is written again without rejects.

    Of a file with rejects only the facts count: it is always written again.
    """
    pixels = conversion.pixels
    size = (pixels["crop"], pixels["crop"])
    load = partial(_load, conversion)
    outcome = _Outcome()
    path = conversion.folder / plan.name
    with record_writer(path, len(plan.rows), size) as writer:
        for start in range(0, len(plan.rows), _BATCH):
            rows = plan.rows[start : start + _BATCH]
            rejects = outcome.append(writer, plan, start, pool.map(load, rows))
            if progress:
                progress.advance(len(rows), rejects)

        if facts and outcome.rejects:
            name, reason, detail = outcome.rejects[0]
            where = str(conversion.source(name))
            raise MillraceError(f"{detail} ({reason}), read before", where, "Run it again")
        digest = plan.digest(pixels)
        writer.facts = {
            "plan": digest,
            "dealt": digest,
            "rejects": outcome.rejects,
            "odd": dict(outcome.odd),
            **(facts or {}),
        }
    return _Written(writer.facts, outcome.prints)


def _load(conversion: Conversion, row: Row) -> _Loaded:
    """An image, read and brought into the form of a record."""
    path = conversion.source(row[0])
    pixels = conversion.pixels
    try:
        if row[1] < 0:
            raise Unusable("missing", "a link to nowhere, or no regular file")
        content = path.read_bytes()
        if (len(content), path.stat().st_mtime_ns) != row[1:3]:
            raise MillraceError(
                "has changed since it was listed", str(path), "Run the same command again"
            )
        image, odd = read_image(content, path.suffix)
        record = resized(image, pixels["resize"], pixels["crop"])
        return _Loaded(record, odd, prints.of_image(row[0], content, image))
    except OSError as error:
        return _Loaded(Unusable("unreadable", error.strerror or str(error)), [])
    except Unusable as error:
        return _Loaded(error, [])


def finish(
    conversion: Conversion,
    held_out: Conversion | None,
    on_leak: str,
    max_error_fraction: float,
    threads: int,
) -> None:
    """Write `rejects.jsonl`, `ledger.json`, `length.npy` and, last, the index of what `convert`
    wrote; `leaks.jsonl` too, if there is a split that is held out.

    Rejected images leave gaps: the records are dealt again without them, so that lengths differ by
    one at most, and the few files that this changes are written again. Files that are of no plan
    now are removed. What becomes of leaks says `on_leak` (leakage.WORDS).
    """
    plans, split, folder = conversion
    name = conversion.name
    pixels = conversion.pixels
    facts = _read_all_facts(plans, pixels, folder)
    rejects = _rejects(facts)
    ledger = Ledger("create_records", name, "image", rows_in=sum(len(plan.rows) for plan in plans))
    for noted in facts:
        ledger.warnings.update(noted["odd"])
    if held_out:
        rejects += _leaks(conversion, held_out, on_leak, ledger, threads)
        rejects.sort(key=lambda reject: reject["image"])
    rejected = {reject["image"] for reject in rejects}
    final = without(plans, rejected, name) if rejects else plans

    ledger.rejected.update(reject["reason"] for reject in rejects)
    ledger.rows_out = sum(len(plan.rows) for plan in final)
    jsonl.write_lines(folder / "rejects.jsonl", rejects)
    for line in (ledger.line(), *leakage.lines(ledger)):
        cli.log.info("%s", line)
    _check_number(ledger, final, rejects, split["folder"], max_error_fraction)

    files = _write_changed(final, facts, conversion, threads)
    _remove_others(plans, name, folder)
    atomic.write_json(folder / "ledger.json", ledger.as_dict())
    records = RecordSet(
        folder,
        name,
        split["classes"],
        files,
        np.bincount([row[3] for plan in final for row in plan.rows]).tolist(),
        size=(pixels["crop"], pixels["crop"]),
        seed=split["seed"],
        ids_digest=multiset_digest([np.arange(ledger.rows_out)]),
    )
    records.write()


def _read_all_facts(plans: Sequence[FilePlan], pixels: dict, folder: Path) -> list[dict]:
    """What each file notes. Raises MillraceError for one that is not of its plan."""
    facts = []
    for plan in plans:
        noted = read_facts(folder / plan.name)
        if noted.get("dealt") != plan.digest(pixels):
            problem = "is missing, or was made from other images"
            raise MillraceError(problem, str(folder / plan.name), CONVERT_AGAIN)
        facts.append(noted)
    return facts


def _rejects(facts: Sequence[Mapping]) -> list[dict]:
    """The lines of rejects.jsonl, by image."""
    rejects = []
    for noted in facts:
        for image, why, text in noted["rejects"]:
            rejects.append({"image": image, "reason": why, "detail": text})
    return sorted(rejects, key=lambda reject: reject["image"])


def _leaks(
    conversion: Conversion, held_out: Conversion, on_leak: str, ledger: Ledger, threads: int
) -> list[dict]:
    """Write `leaks.jsonl`, and return the rejects among the leaks; those that are kept, and those
    with another label, are counted. Raises MillraceError if leaks are an error."""
    with ThreadPoolExecutor(threads) as pool:
        found = leaks.find(conversion, held_out, pool)
    rows = [leak.as_dict(held_out.name, conversion.split["classes"]) for leak in found]
    jsonl.write_lines(conversion.folder / "leaks.jsonl", rows)
    if not found:
        return []

    if on_leak == leakage.ERROR:
        (conversion.folder / INDEX).unlink(missing_ok=True)
        shared = [Shared(len(found), ledger.unit, conversion.name, held_out.name)]
        first = f"{rows[0]['image']}, {rows[0]['detail']}"
        where = conversion.folder / "leaks.jsonl"
        raise leakage.error(shared, first, where, "image.on_leak")

    others = sum(leak.has_other_label for leak in found)
    if others:
        ledger.warnings[leakage.OTHER_LABEL] = others
    if on_leak == leakage.KEEP:
        ledger.warnings[leakage.reason(held_out.name)] = len(found)
        return []
    return [{name: row[name] for name in ("image", "reason", "detail")} for row in rows]


def _check_number(
    ledger: Ledger,
    plans: Sequence[FilePlan],
    rejects: Sequence[Mapping],
    source: str,
    max_error_fraction: float,
) -> None:
    """Raise MillraceError if too many images are rejected, or too few are left for all files."""
    examples = "; ".join(f"{reject['image']}: {reject['detail']}" for reject in rejects[:3])
    problem = ledger.too_many_errors(leakage.reasons(ledger), max_error_fraction)
    if problem:
        remedy = "Mend them, or raise max_error_fraction"
        raise MillraceError(f"{problem}: {examples}", source, remedy)
    if not all(plan.rows for plan in plans):
        words = f"{counted(ledger.rows_out, 'image')} of {ledger.rows_in} can be used"
        words += f", for {len(plans)} files: {examples}"
        raise MillraceError(words, source, "Ask for fewer files")


def _write_changed(
    plans: Sequence[FilePlan],
    facts: Sequence[dict],
    conversion: Conversion,
    threads: int,
) -> list[RecordFile]:
    """The files as the index lists them; those that are of another plan by now are written."""
    files = []
    with ThreadPoolExecutor(threads) as pool:
        for plan, reported in zip(plans, facts, strict=True):
            noted = reported
            if reported["plan"] != plan.digest(conversion.pixels):
                same = {name: reported[name] for name in ("dealt", "rejects", "odd")}
                noted = _write(plan, conversion, pool, facts=same).facts
            size = os.path.getsize(conversion.folder / plan.name)
            files.append(RecordFile(plan.name, len(plan.rows), size, noted["digest"]))
    return files


def _remove_others(plans: Sequence[FilePlan], split: str, folder: Path) -> None:
    """Remove our files of a split that are of no plan."""
    planned = {folder / plan.name for plan in plans}
    for path in folder.glob(f"{split}-*-of-*.h5"):
        if path not in planned and "dealt" in read_facts(path):
            path.unlink()
            prints.file_of(path).unlink(missing_ok=True)
