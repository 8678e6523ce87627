"""What is audited: the user's loader, found by its name, and what the command line says of it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from millrace.common.errors import MillraceError
from millrace.common.loading.arguments import above_zero, whole

# Of workers; "": as the loader has it.
START_METHODS = ("", "fork", "spawn", "forkserver")


class WrongName(MillraceError):
    """A name of the command line that leads to no loader, model or loop."""


@dataclass(frozen=True)
class Options:
    """The command line. `workers` None: the loader's own, but at most 2; `start_method` "": its
    own."""

    loader: str
    args: dict[str, Any] = field(default_factory=dict)
    val_loader: str = ""
    model: str = ""
    loop: str = ""
    ranks: int = 2
    together: bool = True  # ranks train with this loader; False: nobody has said so
    workers: int | None = None
    epochs: int = 2
    start_method: str = ""
    expect: str = ""
    timeout: float = 60
    memory_mb: int = 0


@dataclass(frozen=True)
class Rank:
    """One process of a probe: its rank of `world`, a private folder, and the time that is left."""

    rank: int
    world: int
    scratch: Path
    deadline: float

    def left(self) -> float:
        """Seconds left for this probe."""
        return self.deadline - time.monotonic()

    @property
    def log_file(self) -> Path:
        return self.scratch / f"{self.rank}.log"

    def log(self) -> str:
        """What it and its workers have printed, with the tracebacks of those that died."""
        with contextlib.suppress(OSError):
            return self.log_file.read_text(errors="replace")
        return ""

    def all_agree(self, yes: bool) -> bool:
        """Wait for the other ranks. Whether all say yes: what one did alone might wait for them."""
        if self.world == 1:
            return yes
        import torch.distributed

        votes = torch.tensor(int(yes))
        torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MIN)
        return bool(votes)


@dataclass(frozen=True)
class Target:
    """What the options name; each call makes it anew, as the user's own script would."""

    options: Options

    def loader(self) -> Any:
        """The user's loader: a DataLoader, or an iterable of batches."""
        return self.loader_of(self.made())

    def made(self) -> Any:
        """What the name leads to: the loader, or a module, ready to be asked for it."""
        return _made(self.options.loader, self.options.args, "train_dataloader")

    def loader_of(self, made: Any) -> Any:
        """The loader, of what `made` has given."""
        return _loader_of(made, self.options.loader, "train_dataloader")

    def val_loader(self) -> Any:
        """The loader of --val-loader, or None."""
        name = self.options.val_loader
        if not name:
            return None
        made = _made(name, self._taken_by(locate(name)), "val_dataloader")
        return _loader_of(made, name, "val_dataloader")

    def model(self) -> Any:
        """The torch.nn.Module of --model, or None."""
        if not self.options.model:
            return None
        thing = locate(self.options.model)
        is_made = hasattr(thing, "parameters") and not isinstance(thing, type)
        if is_made:
            return thing
        return thing(**self._taken_by(thing))

    def _taken_by(self, factory: Any) -> dict[str, Any]:
        """The arguments of --arg that a factory takes: it need not take all that the training
        loader does."""
        args = self.options.args
        if not callable(factory):
            return args
        taken = inspect.signature(factory).parameters
        if any(each.kind == each.VAR_KEYWORD for each in taken.values()):
            return args
        return {name: value for name, value in args.items() if name in taken}

    def loop(self) -> Callable | None:
        """The function of --loop, which takes the loader and trains with it, or None."""
        if self.options.loop:
            return locate(self.options.loop)
        return None


