"""The probes there are, in the order in which they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Seen = dict[str, Any]  # by a probe: JSON
COLLATE = "collate_fn"  # begins the names of generators that it holds


@dataclass(frozen=True)
class Probe:
    """`place`: its module and function. `ranks`: runs in all ranks, else in one process with a
    world of one.

    `share`: of the audit's time, which it may use up. `seconds`: what it takes for a small loader
    on a quiet machine.
    """

    place: str
    seconds: float
    ranks: bool = False
    share: float = 0.3

    def function(self) -> Callable[..., Any]:
        """probe(target, rank) -> what this rank saw, as JSON; None where it needs a DataLoader."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(f"millrace.audit.probes.{module}"), name)


# If `look` does not end well, no other probe is started.
PROBES = {
    "look": Probe("first_batch:look", 0.3, share=0.5),
    "contract": Probe("contract:contract", 0.2),
    "memory": Probe("memory:memory", 0.4),
    "epochs": Probe("epochs:epochs", 1.0, ranks=True, share=0.5),
    "set_epoch": Probe("epochs:set_epoch", 0.4, ranks=True),
    "loop": Probe("epochs:loop", 0.2, ranks=True),
    "source": Probe("epochs:source", 0.3),
    "methods": Probe("methods:methods", 3.5, share=0.4),
    "resume": Probe("restart:resume", 0.6, ranks=True),
    "values": Probe("figures:values", 0.3),
    "colours": Probe("colours:colours", 0.3),
    "labels": Probe("labels:labels", 0.1),
    "splits": Probe("splits:splits", 0.1),
    "edges": Probe("edges:edges", 0.1),
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
