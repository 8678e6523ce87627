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
    source, pixels = Path(split["folder"]), split["pixels"]
    size = None if pixels["layout"] == ENCODED else (pixels["crop"], pixels["crop"])
    digest, rejects, odd = plan.digest(pixels), [], Counter()
    encoded_bytes = sum(max(row[1], 0) for row in plan.rows)
    with record_writer(folder / plan.name, len(plan.rows), size, encoded_bytes) as writer:
        for start in range(0, len(plan.rows), _BATCH):
            good, rows = [], plan.rows[start : start + _BATCH]
            for number, (image, words) in enumerate(
                pool.map(partial(_load, source, pixels), rows), start
            ):
                name, *_, label = plan.rows[number]
                if isinstance(image, Unusable):
                    rejects.append([name, image.reason, str(image)])
                else:
                    good.append((image, label, plan.first + number * plan.step))
                odd.update(words)
            if good:
                images, labels, ids = zip(*good, strict=True)
                writer.append(images, labels, ids)
            if progress:
                progress.advance(len(rows), len(rows) - len(good))
        if facts and rejects:
            name, reason, detail = rejects[0]
            raise MillraceError(
                f"{detail} ({reason}), read before", str(source / name), "Run it again"
            )
        noted = {
            "plan": "" if rejects else digest,
            "dealt": digest,
            "rejects": rejects,
            "odd": dict(odd),
        }
        writer.facts = noted | (facts or {})
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
    source, pixels, name = split["folder"], split["pixels"], split["split"]
    ledger = Ledger("create_records", name, "image", rows_in=sum(len(plan.rows) for plan in plans))
    facts, rejects = [read_facts(folder / plan.name) for plan in plans], []
    for plan, noted in zip(plans, facts, strict=True):
        if noted.get("dealt") != plan.digest(pixels):
            remedy = "Convert again: its job, or the same command"
            raise MillraceError(
                "is missing, or was made from other images", str(folder / plan.name), remedy
            )
        ledger.warnings.update(noted["odd"])
        ledger.rejected.update(reason for _, reason, _ in noted["rejects"])
        rejects += [
            {"image": row, "reason": why, "detail": text} for row, why, text in noted["rejects"]
        ]
    rejects.sort(key=lambda each: each["image"])
    final = without(plans, {each["image"] for each in rejects}, name) if rejects else plans
    ledger.rows_out = sum(len(plan.rows) for plan in final)
    ledger.check()
    jsonl.write_lines(folder / "rejects.jsonl", rejects)
    cli.log.info("%s", ledger.line())
    examples = "; ".join(f"{each['image']}: {each['detail']}" for each in rejects[:3])
    if problem := ledger.too_many_errors((), max_error_fraction):
        raise MillraceError(
            f"{problem}: {examples}", source, "Mend them, or raise max_error_fraction"
        )
    if not all(plan.rows for plan in final):
        words = f"{counted(ledger.rows_out, 'image')} of {ledger.rows_in} can be used, for {len(plans)} files"
        raise MillraceError(f"{words}: {examples}", source, "Ask for fewer files")

    files = []
    with ThreadPoolExecutor(threads) as pool:
        for plan, noted in zip(final, facts, strict=True):
            if noted["plan"] != plan.digest(pixels):
                same = {name: noted[name] for name in ("dealt", "rejects", "odd")}
                noted = _write(plan, split, folder, pool, facts=same)
            size = os.path.getsize(folder / plan.name)
            files.append(RecordFile(plan.name, len(plan.rows), size, noted["digest"]))
    for path in {*folder.glob(f"{name}-*-of-*.h5")} - {folder / plan.name for plan in plans}:
        if "dealt" in read_facts(path):
            path.unlink()
    atomic.write_json(folder / "ledger.json", ledger.as_dict())
    counts = np.bincount([row[3] for plan in final for row in plan.rows]).tolist()
    kind = {"layout": pixels["layout"], "size": (pixels["crop"],) * 2 if "crop" in pixels else None}
    kind |= {"exif": pixels["exif"], "seed": split["seed"]}
    ids_digest = multiset_digest([np.arange(ledger.rows_out)])
    RecordSet(folder, name, split["classes"], files, counts, **kind, ids_digest=ids_digest).write()
