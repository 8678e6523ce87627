"""DP12 and DP13: scaling of images, and the order of transforms."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.audit.checks.findings import (
    Finding,
    Seen,
    check,
    failed,
    inapplicable,
    passed,
    undecided,
)
from millrace.audit.checks.images import Field, Step, Value, Values
from millrace.audit.checks.normalisation import TWICE

TO_TENSOR = ("ToTensor", "PILToTensor", "ToImage", "ToTensorV2")
NEEDS_TENSOR = ("Normalize", "RandomErasing", "ConvertImageDtype", "LinearTransformation")
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
OPEN = "?"  # instead of what is wrong, where nobody can tell


@check("DP12", "values")
def scaling(seen: Seen) -> Iterator[Finding]:
    """Images are scaled to 0..1 once, before they are normalised."""
    data = Values.parse(seen)
    unscaled = [_unscaled_by(step) for step in data.called(*TO_TENSOR) if _unscaled_by(step)]
    misfits = [step for step in data.called("Normalize") if _has_other_constants(step)]
    if misfits:
        yield from (_misfit(step, unscaled) for step in misfits)
        return
    if not data.images:
        yield inapplicable("no field is a batch of images")
        return
    if data.expect == "none":
        return

    gave = [step.gave for step in data.called(*TO_TENSOR)]
    were_scaled = any(value and 0.5 < value.max <= 1 for value in gave)
    for field in data.images:
        wrong = misscaled(field)
        if unscaled and field.highest > 2 and field.dtype != "uint8":
            wrong = unscaled[0]
        if wrong == OPEN:
            wrong = _by_what_is_known(field, were_scaled, data.expect)
        yield _scaled(field, wrong)


def _unscaled_by(step: Step) -> str:
    """Say that a transform to tensors left the range as it was."""
    dtype = step.taken.dtype if step.taken else ""
    if not dtype.startswith(WIDE) or step.gave is None:
        return ""
    if not step.gave.is_from_zero or step.gave.max <= 2:
        return ""
    edges = f"{step.gave.min:.4g}..{step.gave.max:.4g}"
    return f"{step.title} does not scale {dtype}: it gives {edges}"


def _full_scale(step: Step) -> float:
    """The largest value for which the constants of a Normalize are made."""
    if step.max_pixel_value:
        return step.max_pixel_value[0]
    return 255 if max(step.mean or [0]) > 2 else 1


def _has_other_constants(step: Step) -> bool:
    """Whether a Normalize took values of another range than its constants are for."""
    taken, full = step.taken, _full_scale(step)
    if taken is None or not taken.is_from_zero:
        return False
    if taken.kind != "tensor" and not step.is_albumentations:
        return False
    return taken.max > 2 * full or 0 < taken.max <= TWICE * full


def _misfit(step: Step, unscaled: list[str]) -> Finding:
    taken = step.taken
    assert taken is not None  # it has values that do not fit
    cause = f"{step.title} takes {taken.min:.4g}..{taken.max:.4g}, "
    cause += f"its constants are for 0..{_full_scale(step):g}"
    return failed(cause, {"in": step.shown["in"], "before": unscaled}, SCALE)


def misscaled(field: Field) -> str:
    """Say what is wrong with the values of an image that is not normalised."""
    if "float" not in field.dtype or field.lowest < 0:
        return ""
    if field.highest > 2:
        return _unscaled(field)
    if not 0 < field.highest <= TWICE or field.small < 8:
        return ""
    return "scaled twice" if field.grid else OPEN


def _unscaled(field: Field) -> str:
    """Say that values are those of 8 or 16 bits; they may be those of a medical image."""
    high, is_colour = field.highest, field.channels == 3
    unscaled = f"0..{255 if high <= 256 else 65535}, unscaled"
    levels = 16 if is_colour else 64
    are_levels = field.whole and field.distinct >= levels
    if are_levels and (is_colour or not 256 < high <= 16384):
        return unscaled
    if is_colour and 100 < high <= 256 and field.distinct >= 16:
        return unscaled
    return OPEN if are_levels else ""


def _by_what_is_known(field: Field, were_scaled: bool, expect: str) -> str:
    """Decide what the values alone leave open by the transforms, or by --expect."""
    if field.highest <= TWICE and (were_scaled or expect == "0-1"):
        return "scaled twice"
    return "unscaled" if expect == "0-1" else OPEN


def _scaled(field: Field, wrong: str) -> Finding:
    if not wrong:
        return passed(field.described(), field.shown)
    if wrong == OPEN:
        needs = "--expect 0-1, or the range that the model needs"
        return undecided(field.described(), needs, field.shown, SCALE)
    return failed(f"{field.described()}: {wrong}", field.shown, SCALE)


@check("DP13", "values")
def transform_order(seen: Seen) -> Iterator[Finding]:
    """Each transform takes what the one before it gives."""
    data = Values.parse(seen)
    for chain in data.chains:
        names = [step.name for step in chain.steps]
        faults = [(step, fault(chain.steps, step)) for step in chain.steps]
        wrong = [(step, found) for step, found in faults if found]
        for step, (cause, fix) in wrong:
            shown = {"order": names, "step": step.shown}
            yield failed(f"{step.title} {cause}", shown, fix)
        if not wrong:
            yield passed(f"{chain.path}: {', '.join(names)}", {"order": names})
    if not data.chains:
        cause = "no chain of transforms is reached from the loader"
        yield inapplicable(cause)


def fault(steps: list[Step], step: Step) -> tuple[str, str] | None:
    """Return what is wrong with a transform in its place, and the fix."""
    taken = step.taken
    if taken is None:
        return None
    before = [each.mean for each in steps[: step.at] if each.name == "Normalize" and each.mean]
    return (
        _out_of_place(steps, step, taken)
        or _wrong_after(before, step, taken)
        or _wrong_constants(step, taken)
    )


def _out_of_place(steps: list[Step], step: Step, taken: Value) -> tuple[str, str] | None:
    """A transform of tensors before the image is one, or of images after that."""
    needs_tensor = step.name in NEEDS_TENSOR and not step.is_albumentations
    if needs_tensor and step.raised and taken.is_image:
        return f"takes a {taken.type}, no tensor", "put it after ToTensor()"
    turns = [each.at for each in steps if each.name in TO_TENSOR]
    if not turns or not _was_refused(step, taken):
        return None
    turn = steps[turns[0]]
    cause = f"raises {step.raised} on a {taken.type}"
    if taken.is_image and turn.at > step.at:
        return cause, f"put it after {turn.name}"
    if taken.kind == "tensor" and turn.at < step.at:
        return cause, f"put it before {turn.name}"
    return None


def _was_refused(step: Step, taken: Value) -> bool:
    """Whether a transform raised because of the type of what it took."""
    if not step.raised:
        return False
    if step.is_albumentations:
        return True
    if step.name == "Normalize" and "float" not in taken.dtype:  # it is the dtype
        return False
    return step.raised in ("TypeError", "AttributeError")


def _wrong_after(means: list[list[float]], step: Step, taken: Value) -> tuple[str, str] | None:
    """What must not come after a Normalize; `means`: of those before."""
    if step.name in CLIPS and len(means) == 1 and taken.is_negative:
        return "clips what Normalize moved out of 0..1", "put Normalize last"
    if step.name == "Normalize" and step.mean in means:
        return "normalises a second time with the same constants", "remove one of them"
    return None


def _wrong_constants(step: Step, taken: Value) -> tuple[str, str] | None:
    """Not as many constants as channels; one for all is right where channels are equal."""
    channels = taken.channels
    sizes = {len(step.mean), len(step.std)}
    if step.name != "Normalize" or not channels:
        return None
    if 0 in sizes or sizes == {channels}:
        return None
    if sizes == {1} and (step.mean[0] in (0, 0.5) or taken.grey):
        return None
    cause = f"has {max(sizes)} constants for {channels} channels"
    return cause, f"give {channels} of each"
