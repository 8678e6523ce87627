"""The extras of the package: what to install where a module is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from millrace.common.errors import MillraceError


@contextlib.contextmanager
def needed(extra: str, where: str) -> Iterator[None]:
    """Import what an extra brings; without it MillraceError names the extra, such as `asr`.

    `where`: what was asked for.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "millrace":
            raise
        remedy = f"pip install 'millrace[{extra}]'"
        raise MillraceError(f"{missing} is not installed", where, remedy) from error
