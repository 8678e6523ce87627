"""The tar index against `tarfile`: every dialect, every number of chains, every cut, and how much
is read."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millrace.asr.manifests.identity import bare_name
from millrace.asr.tars import chain as tar_chain
from millrace.asr.tars import header as tar_header
from millrace.asr.tars import scan as tar_index
from millrace.asr.tars.header import (
    BROKEN_LINK,
    DIRECTORY,
    FILE,
    HARD_LINK,
    SPARSE,
    SPECIAL,
    SYMLINK,
)
from millrace.asr.tars.scan import TarScan, scan

NOISE = np.random.default_rng(7).bytes(1 << 18)
CHAIN_COUNTS = (1, 2, 3, 7, 32)
pytestmark = pytest.mark.usefixtures("always_split")


@pytest.fixture(scope="module")
def always_split():
    """Small tars are split into chains too: no minimum size, no page cache, no bound on the
    search."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar_chain.HeaderFile, "cached", lambda self, offset: False)
        patch.setattr(tar_chain, "SEARCH_SHARE", 1e9)
        patch.setattr(tar_chain, "MEMBERS_PER_CHAIN", 0.01)
        patch.setattr(tar_index, "FIRST_READS", 1)
        yield


def body_of(size: int, start: int = 0) -> bytes:
    return NOISE[start % 1000 : start % 1000 + size]


