"""The tar index against `tarfile`: every dialect, every number of chains, every cut, and how much is read for
it."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millrace.asr.tars import chain as tar_chain
from millrace.asr.tars import scan as tar_index
from millrace.asr.tars.header import (
    BROKEN_LINK,
    CUT,
    DIRECTORY,
    FILE,
    HARD_LINK,
    MULTI_VOLUME,
    SPARSE,
    SPECIAL,
    SYMLINK,
    is_header,
)
from millrace.asr.tars.scan import TarScan, bare_name, scan

RNG = np.random.default_rng(7)
NOISE = RNG.bytes(1 << 18)
CHAIN_COUNTS = (1, 2, 3, 7, 32)
pytestmark = pytest.mark.usefixtures("always_split")


@pytest.fixture(scope="module")
def always_split():
    """Small tars are split into chains too: no minimum size, no look at the page cache, no bound on the
    search."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar_chain.HeaderFile, "cached", lambda self, offset: False)
        patch.setattr(tar_chain, "SEARCH_SHARE", 1e9)
        patch.setattr(tar_chain, "MEMBERS_PER_CHAIN", 0.01)
        patch.setattr(tar_index, "_FIRST_READS", 1)
        yield


def body_of(size: int, start: int = 0) -> bytes:
    return NOISE[start % 1000 : start % 1000 + size]


