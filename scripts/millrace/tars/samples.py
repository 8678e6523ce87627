"""The samples of tars: which members form one, by key and field as in webdataset, which are in
none, that an id may stand once, and the choice of keys and fields, which each sample must have."""

from __future__ import annotations

import hashlib
import operator
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.asr.loading.reader import IndexedTarReader, ReadError, Request, TarState
from millrace.asr.tars.header import BROKEN_LINK, SYMLINK
from millrace.common.errors import MillraceError, counted
from millrace.common.hashing import hash_strings
from millrace.tars.index import IndexedTar

# As in webdataset: the key ends at the first dot of the base name, the rest is the field.
_NAME = r"^(?P<key>(?:.*/|)[^.]+)[.](?P<field>[^/]*)$"
# __meta__, .DS_Store and ._000017.jpg of macOS. Of the last ones webdataset would take the folder
# for the key.
_OTHER = r"^__[^/]*__($|/)|(^|/)\.[^/]*$"

# Why a member is in no sample.
OTHER_NAME = "name that is not key.field"
NO_FILE = "link to no file"
IDS = ("key", "tar")
"""What an id is: the key, or the tar's name and the key."""
_MOST_ANNOUNCED = 16  # batches


class _Members(NamedTuple):
    """Members of samples in order: arrays of the tar's number, field's number, address in bytes."""

    tar: np.ndarray
    field: np.ndarray
    offset: np.ndarray
    size: np.ndarray

    def take(self, rows: np.ndarray) -> _Members:
        return _Members(*(column[rows] for column in self))


class _Places(NamedTuple):
    """Where the samples of a batch lie: their members one after the other, and how many each
    has."""

    fields: list[str]
    counts: list[int]
    requests: list[Request]