def info_of(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **fields) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def tar_of(*members) -> bytes:
    """A tar of (name, bytes) or TarInfo without bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                name, body = member
                tar.addfile(info_of(name, len(body)), io.BytesIO(body))
    return out.getvalue()


def header(
    name: bytes, size: int, typeflag: bytes = b"0", magic: bytes = b"ustar\x0000", **fields
) -> bytes:
    """A raw header; fields are offset=bytes pairs given as at_<offset>."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[108:116] = block[116:124] = b"0000000\0"
    block[124:136] = b"%011o\0" % size
    block[136:148] = b"00000000000\0"
    block[156:157] = typeflag
    block[257 : 257 + len(magic)] = magic
    for at, value in fields.items():
        block[int(at[3:]) : int(at[3:]) + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(body: bytes) -> bytes:
    return body + bytes(-len(body) % 512)


def file(name: bytes, body: bytes, typeflag: bytes = b"0", **fields) -> bytes:
    """A header, and the bytes of which it gives the size."""
    return header(name, len(body), typeflag, **fields) + padded(body)


def pax(*records: tuple[bytes, bytes], typeflag: bytes = b"x") -> bytes:
    payload = b""
    for key, value in records:
        length = len(key) + len(value) + 3
        while len(str(length)) + len(key) + len(value) + 3 != length:
            length = len(str(length)) + len(key) + len(value) + 3
        payload += b"%d %s=%s\n" % (length, key, value)
    return file(b"pax", payload, typeflag)


END = bytes(1024)


def write_holes(path: Path, sizes: Iterable[int]) -> Path:
    """A tar of members of these sizes, whose bytes are holes."""
    with open(path, "wb") as handle:
        for number, size in enumerate(sizes):
            handle.write(header(b"m%06d" % number, size))
            handle.seek((size + 511) // 512 * 512, 1)
        handle.write(END)
    return path


def save(folder: Path, content: bytes) -> Path:
    (folder / "a.tar").write_bytes(content)
    return folder / "a.tar"


def bytes_of(path: Path, scanned: TarScan) -> list[tuple[bytes, bytes]]:
    """(name, bytes) of the readable members, read by address."""
    content, result = path.read_bytes(), []
    columns = (scanned.names, scanned.offsets, scanned.sizes, scanned.kinds)
    for name, offset, size, kind in zip(*columns, strict=True):
        if kind <= SYMLINK:
            assert offset >= 0 and offset + size <= len(content)
            result.append((name, content[offset : offset + size]))
        else:
            assert (offset, size) == (-1, 0)
    return result


def reference(path: Path) -> list[tuple[bytes, bytes]]:
    """What tarfile, told to read on after zeros, extracts; without links to links."""
    result = []
    with tarfile.open(
        path, "r:", ignore_zeros=True, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for member in tar.getmembers():
            try:
                if not member.isfile() and not tar._find_link_target(member).isfile():
                    continue
                handle = tar.extractfile(member)
            except (KeyError, RecursionError):
                continue
            if handle is not None:
                result.append(
                    (bare_name(member.name.encode("utf-8", "surrogateescape")), handle.read())
                )
    return result


def check_equal(path: Path) -> TarScan:
    expected = reference(path)
    for chains in CHAIN_COUNTS:
        scanned = scan(path, chains)
        assert bytes_of(path, scanned) == expected, (chains, scanned.status, scanned.reason)
    return scanned


# Fuzz: layouts of all dialects.

letters = st.sampled_from(["a", "b", ".", "_", "é", "日", " ", "\U0001f3b5", "\udcff", "=", "\n"])
PLAIN = ["a", "b", "./a", ".a", "./.a", "../a", "dir/a", "./dir/a.flac", "a.json", "x" * 100]
parts = st.text(letters, min_size=1, max_size=9)
long_names = st.builds(lambda part, count: "/".join([part] * count), parts, st.integers(1, 40))
names = st.one_of(st.sampled_from(PLAIN), long_names).map(lambda name: name.strip("/") or "n")
sizes = st.one_of(st.sampled_from([0, 1, 511, 512, 513, 1024]), st.integers(0, 3000))


@st.composite
def archives(draw, nested: bool = True) -> bytes:
    """One archive, with or without its end, padding and trailing zeros."""
    format = draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]))
    out = io.BytesIO()
    headers = (
        draw(st.sampled_from([None, {"comment": "global"}]))
        if format == tarfile.PAX_FORMAT
        else None
    )
    with tarfile.open(
        fileobj=out, mode="w", format=format, encoding="utf-8", pax_headers=headers
    ) as tar:
        # A global header without a member is more than tarfile can read.
        for _ in range(draw(st.integers(1 if headers else 0, 12))):
            name, what = draw(names), draw(st.integers(0, 9))
            if what == 0:
                size, kind = draw(st.sampled_from([0, 0, 4096])), b"%d" % draw(st.integers(3, 6))
                info, body = info_of(name, size, kind), None
            elif what == 1:
                size, kind = draw(st.sampled_from([0, 0, 700])), draw(st.sampled_from([b"1", b"2"]))
                info, body = info_of(name, size, kind, linkname=draw(names)), None
            else:
                body = body_of(draw(sizes), draw(st.integers(0, 999)))
                if what == 2 and nested:
                    shift, inner = draw(st.sampled_from([0, 0, 100])), draw(archives(nested=False))
                    body = bytes(shift) + inner + b"ustar" * draw(st.integers(0, 200))
                info = info_of(name, len(body))
            if format == tarfile.PAX_FORMAT and draw(st.booleans()):
                info.pax_headers = {"comment": "x" * draw(st.integers(0, 5000))}
            if format == tarfile.USTAR_FORMAT:
                try:
                    info.tobuf(format, "utf-8", "surrogateescape")
                except ValueError:
                    info.name, info.linkname = "short", "short"
            tar.addfile(info, io.BytesIO(body) if body is not None else None)
        end = tar.offset
    if draw(st.booleans()):
        return out.getvalue()
    return out.getvalue()[:end] + bytes(512 * draw(st.sampled_from([0, 1, 2, 20])))


