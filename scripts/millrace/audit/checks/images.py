"""Fields, transforms and constants, as the probe of values saw them; colours, as that of colours
did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millrace.audit.checks.findings import Seen


class Field(NamedTuple):
    """The figures of a field of the batches, for each channel."""

    name: str  # the path of the field; "" is the batch itself
    image: bool
    dtype: str
    shape: list[int]
    channels: int
    values: int  # of a channel
    mean: list[float]
    std: list[float]
    min: list[float]
    max: list[float]
    whole: bool  # values have no fractions
    distinct: int  # values

    @property
    def shown(self) -> Seen:
        return {name: value for name, value in self._asdict().items() if name != "name"}

    @property
    def title(self) -> str:
        if not self.image:
            return self.name
        return f"field {self.name}" if self.name else "the batch"

    @property
    def lowest(self) -> float:
        return min(self.min)

    @property
    def highest(self) -> float:
        return max(self.max)

    def described(self) -> str:
        edges = f"{self.lowest:.4g}..{self.highest:.4g}"
        return f"{self.title} spans {edges}, mean {short(self.mean)}, std {short(self.std)}"


class Value(NamedTuple):
    """What a transform took or gave."""

    type: str
    kind: str  # "PIL", "tensor", "array" or "other"
    dtype: str = ""
    shape: Sequence[int] = ()
    min: float | None = None
    max: float = 0

    @property
    def is_image(self) -> bool:
        return self.kind in ("PIL", "array")

    @property
    def is_negative(self) -> bool:
        return self.min is not None and self.min < 0

    @property
    def is_from_zero(self) -> bool:
        """Whether no value is below 0, as far as it is known."""
        return self.min is not None and self.min >= 0

    @property
    def channels(self) -> int | None:
        if len(self.shape) < 3:
            return None
        return self.shape[-3 if self.kind == "tensor" else -1]


class Step(NamedTuple):
    """A transform of a chain."""

    path: str  # of the chain
    at: int  # its place there
    name: str  # of its class
    module: str
    mean: list[float]
    std: list[float]
    max_pixel_value: list[float]
    taken: Value | None = None  # None if it was not called, or nobody knows
    gave: Value | None = None
    raised: str = ""  # the exception's type

    @property
    def title(self) -> str:
        return f"{self.path}[{self.at}] {self.name}"


class Constants(NamedTuple):
    """A mean with a standard deviation, of a transform or of attributes."""

    path: str
    mean: list[float]
    std: list[float]


class Figures(NamedTuple):
    """The figures of batches of a loader."""

    complete: bool  # of all of them
    fields: list[Field]

    @property
    def by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}


class Values(NamedTuple):
    """What the probe of values saw."""

    expect: str  # --expect
    chains: list[list[Step]]  # called one after the other
    attributes: list[Constants]
    fields: list[Field]
    train: Figures | None = None  # None without --val-loader
    val: Figures | None = None

    @property
    def images(self) -> list[Field]:
        return [field for field in self.fields if field.image]

    @property
    def called(self) -> list[Step]:
        """Transforms that were called."""
        return [step for chain in self.chains for step in chain if step.taken]

    @property
    def constants(self) -> list[Constants]:
        """Of each Normalize that was called, and of attributes."""
        constants = []
        for step in self.called:
            if step.name == "Normalize":
                constants.append(Constants(step.title, step.mean, step.std))
        return constants + self.attributes


class Colours(NamedTuple):
    """Which colour each channel answered to, when the loader read red, green and blue images."""

    images: list[str]  # fields of colour images
    orders: dict[str, list[str]]  # by field: "RGB", "BGR", ..., "grey", "unread" or "mixed"
    places: list[str]  # attributes that listed the files

    @property
    def order(self) -> str:
        """The order of the channels, such as "BGR", or ""."""
        for found in self.orders.values():
            if len(set(found)) == 1 and sorted(found[0]) == ["B", "G", "R"]:
                return found[0]
        return ""

    @property
    def shown(self) -> Seen:
        return {"orders": self.orders, "places": self.places}


def short(values: list[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values[:4])