def info_of(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **fields) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def tar_of(*members, format=tarfile.GNU_FORMAT, **options) -> bytes:
    """A tar of (name, bytes) or TarInfo without bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, encoding="utf-8", **options) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                name, body = member
                tar.addfile(info_of(name, len(body)), io.BytesIO(body))
    return out.getvalue()


def header(name: bytes, size: int, typeflag: bytes = b"0", magic: bytes = b"ustar\x0000", **fields) -> bytes:
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
    return sealed(block)


def sealed(block: bytes | bytearray) -> bytes:
    block = bytearray(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(body: bytes) -> bytes:
    return body + bytes(-len(body) % 512)


def pax(*records: tuple[bytes, bytes], typeflag: bytes = b"x") -> bytes:
    payload = b""
    for key, value in records:
        length = len(key) + len(value) + 3
        while len(str(length)) + len(key) + len(value) + 3 != length:
            length = len(str(length)) + len(key) + len(value) + 3
        payload += b"%d %s=%s\n" % (length, key, value)
    return header(b"pax", len(payload), typeflag) + padded(payload)


END = bytes(1024)


def save(folder: Path, content: bytes, name: str = "a.tar") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def bytes_of(path: Path, found: TarScan) -> list[tuple[bytes, bytes]]:
    """(name, bytes) of the readable members, read by address."""
    content = path.read_bytes()
    result = []
    for name, offset, size, kind in zip(found.names, found.offsets, found.sizes, found.kinds, strict=True):
        if kind <= SYMLINK:
            assert offset >= 0 and offset + size <= len(content)
            result.append((name, content[offset : offset + size]))
        else:
            assert (offset, size) == (-1, 0)
    return result


def reference(path: Path) -> list[tuple[bytes, bytes]]:
    """What tarfile, told to read on after zeros, extracts."""
    result = []
    with tarfile.open(path, "r:", ignore_zeros=True, encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar.getmembers():
            try:
                handle = tar.extractfile(member)
            except (KeyError, RecursionError):
                continue
            if handle is not None:
                result.append((bare_name(member.name.encode("utf-8", "surrogateescape")), handle.read()))
    return result


def check_equal(path: Path) -> TarScan:
    expected = reference(path)
    for chains in CHAIN_COUNTS:
        found = scan(path, chains)
        assert bytes_of(path, found) == expected, (chains, found.status, found.reason)
    return found


# Fuzz: layouts of all dialects.

letters = st.sampled_from(["a", "b", ".", "_", "é", "日", " ", "\U0001f3b5", "\udcff", "=", "\n"])
plain_names = st.sampled_from(
    ["a", "b", "./a", ".a", "./.a", "../a", "dir/a", "./dir/a.flac", "a.json", "x" * 100]
)
long_names = st.builds(
    lambda part, count: "/".join([part] * count), st.text(letters, min_size=1, max_size=9), st.integers(1, 40)
)
names = st.one_of(plain_names, long_names).map(lambda name: name.strip("/") or "n")
sizes = st.one_of(st.sampled_from([0, 1, 511, 512, 513, 1024]), st.integers(0, 3000))
FORMATS = [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]


class Archive(bytes):
    """Bytes which a failing test prints in few words."""

    def __repr__(self) -> str:
        return f"<archive of {len(self)} bytes>"


@st.composite
def archives(draw, nested: bool = True) -> Archive:
    """One archive, with or without its end, padding and trailing zeros."""
    format = draw(st.sampled_from(FORMATS))
    out = io.BytesIO()
    headers = draw(st.sampled_from([None, {"comment": "global"}])) if format == tarfile.PAX_FORMAT else None
    with tarfile.open(fileobj=out, mode="w", format=format, encoding="utf-8", pax_headers=headers) as tar:
        # A global header without a member is more than tarfile can read.
        for _ in range(draw(st.integers(1 if headers else 0, 12))):
            name, what = draw(names), draw(st.integers(0, 9))
            if what == 0:
                info, body = info_of(name, kind=draw(st.sampled_from([b"3", b"4", b"5", b"6"]))), None
                info.size = draw(st.sampled_from([0, 0, 4096]))
            elif what == 1:
                info, body = (
                    info_of(name, kind=draw(st.sampled_from([b"1", b"2"])), linkname=draw(names)),
                    None,
                )
                info.size = draw(st.sampled_from([0, 0, 700]))
            elif what == 2 and nested:
                body = draw(archives(nested=False))
                shift = draw(st.sampled_from([0, 0, 100]))
                body = bytes(shift) + body + b"ustar" * draw(st.integers(0, 200))
                info = info_of(name, len(body))
            else:
                body = body_of(draw(sizes), draw(st.integers(0, 999)))
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
    content = out.getvalue()
    return Archive(
        content[:end] + bytes(512 * draw(st.sampled_from([0, 1, 2, 20]))) if draw(st.booleans()) else content
    )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=st.lists(archives(), min_size=1, max_size=3), chains=st.sampled_from(CHAIN_COUNTS))
def test_every_layout_gives_the_bytes_that_tarfile_gives(tmp_path, parts, chains):
    path = save(tmp_path, b"".join(parts))
    found = scan(path, chains)
    assert bytes_of(path, found) == (reference(path) if path.stat().st_size else [])
    assert not {found.status} & set(tar_index.PARTIAL)
    assert found.status in ("ok", "empty", "concatenated", "unterminated", "zero_length")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=archives(), chains=st.sampled_from(CHAIN_COUNTS))
def test_cut_anywhere_never_raises_and_never_gives_wrong_bytes(tmp_path, content, chains):
    folder = tmp_path
    whole = bytes_of(path := save(folder, content), scan(path, chains))
    for end in [*range(0, len(content), 512), *range(100, len(content), 1700)]:
        path = save(folder, content[:end])
        found = scan(path, chains)
        # A link whose target is cut off leaves a gap, or leads to an older member of that name; everything
        # else is a beginning of the whole.
        files = (found.kinds == FILE)[found.kinds <= SYMLINK]
        readable = list(itertools.compress(bytes_of(path, found), files))
        kept = iter(whole)
        assert all(member in kept for member in readable), end
        if end % 512:
            assert found.status in ("truncated", "not_a_tar", "ok", "empty", "concatenated"), (
                end,
                found.status,
            )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=archives(), chains=st.sampled_from(CHAIN_COUNTS), data=st.data())
def test_any_flipped_byte_never_raises(tmp_path, content, chains, data):
    if not content:
        return
    content = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = save(tmp_path, bytes(content))
    serial, found = scan(path, 1), scan(path, chains)
    assert bytes_of(path, serial) == bytes_of(path, found)
    assert (serial.status, serial.reason, serial.digest) == (found.status, found.reason, found.digest)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=5000), chains=st.sampled_from(CHAIN_COUNTS))
@example(content=b"\xff" * 512, chains=2)
@example(content=b"\x80" * 1024, chains=2)
def test_noise_is_no_tar_and_does_not_raise(tmp_path, content, chains):
    found = scan(save(tmp_path, content), chains)
    assert found.status in ("not_a_tar", "zero_length", "compressed", "empty", "truncated", "ok")
    assert len(found.names) == 0


# Dialects which tarfile does not write.


def test_base_256_sizes_and_star_prefixes(tmp_path):
    big = header(b"big", 0, at_124=b"\x80" + (700).to_bytes(11, "big")) + padded(body_of(700))
    star = header(b"tail", 5, at_345=b"head", at_476=b"00000000000\0", at_508=b"tar\0") + padded(b"12345")
    posix = header(b"tail", 5, at_345=b"p" * 155) + padded(b"abcde")
    path = save(tmp_path, big + star + posix + END)
    found = check_equal_names(path, [b"big", b"head/tail", b"p" * 155 + b"/tail"])
    assert bytes_of(path, found)[0][1] == body_of(700)


def check_equal_names(path: Path, expected: list[bytes]) -> TarScan:
    for chains in CHAIN_COUNTS:
        found = scan(path, chains)
        assert found.names == expected, found.reason
    return found


def test_gnu_headers_have_other_fields_in_place_of_the_prefix(tmp_path):
    path = save(
        tmp_path, header(b"file", 3, magic=b"ustar  \0", at_345=b"14000000000\0") + padded(b"abc") + END
    )
    assert bytes_of(path, check_equal_names(path, [b"file"])) == [(b"file", b"abc")]


def test_version_7_tars_without_magic(tmp_path):
    blocks = b"".join(header(b"m%d" % i, 600, b"\0", magic=b"") + padded(body_of(600, i)) for i in range(40))
    path = save(tmp_path, header(b"folder/", 0, b"\0", magic=b"") + blocks + END)
    found = check_equal(path)
    assert found.status == "ok" and found.kinds[0] == DIRECTORY and found.names[0] == b"folder"


def test_signed_checksums_of_old_writers(tmp_path):
    block = bytearray(header(b"caf\xe9", 4))
    block[148:156] = b"%06o\0 " % (sum(block) - sum(block[148:156]) + 256 - 256)
    path = save(tmp_path, bytes(block) + padded(b"abcd") + END)
    assert bytes_of(path, check_equal(path)) == [(b"caf\xe9", b"abcd")]


def test_sizes_above_8_gib_by_pax_and_base_256(tmp_path):
    size = 9 << 30
    for number, head in enumerate(
        [
            pax((b"size", b"%d" % size)) + header(b"huge", 0),
            header(b"huge", 0, at_124=b"\x80" + size.to_bytes(11, "big")),
        ]
    ):
        path = tmp_path / f"{number}.tar"
        with open(path, "wb") as handle:
            handle.write(head)
            handle.seek(len(head) + size)
            handle.write(header(b"after", 3) + padded(b"abc") + END)
        for chains in (1, 16):
            found = scan(path, chains)
            assert found.status == "ok" and found.names == [b"huge", b"after"] and found.sizes[0] == size
            with open(path, "rb") as handle:
                handle.seek(found.offsets[1])
                assert handle.read(found.sizes[1]) == b"abc"


def test_pax_records_local_global_and_binary(tmp_path):
    path = save(
        tmp_path,
        pax((b"path", "dir/é".encode()), (b"size", b"3"))
        + header(b"short", 0)
        + padded(b"abc")
        + pax((b"hdrcharset", b"BINARY"), (b"path", b"raw\xff\xfe"))
        + header(b"short", 2)
        + padded(b"de")
        + pax((b"comment", b"c" * 2000), (b"mtime", b"1.5"), typeflag=b"g")
        + pax((b"path", b"with\nnewline=1"))
        + header(b"short", 1)
        + padded(b"f")
        + header(b"long", 7, b"L")
        + padded(b"gnu-on\0")
        + pax((b"comment", b"x"))
        + header(b"short", 1)
        + padded(b"g")
        + END,
    )
    found = check_equal(path)
    assert found.names == ["dir/é".encode(), b"raw\xff\xfe", b"with\nnewline=1", b"gnu-on"]


def test_global_pax_sizes_hold_for_all_that_follows(tmp_path):
    members = b"".join(header(b"m%03d" % i, 0) + padded(body_of(1000, i)) for i in range(60))
    path = save(tmp_path, pax((b"size", b"1000"), typeflag=b"g") + members + END)
    for chains in CHAIN_COUNTS:
        found = scan(path, chains)
        assert found.status == "ok"
        assert bytes_of(path, found) == [(b"m%03d" % i, body_of(1000, i)) for i in range(60)]


@pytest.mark.parametrize(
    "sparse",
    [
        header(
            b"s", 600, b"S", b"ustar  \0", at_386=b"00000000000\0" + b"00000001130\0", at_483=b"00000010000\0"
        )
        + padded(body_of(600)),
        header(b"s", 600, b"S", b"ustar  \0", at_482=b"\1", at_483=b"00000010000\0")
        + (bytes(504) + b"\1" + bytes(7))
        + bytes(512)
        + padded(body_of(600)),
        pax(
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.name", b"s"),
            (b"GNU.sparse.realsize", b"4096"),
        )
        + header(b"GNUSparseFile.0/s", 1112)
        + padded(b"1\n0\n600\n")
        + padded(body_of(600)),
        pax((b"GNU.sparse.size", b"4096"), (b"GNU.sparse.map", b"0,600"))
        + header(b"s", 600)
        + padded(body_of(600)),
    ],
    ids=["gnu", "gnu-extended", "pax-1.0", "pax-0.1"],
)
def test_sparse_members_are_named_not_read(tmp_path, sparse):
    path = save(tmp_path, header(b"a", 3) + padded(b"abc") + sparse + header(b"z", 3) + padded(b"xyz") + END)
    found = check_equal_names(path, [b"a", b"s", b"z"])
    assert found.kinds.tolist() == [FILE, SPARSE, FILE] and "sparse" in found.reason
    assert bytes_of(path, found) == [(b"a", b"abc"), (b"z", b"xyz")]


def test_multi_volume_continuations_and_labels_are_no_files(tmp_path):
    path = save(
        tmp_path,
        header(b"label", 0, b"V")
        + header(b"part", 600, b"M")
        + padded(body_of(600))
        + header(b"z", 1)
        + padded(b"z")
        + END,
    )
    found = check_equal_names(path, [b"label", b"part", b"z"])
    assert found.kinds.tolist() == [SPECIAL, MULTI_VOLUME, FILE]


# Names, links, duplicates.


def test_the_prefix_is_stripped_not_its_characters(tmp_path):
    names = ["./.hidden", "./hidden", ".hidden.json", "..dots", "././twice", ".//slash", "..", "../up"]
    found = scan(save(tmp_path, tar_of(*[(name, name.encode()) for name in names])))
    assert found.names == [
        b".hidden",
        b"hidden",
        b".hidden.json",
        b"..dots",
        b"twice",
        b"slash",
        b"..",
        b"../up",
    ]
    assert found.duplicates == 0


def test_links_get_the_bytes_tarfile_gives(tmp_path):
    link = lambda name, target, kind=b"1": info_of(name, kind=kind, linkname=target)  # noqa: E731
    path = save(
        tmp_path,
        tar_of(
            link("early", "./d/a"),
            ("./d/a", b"first"),
            link("hard", "./d/a"),
            ("d/a", b"second"),
            link("hard2", "d/../d/a"),
            link("d/soft", "a", b"2"),
            link("d/up", "../top", b"2"),
            link("chain", "hard"),
            link("loop", "loop", b"2"),
            link("nowhere", "missing"),
            info_of("folder", kind=b"5"),
            link("to-folder", "folder", b"2"),
            ("top", b"top"),
        ),
    )
    found = check_equal(path)
    assert dict(zip(found.names, found.kinds.tolist(), strict=True)) == {
        b"early": BROKEN_LINK, b"d/a": FILE, b"hard": HARD_LINK, b"hard2": HARD_LINK, b"d/soft": SYMLINK,
        b"d/up": SYMLINK, b"chain": HARD_LINK, b"loop": BROKEN_LINK, b"nowhere": BROKEN_LINK, b"folder": DIRECTORY,
        b"to-folder": BROKEN_LINK, b"top": FILE,
    }  # fmt: skip
    assert (
        dict(bytes_of(path, found))[b"hard"] == b"first"
        and dict(bytes_of(path, found))[b"d/soft"] == b"second"
    )
    assert found.duplicates == 1 and "more than once" in found.reason


@pytest.mark.parametrize("chains", CHAIN_COUNTS)
def test_directories_and_links_with_bytes_of_their_own(tmp_path, chains):
    """What old writers and `pax -o linkdata` make; tarfile stops there, libarchive reads on."""
    content = b"".join(
        [
            header(b"d/", 700, b"5") + padded(body_of(700, 1)),
            tar_of(("d/a", b"first"))[:1024],
            header(b"hard", 5, b"1", at_157=b"d/a") + padded(b"first"),
            header(b"alone", 1300, b"1", at_157=b"elsewhere") + padded(body_of(1300, 2)),
            header(b"soft", 600, b"2", at_157=b"hard") + padded(body_of(600, 3)),
            pax((b"size", b"900")) + header(b"old/", 0, b"\0", magic=b"") + padded(body_of(900, 4)),
            header(b"bare/", 4096, b"5") + header(b"pipe", 512, b"6") + padded(body_of(512, 5)),
            tar_of(("d/b", body_of(2000, 6)))[:2560],
            header(b"last", 3, b"1", at_157=b"d/b") + padded(b"end"),
        ]
    )
    for end in (b"", END):
        path = save(tmp_path, content + end)
        found = scan(path, chains)
        assert found.status == ("ok" if end else "unterminated"), found.reason
        assert bytes_of(path, found) == [
            (b"d/a", b"first"), (b"hard", b"first"), (b"alone", body_of(1300, 2)), (b"soft", b"first"),
            (b"d/b", body_of(2000, 6)), (b"last", b"end"),
        ]  # fmt: skip
        assert found.names == [
            b"d",
            b"d/a",
            b"hard",
            b"alone",
            b"soft",
            b"old",
            b"bare",
            b"pipe",
            b"d/b",
            b"last",
        ]


def test_bytes_that_are_not_there_cost_no_member(tmp_path):
    """A directory's size leads nowhere, and behind its header is no header either."""
    members = tar_of(*((f"m{number}", body_of(700, number)) for number in range(9)))
    for size in (400, 9000):
        path = save(tmp_path, header(b"d/", size, b"5") + body_of(1024) + members)
        found = check_equal(path)
        assert found.status == "damaged" and len(found.names) == 10