def fuzz(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


@fuzz(150)
@given(parts=st.lists(archives(), min_size=1, max_size=3), chains=st.sampled_from(CHAIN_COUNTS))
def test_every_layout_gives_the_bytes_that_tarfile_gives(tmp_path, parts, chains):
    path = save(tmp_path, b"".join(parts))
    scanned = scan(path, chains)
    assert bytes_of(path, scanned) == (reference(path) if path.stat().st_size else [])
    assert not {scanned.status} & set(tar_index.PARTIAL)
    assert scanned.status in ("ok", "empty", "concatenated", "unterminated", "zero_length")


@fuzz(40)
@given(content=archives(), chains=st.sampled_from(CHAIN_COUNTS))
def test_cut_anywhere_never_raises_and_never_gives_wrong_bytes(tmp_path, content, chains):
    path = save(tmp_path, content)
    whole = bytes_of(path, scan(path, chains))
    for end in [*range(0, len(content), 512), *range(100, len(content), 1700)]:
        path = save(tmp_path, content[:end])
        scanned = scan(path, chains)
        # A link to what is cut off leaves a gap, or leads to an older member; all else begins the
        # whole.
        files = (scanned.kinds == FILE)[scanned.kinds <= SYMLINK]
        readable = list(itertools.compress(bytes_of(path, scanned), files))
        rest = iter(whole)
        assert all(member in rest for member in readable), end
        statuses = ("truncated", "not_a_tar", "ok", "empty", "concatenated")
        assert not end % 512 or scanned.status in statuses, (end, scanned.status)


@fuzz(60)
@given(content=archives(), chains=st.sampled_from(CHAIN_COUNTS), data=st.data())
def test_any_flipped_byte_never_raises(tmp_path, content, chains, data):
    content = bytearray(content or END)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = save(tmp_path, bytes(content))
    serial, scanned = scan(path, 1), scan(path, chains)
    assert bytes_of(path, serial) == bytes_of(path, scanned)
    assert (serial.status, serial.reason, serial.digest) == (
        scanned.status,
        scanned.reason,
        scanned.digest,
    )


@fuzz(60)
@given(content=st.binary(max_size=5000), chains=st.sampled_from(CHAIN_COUNTS))
@example(content=b"\xff" * 512, chains=2)
@example(content=b"\x80" * 1024, chains=2)
def test_noise_is_no_tar_and_does_not_raise(tmp_path, content, chains):
    scanned = scan(save(tmp_path, content), chains)
    assert scanned.status in ("not_a_tar", "zero_length", "compressed", "empty", "truncated", "ok")
    assert len(scanned.names) == 0


# Dialects which tarfile does not write.

GNU_SPARSE = {"size": 600, "typeflag": b"S", "magic": b"ustar  \0", "at_483": b"00000010000\0"}
PAX_1 = ((b"major", b"1"), (b"minor", b"0"), (b"name", b"s"), (b"realsize", b"4096"))
PAX_1_SPARSE = pax(*((b"GNU.sparse." + key, value) for key, value in PAX_1))
PAX_0_SPARSE = pax((b"GNU.sparse.size", b"4096"), (b"GNU.sparse.map", b"0,600"))
SPARSES = {
    "gnu": header(b"s", at_386=b"00000000000\0" + b"00000001130\0", **GNU_SPARSE),
    "pax-1.0": PAX_1_SPARSE + header(b"s", 1112) + padded(b"1\n0\n600\n"),
    "pax-0.1": PAX_0_SPARSE + header(b"s", 600),
}
BASE_256 = header(b"big", 0, at_124=b"\x80" + (700).to_bytes(11, "big")) + padded(body_of(700))
# Content, and (name, kind, bytes) of its members.
DIALECTS = {
    "base-256 size": (BASE_256, [(b"big", FILE, body_of(700))]),
    "blank size": (
        header(b"empty", 0, at_124=b" " * 12) + file(b"z", b"z"),
        [(b"empty", FILE, b""), (b"z", FILE, b"z")],
    ),
    "posix prefix": (
        file(b"tail", b"abcde", at_345=b"p" * 155),
        [(b"p" * 155 + b"/tail", FILE, b"abcde")],
    ),
    "posix prefix, other version": (
        file(b"tail", b"x", magic=b"ustar 00", at_345=b"folder"),
        [(b"folder/tail", FILE, b"x")],
    ),
    "GNU has other fields there": (
        file(b"file", b"abc", magic=b"ustar  \0", at_345=b"14000000000\0"),
        [(b"file", FILE, b"abc")],
    ),
    "version 7, no magic": (
        header(b"folder/", 0, b"\0", magic=b"")
        + b"".join(file(b"m%d" % i, body_of(600, i), b"\0", magic=b"") for i in range(40)),
        [(b"folder", DIRECTORY, b""), *((b"m%d" % i, FILE, body_of(600, i)) for i in range(40))],
    ),
    "pax path and size": (
        pax((b"path", "dir/é".encode()), (b"size", b"3")) + header(b"short", 0) + padded(b"abc"),
        [("dir/é".encode(), FILE, b"abc")],
    ),
    "pax binary path": (
        pax((b"hdrcharset", b"BINARY"), (b"path", b"raw\xff\xfe")) + file(b"short", b"de"),
        [(b"raw\xff\xfe", FILE, b"de")],
    ),
    "pax global, then a line break in a path": (
        pax((b"comment", b"c" * 2000), (b"mtime", b"1.5"), typeflag=b"g")
        + pax((b"path", b"with\nnewline=1"))
        + file(b"short", b"f"),
        [(b"with\nnewline=1", FILE, b"f")],
    ),
    "pax path, then a pax global": (
        pax((b"path", b"own")) + pax((b"comment", b"c"), typeflag=b"g") + file(b"short", b"h"),
        [(b"own", FILE, b"h")],
    ),
    "pax twice": (
        pax((b"path", b"one/"), (b"size", b"2"), (b"comment", b"1"))
        + pax((b"path", b"one"), (b"comment", b"2"))
        + header(b"short", 0)
        + padded(b"de"),
        [(b"one", FILE, b"de")],
    ),
    "GNU long name, then pax": (
        file(b"long", b"gnu-on\0", b"L") + pax((b"comment", b"x")) + file(b"short", b"g"),
        [(b"gnu-on", FILE, b"g")],
    ),
    "label and multi-volume": (
        header(b"label", 0, b"V") + file(b"part", body_of(600), b"M") + file(b"z", b"z"),
        [(b"label", SPECIAL, b""), (b"part", tar_header.MULTI_VOLUME, b""), (b"z", FILE, b"z")],
    ),
    **{
        f"sparse {name}": (
            file(b"a", b"abc") + head + padded(body_of(600)) + file(b"z", b"xyz"),
            [(b"a", FILE, b"abc"), (b"s", SPARSE, b""), (b"z", FILE, b"xyz")],
        )
        for name, head in SPARSES.items()
    },
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("chains", CHAIN_COUNTS)
def test_members_of_every_dialect(tmp_path, dialect, chains):
    content, members = DIALECTS[dialect]
    # In a tar of others, so that a wrong end of the member shows.
    path = save(tmp_path, content + file(b"after", b"ok") + END)
    scanned = scan(path, chains)
    assert scanned.status == "ok" and ("sparse" in scanned.reason) == dialect.startswith("sparse")
    kinds = [(name, kind) for name, kind, _ in members]
    assert list(zip(scanned.names, scanned.kinds.tolist(), strict=True))[:-1] == kinds
    readable = [(name, body) for name, kind, body in members if kind == FILE]
    assert bytes_of(path, scanned) == [*readable, (b"after", b"ok")]


SIZE = 9 << 30
IN_PAX = pax((b"size", b"%d" % SIZE)) + header(b"huge", 0)
IN_HEADER = header(b"huge", 0, at_124=b"\x80" + SIZE.to_bytes(11, "big"))


@pytest.mark.parametrize("head", [IN_PAX, IN_HEADER], ids=["pax", "base-256"])
def test_sizes_above_8_gib(tmp_path, head):
    with open(tmp_path / "huge.tar", "w+b") as tar:
        tar.write(head)
        tar.seek(len(head) + SIZE)
        tar.write(file(b"after", b"abc") + END)
    for chains in (1, 16):
        scanned = scan(tar.name, chains)
        assert (scanned.status, scanned.names) == ("ok", [b"huge", b"after"])
        assert scanned.sizes.tolist() == [SIZE, 3] and scanned.offsets[1] == len(head) + SIZE + 512


# Names, links, duplicates.


def test_the_prefix_is_stripped_not_its_characters(tmp_path):
    names = [
        "./.hidden",
        "./hidden",
        ".hidden.json",
        "..dots",
        "././twice",
        ".//slash",
        "..",
        "../up",
    ]
    scanned = scan(save(tmp_path, tar_of(*[(name, name.encode()) for name in names])))
    bare = [".hidden", "hidden", ".hidden.json", "..dots", "twice", "slash", "..", "../up"]
    assert scanned.names == [name.encode() for name in bare] and scanned.duplicates == 0


def test_links_get_the_bytes_tarfile_gives(tmp_path):
    link = lambda name, target, kind=b"1": info_of(name, kind=kind, linkname=target)  # noqa: E731
    members = [
        *(link("early", "./d/a"), ("./d/a", b"first"), link("hard", "./d/a"), ("d/a", b"second")),
        *(link("hard2", "d/../d/a"), link("d/soft", "a", b"2"), link("d/up", "../top", b"2")),
        *(link("chain", "hard"), link("loop", "loop", b"2"), link("nowhere", "missing")),
        *(info_of("folder", kind=b"5"), link("to-folder", "folder", b"2"), ("top", b"top")),
        *(("f" * 120, b"far"), link("to-long", "f" * 120)),
    ]
    scanned = check_equal(save(tmp_path, tar_of(*members)))
    assert dict(zip(scanned.names, scanned.kinds.tolist(), strict=True)) == {
        b"early": BROKEN_LINK,
        b"d/a": FILE,
        b"hard": HARD_LINK,
        b"hard2": HARD_LINK,
        b"d/soft": SYMLINK,
        b"d/up": SYMLINK,
        b"chain": BROKEN_LINK,
        b"loop": BROKEN_LINK,
        b"nowhere": BROKEN_LINK,
        b"folder": DIRECTORY,
        b"to-folder": BROKEN_LINK,
        b"top": FILE,
        b"f" * 120: FILE,
        b"to-long": HARD_LINK,
    }
    assert scanned.duplicates == 1 and "more than once" in scanned.reason
    assert "5 links lead to no file in this tar, or to another link" in scanned.reason


@pytest.mark.parametrize("chains", CHAIN_COUNTS)
def test_bytes_behind_a_link_or_a_directory_are_damage_by_name(tmp_path, chains):
    """What `pax -o linkdata` and old writers make; what comes after them is found."""
    content = b"".join(
        [
            tar_of(("d/a", b"first"))[:1024],
            file(b"hard", b"first", b"1", at_157=b"d/a"),
            file(b"d/", body_of(700, 1), b"5"),
            tar_of(("d/b", body_of(2000, 6))),
        ]
    )
    path = save(tmp_path, content)
    scanned = scan(path, chains)
    assert scanned.status == "damaged" and "bad checksum of a header at byte" in scanned.reason
    found = [(b"d/a", b"first"), (b"hard", b"first"), (b"d/b", body_of(2000, 6))]
    assert bytes_of(path, scanned) == found
    assert scanned.names[-1] == b"d/b" and scanned.recovered.tolist()[-1]


def test_bytes_that_are_not_there_cost_no_member(tmp_path):
    """The size of a directory or device leads nowhere, and behind its header is no header."""
    members = tar_of(*((f"m{number}", body_of(700, number)) for number in range(9)))
    for size, kind in ((400, b"5"), (9000, b"5"), (9000, b"3")):
        path = save(tmp_path, header(b"d/", size, kind) + body_of(1024) + members)
        scanned = check_equal(path)
        assert scanned.status == "damaged" and len(scanned.names) == 10


# Damage.


def many(count: int = 50, size: int = 700) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    members = [(f"m{i:03d}.flac", body_of(size + i, i)) for i in range(count)]
    return tar_of(*members), [(name.encode(), body) for name, body in members]


MANY, MEMBERS = many()
START, ALL_BUT_20 = MANY.index(b"m020.flac"), MEMBERS[:20] + MEMBERS[21:]


def flipped(at: int, content: bytes = MANY) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x15]) + content[at + 1 :]


