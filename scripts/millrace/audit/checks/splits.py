"""Samples that training and evaluation share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millrace.audit.checks.findings import (
    Finding,
    Seen,
    check,
    failed,
    inapplicable,
    passed,
    undecided,
)

CERTAIN = ("file", "index")  # what is never equal by chance; contents and recordings are too
CERTAIN_BEGINNINGS = ("content", "rec")


class Shared(NamedTuple):
    """Samples of evaluation that are in training, by one kind of mark."""

    kind: str  # such as "file", "index", "recording_id", "content x"
    samples: int
    shown: Seen  # with `examples`: the sample's number in each

    @property
    def is_certain(self) -> bool:
        return self.kind in CERTAIN or self.kind.startswith(CERTAIN_BEGINNINGS)


@check("splits", "splits")
def overlap(seen: Seen) -> Iterator[Finding]:
    """Nothing of evaluation is in training."""
    if "shared" not in seen:
        cause = "only one split was given"
        yield inapplicable(cause, needs="--val-loader")
        return
    train, val = seen["train"], seen["val"]
    if train["read"] and not val["read"] and val["complete"]:
        yield inapplicable("the split of evaluation has no samples")
        return

    kinds = [Shared(kind, each["count"], each) for kind, each in seen["shared"].items()]
    shared = [kind for kind in kinds if kind.samples]
    certain = sorted(kind for kind in shared if kind.is_certain)
    if certain:
        yield from map(_in_both, certain)
        return
    all_compared = train["complete"] and val["complete"]
    if kinds and not shared and all_compared:
        cause = f"nothing is shared by {', '.join(kind.kind for kind in kinds)}"
        yield passed(cause)
        return
    cause = "not all was compared"
    if shared:
        cause = f"only equal by {', '.join(kind.kind for kind in shared)}"
    needs = "unique ids, paths, or contents that stay the same; a longer --timeout"
    yield undecided(cause, needs, seen)


def _in_both(shared: Shared) -> Finding:
    first = shared.shown["examples"][0]
    cause = f"{shared.samples} of validation are in training, by {shared.kind}"
    cause += f": sample {first['val']} is {first['train']} there"
    fix = "split by recording first, and keep a list of the ids of each split"
    return failed(cause, shared.shown, fix)
