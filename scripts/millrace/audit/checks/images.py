"""What the probes of values and of colours saw of images, transforms and colours, as the records
that checks ask for."""

from __future__ import annotations

from typing import NamedTuple

from millrace.audit.checks.findings import Seen


class Field(NamedTuple):
    """The figures of a field of the batches, for each channel."""

    name: str  # the path of the field; "" is the batch itself
    image: bool
    dtype: str
    values: int  # of a channel
    mean: list[float]
    std: list[float]
    min: list[float]
    max: list[float]
    whole: bool  # all values are whole numbers
    distinct: int  # values of a batch

    @property
    def shown(self) -> Seen:
        return {name: value for name, value in self._asdict().items() if name != "name"}

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def lowest(self) -> float:
        return min(self.min)

    @property
    def highest(self) -> float:
        return max(self.max)

    def described(self) -> str:
        title = f"field {self.name}" if self.name else "the batch"
        edges = f"{self.lowest:.4g}..{self.highest:.4g}"
        return f"{title} spans {edges}, mean {_short(self.mean)}, std {_short(self.std)}"


class Value(NamedTuple):
    """What a transform took or gave."""

    type: str
    is_tensor: bool
    min: float | None = None
    max: float = 0

    @property
    def is_from_zero(self) -> bool:
        """Whether no value is below 0, as far as it is known."""
        return self.min is not None and self.min >= 0


class Step(NamedTuple):
    """A transform of a chain."""

    path: str  # of the chain
    at: int  # its place there
    name: str  # of its class
    mean: list[float]
    taken: Value | None = None  # None if it was not called, or nobody knows
    gave: Value | None = None
    raised: str = ""  # the exception's type

    @property
    def title(self) -> str:
        return f"{self.path}[{self.at}] {self.name}"


class Figures(NamedTuple):
    """The figures of a loader's batches."""

    complete: bool  # of all of them
    fields: list[Field]


class Values(NamedTuple):
    """What the probe of values saw."""

    expect: str  # --expect
    chains: list[list[Step]]  # called one after the other
    fields: list[Field]
    constants: list[int]  # how many numbers each mean has that the loader holds
    normalised: list[str]  # fields
    train: Figures | None = None  # of both sets, if constants may have been fitted on them
    val: Figures | None = None

    @property
    def images(self) -> list[Field]:
        return [field for field in self.fields if field.image]

    @property
    def called(self) -> list[Step]:
        """Transforms that were called."""
        return [step for chain in self.chains for step in chain if step.taken]


class Colours(NamedTuple):
    """Which colour each channel answered to, when the loader read red, green and blue images."""

    images: list[str]  # fields of colour images
    orders: list[str]  # of each field and seed: "RGB", "BGR", ..., or "" if nobody can tell
    means: dict[str, list[float]]  # of three channels, by what holds them


def full_scale(mean: list[float]) -> int:
    """The largest value of the images that a mean is of: 255 or 1."""
    return 255 if max(mean, default=0) > 2 else 1


def _short(values: list[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values[:4])
