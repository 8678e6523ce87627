"""The error a person reads: what is wrong, in which file and row, and what to do about it."""

from __future__ import annotations


class MillraceError(Exception):
    """A problem the user can mend. `where` names file and row, `remedy` says what to do.

    Steps print it as one line and end with exit code 1; no traceback is shown.
    """

    def __init__(self, problem: str, where: str = "", remedy: str = "") -> None:
        self.problem, self.where, self.remedy = problem, where, remedy
        super().__init__(problem, where, remedy)

    def __str__(self) -> str:
        text = f"{self.where}: {self.problem}" if self.where else self.problem
        return f"{text}. {self.remedy}" if self.remedy else text
