"""Token rows of the first batches, with what the labels leave to train on, alone and beside other
samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from millrace.audit.probes.batches import draw
from millrace.audit.runner.listener import reseed
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target
from millrace.audit.runner.walk import walk

BATCHES = 4
ROWS = 8  # of a batch
LONGEST = 4096  # tokens of a row
SPECIAL = ("eos", "pad", "audio", "image", "video")


def token_rows(batch: Any) -> Iterator[dict]:
    """Yield ids, labels and attention mask of each row; nothing if the batch is not of that
    kind."""
    if not isinstance(batch, Mapping) or "labels" not in batch or "input_ids" not in batch:
        return
    ids = batch["input_ids"]
    labels = batch["labels"]
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


def labels(target: Target, rank: Rank) -> Seen:
    """Note the rows of a few batches, each also as its sample alone gives it, and the special
    tokens."""
    reseed()
    loader = target.loader()
    seen: list[Seen] = []
    with suppress(Exception):  # other probes say what a loader raises
        for samples, batch in draw(loader, rank, BATCHES):
            rows = list(token_rows(batch))
            if not rows:
                break
            seen += rows
            if len(samples) == len(batch["labels"]):
                for row, sample in zip(rows, samples, strict=False):
                    row["alone"] = _alone(loader, sample)
            if rank.left() < 2:
                break
    return {"rows": seen, "special": _special(loader) if seen else {}}


def _alone(loader: Any, sample: Any) -> Seen | None:
    """The row of a sample that is collated alone, if it is the same twice."""
    with suppress(Exception):
        once, again = (list(token_rows(loader.collate_fn([sample]))) for _ in range(2))
        return once[0] if once == again else None
    return None


def _special(loader: Any) -> dict[str, int]:
    """Special tokens that anything in the loader names, such as `eos_token_id`."""
    special: dict[str, int] = {}
    for _, value in walk(loader, code=True):
        for kind in SPECIAL:
            for name in (f"{kind}_token_id", f"{kind}_id"):
                with suppress(Exception):
                    special.setdefault(kind, int(getattr(value, name)))
    return special
