"""DP12 and DP13, judged: images that are scaled twice or not at all, and transforms that do not fit
their place in the order."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.audit.checks.findings import (
    Finding,
    check,
    failed,
    inapplicable,
    passed,
    undecided,
)
from millrace.audit.checks.images import Field, Step, Values, full_scale
from millrace.audit.checks.normalisation import TWICE

CLIPS = ("ColorJitter", "AutoAugment", "RandAugment", "TrivialAugmentWide", "ToPILImage")
SCALE = (
    "scale once: v2.ToImage(), v2.ToDtype(torch.float32, scale=True); "
    "floats: divide by their largest"
)
# What transforms raise on what they do not take; damaged files raise others.
MISFITS = ("TypeError", "AttributeError", "RuntimeError")
EIGHT_BITS = 100  # is exceeded by what is not scaled
LEVELS = 64  # distinct values of a batch of pixels


@check("DP12", "values")
def scaling(data: Values) -> Iterator[Finding]:
    """Images are scaled to 0..1 once, before they are normalised."""
    misfits = list(filter(None, map(_misfit, data.called)))
    if misfits:
        yield from (failed(cause, fix=SCALE) for cause in misfits)
        return
    if not data.images:
        yield inapplicable("no field is a batch of images")
        return
    if data.expect == "none":
        yield inapplicable("--expect none: the model scales them, or they are no pictures")
        return
    for field in data.images:
        yield _scaled(field, data)


def _misfit(step: Step) -> str:
    """Say that a Normalize took values of another range than its constants are for."""
    taken = step.taken
    if step.name != "Normalize" or taken is None:
        return ""
    if not taken.is_tensor or not taken.is_from_zero:
        return ""
    full = full_scale(step.mean or [])
    if taken.max <= EIGHT_BITS * full and not 0 < taken.max <= TWICE * full:
        return ""
    edges = f"{taken.min:.4g}..{taken.max:.4g}"
    return f"{step.title} takes {edges}, its constants are for 0..{full}"


def _scaled(field: Field, data: Values) -> Finding:
    """Judge an image by its range, and by what transforms did or --expect says."""
    cause = field.described()
    is_tiny = 0 < field.highest <= TWICE
    is_wide = field.highest > 2
    if "float" not in field.dtype or field.lowest < 0 or not (is_tiny or is_wide):
        return passed(cause)

    was_scaled = any(step.gave and 0.5 < step.gave.max <= 1 for step in data.called)
    if is_tiny and (was_scaled or data.expect == "0-1"):
        return failed(f"{cause}: scaled twice", field.shown, SCALE)
    unscaled = list(filter(_leaves_range, data.called))
    if is_wide and unscaled:
        step = unscaled[0]
        return failed(f"{cause}: {step.title} does not scale it", field.shown, SCALE)
    if data.expect == "0-1":
        return failed(f"{cause}: unscaled", field.shown, SCALE)
    return _by_levels(field, is_alone=len(data.images) == 1)


def _by_levels(field: Field, is_alone: bool) -> Finding:
    """Judge an image that neither transforms nor --expect explain; `is_alone`: it is the only one
    of its batch."""
    cause = field.described()
    is_colour = field.channels == 3
    are_levels = field.distinct >= LEVELS and (is_colour or field.whole)
    # With fractions, if they were resized. Grey ones beside a picture may be its mask.
    is_byte = EIGHT_BITS < field.highest <= 256 and (is_colour or is_alone)
    # A channel of one value is of no picture: homogeneous coordinates have one.
    is_flat = any(low == high for low, high in zip(field.min, field.max, strict=False))
    if are_levels and is_byte and not is_flat:
        return failed(f"{cause}: unscaled", field.shown, SCALE)
    if field.highest > 2 and not is_colour and not are_levels:
        return passed(f"{cause}: features or labels")
    needs = "--expect 0-1, or none if the model scales"
    return undecided(cause, needs, field.shown, SCALE)


def _leaves_range(step: Step) -> bool:
    """Whether a ToTensor took what has more than eight bits, and did not scale it."""
    gave = step.gave
    if step.name != "ToTensor" or gave is None:
        return False
    return gave.is_from_zero and gave.max > EIGHT_BITS


@check("DP13", "values")
def transform_order(data: Values) -> Iterator[Finding]:
    """Each transform takes what the one before it gives."""
    if not data.chains:
        yield inapplicable("no chain of transforms is reached from the loader")
    for steps in data.chains:
        order = {"order": [step.name for step in steps]}
        # What a data set catches, and gives another sample, is no fault.
        is_caught = bool(data.fields)
        faults = [(step, _fault(steps, step, is_caught)) for step in steps]
        wrong = [(step, found) for step, found in faults if found]
        for step, (cause, fix) in wrong:
            yield failed(f"{step.title} {cause}", order, fix)
        if not wrong:
            yield passed(f"{steps[0].path}: {', '.join(order['order'])}")


def _fault(steps: list[Step], step: Step, is_caught: bool) -> tuple[str, str] | None:
    """Return what is wrong with a transform in its place, and the fix."""
    taken = step.taken
    if taken is None:
        return None
    if step.raised in MISFITS and not is_caught:
        fix = "first operations on images, then ToTensor, then Normalize"
        return f"raises {step.raised} on a {taken.type}", fix
    before = [each.mean for each in steps[: step.at] if each.name == "Normalize" and each.mean]
    is_negative = taken.min is not None and taken.min < 0
    if step.name in CLIPS and len(before) == 1 and is_negative:
        return "clips what Normalize moved out of 0..1", "put Normalize last"
    # One of several pipelines in a list, or of a RandomChoice, is given what is not normalised yet.
    if step.name == "Normalize" and step.mean in before and is_negative:
        return "normalises a second time with the same constants", "remove one of them"
    return None
