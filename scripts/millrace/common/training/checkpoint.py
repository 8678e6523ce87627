"""Checkpoints of a run: whole or not there, checked before use, and never fewer than one good one.

    checkpoints/step-00000500/   state.pt and checkpoint.json, renamed into place when complete
    checkpoints/last             the newest one's name, written after it
    checkpoints/best/            the files of the best one, whatever its age

checkpoint.json holds the digest of state.pt: if a byte has changed, the checkpoint before is used.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from millrace.common import atomic, jsonl
from millrace.common.cli import log
from millrace.common.errors import MillraceError, first_line

FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class WholeCheckpoint:
    """A whole checkpoint. `header` is checkpoint.json."""

    folder: Path
    step: int
    header: dict[str, Any]


class Checkpoints:
    """The checkpoints in one folder. Only one process writes (rank 0); `total_limit` 0 keeps
    all."""

    def __init__(self, folder: str | os.PathLike, total_limit: int = 3) -> None:
        self.folder = Path(folder)
        self.total_limit = total_limit

    def save(self, step: int, state: dict[str, Any], header: dict[str, Any]) -> None:
        """Write a checkpoint of optimiser step `step`, then remove the oldest beyond the limit.

        `state` may hold tensors and plain Python values only; `header` is JSON. Raises
        MillraceError (disk full) with the older checkpoints untouched.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        final = self.folder / f"step-{step:08d}"
        partial = self.folder / f".{final.name}.{os.getpid()}.partial"
        partial.mkdir()
        try:
            written = _write_state(partial / "state.pt", state)
            whole = {**header, "format": FORMAT, "step": step, **written}
            atomic.write_json(partial / "checkpoint.json", whole)
            if final.exists():
                # Only a damaged one can be there: a whole one would have been resumed from, beyond
                # this step.
                self._remove(final)
            os.replace(partial, final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        atomic.fsync_folder(self.folder)
        atomic.write_text(self.folder / "last", f"{final.name}\n")
        self._prune(step)

    def named(self, name: str) -> WholeCheckpoint:
        """The checkpoint `best`, `last` (the newest that is whole), or of a name such as
        step-00000500.

        Raises MillraceError if it is not there, or damaged.
        """
        newest = self.newest() if name == "last" else None
        if newest:
            return newest

        names = [path.name for _, path in self._steps()]
        if (self.folder / "best").is_dir():
            names.append("best")
        if name not in names:
            remedy = "Is this the folder of a run?"
            if names:
                remedy = f"There are: {', '.join(['last', *names])}"
            raise MillraceError(f"there is no checkpoint {name}", str(self.folder), remedy)

        folder = self.folder / name
        try:
            header = self._checked(folder)
        except ValueError as problem:
            raise MillraceError(f"no whole checkpoint ({problem})", str(folder)) from None
        return WholeCheckpoint(folder, header["step"], header)

    def newest(self) -> WholeCheckpoint | None:
        """The newest checkpoint that is whole; None where there is none at all.

        Says what is wrong with damaged ones. Raises MillraceError where all there are are damaged:
        to begin anew over them must be the user's choice.
        """
        damaged: list[str] = []
        for step, folder in reversed(self._steps()):
            try:
                header = self._checked(folder)
            except ValueError as problem:
                log.warning(
                    "%s: damaged checkpoint (%s); falling back to the one before", folder, problem
                )
                damaged.append(folder.name)
                continue
            if damaged:
                log.warning("%s: resuming from this checkpoint instead of %s", folder, damaged[0])
            return WholeCheckpoint(folder, step, header)
        if damaged:
            remedy = "Restore one from a backup, or remove the folder to train from the beginning"
            words = f"no checkpoint is whole: {', '.join(damaged)}"
            raise MillraceError(words, str(self.folder), remedy)
        return None

    def mark_best(self, step: int) -> None:
        """Make the checkpoint of `step` the best one: `best/`, which is never pruned and shares its
        bytes."""
        name = f"step-{step:08d}"
        best = self.folder / "best"
        partial = self.folder / f".{name}.{os.getpid()}.best.partial"
        self._sweep()
        shutil.copytree(self.folder / name, partial, copy_function=_link)
        if best.exists():
            os.replace(best, self.folder / f".{name}.{os.getpid()}.removed.partial")
        os.replace(partial, best)
        # Before its evaluation is noted, beside which a worse one would not be kept.
        atomic.fsync_folder(self.folder)
        self._sweep()

    def load(self, checkpoint: WholeCheckpoint, mapped: bool = False) -> dict[str, Any]:
        """The state of a checkpoint on the host; `mapped`: memory-mapped, so that ranks share its
        pages."""
        return torch.load(
            checkpoint.folder / "state.pt", map_location="cpu", weights_only=True, mmap=mapped
        )

    def _checked(self, folder: Path) -> dict[str, Any]:
        """checkpoint.json; raises ValueError where the checkpoint is damaged."""
        try:
            header = jsonl.read(folder / "checkpoint.json")
            size = header["state_bytes"]
            digest = header["state_sha256"]
            written_as = header["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = getattr(error, "problem", error)
            raise ValueError(f"checkpoint.json cannot be read: {problem}") from None
        if written_as != FORMAT:
            problem = f"this checkpoint has format {written_as}, this version reads {FORMAT}"
            remedy = "Go on with the version of Millrace that wrote it, or train in another folder"
            raise MillraceError(problem, str(folder), remedy)
        try:
            found_size = os.path.getsize(folder / "state.pt")
            if found_size != size:
                raise ValueError(f"state.pt has {found_size} bytes instead of {size}")
            with open(folder / "state.pt", "rb") as handle:
                if hashlib.file_digest(handle, "sha256").hexdigest() != digest:
                    raise ValueError("the content of state.pt has changed")
        except OSError as error:
            raise ValueError(f"state.pt cannot be read: {error}") from None
        return header

    def _steps(self) -> list[tuple[int, Path]]:
        if not self.folder.exists():
            return []
        steps = []
        for entry in os.scandir(self.folder):
            if match := _NAME.fullmatch(entry.name):
                steps.append((int(match[1]), Path(entry.path)))
        return sorted(steps)

    def _prune(self, saved: int) -> None:
        """Remove the oldest beyond the limit, and what is newer than the one just saved, which is
        damaged."""
        kept = []
        for step, folder in self._steps():
            if step > saved:
                self._remove(folder)
            else:
                kept.append(folder)
        if self.total_limit:
            for folder in kept[: -self.total_limit]:
                self._remove(folder)

    def _remove(self, folder: Path) -> None:
        # Renamed first, so that a kill leaves no half a checkpoint under a good name.
        doomed = self.folder / f".{folder.name}.{os.getpid()}.removed.partial"
        os.replace(folder, doomed)
        _discard(doomed)

    def _sweep(self) -> None:
        """Remove what a killed writer left; there is one writer at a time, so all of it is dead."""
        for entry in os.scandir(self.folder):
            if entry.name.startswith(".step-") and entry.name.endswith(".partial"):
                _discard(Path(entry.path))


def save_state(state: dict[str, Any], path: Path) -> None:
    """torch.save; raises MillraceError where it says RuntimeError, as of a full disk."""
    try:
        torch.save(state, path)
    except RuntimeError as error:
        problem = f"cannot be written ({first_line(error)})"
        raise MillraceError(problem, str(path), "Is the disk full?") from None


def _write_state(path: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Write a state to the disk; what checkpoint.json says of it."""
    save_state(state, path)
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
        return {"state_bytes": handle.tell(), "state_sha256": digest}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


def _discard(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
