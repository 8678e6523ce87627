"""Exceptions and stacks of the user's code, as JSON: which frame is the user's, and none of torch,
Python or the audit."""

from __future__ import annotations

import re
import traceback

from millrace.audit.runner.probes import Seen
from millrace.common import processes
from millrace.common.errors import MillraceError

_FOREIGN = ("/torch/", "/lib/python", "/lib64/python", "millrace/audit/", "<frozen", "<string>")


def described(error: BaseException, log: str = "") -> Seen:
    """Type and text of an exception, `where` in the user's code it arose, and its frames, innermost
    first; `log`: what its process and their workers have printed."""
    text = str(error).strip()
    kind = type(error).__name__
    stack = []
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        line = f'File "{frame.filename}", line {frame.lineno} in {frame.name}'
        if "millrace/audit/" not in line:
            stack.append(line)
    if "Original Traceback" in text:  # of a worker: the last line says what
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        stack = [line for line in reversed(lines) if line.startswith('File "')] + stack
        text = f"{lines[-1]} ({lines[0].rstrip('.')})"
    elif not isinstance(error, MillraceError):
        lost = processes.lost_worker(error)
        text = f"{kind}: {text}".removesuffix(": ") if lost is None else lost.problem
        # A signal leaves no traceback: the last one of the log is another's.
        if lost and "killed by" not in text:
            text += _last_raised(log)
    return {
        "type": kind,
        "text": text,
        "where": users(stack),
        "trace": stack[:20],
    }


def _last_raised(log: str) -> str:
    """What the last traceback of a log raised: a worker that cannot read what it was sent prints
    why, and ends."""
    _, _, last = log.rpartition("Traceback (most recent call last):\n")
    raised = re.search(r"^\S.*", last, re.MULTILINE)
    return f": {raised[0]}" if raised and len(last) < len(log) else ""


def frames(log: str) -> list[str]:
    """The lines of stacks in a log."""
    return [line.strip() for line in log.splitlines() if line.startswith("  File ")]


def users(stack: list[str]) -> str:
    """The first frame that is neither torch's, Python's nor ours."""
    for frame in stack:
        if not any(part in frame for part in _FOREIGN):
            return frame
    return ""
