"""Token rows of the first batches, with what the labels leave to train on, alone and beside other
samples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from millrace.audit.probes.figures import draw
from millrace.audit.runner.listener import reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Options, Rank, Target
from millrace.audit.runner.walk import walk

BATCHES, ROWS, LONGEST = 4, 8, 4096
SPECIAL = ("eos", "pad", "audio", "image", "video")


def token_rows(batch: Any) -> Iterator[dict]:
    """Yield ids, labels and attention mask of each row; nothing if the batch is not of that
    kind."""
    if not isinstance(batch, Mapping) or "labels" not in batch or "input_ids" not in batch:
        return
    ids, labels = batch["input_ids"], batch["labels"]
    mask: Any = batch.get("attention_mask")
    for tensor in (ids, labels):
        if getattr(tensor, "ndim", 0) != 2:
            return
        if tensor.shape[1] > LONGEST or tensor.is_floating_point():
            return
    loss = batch.get("loss_mask", batch.get("loss_weights"))
    if getattr(loss, "shape", None) == labels.shape:
        labels = labels.masked_fill(loss == 0, -100)
    has_mask = getattr(mask, "shape", None) == ids.shape
    for row in range(min(len(ids), ROWS)):
        yield {
            "ids": ids[row].tolist(),
            "labels": labels[row].tolist(),
            "mask": mask[row].tolist() if has_mask else None,
        }


def labels(target: Target, options: Options, rank: Rank) -> Seen:
    """Note the rows of a few batches, each also as its sample alone gives it, and the special
    tokens."""
    reseed(options.seed)
    loader = target.loader()
    batches: list[list[Seen]] = []
    special: dict[str, int] = {}
    with contextlib.suppress(Exception):  # other probes say what a loader raises
        for samples, batch in draw(loader, rank, BATCHES):
            if not (rows := list(token_rows(batch))):
                break
            batches.append(rows)
            are_rows = len(samples) == len(batch["labels"])
            for row, sample in zip(rows, samples, strict=False):
                with contextlib.suppress(Exception):
                    once, again = (list(token_rows(loader.collate_fn([sample]))) for _ in range(2))
                    row["alone"] = once[0] if once == again and are_rows else None
            if rank.left() < 2:
                break
    for _, value in walk(loader, code=True) if batches else ():
        for name in (f"{of}{end}" for of in SPECIAL for end in ("_token_id", "_id")):
            with contextlib.suppress(Exception):
                special.setdefault(name.split("_")[0], int(getattr(value, name)))
    return {"batches": batches, "special": special}