# Damage.


def many(count: int = 50, size: int = 700) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    members = [(f"m{i:03d}.flac", body_of(size + i, i)) for i in range(count)]
    return tar_of(*members), [(name.encode(), body) for name, body in members]


def test_a_bad_checksum_costs_one_member(tmp_path):
    content, members = many()
    start = content.index(b"m020.flac")
    for damage in (start, start + 124, start + 148, start + 300):
        bad = bytearray(content)
        bad[damage] ^= 0x15
        path = save(tmp_path, bytes(bad))
        found = check_equal(path)
        assert found.status == "damaged" and f"{start:,}" in found.reason
        assert bytes_of(path, found) == members[:20] + members[21:]
        assert found.recovered.tolist() == [False] * 20 + [True] * 29


def test_thousands_of_damaged_places_are_told_in_few_words(tmp_path):
    bad = bytearray(tar_of(*((f"m{number:04d}.flac", b"x") for number in range(4000))))
    bad[148 + 1024 :: 4096] = bytes(byte ^ 1 for byte in bad[148 + 1024 :: 4096])
    found = scan(save(tmp_path, bytes(bad)), 1)
    assert found.status == "damaged" and "more places like these" in found.reason and len(found.reason) < 1000
    assert found.names == [b"m%04d.flac" % number for number in range(4000) if number % 4 != 1]


