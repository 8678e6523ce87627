"""Contents that a client has put into a folder with hf_xet, its other way to send files."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

# hf_xet cuts files into chunks; the `shards` of its folder list them. A shard is a header of 48 bytes, then
# records of 48 bytes: of a file one, its segments, with _VERIFIED as many sums, with _SUMMED its SHA-256.
_RECORD, _END_OF_FILES = 48, b"\xff" * 32
_VERIFIED, _SUMMED = 1 << 31, 1 << 30


def fetch(folder: Path, wanted: set[str], target: Path) -> dict[str, Path]:
    """Write those of the contents `wanted` (SHA-256) that `folder` has into `target`; their paths."""
    source = folder / "xet/xorbs"
    if not wanted or not source.is_dir():
        return {}
    import hf_xet

    # The client may hold its lock on the index of the folder: read through a copy of the index.
    index = target / "xet/xorbs"
    index.mkdir(parents=True)
    for path in source.iterdir():
        (index / path.name).symlink_to(path) if path.is_dir() else shutil.copy(path, index)
    files = {}
    with hf_xet.XetSession().new_file_download_group(
        endpoint=f"local://{target}", token="none", token_expiry_unix_secs=1 << 40
    ) as group:
        for shard in (source / "shards").glob("*.mdb"):
            for sha256, xet_hash, size in _files(shard.read_bytes()):
                if sha256 in wanted and sha256 not in files:
                    files[sha256] = target / sha256
                    group.start_download_file(hf_xet.XetFileInfo(xet_hash, size), str(files[sha256]))
    return files


def _files(shard: bytes) -> Iterator[tuple[str, str, int]]:
    """(SHA-256, Xet hash, size) of the files of a shard; hashes are written as four little-endian numbers."""

    def hash_at(at: int) -> str:
        return "".join(f"{number:016x}" for number in struct.unpack_from("<4Q", shard, at))

    at = _RECORD
    while shard[at : at + 32] != _END_OF_FILES:
        start, (flags, count) = at, struct.unpack_from("<II", shard, at + 32)
        size = sum(struct.unpack_from("<I", shard, at + _RECORD * i + 36)[0] for i in range(1, count + 1))
        at += _RECORD * (1 + count + (count if flags & _VERIFIED else 0))
        if flags & _SUMMED:
            yield hash_at(at), hash_at(start), size
            at += _RECORD
