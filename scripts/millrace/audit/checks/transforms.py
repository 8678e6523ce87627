"""DP12 and DP13: scaling of images, and the order of transforms."""

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
from millrace.audit.checks.images import Field, Step, Value, Values
from millrace.audit.checks.normalisation import TWICE

TO_TENSOR = ("ToTensor", "PILToTensor", "ToImage", "ToTensorV2")
CLIPS = (
    "ColorJitter",
    "AutoAugment",
    "RandAugment",
    "TrivialAugmentWide",
    "RandomPosterize",
    "RandomSolarize",
    "ToPILImage",
)
SCALE = (
    "scale once: v2.ToImage(), v2.ToDtype(torch.float32, scale=True); "
    "floats: divide by their largest"
)
WIDE = ("I", "F", "i", "f", "uint1", "uint3")  # PIL's modes and dtypes of more than eight bits
LEVELS = 64  # distinct values of a batch of pixels
OPEN = "?"  # instead of what is wrong, where nobody can tell


@check("DP12", "values")
def scaling(data: Values) -> Iterator[Finding]:
    """Images are scaled to 0..1 once, before they are normalised."""
    misfits = [step for step in data.called if _has_other_constants(step)]
    if misfits:
        yield from map(_misfit, misfits)
        return
    if not data.images:
        yield inapplicable("no field is a batch of images")
        return
    if data.expect == "none":
        return

    unscaled = [_unscaled_by(step) for step in data.called if _unscaled_by(step)]
    were_scaled = any(step.gave and 0.5 < step.gave.max <= 1 for step in data.called)
    for field in data.images:
        wrong = misscaled(field)
        if unscaled and field.highest > 2 and field.dtype != "uint8":
            wrong = unscaled[0]
        if wrong == OPEN:
            wrong = _by_what_is_known(field, were_scaled, data.expect)
        yield _scaled(field, wrong)


def _unscaled_by(step: Step) -> str:
    """Say that a transform to tensors left the range as it was."""
    if step.name not in TO_TENSOR or step.taken is None or step.gave is None:
        return ""
    if not step.taken.dtype.startswith(WIDE):
        return ""
    if not step.gave.is_from_zero or step.gave.max <= 2:
        return ""
    edges = f"{step.gave.min:.4g}..{step.gave.max:.4g}"
    return f"{step.title} does not scale {step.taken.dtype}: it gives {edges}"


def _full_scale(step: Step) -> float:
    """The largest value for which the constants of a Normalize are made."""
    if step.max_pixel_value:
        return step.max_pixel_value[0]
    if max(step.mean or [0]) > 2:
        return 255
    return 1


def _has_other_constants(step: Step) -> bool:
    """Whether a Normalize took values of another range than its constants are for."""
    taken = step.taken
    full = _full_scale(step)
    if step.name != "Normalize" or taken is None or not taken.is_from_zero:
        return False
    if taken.kind != "tensor" and "albumentations" not in step.module:
        return False
    return taken.max > 2 * full or 0 < taken.max <= TWICE * full


def _misfit(step: Step) -> Finding:
    taken = step.taken
    assert taken is not None  # it has values that do not fit
    cause = f"{step.title} takes {taken.min:.4g}..{taken.max:.4g}, "
    cause += f"its constants are for 0..{_full_scale(step):g}"
    return failed(cause, fix=SCALE)


def misscaled(field: Field) -> str:
    """Say what is wrong with the values of an image that is not normalised."""
    if "float" not in field.dtype or field.lowest < 0:
        return ""
    if field.highest > 2:
        return _unscaled(field)
    is_tiny = 0 < field.highest <= TWICE
    return OPEN if is_tiny and field.distinct >= 8 else ""


def _unscaled(field: Field) -> str:
    """Say that values are those of 8 or 16 bits; beyond 8 bits a grey image may be a medical
    one."""
    is_colour = field.channels == 3
    if field.distinct < LEVELS:
        return ""
    has_fractions = is_colour and field.highest > 100  # of pixels that were resized
    if field.highest <= 256 and (field.whole or has_fractions):
        return "0..255, unscaled"
    if field.whole and is_colour:
        return "0..65535, unscaled"
    return OPEN if field.whole else ""


def _by_what_is_known(field: Field, were_scaled: bool, expect: str) -> str:
    """Decide what the values alone leave open by the transforms, or by --expect."""
    if field.highest <= TWICE and (were_scaled or expect == "0-1"):
        return "scaled twice"
    return "unscaled" if expect == "0-1" else OPEN


def _scaled(field: Field, wrong: str) -> Finding:
    if not wrong:
        return passed(field.described())
    if wrong == OPEN:
        needs = "--expect 0-1, or the range that the model needs"
        return undecided(field.described(), needs, field.shown, SCALE)
    return failed(f"{field.described()}: {wrong}", field.shown, SCALE)


@check("DP13", "values")
def transform_order(data: Values) -> Iterator[Finding]:
    """Each transform takes what the one before it gives."""
    if not data.chains:
        yield inapplicable("no chain of transforms is reached from the loader")
    for steps in data.chains:
        order = {"order": [step.name for step in steps]}
        faults = [(step, fault(steps, step)) for step in steps]
        wrong = [(step, found) for step, found in faults if found]
        for step, (cause, fix) in wrong:
            yield failed(f"{step.title} {cause}", order, fix)
        if not wrong:
            yield passed(f"{steps[0].path}: {', '.join(order['order'])}")


def fault(steps: list[Step], step: Step) -> tuple[str, str] | None:
    """Return what is wrong with a transform in its place, and the fix."""
    taken = step.taken
    if taken is None:
        return None
    before = [each.mean for each in steps[: step.at] if each.name == "Normalize" and each.mean]
    misplaced = _out_of_place(steps, step, taken)
    if misplaced:
        return misplaced
    if step.name in CLIPS and len(before) == 1 and taken.is_negative:
        return "clips what Normalize moved out of 0..1", "put Normalize last"
    if step.name == "Normalize" and step.mean in before:
        return "normalises a second time with the same constants", "remove one of them"
    return _wrong_constants(step, taken)


def _out_of_place(steps: list[Step], step: Step, taken: Value) -> tuple[str, str] | None:
    """A transform of tensors before the image is one, or of images after that, which raised."""
    turns = [each for each in steps if each.name in TO_TENSOR]
    if not turns or step.raised not in ("TypeError", "AttributeError"):
        return None
    cause = f"raises {step.raised} on a {taken.type}"
    if taken.is_image and turns[0].at > step.at:
        return cause, f"put it after {turns[0].name}"
    is_dtype = step.name == "Normalize" and "float" not in taken.dtype
    if taken.kind == "tensor" and turns[0].at < step.at and not is_dtype:
        return cause, f"put it before {turns[0].name}"
    return None


def _wrong_constants(step: Step, taken: Value) -> tuple[str, str] | None:
    """Several constants, and not as many as channels; one is for all."""
    channels = taken.channels
    most = max(len(step.mean), len(step.std))
    if step.name != "Normalize" or not channels or most in (0, 1, channels):
        return None
    return f"has {most} constants for {channels} channels", f"give {channels} of each"