@pytest.mark.parametrize("last", [False, True])
def test_behind_a_bad_header_the_members_of_a_tar_in_the_tar_are_not_taken(tmp_path, last):
    inner, _ = many(30)
    members = [("a", b"a"), ("inner.tar", inner), ("b", b"b"), ("c", b"c")][: 2 if last else 4]
    content = bytearray(tar_of(*members))
    content[content.index(b"inner.tar")] ^= 0x15
    for chains in CHAIN_COUNTS:
        found = scan(save(tmp_path, bytes(content)), chains)
        assert found.status == "damaged" and found.names == ([b"a"] if last else [b"a", b"b", b"c"])


def test_a_damaged_size_that_leads_to_a_later_header_costs_no_other_member(tmp_path):
    members = [(f"m{number:02d}.flac", body_of(300, number)) for number in range(20)]
    content = bytearray(tar_of(*members))
    start = content.index(b"m05.flac")
    content[start + 124 : start + 136] = b"%011o\0" % (300 + 3 * 1024)
    for chains in CHAIN_COUNTS:
        found = scan(save(tmp_path, bytes(content)), chains)
        assert found.status == "damaged"
        assert bytes_of(tmp_path / "a.tar", found) == [
            (name.encode(), body) for name, body in members if name != "m05.flac"
        ]


