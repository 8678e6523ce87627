"""Small files that unpack to much, or say so.

`python -m tests.fuzz.bombs` reads all of them, and prints a line of JSON for each reading step.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import soundfile

from millrace.asr.manifests.jsonl import Reader as JsonlManifest
from millrace.asr.tars.scan import scan
from millrace.common.loading.decode import decode
from millrace.common.machine import memory
from millrace.image.records.pixels import read_image
from millrace.music.audio import recording
from millrace.music.features.h5_files import read_file
from millrace.music.features.metadata import read_metadata
from millrace.music.features.track import Contract
from millrace.music.models.config import read_yaml
from millrace.speech.audio.cut import cut, probe
from millrace.speech.corpus import alignment

ROOT = Path(__file__).parents[2]
RATE = 16_000
SECONDS = 4  # what the row of a recording says
MINUTES = 45  # what it holds
BINS = 84
MEBIBYTE = 1 << 20

Write = Callable[[Path], object]
Read = Callable[[Path], object]


class Bomb(NamedTuple):
    """A bomb, and the steps that read it, by name.

    Of a step: how it reads, and words of the outcome: why it refuses the bomb, or what it reads
    of it.
    """

    name: str
    write: Write
    steps: dict[str, tuple[Read, str]]


class Peak(NamedTuple):
    """What reading a file took and gave: bytes of memory, and the result or the error in words."""

    bytes: int
    outcome: str


def write_silence(path: Path, form: str) -> None:
    silence = np.zeros(60 * RATE, np.int16)
    with soundfile.SoundFile(path, "w", RATE, 1, format=form) as sound:
        for _ in range(MINUTES):
            sound.write(silence)


def write_flac(path: Path, states: int) -> None:
    """Silence of `MINUTES`, of which the header states so many samples; 0: it does not say."""
    write_silence(path, "FLAC")
    content = bytearray(path.read_bytes())
    rate_and_channels = int.from_bytes(content[18:26], "big") >> 36
    content[18:26] = (rate_and_channels << 36 | states).to_bytes(8, "big")
    path.write_bytes(content)


def write_chain(path: Path, form: str) -> None:
    """A minute of silence, again and again; of Vorbis it is a chain of streams."""
    silence = io.BytesIO()
    soundfile.write(silence, np.zeros(60 * RATE, np.int16), RATE, format=form)
    path.write_bytes(silence.getvalue() * MINUTES)


def read_member(path: Path) -> object:
    return decode(path.read_bytes(), max_seconds=SECONDS + 1)


def read_segment(path: Path) -> object:
    probe(path)
    return [len(segment) for segment in cut(path, [(0, SECONDS)], RATE)]


def of_speech(longer: str) -> dict[str, tuple[Read, str]]:
    """Steps of speech: `longer` says why a member of a tar is refused."""
    return {"member of a tar": (read_member, longer), "segment": (read_segment, "[64000]")}


def of_recording(longer: str) -> dict[str, tuple[Read, str]]:
    return of_speech(longer) | {"music": (recording.decode, "Refused: ('too_long'")}


def write_png(path: Path, side: int) -> None:
    """Black pixels, one bit each."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    packer, row = zlib.compressobj(9), bytes(1 + -(-side // 8))
    pixels = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


def read_picture(path: Path) -> object:
    return read_image(path.read_bytes())


