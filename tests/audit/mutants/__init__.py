"""Loaders with a planted bug, and correct twins that look suspicious; verdicts are written before a
run."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

METHODS = ("fork", "spawn", "forkserver")
PICKLED = ("spawn", "forkserver")
FAMILIES = ("randomness", "sharding", "contract", "memory", "preprocessing", "order", "field")
RANKS = "--ranks 2"


@dataclass(frozen=True)
class Case:
    """What the audit must say of one loader.

    A twin may have any verdict but "fail", in every entry, or has the `verdict` that is named. A
    bug fails in `entry`, and else only in `also`, or in `end` if it raises, hangs or dies. `says`
    are words of its causes, with " | " between those of several findings. `within` names a smaller
    world for it: "shm" is a /dev/shm of 64 MB, "files" is `ulimit -n 256`.
    """

    fails: bool
    name: str
    make: Callable
    options: str = ""
    entry: str = ""
    methods: tuple[str, ...] = METHODS
    also: tuple[str, ...] = ()
    within: str = ""
    val: Callable | None = None
    verdict: str = ""
    says: str = ""

    def argv(self, folder: str) -> list[str]:
        """The command's options; `folder` is where `files.write` has put its files."""
        words = ["--loader", "tests.audit.mutants:build", "--arg", f"name={self.entry} {self.name}"]
        words += ["--ranks", "1"] if "--ranks" not in self.options else []
        words += (
            ["--arg", f"folder={folder}"]
            if "folder" in inspect.signature(self.make).parameters
            else []
        )
        words += ["--val-loader", "tests.audit.mutants:val"] if self.val else []
        return words + [word.replace("@", "tests.audit.mutants.") for word in self.options.split()]

    def judge(self, result: dict) -> str | None:
        """What is wrong with the audit's verdicts, if anything is."""
        entries = result["entries"]
        fails = {entry for entry, found in entries.items() if found["verdict"] == "fail"}
        missed = {self.entry} - fails if self.fails else set()
        blamed = fails - ({self.entry, "end", *self.also} if self.fails else set())
        found = entries.get(self.entry, {"verdict": "", "causes": []})
        if self.verdict and found["verdict"] != self.verdict:
            missed.add(self.entry)
        causes = "\n".join(found["causes"])
        unsaid = [words for words in self.says.split(" | ") if words not in causes]
        if not missed and not blamed and not unsaid:
            return None
        shown = {entry: entries.get(entry, result["ended"]) for entry in missed | blamed}
        return (
            f"missed {sorted(missed)}, blamed {sorted(blamed)}: {shown}; "
            f"not said: {unsaid}, but {found['causes']}"
        )


bug = partial(Case, True)
twin = partial(Case, False)
passing = partial(twin, verdict="pass")
undecided = partial(twin, verdict="not decidable")


def both(module: object) -> dict[str, Callable]:
    """The loaders of a class that makes both, as `make` and `val`."""
    return {"make": module.train_dataloader, "val": module.val_dataloader}


def family(name: str) -> list[Case]:
    """The cases of a family, whose module lists them by their entries."""
    by_entry = importlib.import_module(f"{__name__}.{name}").CASES
    return [replace(case, entry=entry) for entry, cases in by_entry.items() for case in cases]


def table() -> dict[str, Case]:
    """All cases by entry and name, family by family."""
    return {f"{case.entry} {case.name}": case for name in FAMILIES for case in family(name)}


def build(name: str, **settings: str) -> object:
    """The loader of this name: what the audit is given."""
    return table()[name].make(**settings)


def val(name: str, **_: str) -> object:
    """Its loader of evaluation."""
    return table()[name].val()