@pytest.mark.parametrize("size", [(1 << 63) - 1, (1 << 88) - 1])
def test_a_size_no_file_can_have_is_damage(tmp_path, size):
    header = bytearray(info_of("huge.flac").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = save(tmp_path, tar_of(("a", b"a"))[:1024] + bytes(header) + tar_of(("b", b"b")))
    found = check_equal_names(path, [b"a", b"b"])
    assert found.status == "damaged" and "no file can have" in found.reason


def test_a_prefix_counts_unless_the_magic_is_gnus(tmp_path):
    parts = []
    for magic in (b"ustar\x0000", b"ustar 00", b"ustar  \0"):
        header = bytearray(info_of("name", 1).tobuf(tarfile.USTAR_FORMAT))
        header[257:265], header[345:351], header[148:156] = magic, b"folder", b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        parts.append(bytes(header) + b"x" + bytes(511))
    found = scan(save(tmp_path, b"".join(parts) + bytes(1024)), 1)
    assert found.names == [b"folder/name", b"folder/name", b"name"]


def test_a_zeroed_header_is_damage_not_an_end(tmp_path):
    content, members = many()
    start = content.index(b"m020.flac")
    path = save(tmp_path, content[:start] + bytes(512) + content[start + 512 :])
    found = check_equal(path)
    assert found.status == "damaged" and bytes_of(path, found) == members[:20] + members[21:]


def test_a_damaged_first_header_is_found_past(tmp_path):
    content, members = many()
    path = save(tmp_path, b"\xff" * 512 + content[512:])
    for chains in CHAIN_COUNTS:
        found = scan(path, chains)
        assert found.status == "damaged" and bytes_of(path, found) == members[1:] and found.recovered.all()


def test_damage_in_tars_without_magic(tmp_path):
    blocks = [header(b"m%d" % i, 600, b"\0", magic=b"") + padded(body_of(600, i)) for i in range(9)]
    blocks[4] = b"\xee" + blocks[4][1:]
    path = save(tmp_path, b"".join(blocks) + END)
    found = check_equal(path)
    assert found.status == "damaged" and len(found.names) == 8


def test_cut_in_a_body_names_the_member(tmp_path):
    content, members = many()
    start = content.index(b"m020.flac")
    path = save(tmp_path, content[: start + 512 + 100])
    for chains in CHAIN_COUNTS:
        found = scan(path, chains)
        assert found.status == "truncated" and f"{start:,}" in found.reason
        assert bytes_of(path, found) == members[:20]
        assert found.names[20] == b"m020.flac" and found.kinds[20] == CUT
    path = save(tmp_path, content[: start + 300])
    assert scan(path).status == "truncated" and bytes_of(path, scan(path)) == members[:20]
    path = save(tmp_path, content[:start])
    assert scan(path).status == "unterminated" and bytes_of(path, scan(path)) == members[:20]


def test_concatenated_tars_are_read_to_the_end(tmp_path):
    content, members = many()
    path = save(tmp_path, content + tar_of(("second", b"2")) + bytes(512 * 300) + tar_of(("third", b"3")))
    found = check_equal(path)
    assert found.status == "concatenated"
    assert bytes_of(path, found) == [*members, (b"second", b"2"), (b"third", b"3")]


def test_bytes_after_the_end_are_reported(tmp_path):
    content, members = many()
    path = save(tmp_path, content + b"signature" * 100)
    found = scan(path)
    assert found.status == "ok" and "after the end" in found.reason and bytes_of(path, found) == members


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (b"", "zero_length", "no bytes"),
        (bytes(10240), "empty", "without members"),
        (gzip.compress(b"x" * 100, mtime=0), "compressed", "gzip"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 2000, "compressed", "zstd"),
        (b"BZh9" + b"x" * 2000, "compressed", "bzip2"),
        (b"\xfd7zXZ\0" + b"x" * 2000, "compressed", "xz"),
        (b"PK\x03\x04" + b"x" * 2000, "not_a_tar", "zip"),
        (b"RIFF" + b"x" * 2000, "not_a_tar", "no tar header"),
        (b"short", "not_a_tar", "no tar header"),
    ],
    ids=["nothing", "zeros", "gzip", "zstd", "bzip2", "xz", "zip", "riff", "short"],
)
def test_what_is_no_tar_says_so(tmp_path, content, status, word):
    found = scan(save(tmp_path, content))
    assert (found.status, len(found.names)) == (status, 0) and word in found.reason


