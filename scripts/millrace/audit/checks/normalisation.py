"""DP10 and DP11, judged: constants of normalisation that are of other weights or of the wrong
split, ranges, and the order of colours."""

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
from millrace.audit.checks.images import Colours, Field, Values, full_scale

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
WEIGHTS = "take the transforms that belong to the weights: weights.transforms()"
TWICE = 1.001 / 255  # the largest value of what was scaled twice


@check("DP10", "values")
def normalisation(data: Values) -> Iterator[Finding]:
    """The fields have the range that is expected, and constants are fitted on training."""
    yield from _fitted(data)
    colour = [field for field in data.images if field.channels == 3]
    fields = colour or data.images or data.fields
    is_normalised = any(step.name == "Normalize" for step in data.called)
    if data.expect == "none" or not fields or not (data.expect or is_normalised):
        yield inapplicable("nothing is normalised, no range is expected", needs="--expect")
        return
    for field in fields:
        if data.expect:
            yield _expected(field, data.expect)
        elif field.name in data.normalised:
            yield passed(field.described())
        else:
            needs = "--expect imagenet, 0-1 or mean,std: what the model takes"
            yield undecided(field.described(), needs, field.shown)


def _fitted(data: Values) -> Iterator[Finding]:
    """Constants that give train + val (or val) a mean of 0, and train none, are of the wrong
    split."""
    train = data.train
    val = data.val
    if not (train and val and train.complete and val.complete):
        return
    evaluated = {field.name: field for field in val.fields}
    for ours in train.fields:
        theirs = evaluated.get(ours.name)
        if theirs is None or theirs.channels != ours.channels:
            continue
        if ours.name in data.normalised and {1, ours.channels} & set(data.constants):
            yield from _wrong_split(ours, theirs)


def _wrong_split(train: Field, val: Field) -> Iterator[Finding]:
    share = val.values / (val.values + train.values)
    pairs = zip(train.mean, val.mean, strict=True)
    means = {
        "train": train.mean,
        "train + val": [(1 - share) * ours + share * theirs for ours, theirs in pairs],
        "val": val.mean,
    }
    off = {split: max(map(abs, mean)) for split, mean in means.items()}
    best = min(("train + val", "val"), key=lambda split: off[split])
    # Rounded constants leave a mean of up to 0.005.
    if off[best] <= 0.005 and off["train"] >= max(10 * off[best], 0.01):
        title = train.name or "the batch"
        cause = f"{title}: constants of {best}: its mean is {off[best]:.2g}, "
        cause += f"train's {off['train']:.2g}"
        fix = "compute mean and std of the training split alone, and use them for both"
        yield failed(cause, {"means": off}, fix)


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
    edges = (field.lowest, field.highest)
    is_symmetric = abs(edges[0] + 1) <= 1e-3 and abs(edges[1] - 1) <= 1e-3
    is_plain = field.lowest >= 0 or is_symmetric
    return expect == "0-1" or not is_plain


@check("DP10", "colours")
def mean_order(data: Colours) -> Finding:
    """ImageNet's mean is in the order of the colours."""
    if set(data.orders) == {"RGB"} and data.means and all(map(_is_reversed, data.means.values())):
        cause = f"the channels are RGB, the mean of {next(iter(data.means))} is ImageNet's as BGR"
        return failed(cause, fix=WEIGHTS)
    return inapplicable("no mean of ImageNet in the order of blue first")


def _is_reversed(mean: list[float]) -> bool:
    """Whether it is ImageNet's, or one like it, in the order blue, green, red."""
    full = full_scale(mean)
    pairs = zip(mean, reversed(IMAGENET[0]), strict=True)
    return all(abs(ours / full - known) <= 0.005 for ours, known in pairs)


@check("DP11", "colours")
def colours(data: Colours) -> Finding:
    """The channels are red, green, blue, or as the constants are."""
    orders = set(data.orders)
    if not data.images:
        return inapplicable("no field is a batch of colour images")
    if len(orders) != 1 or "" in orders:
        needs = "images of three bands that PIL.Image.open or cv2.imread reads for a sample"
        return undecided("no colour of a probe image comes in one channel alone", needs)

    [order] = orders
    if order == "RGB":
        return passed("the channels are RGB")
    blue_first = [path for path, mean in data.means.items() if mean[0] < mean[2]]
    if order == "BGR" and blue_first:
        return passed(f"the channels are BGR, and so is the mean of {blue_first[0]}")
    channel = order.index("R")
    cause = f"the channels are {order}: red of the images that are read is channel {channel}"
    fix = "after reading: cv2.cvtColor(img, cv2.COLOR_BGR2RGB), or read with PIL"
    return failed(cause, fix=fix)
