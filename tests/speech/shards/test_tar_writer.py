"""Tars of ours, read back by other programs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.speech.shards.tar_writer import RECORD, TarWriter, member_bytes, member_header


def write(path: Path, members: list[tuple[str, bytes]]) -> tuple[TarWriter, list[int]]:
    with TarWriter(path) as writer:
        offsets = [writer.add(name, body, hashed=True) for name, body in members]
    return writer, offsets


NAMES = st.one_of(
    st.text("abz09_%-.é漢 ", min_size=1, max_size=20),
    st.integers(95, 110).map(lambda length: "n" * length),
    st.integers(30, 60).map(lambda length: "é" * length),
    st.just("k" * 300),
)
BODIES = st.one_of(
    st.sampled_from([0, 1, 511, 512, 513, 9_728, 10_240, 1_100_000]).map(
        lambda size: b"\xa5" * size
    ),
    st.binary(max_size=600),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NAMES, BODIES), max_size=8))
def test_any_members_come_back_from_the_stated_offsets(tmp_path_factory, members):
    path = tmp_path_factory.mktemp("any") / "a.tar"
    writer, offsets = write(path, members)
    raw = path.read_bytes()
    assert len(raw) == writer.size and len(raw) % RECORD == 0 and raw.endswith(bytes(1024))
    assert hashlib.sha256(raw).hexdigest() == writer.sha256
    with tarfile.open(path) as tar:
        found = tar.getmembers()
        assert [(m.name, tar.extractfile(m).read()) for m in found] == members
    for member, offset, (_, body) in zip(found, offsets, members, strict=True):
        assert member.offset_data == offset and raw[offset : offset + len(body)] == body
        assert writer.member_sha256[offset] == hashlib.sha256(body).hexdigest()
        owner = (member.uid, member.gid, member.uname, member.gname)
        assert member.isreg() and (member.mode, member.mtime, owner) == (0o644, 0, (0, 0, "", ""))


def test_the_same_members_give_the_same_bytes_and_gnu_tar_reads_them(tmp_path):
    members = [
        ("a.flac", b"x" * 70_000),
        ("a.json", b"{}"),
        ("é" * 80 + ".flac", b"y"),
        ("k" * 180, b""),
    ]
    assert (
        write(tmp_path / "1.tar", members)[0].sha256 == write(tmp_path / "2.tar", members)[0].sha256
    )
    command = ["tar", "--quoting-style=literal", "--show-stored-names", "-tf", tmp_path / "1.tar"]
    listed = subprocess.run(command, capture_output=True, check=True)
    assert (
        listed.stdout.decode().split("\n")[:-1] == [name for name, _ in members]
        and not listed.stderr
    )


def test_member_bytes_is_never_below_what_is_written():
    for length in (1, 99, 100, 101, 255, 500, 1_000, 5_000):
        for size in (0, 1, 512, 513, 12_345):
            name = "n" * length
            assert member_bytes(length, size) >= len(member_header(name, size)) + size + -size % 512


@pytest.mark.parametrize("name, size", [("", 1), ("a\0b", 1), ("a", 8 * 2**30)])
def test_members_no_tar_can_hold_are_refused(name, size):
    assert len(member_header("a", 8 * 2**30 - 1)) == 512
    with pytest.raises(ValueError, match="cannot be a tar member"):
        member_header(name, size)


def test_a_failure_leaves_no_end_mark_no_thread_and_no_open_file(tmp_path):
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt), TarWriter(tmp_path / "incomplete.tar") as writer:
        writer.add("a.flac", b"x" * 2_000_000)
        raise KeyboardInterrupt
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)
    assert (tmp_path / "incomplete.tar").stat().st_size % RECORD and writer.sha256 is None
