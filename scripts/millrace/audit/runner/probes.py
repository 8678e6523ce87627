"""The probes there are, in the order in which they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Seen = dict[str, Any]  # by a probe: JSON


@dataclass(frozen=True)
class Probe:
    """`place`: its module and function. `ranks`: runs in all ranks, else in one process with a
    world of one.

    `share`: of the audit's time, which it may use up.
    """

    place: str
    ranks: bool = False
    share: float = 0.3

    def function(self) -> Callable[..., Any]:
        """probe(target, rank) -> what this rank saw, as JSON; None where it needs a DataLoader."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(f"millrace.audit.probes.{module}"), name)


# If `look` does not end well, no other probe is started.
PROBES = {
    "look": Probe("first_batch:look", share=0.5),
    "contract": Probe("contract:contract"),
    "memory": Probe("memory:memory"),
    "epochs": Probe("epochs:epochs", ranks=True, share=0.5),
    "set_epoch": Probe("epochs:set_epoch", ranks=True),
    "loop": Probe("epochs:loop", ranks=True),
    "source": Probe("epochs:source"),
    "methods": Probe("methods:methods", share=0.4),
    "resume": Probe("restart:resume", ranks=True),
    "values": Probe("figures:values"),
    "colours": Probe("colours:colours"),
    "labels": Probe("labels:labels"),
    "splits": Probe("splits:splits"),
    "edges": Probe("edges:edges"),
}


@dataclass(frozen=True)
class Result:
    """How a probe ended: "ok", "raised", "hung", "late", "memory", "died" or "skipped".

    "hung": the loader stood still; "late": the time of the probe, or of the audit before it, was
    over. `data`: what each rank saw. `error`: type, text and where of an exception, or where it
    hung, or a signal.
    """

    status: str
    data: list[Any]
    error: dict[str, Any]
    seconds: float