def test_missing_unreadable_folders_and_fifos(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    assert scan(tmp_path / "none").status == "missing"
    for name in ("", "fifo", "loop", "a\0b"):
        found = scan(os.path.join(tmp_path, name))
        assert found.status == "unreadable" and found.reason


# A tar in a tar, and what the search for a chain's start may be fooled by.


def test_tars_inside_a_tar_do_not_leak_members(tmp_path):
    inner, _ = many(120, 300)
    path = save(
        tmp_path, tar_of(("a", b"a"), ("inner.tar", inner), ("b", b"b"), ("again.tar", inner), ("c", b"c"))
    )
    found = check_equal(path)
    assert found.names == [b"a", b"inner.tar", b"b", b"again.tar", b"c"] and found.status == "ok"


def test_a_chain_that_starts_after_a_long_name_header_does_not_lose_the_name(tmp_path):
    members = [(f"{'long/' * 30}{i:03d}", body_of(900, i)) for i in range(80)]
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        check_equal(save(tmp_path, tar_of(*members, format=format)))


# How much is read.


def reads_of(path: Path, chains: int) -> tuple[TarScan, float]:
    found = scan(path, chains)
    return found, found.bytes_read / 4096 / max(len(found.names), 1)


@pytest.mark.parametrize("chains", [1, 32])
@pytest.mark.parametrize("size", [0, 100, 700, 3000, 9000, 140_000])
def test_at_most_a_page_and_a_tenth_is_read_for_each_member(tmp_path, monkeypatch, size, chains):
    monkeypatch.setattr(tar_chain, "SEARCH_SHARE", 0.05)
    monkeypatch.setattr(tar_chain, "MEMBERS_PER_CHAIN", 8)
    path, rng = tmp_path / "a.tar", np.random.default_rng(1)
    with open(path, "wb") as handle:
        for i in range(3000):
            length = int(size * rng.uniform(0.6, 1.4))
            handle.write(header(b"m%06d" % i, length))
            handle.seek((length + 511) // 512 * 512, 1)
        handle.write(END)
    found, pages = reads_of(path, chains)
    assert len(found.names) == 3000 and found.status == "ok"
    assert pages <= 1.1
    # The chains read what they found once: few headers are read again after the landing check.
    assert found.reads <= 1.1 * 3000


def test_dense_tars_are_read_in_few_reads(tmp_path):
    path = save(tmp_path, b"".join(header(b"m%06d" % i, 100) + bytes(512) for i in range(20_000)) + END)
    found = scan(path, 1)
    assert len(found.names) == 20_000
    assert found.reads <= 20_000 / 50
    assert found.bytes_read <= 1.01 * path.stat().st_size


def test_chains_find_all_but_few_members_by_themselves(tmp_path, monkeypatch):
    content, _ = many(400, 2000)
    path, serial = save(tmp_path, content), []
    original = tar_chain.Chain.run
    monkeypatch.setattr(tar_chain.Chain, "run", lambda self: serial.append(original(self)) or serial[-1])
    assert len(scan(path, 8).names) == 400
    assert sum(len(chain.starts) for chain in serial) <= 8


def test_is_header_refuses_zeros_and_short_blocks():
    assert not is_header(bytes(512)) and not is_header(header(b"a", 1)[:511]) and is_header(header(b"a", 1))