def between(odd: bytes) -> bytes:
    """A tar of a, b and what stands between them."""
    return tar_of(("a", b"a"))[:1024] + odd + tar_of(("b", b"b"))


# Headers that are damaged or never written, and a word of the reason.
ODD_HEADERS = {
    "size below zero": (
        header(b"odd", 0, at_124=b"\xff" + (-1536).to_bytes(11, "big", signed=True)),
        "a size which is no number",
    ),
    **{
        f"size of {bits} bits": (
            header(b"odd", 0, at_124=b"\x80" + ((1 << bits) - 1).to_bytes(11, "big")),
            "no file can have",
        )
        for bits in (63, 88)
    },
    # As of a record that grew, or of two headers: other readers take another name or size.
    **{
        f"PAX records {records!r}": (file(b"pax", records, b"x"), word)
        for records, word in [
            (b"0 path=z\n", "a PAX record of an impossible length"),
            (b"9 path=z\0", "a PAX record of an impossible length"),
            (b"8 size=1z", "a PAX record of an impossible length"),
            (b"9 path=z\npath=y", "PAX records that are none"),
        ]
    },
    # Each of thousands would be read again from each of those before it.
    "headers of one member": (
        40 * pax((b"comment", b"1")),
        "more than 16 headers of one member",
    ),
    # Taken at its word it would be a file that ends there, and what lies behind it lost.
    "extended header of a size above all": (
        header(b"long", 1 << 30, b"L"),
        "an extended header of an impossible size",
    ),
    "PAX size of thousands of digits": (
        pax((b"size", b"9" * 5000)),
        "a size which is no number",
    ),
    "global size": (
        pax((b"size", b"3"), typeflag=b"g"),
        "a global header with a path or size",
    ),
}
INNER = tar_of(("a", b"a"), ("inner.tar", many(30)[0]), ("b", b"b"), ("c", b"c"))
NO_MAGIC = [file(b"m%d" % i, body_of(600, i), b"\0", magic=b"") for i in range(9)]
TO_LATER = header(b"m020.flac", 720 + 3 * 1536)
# Content, status, a word of the reason, the readable members, and how many of them are marked
# recovered.
DAMAGE = {
    **{
        f"bad byte {at} of a header": (flipped(START + at), "damaged", f"{START:,}", ALL_BUT_20, 29)
        for at in (0, 124, 148, 300)
    },
    "zeroed header": (
        MANY[:START] + bytes(512) + MANY[START + 512 :],
        "damaged",
        "zeros and data",
        ALL_BUT_20,
        29,
    ),
    "size that leads to a later header": (
        MANY[:START] + TO_LATER[:148] + MANY[START + 148 :],
        "damaged",
        f"{START:,}",
        ALL_BUT_20,
        29,
    ),
    **{
        name: (between(odd), "damaged", word, [(b"a", b"a"), (b"b", b"b")], 1)
        for name, (odd, word) in ODD_HEADERS.items()
    },
    **{
        f"two headers of {key.decode()}": (
            between(pax((key, b"0")) + second + file(b"short", b"1")),
            "damaged",
            "two paths, links or sizes of one member",
            [(b"a", b"a"), (name, b"1"), (b"b", b"b")],
            2,
        )
        for key, second, name in [
            (b"path", file(b"long", b"2\0", b"L"), b"2"),
            (b"linkpath", file(b"long", b"2\0", b"K"), b"short"),
            (b"size", pax((b"size", b"1")), b"short"),
        ]
    },
    "first header": (b"\xff" * 512 + MANY[512:], "not_a_tar", "bad checksum", [], 0),
    # What comes next are the headers in it: they are this tar's, and marked as recovered.
    "header of a tar in the tar": (
        flipped(INNER.index(b"inner.tar"), INNER),
        "damaged",
        "1,024",
        [(b"a", b"a"), *many(30)[1], (b"b", b"b"), (b"c", b"c")],
        32,
    ),
    "header without magic": (
        b"".join([*NO_MAGIC[:4], b"\xee", NO_MAGIC[4][1:], *NO_MAGIC[5:], END]),
        "damaged",
        "6,144",
        [(b"m%d" % i, body_of(600, i)) for i in range(9) if i != 4],
        4,
    ),
    "cut in a body": (MANY[: START + 612], "truncated", f"{START:,}", MEMBERS[:20], 0),
    "cut in padding": (MANY[: START - 1], "truncated", "inside the padding", MEMBERS[:20], 0),
    "cut in a header": (MANY[: START + 300], "truncated", "inside a header", MEMBERS[:20], 0),
    "cut between members": (MANY[:START], "unterminated", "end-of-archive", MEMBERS[:20], 0),
    "three tars in one file": (
        MANY + tar_of(("second", b"2")) + bytes(512 * 300) + tar_of(("third", b"3")),
        "concatenated",
        "another archive",
        [*MEMBERS, (b"second", b"2"), (b"third", b"3")],
        0,
    ),
    "a tar in the tar": (
        INNER,
        "ok",
        "",
        [(b"a", b"a"), (b"inner.tar", many(30)[0]), (b"b", b"b"), (b"c", b"c")],
        0,
    ),
    "bytes after the end": (MANY + b"signature" * 100, "damaged", "zeros and data", MEMBERS, 0),
    "many zeros at the end": (MANY + bytes(1 << 20), "ok", "", MEMBERS, 0),
    "more zeros than a tar has": (MANY + bytes(3 << 20), "truncated", "not finished", MEMBERS, 0),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_costs_the_members_it_lies_in(tmp_path, damage):
    content, status, word, members, recovered = DAMAGE[damage]
    path = save(tmp_path, content)
    for chains in CHAIN_COUNTS:
        scanned = scan(path, chains)
        assert (scanned.status, bytes_of(path, scanned)) == (
            status,
            members,
        ) and word in scanned.reason
        marked = [False] * (len(members) - recovered) + [True] * recovered
        assert scanned.recovered.tolist()[: len(members)] == marked
        assert scanned.names == [name for name, _ in members]


def test_behind_the_long_map_of_a_sparse_member_is_read_on_as_after_damage(tmp_path):
    sparse = header(b"s", at_482=b"\1", **GNU_SPARSE) + b"\1" * 512 + padded(body_of(600))
    content = file(b"a", b"abc") + sparse + file(b"z", b"xyz") + END
    scanned = scan(save(tmp_path, content))
    assert scanned.status == "damaged" and "1 sparse members are not supported" in scanned.reason
    assert (scanned.names, scanned.kinds.tolist()) == ([b"a", b"s", b"z"], [FILE, SPARSE, FILE])
    assert bytes_of(tmp_path / "a.tar", scanned) == [(b"a", b"abc"), (b"z", b"xyz")]


def test_thousands_of_damaged_places_are_told_in_few_words(tmp_path):
    bad = bytearray(tar_of(*((f"m{number:04d}.flac", b"x") for number in range(4000))))
    bad[148 + 1024 :: 4096] = bytes(byte ^ 1 for byte in bad[148 + 1024 :: 4096])
    scanned = scan(save(tmp_path, bytes(bad)), 1)
    # Of 1,003 remarks twelve are told.
    assert "; 991 more places like these" in scanned.reason and len(scanned.reason) < 1000
    assert scanned.names == [b"m%04d.flac" % number for number in range(4000) if number % 4 != 1]


@pytest.mark.parametrize(
    "head, size, status, word",
    [
        (b"", 0, "zero_length", "no bytes"),
        (b"", 10240, "empty", "without members"),
        (gzip.compress(b"x" * 100, mtime=0), 0, "compressed", "gzip"),
        (b"\x28\xb5\x2f\xfd", 2000, "compressed", "zstd"),
        (b"BZh9", 2000, "compressed", "bzip2"),
        (b"\xfd7zXZ\0", 2000, "compressed", "xz"),
        (b"PK\x03\x04", 2000, "compressed", "zip"),
        (b"RIFF", 2000, "not_a_tar", "bad checksum"),
        (b"short", 0, "not_a_tar", "ends inside a header"),
    ],
)
def test_what_is_no_tar_says_so(tmp_path, head, size, status, word):
    scanned = scan(save(tmp_path, head + bytes(size)))
    assert (scanned.status, len(scanned.names)) == (status, 0) and word in scanned.reason


def test_missing_unreadable_folders_and_fifos(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    assert scan(tmp_path / "none").status == "missing"
    for name in ("", "fifo", "loop", "a\0b"):
        scanned = scan(os.path.join(tmp_path, name))
        assert scanned.status == "unreadable" and scanned.reason


# How much is read.


@pytest.fixture
def reads(monkeypatch) -> list[int]:
    """The bytes of the reads of scans, in whole pages as the kernel fetches them."""
    pread, sizes = tar_chain.HeaderFile.pread, []

    def noted(self, size: int, offset: int) -> bytes:
        pages = (offset + size - 1) // 4096 - offset // 4096 + 1
        sizes.append(4096 * pages)
        return pread(self, size, offset)

    monkeypatch.setattr(tar_chain.HeaderFile, "pread", noted)
    return sizes


@pytest.mark.parametrize("chains", [1, 32])
@pytest.mark.parametrize("size", [0, 100, 700, 3000, 9000, 140_000])
def test_at_most_a_page_and_a_tenth_is_read_for_each_member(
    tmp_path, monkeypatch, reads, size, chains
):
    monkeypatch.setattr(tar_chain, "SEARCH_SHARE", 0.05)
    monkeypatch.setattr(tar_chain, "MEMBERS_PER_CHAIN", 8)
    sizes = (size * np.random.default_rng(1).uniform(0.6, 1.4, 3000)).astype(int)
    scanned = scan(write_holes(tmp_path / "a.tar", sizes.tolist()), chains)
    assert len(scanned.names) == 3000 and scanned.status == "ok"
    assert sum(reads) <= 1.1 * 4096 * 3000
    # The chains read what they found once: few headers are read again after the landing check.
    assert len(reads) <= 1.1 * 3000


def test_each_chain_finds_a_member_and_walks_a_part_of_the_tar(tmp_path, monkeypatch):
    chains = []
    split = tar_chain.split

    def noted(first, count):
        chains.extend(split(first, count))
        return list(chains)

    monkeypatch.setattr(tar_chain, "split", noted)
    told = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, offset, size, advice: told.append(advice))
    path = write_holes(tmp_path / "a.tar", [9_216] * 400)
    assert len(scan(path, 4).names) == 400
    assert len(chains) == 4 and min(len(chain.starts) for chain in chains) >= 50
    assert told.count(os.POSIX_FADV_WILLNEED) >= 300  # before they are read


def test_dense_tars_are_read_in_few_reads(tmp_path, reads):
    path = write_holes(tmp_path / "a.tar", [100] * 20_000)
    assert len(scan(path, 1).names) == 20_000
    assert len(reads) <= 20_000 / 50
    assert sum(reads) <= 1.01 * path.stat().st_size