def parse_args(pairs: list[str]) -> dict[str, Any]:
    """`key=value` of --arg; a value that is JSON is read as JSON, others are text."""
    values = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise MillraceError(f"--arg {pair} is not key=value", remedy="Write --arg batch_size=8")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def checked(options: Options) -> Options:
    """The same, with numbers as JSON holds them. Raises MillraceError for what no command line
    takes: a probe that it breaks would be not decidable, and so no fail."""
    for name in ("loader", "val_loader", "model", "loop"):
        value = getattr(options, name)
        if not isinstance(value, str):
            raise MillraceError(f"{name} is {value!r}", remedy=f"Name it: 'train.py:{name}'")
    if not isinstance(options.args, Mapping):
        raise MillraceError(f"args is {options.args!r}", remedy="Give a dict")
    if options.start_method not in START_METHODS:
        problem = f"start_method is {options.start_method!r}"
        raise MillraceError(problem, remedy="Give fork, spawn or forkserver")
    try:
        expectation(options.expect)
    except (ValueError, AttributeError):
        remedy = "Give 0-1, imagenet, none, or a mean and a standard deviation: '0.5,0.25'"
        raise MillraceError(f"expect is {options.expect!r}", remedy=remedy) from None
    return replace(
        options,
        ranks=whole("ranks", options.ranks, least=1),
        workers=None if options.workers is None else whole("workers", options.workers, least=0),
        epochs=whole("epochs", options.epochs, least=1),
        timeout=above_zero("timeout", options.timeout),
        memory_mb=whole("memory_mb", options.memory_mb, least=0),
    )


def expectation(text: str) -> str:
    """--expect: 0-1, imagenet, none, or a mean and a standard deviation; others raise
    ValueError."""
    if (
        text in ("", "0-1", "imagenet", "none")
        or len([float(each) for each in text.split(",")]) == 2
    ):
        return text
    raise ValueError(text)


def locate(name: str) -> Any:
    """What `package.module:name` or `file.py:name` leads to."""
    place, _, attribute = name.rpartition(":")
    if not (place and attribute):
        raise WrongName(
            "is not module:name", name, "Write package.module:factory or file.py:factory"
        )
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise WrongName("there is no such file", str(path))
        # Workers that are spawned import it by this name, from this folder.
        sys.path.insert(0, str(path.parent))
        place = path.stem
    try:
        thing = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and place.startswith(error.name):
            remedy = "Start the audit where Python finds it, or give the file: file.py:factory"
            raise WrongName(f"there is no module {error.name}", name, remedy) from None
        raise
    except SystemExit:
        remedy = "Name a function of a module that reads no command line as it is imported"
        raise WrongName(f"{place} ends the program when it is imported", name, remedy) from None
    for part in attribute.split("."):
        if not hasattr(thing, part):
            raise WrongName(f"{place} has no {part}", name)
        thing = getattr(thing, part)
    return thing


def _is_module(thing: Any, method: str) -> bool:
    return hasattr(thing, method) and not hasattr(thing, "__iter__")


def _made(name: str, args: dict[str, Any], method: str) -> Any:
    """What the name leads to; a data module is prepared, and not yet asked for its loader."""
    thing = locate(name)
    if callable(thing) and (isinstance(thing, type) or not hasattr(thing, "__iter__")):
        thing = thing(**args)
    if _is_module(thing, method):
        for prepare, *values in (("prepare_data",), ("setup", "fit")):
            if hasattr(thing, prepare):
                getattr(thing, prepare)(*values)
    return thing


def _loader_of(thing: Any, name: str, method: str) -> Any:
    if _is_module(thing, method):
        thing = getattr(thing, method)()
    kind = type(thing).__name__
    parts = thing if isinstance(thing, (list, tuple)) else ()
    holds_loaders = any(hasattr(part, "collate_fn") for part in parts)
    if holds_loaders or isinstance(thing, (Mapping, str, type)) or not hasattr(thing, "__iter__"):
        remedy = f"Return one DataLoader, an iterable of batches, or an object with {method}()"
        raise MillraceError(f"gave a {kind}, which gives no batches", name, remedy)
    # One with a length begins again, as Lightning's CombinedLoader.
    if hasattr(thing, "__next__") and not hasattr(thing, "__len__"):
        remedy = "Return the DataLoader, or an object whose __iter__ makes the iterator of an epoch"
        raise MillraceError(f"gave an iterator ({kind}), which cannot begin again", name, remedy)
    return thing