class TarSamples:
    """The samples of tars, by number or key: each a dict of its fields' bytes.

        from millrace import open_tars

        samples = open_tars("train-*.tar", batch_size=8).samples
        print(len(samples), samples.fields, samples.ids[0])
        print(samples[0].keys(), len(samples["000017"]["jpg"]))

    Numbers are in the order of the tars. `skipped` counts members that belong to no sample, by
    reason. Raises KeyError, IndexError, and ReadError for bytes that cannot be read.
    """

    def __init__(
        self,
        tars: list[TarState],
        ids: pa.LargeStringArray,
        starts: np.ndarray,
        members: _Members,
        fields: list[str],
    ) -> None:
        self.tars = tars
        self.ids = ids
        self.fields = fields
        self.skipped: Counter[str] = Counter()
        self._starts = starts  # sample n: starts[n] up to starts[n + 1]
        self._members = members
        self.reader = IndexedTarReader(tars=tars)
        self._announced: dict[tuple[int, ...], _Places] = {}

    @classmethod
    def of(cls, tars: Sequence[IndexedTar], ids: str = "key") -> TarSamples:
        """Group the members of tars; `ids` is that of `open_tars`.

        Raises MillraceError if an id or a field of a sample comes twice, or is not UTF-8.
        """
        if ids not in IDS:
            problem = f"ids cannot be {ids!r}"
            raise MillraceError(problem, "open_tars", f"Give one of {', '.join(IDS)}")
        table = pa.concat_tables(tar.members for tar in tars)
        counts = [len(tar.members) for tar in tars]
        numbers = np.repeat(np.arange(len(tars), dtype=np.int32), counts)
        named = _named(table, tars)
        codes, fields = _fields(named.fields)
        offsets = table["offset"].to_numpy()[named.rows]
        sizes = table["size"].to_numpy()[named.rows]
        members = _Members(numbers[named.rows], codes, offsets, sizes)
        samples = _grouped([tar.state for tar in tars], named.keys, members, fields, ids)
        samples.skipped = named.skipped
        return samples

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, sample: int | str) -> dict[str, bytes]:
        if isinstance(sample, str):
            number = self.rows_of([sample])[0]
        else:
            number = operator.index(sample)
        if not -len(self) <= number < len(self):
            raise IndexError(sample)
        (read,) = self.read(np.array([number % len(self)]))
        if isinstance(read, ReadError):
            raise read
        return read

    def __contains__(self, key: object) -> bool:
        """Whether a sample has this key."""
        try:
            return isinstance(key, str) and bool(self.rows_of([key]))
        except KeyError:
            return False

    def rows_of(self, keys: Iterable[str]) -> list[int]:
        """The numbers of the samples with these keys. Raises KeyError for one that is none."""
        wanted = pa.array(list(keys), pa.large_string())
        if not len(self) and len(wanted):
            raise KeyError(wanted[0].as_py())
        order = self._order
        places = np.searchsorted(self._hashes[order], hash_strings(wanted))
        rows = order[np.minimum(places, len(order) - 1)]
        is_there = pc.equal(self.ids.take(rows), wanted).to_numpy(zero_copy_only=False)
        if not is_there.all():
            raise KeyError(wanted[int(np.argmin(is_there))].as_py())
        return rows.tolist()

    def ids_of(self, rows: np.ndarray) -> list[str]:
        """The ids of the samples with these numbers."""
        bounds, content = self._id_bytes
        places = zip(bounds[rows].tolist(), bounds[rows + 1].tolist(), strict=True)
        return [str(content[start:end], "utf-8") for start, end in places]

    def read(self, rows: np.ndarray) -> list[dict[str, bytes] | ReadError]:
        """The samples with these numbers, or why one cannot be read.

        Raises MillraceError for a tar that has changed.
        """
        places = self._announced.pop(tuple(rows.tolist()), None) or self._announce(rows)
        try:
            raws: list[Any] = self.reader.read_announced(places.requests)
        except MillraceError as error:
            remedy = "Open the tars again: they are indexed anew"
            raise MillraceError(error.problem, error.where, remedy) from None
        contents = zip(places.fields, raws, strict=True)
        samples: list[Any] = [dict(islice(contents, count)) for count in places.counts]
        if ReadError in map(type, raws):
            return [_error_of(sample) or sample for sample in samples]
        return samples

    def will_need(self, rows: np.ndarray) -> None:
        """Announce to the kernel that these samples are read soon."""
        self._announced[tuple(rows.tolist())] = self._announce(rows)
        if len(self._announced) > _MOST_ANNOUNCED:  # some are never read: an epoch was left early
            self._announced.pop(next(iter(self._announced)))

    def _announce(self, rows: np.ndarray) -> _Places:
        members, counts = self.members_of(rows)
        columns = (members.tar.tolist(), members.offset.tolist(), members.size.tolist())
        requests = list(zip(*columns, strict=True))
        self.reader.will_need(requests)
        fields = [self.fields[code] for code in members.field.tolist()]
        return _Places(fields, counts.tolist(), requests)

    def bytes(self, field: str | None = None) -> np.ndarray:
        """int64 bytes of each sample, or of one field of it (0 where it is missing)."""
        sizes = self._members.size
        if field is not None:
            sizes = np.where(self._members.field == self.number_of_field(field), sizes, 0)
        if len(self):
            return np.add.reduceat(sizes, self._starts[:-1])
        return sizes

    def place(self, row: int) -> str:
        """Where a sample stands: its key, its tar, and the byte at which its first member lies."""
        first = self._starts[row]
        tar = self.tars[self._members.tar[first]].path
        return f"{self.ids[row]} in {tar} at byte {self._members.offset[first]}"

    def with_keys(self, keys: Callable[[str], bool] | Iterable[str]) -> TarSamples:
        """Those whose keys are named or for which `keys` is true, in the order of the tars.

        Raises MillraceError for a key that is none.
        """
        is_kept = np.zeros(len(self), bool)
        if callable(keys):
            is_kept[:] = [bool(keys(key)) for key in self.ids.to_pylist()]
        else:
            try:
                is_kept[self.rows_of(keys)] = True
            except KeyError as error:
                problem = f"no sample has the key {error.args[0]}"
                raise MillraceError(problem, "keys", "Name keys that the tars have") from None
            except pa.ArrowException as error:
                remedy = "Give texts: '000017', not 17"
                raise MillraceError(f"no list of keys: {error}", "keys", remedy) from None
        counts = np.diff(self._starts)
        members = self._members.take(np.repeat(is_kept, counts))
        return self._with(self.ids.filter(pa.array(is_kept)), counts[is_kept], members)

    def with_fields(self, fields: Sequence[str]) -> TarSamples:
        """The same samples with these fields only. Raises MillraceError if a sample lacks one."""
        if not fields:
            raise MillraceError("no fields are named", "open_tars", "Leave out fields to read all")
        codes = [self.number_of_field(field) for field in fields]
        for field, code in zip(fields, codes, strict=True):
            has_field = np.zeros(len(self), bool)
            has_field[self._sample_of_members()[self._members.field == code]] = True
            if not has_field.all():
                lacking = counted(int((~has_field).sum()), "sample")
                problem = f"{lacking} of {len(self)} have no field {field}"
                remedy = "Leave it out of fields, or choose the samples with keys"
                raise MillraceError(problem, self.place(int(np.argmin(has_field))), remedy)
        is_kept = np.isin(self._members.field, codes)
        counts = np.bincount(self._sample_of_members()[is_kept], minlength=len(self))
        samples = self._with(self.ids, counts, self._members.take(is_kept))

        numbers = np.zeros(len(self.fields), np.int32)
        numbers[codes] = np.arange(len(codes))
        samples.fields = list(fields)
        samples._members = samples._members._replace(field=numbers[samples._members.field])
        return samples

    def number_of_field(self, field: str) -> int:
        """The place of a field in `fields`. Raises MillraceError if no sample has it."""
        if field not in self.fields:
            problem = f"no sample has a field {field}; there are {', '.join(self.fields[:20])}"
            raise MillraceError(problem, "open_tars", "Name fields in lower case, without a dot")
        return self.fields.index(field)

    def _with(self, ids: pa.Array, counts: np.ndarray, members: _Members) -> TarSamples:
        samples = TarSamples(self.tars, ids, _ends(counts), members, self.fields)
        samples.skipped = self.skipped
        return samples

    def members_of(self, rows: np.ndarray) -> tuple[_Members, np.ndarray]:
        """The members of samples one after the other, and how many each sample has."""
        starts = self._starts[rows]
        counts = self._starts[rows + 1] - starts
        firsts = np.repeat(starts - _ends(counts)[:-1], counts)
        return self._members.take(firsts + np.arange(counts.sum())), counts

    def _sample_of_members(self) -> np.ndarray:
        return np.repeat(np.arange(len(self)), np.diff(self._starts))

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "_id_bytes"}

    @cached_property
    def _id_bytes(self) -> tuple[np.ndarray, memoryview]:
        """Where each id begins in the UTF-8 of all, and where the last one ends: for one batch that
        is quicker than Arrow's `take`."""
        _, bounds, content = self.ids.buffers()
        return np.frombuffer(bounds, np.int64)[self.ids.offset :], memoryview(content or b"")

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of which keys these are, in their order."""
        return hashlib.sha256(self._hashes.data).hexdigest()[:16]

    @cached_property
    def _hashes(self) -> np.ndarray:
        return hash_strings(self.ids)

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self._hashes, kind="stable")


class _Named(NamedTuple):
    """Members that belong to samples: their rows, keys, fields; and how many others there are."""

    rows: np.ndarray
    keys: pa.LargeStringArray
    fields: pa.LargeStringArray
    skipped: Counter[str]


def _named(table: pa.Table, tars: Sequence[IndexedTar]) -> _Named:
    """The members whose names have a key and a field. Raises MillraceError for one not UTF-8."""
    names = table["name"].cast(pa.large_binary()).combine_chunks()
    kinds = table["kind"].to_numpy()
    parts = pc.extract_regex(names, _NAME)
    is_readable = kinds <= SYMLINK
    is_other = pc.match_substring_regex(names, _OTHER).to_numpy(zero_copy_only=False)
    is_named = parts.is_valid().to_numpy(zero_copy_only=False) & ~is_other
    counts = {
        OTHER_NAME: int((is_readable & ~is_named).sum()),
        NO_FILE: int((kinds == BROKEN_LINK).sum()),
    }
    skipped = +Counter(counts)
    rows = np.flatnonzero(is_readable & is_named)
    parts = parts.take(rows)
    try:
        keys = parts.field("key").cast(pa.large_string())
        fields = parts.field("field").cast(pa.large_string())
    except pa.ArrowInvalid:
        raise _not_text(tars) from None
    return _Named(rows, keys, fields, skipped)


def _not_text(tars: Sequence[IndexedTar]) -> MillraceError:
    """The error for the first member whose name is not UTF-8."""
    for tar in tars:
        for name in tar.members["name"].cast(pa.large_binary()).to_pylist():
            try:
                name.decode()
            except UnicodeDecodeError:
                problem = f"the member {name!r} has a name that is not UTF-8"
                return MillraceError(problem, tar.state.path, "Rename it")
    raise AssertionError("all names are UTF-8")


def _fields(texts: pa.LargeStringArray) -> tuple[np.ndarray, list[str]]:
    """The number of each field, and the fields in lower case, in the order they first occur."""
    encoded = texts.dictionary_encode()
    lower = [text.lower() for text in encoded.dictionary.to_pylist()]
    fields = list(dict.fromkeys(lower))
    numbers = {field: number for number, field in enumerate(fields)}
    table = np.array([numbers[text] for text in lower], np.int32)
    return table[encoded.indices.to_numpy()], fields


def _grouped(
    tars: list[TarState],
    keys: pa.LargeStringArray,
    members: _Members,
    fields: list[str],
    ids: str,
) -> TarSamples:
    """Samples of members that follow each other with one key in one tar."""
    is_first = np.ones(len(keys), bool)
    if len(keys) > 1:
        is_other = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        is_first[1:] = is_other | (np.diff(members.tar) != 0)
    starts = np.append(np.flatnonzero(is_first), len(keys))
    names = keys.take(starts[:-1])
    if ids == "tar":
        slash = pa.scalar("/", pa.large_string())
        tar_names = _tar_names(tars, members.tar[is_first])
        names = pc.binary_join_element_wise(tar_names, names, slash)
    samples = TarSamples(tars, names, starts, members, fields)

    sample = np.cumsum(is_first) - 1
    repeated = _repeated(sample * len(fields) + members.field)
    if repeated is not None:
        row = int(sample[repeated[1]])
        again = int(members.offset[repeated[1]])
        first = int(members.offset[repeated[0]])
        field = fields[members.field[repeated[0]]]
        problem = f"its field {field} lies at byte {first} and at byte {again}"
        raise MillraceError(problem, samples.place(row), "Leave one out of the tar")
    repeated = _repeated(samples._hashes)
    if repeated is not None:
        raise _same_id(samples, repeated, ids)
    return samples


def _same_id(samples: TarSamples, rows: tuple[int, int], ids: str) -> MillraceError:
    """The error for two samples with one id, in one tar or in two."""
    first, second = (int(samples._members.tar[samples._starts[row]]) for row in rows)
    remedy = "Files of one key must follow each other: rename, or sort the tar"
    if first != second:
        remedy = "Rename one of the tars" if ids == "tar" else 'Give ids="tar": tar and key'
    first_place, second_place = (samples.place(row) for row in rows)
    return MillraceError(f"the same id as {second_place}", first_place, remedy)


def _tar_names(tars: list[TarState], numbers: np.ndarray) -> pa.LargeStringArray:
    """The name of each of these tars, without folder and ".tar"."""
    stems = [os.path.basename(tar.path).removesuffix(".tar") for tar in tars]
    texts = [stem.encode(errors="backslashreplace").decode() for stem in stems]
    return pa.array(texts, pa.large_string()).take(pa.array(numbers))


def _repeated(values: np.ndarray) -> tuple[int, int] | None:
    """The places of a value that occurs twice; None if there is none."""
    order = np.argsort(values, kind="stable")
    is_same = values[order][1:] == values[order][:-1]
    if not is_same.any():
        return None
    at = int(np.argmax(is_same))
    return int(order[at]), int(order[at + 1])


def _ends(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _error_of(sample: dict[str, Any]) -> ReadError | None:
    """The error of the first field that could not be read."""
    return next((raw for raw in sample.values() if isinstance(raw, ReadError)), None)
