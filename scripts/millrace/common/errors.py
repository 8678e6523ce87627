"""The error a person reads: what is wrong, in which file and row, and what to do about it; which
characters a terminal never gets; damaged files of our own."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

# Control characters but tab and line feed, marks that turn the reading direction, lone surrogates.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


# What the system says where a disk is full, or a limit on it is reached.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class MillraceError(Exception):
    """A problem the user can mend. `where` names file and row, `remedy` says what to do.

        from millrace import open_tars
        from millrace.common.errors import MillraceError

        try:
            open_tars("nowhere-*.tar", batch_size=8)
        except MillraceError as error:
            print(error.where, error.problem, error.remedy)

    Steps print it as one line and end with exit code 1; no traceback is shown.
    """

    def __init__(self, problem: str, where: str = "", remedy: str = "") -> None:
        self.problem = problem
        self.where = where
        self.remedy = remedy
        super().__init__(problem, where, remedy)

    def __str__(self) -> str:
        # A line break in a file's name must not begin a line that looks like ours.
        where = str(self.where).replace("\n", "\\n")
        text = f"{where}: {self.problem}" if where else self.problem
        return printable(f"{text}. {self.remedy}" if self.remedy else text)


class Unusable(Exception):
    """Input that cannot be used. `reason` is a slug for ledgers and counts, the message is for
    people."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(reason, message)

    def __str__(self) -> str:
        return self.args[1]


def printable(text: str) -> str:
    """The text for a terminal: what would move its cursor, set its colours or turn the reading
    direction is shown as an escape. Names of countries, files and rows come from others, and may
    hold any of it."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def counted(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `2 batches`."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}es" if noun.endswith("tch") else f"{number} {noun}s"


def first_line(error: object) -> str:
    """The first line of what an error says, or the name of its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class Damaged(MillraceError, ValueError):
    """A file that Millrace made itself cannot be read any more."""

    def __init__(self, path: str | os.PathLike, problem: object) -> None:
        where = os.fspath(path)
        cause = f"damaged since it was made ({first_line(problem)})"
        super().__init__(cause, where, remade(where))

    def __reduce__(self) -> tuple:
        return MillraceError, (self.problem, self.where, self.remedy)


def remade(path: str) -> str:
    """What to do about a file that an earlier step made: its job alone knows what else that
    touches."""
    return f"If the workflow made it, have it made again: snakemake --forcerun {path}"


@contextlib.contextmanager
def own_file(path: str | os.PathLike) -> Iterator[None]:
    """Read a file that Millrace made: what a flipped byte or a cut raises becomes Damaged.

    Errors of the operating system stay what they are.
    """
    try:
        yield
    except MillraceError:
        raise
    except OSError as error:
        if error.errno:
            raise
        raise Damaged(path, error) from None  # Arrow's, of a page that cannot be unpacked
    except (
        ValueError,
        TypeError,
        LookupError,
        NotImplementedError,
        MemoryError,
        OverflowError,
    ) as error:
        raise Damaged(path, error) from None  # a length that was flipped asks for any memory
