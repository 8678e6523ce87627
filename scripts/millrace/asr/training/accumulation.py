"""Accumulated batches as the original script's calibrated_bs.json has them: a number for each
bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millrace.common import jsonl
from millrace.common.cli import log
from millrace.common.errors import MillraceError
from millrace.common.training.ranks import Ranks
from millrace.common.training.settings import LoopSettings


def with_grad_acc(
    settings: LoopSettings, calibration: str, rows: Mapping[str, int]
) -> LoopSettings:
    """`settings` with one grad_acc for the numbers that a flat `calibration` has for its buckets.

    `rows` are those of every bucket. A batch size is that of a micro-batch, and stays as it is. One
    update here takes micro-batches of several buckets, as many on every rank, so that its number
    cannot depend on the bucket: ranks would wait for each other for ever, or weigh buckets wrongly.
    The number that is taken makes about as many updates of an epoch as the buckets' own numbers
    make.

    Raises MillraceError for other numbers than whole ones above 0, for buckets without one, and
    for a --grad-acc that contradicts the file.
    """
    flat = jsonl.read(calibration)
    is_flat = "key" not in flat and "buckets" not in flat
    if not is_flat or not any(rows.values()) or not any("grad_acc" in flat[name] for name in rows):
        return settings
    numbers = {name: _number(flat[name], name, calibration) for name in rows}
    micro_batches = {name: count / flat[name]["batch_size"] for name, count in rows.items()}
    updates = sum(count / numbers[name] for name, count in micro_batches.items())
    number = max(round(sum(micro_batches.values()) / updates), 1)
    if settings.grad_acc not in (LoopSettings.grad_acc, number):
        problem = (
            f"--grad-acc {settings.grad_acc} is not the grad_acc of this file, which comes to"
            f" {number}"
        )
        raise MillraceError(
            problem, calibration, "Remove grad_acc from the file, or do not give --grad-acc"
        )
    if Ranks.from_environment().is_main:  # all ranks would say the same
        log.info("%s: %s", calibration, _words(numbers, number))
    return replace(settings, grad_acc=number)


def _words(numbers: Mapping[str, int], number: int) -> str:
    """What was made of the buckets' numbers."""
    if len({*numbers.values()}) == 1:
        return f"grad_acc {number} of its buckets counts"
    listed = ", ".join(f"{name} {count}" for name, count in numbers.items())
    problem = (
        f"grad_acc differs between buckets ({listed}), and an update takes micro-batches of several"
    )
    return f"{problem}: with grad_acc {number} an epoch has about as many updates"


def _number(entry: Mapping[str, Any], name: str, where: str) -> int:
    number = entry.get("grad_acc")
    if type(number) is not int or number < 1:
        problem = f"grad_acc of {name} is {number!r}"
        raise MillraceError(
            problem, where, "Write a whole number above 0 for every bucket, or for none"
        )
    return number
