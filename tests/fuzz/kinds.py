"""The kinds of input: whole examples of each, and how Millrace reads one.

A reader returns, or raises one of the errors that its callers expect. Anything else is a find.
"""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import soundfile
import torch
import yaml
from PIL import Image

from millrace.asr.tars import index as tar_index
from millrace.asr.tars.scan import scan
from millrace.common import jsonl
from millrace.common.errors import MillraceError, Unusable
from millrace.common.loading.bad_samples import SampleError
from millrace.common.loading.decode import decode
from millrace.common.training.checkpoint import Checkpoints
from millrace.common.workflow.config import check_syntax, checked_config
from millrace.image.records.pixels import read_image
from millrace.music.features.h5_files import read_file
from millrace.music.features.metadata import read_metadata
from millrace.music.features.mm_files import read_folder
from millrace.music.features.track import Contract
from millrace.speech.corpus import alignment

ROOT = Path(__file__).parents[2]
BINS = 84


class Kind(NamedTuple):
    """A kind of input: whole files by name, how they are read in a folder, the errors that are
    expected."""

    examples: Callable[[Path], list[dict[str, bytes]]]
    read: Callable[[Path], object]
    expected: tuple[type[BaseException], ...]


def tars(folder: Path) -> list[dict[str, bytes]]:
    files = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode="w", format=form) as tar:
            for number in range(4):
                member = tarfile.TarInfo(f"{'long' * 10 * number}/{number}.flac")
                member.size = 700 * number
                tar.addfile(member, io.BytesIO(bytes(member.size)))
        files.append({"a.tar": sink.getvalue()})
    return files


def read_tar_index(folder: Path) -> None:
    index = tar_index.TarIndex.open(folder / "index.parquet")
    for tar in index.tars:
        index.members(tar)


def tar_indices(folder: Path) -> list[dict[str, bytes]]:
    [files, *_] = tars(folder)
    (folder / "a.tar").write_bytes(files["a.tar"])
    tar_index.write_index(folder / "index.parquet", [scan(folder / "a.tar")])
    return [{"index.parquet": (folder / "index.parquet").read_bytes()}]


def alignments(folder: Path) -> list[dict[str, bytes]]:
    segment = {
        "start": 1.5,
        "end": 3.25,
        "asr_text": "a b",
        "human_text": "a c",
        "cer": 0.2,
        "start_idx": 3,
    }
    seeds = {"start_seconds": 1, "end_seconds": 2, "asr_transcript": "x", "human_transcript": "NA"}
    document = {"audio_file": "/data/it/one.opus", "segments": [segment, seeds, segment]}
    return [{"a.json": json.dumps(document).encode()}]


def jsonls(folder: Path) -> list[dict[str, bytes]]:
    clique = {
        "clique_id": "C-1",
        "versions": [{"version_id": "V-1", "youtube_video": [{"url": "v=abc"}]}],
    }
    track = {
        "youtube_id": "abcdefghijk",
        "h5_chunk": 3,
        "h5_key": "/a",
        "hop_s": 0.02,
        "shape": [84, 100],
    }
    return [{"a.jsonl": b"\n".join(json.dumps(row).encode() for row in (clique, track, track))}]


def hdf5s(folder: Path) -> list[dict[str, bytes]]:
    values = np.random.default_rng(0).random((40, BINS), dtype=np.float32)
    files = []
    for options in ({}, {"chunks": (16, BINS), "compression": "gzip"}):
        with h5py.File(folder / "a.h5", "w") as h5:
            for name in ("abcdefghijk", "ABCDEFGHIJK"):
                h5.create_dataset(f"{name}/cqt", data=values, **options).attrs["hop_s"] = 0.02
        files.append({"a.h5": (folder / "a.h5").read_bytes()})
    return files


def mm_files(folder: Path) -> list[dict[str, bytes]]:
    shape = io.BytesIO()
    np.save(shape, np.array([30, BINS]))
    values = np.random.default_rng(0).random((30, BINS)).astype(np.float16)
    return [{"ab/abcdefghijk.npy": shape.getvalue(), "ab/abcdefghijk.mm": values.tobytes()}]


def images(folder: Path) -> list[dict[str, bytes]]:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 31, 3), dtype=np.uint8)
    files = []
    for form in ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF"):
        sink = io.BytesIO()
        Image.fromarray(pixels).save(sink, form)
        files.append({"a.jpg": sink.getvalue()})
    return files


def audio(folder: Path) -> list[dict[str, bytes]]:
    samples = np.random.default_rng(0).normal(0, 0.1, 4000).astype(np.float32)
    files = []
    for form in ("FLAC", "WAV", "OGG", "MP3", "AIFF"):
        sink = io.BytesIO()
        soundfile.write(sink, samples, 16_000, format=form)
        files.append({"a.bin": sink.getvalue()})
    return files


def checkpoints(folder: Path) -> list[dict[str, bytes]]:
    state = {"weights": torch.arange(20.0), "position": {"step": 3}, "ranks": [(1, "a")]}
    Checkpoints(folder).save(3, state, {"seed": 1})
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [{str(path.relative_to(folder)): path.read_bytes() for path in paths}]


def read_checkpoint(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    if newest := checkpoints.newest():
        checkpoints.load(newest)


def configs(folder: Path) -> list[dict[str, bytes]]:
    return [{"config.yaml": (ROOT / "config.yaml").read_bytes()}]


def read_config(folder: Path) -> None:
    path = folder / "config.yaml"
    check_syntax(path)
    with contextlib.suppress(yaml.YAMLError, RecursionError):
        config = yaml.safe_load(path.read_bytes())
        checked_config(config, ROOT / "rules" / "schemas")


KINDS = {
    "tar": Kind(tars, lambda folder: scan(folder / "a.tar"), ()),
    "alignment": Kind(
        alignments,
        lambda folder: alignment.parse((folder / "a.json").read_bytes()),
        (jsonl.BadJson,),
    ),
    "jsonl": Kind(jsonls, lambda folder: read_metadata(folder / "a.jsonl"), (MillraceError,)),
    "hdf5": Kind(hdf5s, lambda folder: list(read_file(folder, "a.h5", [], Contract())), ()),
    "mm": Kind(mm_files, lambda folder: list(read_folder(folder, "ab", [], Contract())), ()),
    "image": Kind(images, lambda folder: read_image((folder / "a.jpg").read_bytes()), (Unusable,)),
    "audio": Kind(
        audio,
        lambda folder: decode((folder / "a.bin").read_bytes(), max_seconds=60),
        (SampleError,),
    ),
    "index": Kind(tar_indices, read_tar_index, (MillraceError,)),
    "checkpoint": Kind(checkpoints, read_checkpoint, (MillraceError,)),
    "config": Kind(configs, read_config, (MillraceError, SystemExit)),
}
