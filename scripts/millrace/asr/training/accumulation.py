"""Accumulated batches as the original script's calibrated_bs.json has them: a number for each
bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from millrace.common import jsonl
from millrace.common.cli import log
from millrace.common.errors import MillraceError
from millrace.common.training.settings import LoopSettings


def with_grad_acc(
    settings: LoopSettings, calibration: str, rows: Mapping[str, int]
) -> LoopSettings:
    """`settings` with one grad_acc for the numbers that a flat `calibration` has for its buckets.

    `rows` are those of every bucket. A batch size is that of a micro-batch, and stays as it is. One
    update here takes micro-batches of several buckets, as many on every rank, so that its number
    cannot depend on the bucket: ranks would wait for each other for ever, or weigh buckets wrongly.
    The number that is taken makes about as many updates of an epoch as the buckets' own numbers
    make. A --grad-acc that was given counts instead.

    Raises MillraceError for other numbers than whole ones above 0, and for buckets without one.
    """
    flat = jsonl.read(calibration)
    entries = {name: flat[name] for name in rows if name in flat}
    has_numbers = any("grad_acc" in entry for entry in entries.values())
    if settings.grad_acc != LoopSettings.grad_acc or not has_numbers or not any(rows.values()):
        return settings

    micro_batches = 0.0
    updates = 0.0
    for name, count in rows.items():
        number = entries[name].get("grad_acc")
        if type(number) is not int or number < 1:
            problem = f"grad_acc of {name} is {number!r}"
            remedy = "Write a whole number above 0 for every bucket, or for none"
            raise MillraceError(problem, calibration, remedy)
        micro_batches += count / entries[name]["batch_size"]
        updates += count / entries[name]["batch_size"] / number
    taken = round(micro_batches / updates)
    log.info("%s: grad_acc %d for all buckets makes about as many updates", calibration, taken)
    return replace(settings, grad_acc=taken)
