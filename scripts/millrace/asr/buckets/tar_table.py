"""The tars of a bucket build: a number for each, which of them are missing, and which cannot be
used, as no index of them is whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.asr.buckets.addresses import TarIndices
from millrace.asr.manifests import columns as mc
from millrace.asr.manifests.identity import portable_names
from millrace.asr.manifests.manifest import Manifest
from millrace.asr.tars.paths import one_spelling
from millrace.asr.tars.stamp import Stamp
from millrace.common import hashing


class TarTable:
    """All tars that manifests name. Their numbers are places in `paths`; -1 is none.

    `hashes` are of the tars' names, wherever they lie. `stamps` has the tars that can be used, as
    they were indexed; `details` what a person should know of a tar. `indexed` are the paths of
    those whose members the index must give. `missing` and `unusable` say it by number, and their
    last entry is that of -1.
    """

    def __init__(self, manifests: Sequence[Manifest], index: TarIndices | None) -> None:
        named: set[str] = set()
        for manifest in manifests:
            named.update(manifest.tars)
        spelling = one_spelling(named)
        self.paths = sorted(set(spelling.values()))
        numbers = {tar: number for number, tar in enumerate(self.paths)}
        self._number_of = {tar: numbers[spelled] for tar, spelled in spelling.items()}
        names = pa.array(portable_names(self.paths), mc.TEXT)
        self.hashes = hashing.hash_strings(names)
        self.stamps: dict[str, Stamp] = {}
        self.details: dict[str, str] = {}
        # Of each tar by its number, and of none.
        self.unusable = np.zeros(len(self.paths) + 1, bool)
        self.missing = np.zeros(len(self.paths) + 1, bool)

        # All manifests of a build are of one kind: only an index knows the members, or rows have
        # the offsets.
        has_offsets = any(manifest.has_offsets for manifest in manifests)
        for tar in self.paths:
            if has_offsets:
                self._add(tar, _file_state(tar))
            elif index is None:
                self._add(tar, "no tar index was given")
            else:
                self._add(tar, index.state(tar), index.remark(tar))
        self.indexed = [] if has_offsets else sorted(self.stamps)

    def _add(self, tar: str, state: Stamp | str, remark: str = "") -> None:
        """A tar that is used with this stamp, or is not for this reason."""
        if isinstance(state, Stamp):
            self.stamps[tar] = state
            self.details[tar] = remark
            return
        number = self._number_of[tar]
        self.details[tar] = state
        self.unusable[number] = True
        self.missing[number] = state.startswith(("missing", "No such file"))

    def numbers(self, tars: Sequence[str]) -> np.ndarray:
        """int32 numbers of tars as manifests spell them, and -1 after the last."""
        numbers = [self._number_of[tar] for tar in tars]
        return np.array([*numbers, -1], np.int32)


def _file_state(tar: str) -> Stamp | str:
    """A tar as it is now, or the reason why it cannot be read."""
    try:
        return Stamp.of(tar)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        return getattr(error, "strerror", None) or str(error)