def write_repeated(path: Path, head: bytes, piece: bytes, size: int, tail: bytes = b"") -> None:
    """`head`, `piece` until `size` bytes are written, `tail`."""
    block = piece * (MEBIBYTE // len(piece))
    with open(path, "wb") as file:
        file.write(head)
        for _ in range(size // len(block)):
            file.write(block)
        file.write(tail)


def write_gzip(path: Path, size: int) -> None:
    with gzip.open(path, "wb", 1) as file:
        for _ in range(size // MEBIBYTE):
            file.write(bytes(MEBIBYTE))


def write_tar(path: Path, kind: bytes, size: int) -> None:
    """A header that says that a name, or records, of `size` bytes follow, which are a hole."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = kind, size
    with open(path, "wb") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        file.seek(size, os.SEEK_CUR)
        file.write(tarfile.TarInfo("a").tobuf() + bytes(1024))


def scan_status(path: Path) -> object:
    return scan(path).status


def write_h5(path: Path, frames: int, frames_a_chunk: int, written: int) -> None:
    """A track of packed zeros, of which `written` chunks are there."""
    packer = zlib.compressobj(1)
    pieces = [packer.compress(bytes(4 * BINS * 1024)) for _ in range(frames_a_chunk // 1024)]
    content = b"".join([*pieces, packer.flush()])
    chunks = (frames_a_chunk, BINS)
    with h5py.File(path, "w") as h5:
        dataset = h5.create_dataset(
            "abcdefghijk/cqt", (frames, BINS), "<f4", chunks=chunks, compression="gzip"
        )
        dataset.attrs["hop_s"] = 0.02
        for number in range(written):
            dataset.id.write_direct_chunk((number * frames_a_chunk, 0), content)


def read_h5(path: Path) -> object:
    return [track.refused for track in read_file(path.parent, path.name, [], Contract())]


ANCHORS = "a0: &a0 {k0: x, k1: x, k2: x, k3: x, k4: x, k5: x, k6: x, k7: x, k8: x}\n" + "".join(
    f"a{level}: &a{level} {{{', '.join(f'k{key}: *a{level - 1}' for key in range(9))}}}\n"
    for level in range(1, 10)
)


def parse_alignment(path: Path) -> object:
    return len(alignment.parse(path.read_bytes()).segments)


def count_broken(path: Path) -> object:
    return dict(Counter(row["reason"] for row in read_metadata(path).problems))


def scan_manifest(path: Path) -> object:
    return JsonlManifest("train", [path]).facts(0)["broken"]


LINES = {
    "metadata": (count_broken, "'broken_line': 1"),
    "manifest": (scan_manifest, "[1, 'line 1: this line is not JSON"),
}
LONGER = "more than 5.00 s of sound, the most that its manifest allows"

BOMBS = [
    Bomb(
        "PNG",
        lambda path: write_png(path, 13_000),
        {"image": (read_picture, "13000 x 13000 pixels, more than 50000000")},
    ),
    Bomb(
        "WAV",
        lambda path: write_silence(path, "WAV"),
        of_speech(LONGER),
    ),
    Bomb(
        "FLAC",
        lambda path: write_silence(path, "FLAC"),
        of_recording(LONGER),
    ),
    Bomb(
        "FLAC that states 4 s",
        lambda path: write_flac(path, SECONDS * RATE),
        of_recording("more than the 64000 samples"),
    ),
    Bomb(
        "FLAC that states nothing",
        lambda path: write_flac(path, 0),
        of_recording(LONGER),
    ),
    Bomb(
        "MP3",
        lambda path: write_chain(path, "MP3"),
        of_speech(LONGER),
    ),
    Bomb(
        "Ogg",
        lambda path: write_chain(path, "OGG"),
        of_recording("another recording is joined on"),
    ),
    Bomb(
        "JSON that is deep",
        lambda path: write_repeated(path, b"", b"[", 3 * MEBIBYTE),
        {"alignment": (parse_alignment, "not valid JSON, or nested too deeply")},
    ),
    Bomb(
        "JSON of empty lists",
        lambda path: write_repeated(path, b'{"segments":[', b"[],", 20 * MEBIBYTE, b"1]}"),
        {"alignment": (parse_alignment, "19 MiB that hold 6,990,502 lists")},
    ),
    Bomb(
        "JSONL of a long line",
        lambda path: write_repeated(path, b'{"a": "', b"x", 100 * MEBIBYTE, b'"}\n'),
        LINES,
    ),
    Bomb(
        "JSONL of empty lists",
        lambda path: write_repeated(path, b"[", b"[],", 15 * MEBIBYTE, b"1]\n"),
        LINES,
    ),
    Bomb(
        "gzip",
        lambda path: write_gzip(path, 300 * MEBIBYTE),
        {"tar": (scan_status, "compressed"), "metadata": (count_broken, "'broken_line'")},
    ),
    *(
        Bomb(
            f"tar with {what} of 1 GiB",
            lambda path, kind=kind: write_tar(path, kind, 1 << 30),
            {"tar": (scan_status, "not_a_tar")},
        )
        for what, kind in (("a name", b"L"), ("records", b"x"), ("records for all", b"g"))
    ),
    Bomb(
        "HDF5 of many chunks",
        lambda path: write_h5(path, 1 << 40, 1024, 0),
        {"features": (read_h5, "not_written")},
    ),
    Bomb(
        "HDF5 of a large chunk",
        lambda path: write_h5(path, 1 << 20, 1 << 20, 1),
        {"features": (read_h5, "chunk_too_large")},
    ),
    Bomb(
        "YAML",
        lambda path: path.write_text(ANCHORS),
        {"music model": (read_yaml, "aliases are not read")},
    ),
]


def peak(read: Read, path: Path) -> Peak:
    """Read a file in a process of its own."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        # Libraries print what they think of damaged files.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        memory.forget_highest_resident()
        before = memory.resident()
        try:
            outcome = f"read {read(path)}"
        except (Exception, SystemExit) as error:
            outcome = f"{type(error).__name__}: {error.args if len(error.args) > 1 else error}"
        used = memory.highest_resident() - before
        os.write(sender, json.dumps([used, outcome[:500]]).encode())
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return Peak(*json.loads(answer)) if answer else Peak(0, "the process died")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bomb")
        for bomb in BOMBS:
            bomb.write(path)
            size = path.stat().st_blocks * 512  # of a hole nothing
            for step, (read, expected) in bomb.steps.items():
                name = f"{bomb.name}, {step}"
                print(json.dumps([name, expected, peak(read, path), size]), flush=True)


if __name__ == "__main__":
    main()
