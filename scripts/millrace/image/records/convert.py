"""Conversion of an image folder: record files, of which finished ones are kept, and then the
index."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from millrace.common import atomic, cli, jsonl
from millrace.common.errors import MillraceError, counted
from millrace.common.ledger import Ledger
from millrace.image.records.deal import FilePlan, without
from millrace.image.records.folder import Row
from millrace.image.records.pixels import Unusable, read_image, resized
from millrace.image.records.record_file import (
    ENCODED,
    RecordFile,
    multiset_digest,
    read_facts,
    record_writer,
)
from millrace.image.records.record_set import INDEX, RecordSet

_BATCH = 64  # images in memory at a time


def convert(
    plans: Sequence[FilePlan], split: Mapping[str, Any], folder: Path, threads: int
) -> list[dict]:
    """Write the record files of `plans` into `folder`, but for those that are right already.

    `split` is of RecordOptions.of_split. Returns what each file notes: its rejects (path, reason,
    detail), and how many images are odd.
    """
    facts, kept = [], 0
    total = sum(len(plan.rows) for plan in plans)
    with cli.Progress(total, "images", "convert") as progress, ThreadPoolExecutor(threads) as pool:
        for plan in plans:
            noted = read_facts(folder / plan.name)
            # What could not be read may be readable now.
            is_read = all(reason != "unreadable" for _, reason, _ in noted.get("rejects", ()))
            if is_read and noted.get("dealt") == plan.digest(split["pixels"]):
                kept += 1
                progress.advance(len(plan.rows), len(noted["rejects"]))
            else:
                # An index never lists files that are not its own.
                (folder / INDEX).unlink(missing_ok=True)
                noted = _write(plan, split, folder, pool, progress)
            facts.append(noted)
    cli.log.info("%s, %d of them kept", counted(len(plans), "record file"), kept)
    return facts


def _write(
    plan: FilePlan,
    split: Mapping,
    folder: Path,
    pool: Executor,
    progress: Any = None,
    facts: Any = None,
) -> dict[str, Any]:
    """Write one file and return its facts; those given stay, if it is written again without
    rejects.

    Of a file with rejects only the facts count: it is always written again.
    """
    pixels = split["pixels"]
    size = None if pixels["layout"] == ENCODED else (pixels["crop"], pixels["crop"])
    encoded_bytes = sum(max(row[1], 0) for row in plan.rows)
    load = partial(_load, Path(split["folder"]), pixels)
    rejects: list[list[str]] = []
    odd = Counter[str]()
    with record_writer(folder / plan.name, len(plan.rows), size, encoded_bytes) as writer:
        for start in range(0, len(plan.rows), _BATCH):
            rows = plan.rows[start : start + _BATCH]
            rejects_before = len(rejects)
            images, labels, ids = [], [], []
            for number, (image, words) in enumerate(pool.map(load, rows), start):
                name, *_, label = plan.rows[number]
                odd.update(words)
                if isinstance(image, Unusable):
                    rejects.append([name, image.reason, str(image)])
                    continue
                images.append(image)
                labels.append(label)
                ids.append(plan.first + number * plan.step)
            writer.append(images, labels, ids)
            if progress:
                progress.advance(len(rows), len(rejects) - rejects_before)

        if facts and rejects:
            name, reason, detail = rejects[0]
            where = os.path.join(split["folder"], name)
            raise MillraceError(f"{detail} ({reason}), read before", where, "Run it again")
        digest = plan.digest(pixels)
        writer.facts = {
            "plan": "" if rejects else digest,
            "dealt": digest,
            "rejects": rejects,
            "odd": dict(odd),
            **(facts or {}),
        }
    return writer.facts


def _load(source: Path, pixels: dict, row: Row) -> tuple[Any, list[str]]:
    """An image as a record holds it, or why it is unusable; and what is odd about it."""
    path = source / row[0]
    try:
        if row[1] < 0:
            raise Unusable("missing", "a link to nowhere, or no regular file")
        content = path.read_bytes()
        if len(content) != row[1]:
            raise MillraceError(
                "has changed since it was listed", str(path), "Run the same command again"
            )
        image, odd = read_image(content, pixels["exif"], path.suffix, pixels["max_pixels"])
        if pixels["layout"] != ENCODED:
            return resized(image, pixels["resize"], pixels["crop"]), odd
    except OSError as error:
        return Unusable("unreadable", error.strerror or str(error)), []
    except Unusable as error:
        return error, []
    return content, odd


def finish(
    plans: Sequence[FilePlan],
    split: Mapping[str, Any],
    folder: Path,
    max_error_fraction: float,
    threads: int,
) -> None:
    """Write `rejects.jsonl`, `ledger.json`, `length.npy` and, last, the index of what `convert`
    wrote.

    Rejected images leave gaps: the records are dealt again without them, so that lengths differ by
    one at most, and the few files that this changes are written again. Files that are of no plan
    now are removed.
    """
    name, pixels = split["split"], split["pixels"]
    facts = _read_all_facts(plans, pixels, folder)
    rejects = _rejects(facts)
    rejected = {reject["image"] for reject in rejects}
    final = without(plans, rejected, name) if rejects else plans

    ledger = Ledger("create_records", name, "image", rows_in=sum(len(plan.rows) for plan in plans))
    for noted in facts:
        ledger.warnings.update(noted["odd"])
    ledger.rejected.update(reject["reason"] for reject in rejects)
    ledger.rows_out = sum(len(plan.rows) for plan in final)
    ledger.check()
    jsonl.write_lines(folder / "rejects.jsonl", rejects)
    cli.log.info("%s", ledger.line())
    _check_number(ledger, final, rejects, split["folder"], max_error_fraction)

    files = _write_changed(final, facts, split, folder, threads)
    _remove_others(plans, name, folder)
    atomic.write_json(folder / "ledger.json", ledger.as_dict())
    records = RecordSet(
        folder,
        name,
        split["classes"],
        files,
        np.bincount([row[3] for plan in final for row in plan.rows]).tolist(),
        layout=pixels["layout"],
        size=(pixels["crop"], pixels["crop"]) if "crop" in pixels else None,
        exif=pixels["exif"],
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
            remedy = "Convert again: its job, or the same command"
            raise MillraceError(problem, str(folder / plan.name), remedy)
        facts.append(noted)
    return facts


def _rejects(facts: Sequence[Mapping]) -> list[dict]:
    """The lines of rejects.jsonl, by image."""
    rows = [row for noted in facts for row in noted["rejects"]]
    rejects = [{"image": image, "reason": why, "detail": text} for image, why, text in rows]
    return sorted(rejects, key=lambda reject: reject["image"])


def _check_number(
    ledger: Ledger,
    plans: Sequence[FilePlan],
    rejects: Sequence[Mapping],
    source: str,
    max_error_fraction: float,
) -> None:
    """Raise MillraceError if too many images are rejected, or too few are left for all files."""
    examples = "; ".join(f"{reject['image']}: {reject['detail']}" for reject in rejects[:3])
    problem = ledger.too_many_errors((), max_error_fraction)
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
    split: Mapping[str, Any],
    folder: Path,
    threads: int,
) -> list[RecordFile]:
    """The files as the index lists them; those that are of another plan by now are written."""
    files = []
    with ThreadPoolExecutor(threads) as pool:
        for plan, noted in zip(plans, facts, strict=True):
            if noted["plan"] != plan.digest(split["pixels"]):
                same = {name: noted[name] for name in ("dealt", "rejects", "odd")}
                noted = _write(plan, split, folder, pool, facts=same)
            size = os.path.getsize(folder / plan.name)
            files.append(RecordFile(plan.name, len(plan.rows), size, noted["digest"]))
    return files


def _remove_others(plans: Sequence[FilePlan], split: str, folder: Path) -> None:
    """Remove our files of a split that are of no plan."""
    planned = {folder / plan.name for plan in plans}
    for path in folder.glob(f"{split}-*-of-*.h5"):
        if path not in planned and "dealt" in read_facts(path):
            path.unlink()
