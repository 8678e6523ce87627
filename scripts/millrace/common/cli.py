"""What every step's command line has in common: parser, log, progress, exit codes, and which errors
of the system become one line with a remedy."""

from __future__ import annotations

import argparse
import errno
import functools
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import TypeVar

from millrace.common import processes, progress
from millrace.common.errors import NO_ROOM, MillraceError, printable, remade

log = logging.getLogger("millrace")


class _PrintableFormatter(logging.Formatter):
    """Log lines that leave a terminal as it is, whatever the names in them hold."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _StderrHandler(logging.StreamHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Let errors of signal handlers through, which may come while a line is written.

        torch's handler raises RuntimeError for a loader worker that has died; `logging` would print
        its traceback and go on.
        """
        if isinstance(sys.exception(), RuntimeError):
            raise
        super().handleError(record)


def log_to_stderr(level: str = "INFO") -> None:
    """Have everything logged to stderr, a line each, with the time."""
    handler = _StderrHandler(sys.stderr)
    handler.setFormatter(
        _PrintableFormatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows every default, as ArgumentDefaultsHelpFormatter does, but not None, "", [] or False;
    and the description as it is written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        default = action.default
        if (
            default in (None, argparse.SUPPRESS, "", [])
            or default is False
            or "default" in (text or "default")
        ):
            return text
        if isinstance(default, list):
            shown = " ".join(map(str, default))
        else:
            shown = str(default)
        return f"{text} (default: {shown.replace('%', '%%')})"


def parser(doc: str | None, module: ModuleSpec | str | None) -> argparse.ArgumentParser:
    """The parser of a step: `doc` is its module docstring, `module` its `__spec__`, or a name."""
    name = module.name if isinstance(module, ModuleSpec) else module
    summary, _, rest = (doc or "").strip().partition("\n\n")
    return argparse.ArgumentParser(
        prog=f"python -m {name}" if name else None,
        description=summary,
        epilog=rest.strip() or None,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )


_FREE_SPACE = "the disk is full. Free space and run the same command again"
_NO_ROOM = dict.fromkeys(NO_ROOM, _FREE_SPACE)
_NO_ROOM[errno.EFBIG] = (
    "the file is larger than this shell (`ulimit -f`) or the file system allows. Raise the"
    " limit, or name another place, and run the same command again"
)

# What another name or place mends.
_OTHER_PLACE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
)

Main = Callable[[argparse.Namespace], int | None]


def step(
    make_parser: Callable[[], argparse.ArgumentParser],
    spelled: Callable[[list[str]], list[str]] = list,
) -> Callable[[Main], Callable[..., int]]:
    """Make a step of `main(args)`: command line parsed, log on stderr, exit code 1 and one line for
    what the user can mend.

        @cli.step(make_parser)
        def main(args: argparse.Namespace) -> None: ...

    An exit code of its own is what `main` returns. `spelled` gives the words to parse of those that
    were typed, which are `args.typed`.
    """

    def of_main(main: Main) -> Callable[..., int]:
        @functools.wraps(main)
        def run(argv: list[str] | None = None) -> int:
            log_to_stderr(os.environ.get("MILLRACE_LOG", "INFO"))
            typed = sys.argv[1:] if argv is None else argv
            try:
                args = make_parser().parse_args(spelled(typed), argparse.Namespace(typed=typed))
                code = main(args)
            except MillraceError as error:
                # A file that could not be written, because torch's signal handler raised meanwhile.
                log.error("%s", processes.lost_worker(error) or error)
                return 1
            except KeyboardInterrupt:
                log.error("interrupted; the same command goes on with what is whole")
                return 128 + signal.SIGINT
            except BrokenPipeError:
                return 1
            except (RuntimeError, OSError) as error:
                line = _line_for(error)
                if line is None:
                    raise
                log.error("%s", line)
                return 1
            return code or 0

        return run

    return of_main


def _line_for(error: RuntimeError | OSError) -> str | None:
    """What the user can mend of an error that no step names; None for a defect of ours."""
    if isinstance(error, RuntimeError):
        return _line_of_library(error)
    where = error.filename or "the output folder"
    if error.errno in _NO_ROOM:
        return f"{where}: {_NO_ROOM[error.errno]}"
    if not error.filename:
        return None
    if error.errno in _OTHER_PLACE:
        return f"{where}: {error.strerror}. Name a place that may be written and read"
    if error.errno in (errno.ENOENT, errno.EIO):
        return f"{where}: {error.strerror}. {remade(where)}"
    return None


def _line_of_library(error: RuntimeError) -> str | None:
    """As `_line_for`, of what HDF5 raises when it closes a file, and torch."""
    for number, text in _NO_ROOM.items():
        if f"errno = {number}," in str(error):
            return f"the output folder: {text}"
    lost = processes.lost_worker(error)
    return str(lost) if lost else None


def hyphenated(typed: list[str]) -> list[str]:
    """The command line with hyphens in flags' names, as original scripts write
    `--shuffle_pool=10`."""
    words = []
    for word in typed:
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        words.append(name + equals + value)
    return words


Kind = TypeVar("Kind", int, float)


def _number(
    kind: Callable[[str], Kind], fits: Callable[[Kind], bool], words: str
) -> Callable[[str], Kind]:
    """An argparse type: such numbers as fit; argparse itself says what is no number."""

    def number(text: str) -> Kind:
        if not fits(value := kind(text)):
            raise argparse.ArgumentTypeError(f"must be {words}, not {text}")
        return value

    return number


positive_float = _number(float, lambda value: 0 < value < float("inf"), "a finite number above 0")
positive_int = _number(int, lambda value: value > 0, "a whole number above 0")
count = _number(int, lambda value: value >= 0, "a whole number, 0 or above")


def json_object(text: str) -> dict:
    """An argparse type: a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not JSON ({error}): {text}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text}")
    return value


class Progress:
    """Progress of a long step: a line every `interval` seconds, with what is left, and at the end.

    `total` and the amounts given to `advance` are in `unit` (hours, members, rows).
    """

    def __init__(self, total: float, unit: str, label: str, interval: float = 10.0) -> None:
        self.total = total
        self.unit = unit
        self.label = label
        self.interval = interval
        self.done = 0.0
        self.errors = 0
        self.started = self.last = time.monotonic()

    def advance(self, amount: float, errors: int = 0) -> None:
        """Count `amount` more units as done, and `errors` more as failed."""
        self.done += amount
        self.errors += errors
        if time.monotonic() - self.last >= self.interval:
            self.last = time.monotonic()
            log.info("%s", self.line())

    def line(self) -> str:
        """One line of plain text: done, total, rate, ETA, errors."""
        rate = self.done / max(time.monotonic() - self.started, 1e-9)
        left = (self.total - self.done) / rate if rate else None
        details = (f"{rate:.3g} {self.unit}/s", f"errors {self.errors}")
        return f"{self.label}: {progress.line(self.done, self.total, self.unit, left, *details)}"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        log.info("%s", self.line())
