"""DP10 and DP11: constants of normalisation, ranges, and the order of colours."""

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
from millrace.audit.checks.images import Colours, Constants, Field, Figures, Values, short

# Constants in the order red, green, blue: ImageNet's, CLIP's, CIFAR-10's, Caffe's.
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
KNOWN = (
    *IMAGENET,
    *CLIP,
    [0.4914, 0.4822, 0.4465],
    [123.675, 116.28, 103.53],
)
WEIGHTS = "take the transforms that belong to the weights: weights.transforms()"
TWICE = 1.001 / 255  # the largest value of what was scaled twice


@check("DP10", "values", "colours")
def normalisation(data: Values, colours: Colours) -> Iterator[Finding]:
    """Constants are in the order of the colours, fitted on training, and give what is expected."""
    order = colours.order
    where, needed = constants_order(data)
    if needed == "BGR" and order != "BGR":
        cause = f"{where}: the order is not that of the images ({order or 'RGB, as far as known'})"
        yield failed(cause, fix=f"give the constants in the order of the images; {WEIGHTS}")
    train = data.train
    val = data.val
    if train and val:
        yield from _fitted(train, val, data.constants)
    yield from _ranges(data)


def _ranges(data: Values) -> Iterator[Finding]:
    """What the fields span, compared with --expect if it says something."""
    colour = [field for field in data.images if field.channels == 3]
    fields = colour or data.images or data.fields
    if data.expect not in ("", "none") and fields:
        yield from (_expected(field, data.expect) for field in fields)
        return
    if data.expect != "none" and fields and data.constants:
        cause = "; ".join(field.described() for field in fields)
        yield passed(cause)
        return
    yield inapplicable("nothing is normalised, no range is expected", needs="--expect")


def constants_order(data: Values) -> tuple[str, str]:
    """Return (where, order) of the first constants that are well known."""
    for constants in data.constants:
        order = _well_known_order(constants)
        if order:
            return f"{constants.path} has {short(constants.mean)}", order
    return "", ""


def _well_known_order(constants: Constants) -> str:
    """The order of colours in which a library gives these constants."""
    for values in (constants.mean, constants.std):
        if _is_known(values):
            return "RGB"
        if _is_known(values[::-1]):
            return "BGR"
    return ""


def _is_known(values: list[float]) -> bool:
    return any(_apart(values, known) <= 1e-3 * max(1, *known) for known in KNOWN)


def _apart(a: list[float], b: list[float]) -> float:
    if len(a) != len(b):
        return 1e9
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def _expected(field: Field, expect: str) -> Finding:
    """Compare a field with --expect: its range before normalisation, or its mean and std."""
    if expect in ("0-1", "imagenet"):
        is_right = _is_in_range(field, expect)
    else:
        mean, std = map(float, expect.split(","))
        near = all(abs(m - mean) <= 0.5 * std for m in field.mean)
        is_right = near and all(0.5 * std < s < 2 * std for s in field.std)
    cause = f"{field.described()}, expected {expect}"
    if is_right:
        return passed(cause)
    return failed(cause, field.shown, WEIGHTS)


def _is_in_range(field: Field, expect: str) -> bool:
    """Whether a field had 0..1 before it was normalised as is expected."""
    mean, std = IMAGENET
    if expect == "0-1":
        mean = [0.0] * field.channels
        std = [1.0] * field.channels
    if len(mean) != field.channels:
        return False
    lowest = min(x * s + m for x, s, m in zip(field.min, std, mean, strict=True))
    highest = max(x * s + m for x, s, m in zip(field.max, std, mean, strict=True))
    if lowest < -0.05 or not TWICE < highest <= 1.05:
        return False
    # 0..1 and -1..1 may be in the range of what is normalised, and are not.
    is_plain = field.lowest >= 0 or _apart([field.lowest, field.highest], [-1, 1]) <= 1e-3
    return expect == "0-1" or not is_plain


def _fitted(train: Figures, val: Figures, constants: list[Constants]) -> Iterator[Finding]:
    """Constants that give train + val (or val) a mean of 0, and train none, are of the wrong
    set."""
    if not (train.complete and val.complete):
        return
    evaluated = val.by_name
    for name, ours in sorted(train.by_name.items()):
        theirs = evaluated.get(name)
        are_known = any(len(each.mean) in (1, ours.channels) for each in constants)
        if theirs is None or theirs.channels != ours.channels:
            continue
        if not are_known or not 0.5 < max(ours.std) < 2:
            continue
        share = theirs.values / (theirs.values + ours.values)
        pairs = zip(ours.mean, theirs.mean, strict=True)
        both = [(1 - share) * t + share * v for t, v in pairs]
        means = {
            "train": ours.mean,
            "train + val": both,
            "val": theirs.mean,
        }
        off = {split: max(map(abs, mean)) for split, mean in means.items()}
        best = min(("train + val", "val"), key=lambda split: off[split])
        # Rounded constants leave a mean of up to 0.005.
        if off[best] <= 0.005 and off["train"] >= max(10 * off[best], 0.01):
            cause = f"{name}: constants of {best}: its mean is {off[best]:.2g}, "
            cause += f"train's {off['train']:.2g}"
            fix = "compute mean and std of the training split alone, and use them for both"
            yield failed(cause, {"means": off}, fix)


@check("DP11", "values", "colours")
def colours(values: Values, data: Colours) -> Finding:
    """The channels are red, green, blue, or as the constants are."""
    where, needed = constants_order(values)
    order = data.order
    if order and order == needed != "RGB":
        return passed(f"the channels are {order}, and so are the constants: {where}")
    if order == "RGB":
        return passed("the channels are RGB")
    if order:
        channel = order.index("R")
        cause = f"the channels are {order}: red in {data.places[0]} is channel {channel}"
        fix = "after reading: cv2.cvtColor(img, cv2.COLOR_BGR2RGB), or read with PIL"
        return failed(cause, data.shown, fix)

    answers = {answer for found in data.orders.values() for answer in found}
    if not data.images or answers == {"grey"}:
        return inapplicable("no field is a batch of colour images")
    cause = "no file was replaced by a probe image"
    if "mixed" in answers:
        cause = "colours change at random"
    needs = "a data set that lists the paths of its images, and reads them when a sample is "
    needs += "asked for"
    return undecided(cause, needs, data.shown)
