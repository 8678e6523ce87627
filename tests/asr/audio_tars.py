"""Tars of generated audio with bucket parquets as the bucket build writes them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from millrace.asr.buckets.config import ROW_GROUP
from millrace.asr.buckets.parquets import SCHEMA, write_tars
from millrace.asr.tars.stamp import Stamp
from millrace.common import atomic, jsonl

RATE = 16_000


def noise(samples: int, seed: int, channels: int = 1) -> np.ndarray:
    """int16 noise below a tone, (samples, channels): no two clips are alike."""
    rng = np.random.default_rng(seed)
    tone = 6000 * np.sin(np.arange(samples) * (0.05 + 0.001 * (seed % 100)))
    return (tone[:, None] + rng.integers(-3000, 3000, (samples, channels))).astype(np.int16)


def encoded(
    samples: np.ndarray,
    container: str = "FLAC",
    subtype: str = "",
    rate: int = RATE,
    endian: str | None = None,
) -> bytes:
    """`samples` as a file of soundfile's `container`."""
    sink = io.BytesIO()
    soundfile.write(sink, samples, rate, subtype or None, endian, container)
    return sink.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> dict[str, tuple[int, int]]:
    """Write a tar; return (offset, size) of its members."""
    with tarfile.open(path, "w") as tar:
        for name, raw in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw))
    with tarfile.open(path) as tar:
        return {entry.name: (entry.offset_data, entry.size) for entry in tar}


def write_buckets(folder: Path, buckets: dict[str, list[dict]], tars: list[Path]) -> Path:
    """Bucket parquets with these rows (SCHEMA's names), tars.parquet and bucket_config.json in
    `folder`."""
    (folder / "train").mkdir(parents=True, exist_ok=True)
    schema = SCHEMA.remove(SCHEMA.get_field_index("tar_path")).append(
        pa.field("tar_path", pa.string())
    )
    for name, rows in buckets.items():
        table = pa.Table.from_pylist(rows, schema=schema)
        path = folder / "train" / f"{name}.parquet"
        pq.write_table(table, path, row_group_size=ROW_GROUP, store_schema=False)
    stamps = {str(tar): Stamp.of(tar) for tar in tars if tar.exists()}
    write_tars(folder / "tars.parquet", [str(tar) for tar in tars], stamps)
    named = [{"bucket_id": name, "path": f"train/{name}.parquet"} for name in buckets]
    atomic.write_json(folder / "bucket_config.json", {"buckets": named, "splits": {}})
    return folder


def change_config(folder: Path, **changes: object) -> None:
    """Write something else into bucket_config.json."""
    path = folder / "bucket_config.json"
    atomic.write_json(path, jsonl.read(path) | changes)


def corpus(
    folder: Path, tars: int = 3, members: int = 8, replace: dict[str, bytes] | None = None
) -> Path:
    """`tars` tars of short FLAC and WAV clips and their buckets; `replace` gives other bytes of
    members.

    Row r of the concatenation is member `t<r % tars>_<r>`; even rows are in the first bucket, odd
    ones in the second, so that row numbers are those of `row_names`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"t{number}.tar" for number in range(tars)]
    contents = {path: {} for path in paths}
    rows = []
    for number in range(tars * members):
        path = paths[number % tars]
        form = "WAV" if number % 4 == 0 else "FLAC"
        name = f"{path.stem}_{number}.{form.lower()}"
        samples = noise(1000 + 97 * number, number)
        raw = encoded(samples, form)
        contents[path][name] = (replace or {}).get(name, raw)
        rows.append(
            {"tar_path": str(path), "tar_member_name": name, "duration_s": len(samples) / RATE}
        )
    places = {path: write_tar(path, content) for path, content in contents.items()}
    for number, row in enumerate(rows):
        offset, size = places[Path(row["tar_path"])][row["tar_member_name"]]
        row |= {"offset": offset, "size": size, "sample_id": (1 << 63) + number}
        row |= {"transcript": f"text {number} ä", "language": ["English", None][number % 2]}
    return write_buckets(folder / "buckets", {"b_0_3": rows[::2], "b_3_5": rows[1::2]}, paths)


class ListedPlan:
    """A plan of given batches: `steps[step][rank]` is a list of row numbers."""

    def __init__(self, steps: list[list[list[int]]]) -> None:
        self.steps = steps

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int, rank: int) -> np.ndarray:
        return np.array(self.steps[step][rank], dtype=np.int64)

    def is_filler(self, step: int, rank: int) -> bool:
        return False


def by_ffmpeg(
    container: str, codec: str, samples: np.ndarray, layout: str = "mono", **options: str
) -> bytes:
    sink = io.BytesIO()
    with av.open(sink, "w", format=container) as out:
        stream = out.add_stream(codec, rate=48_000, layout=layout, options=options)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.rate = 48_000
        size = stream.frame_size or 960
        resampler = av.AudioResampler(
            format=stream.format, layout=layout, rate=48_000, frame_size=size
        )
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return sink.getvalue()


def silence_as(form: str, seconds: float) -> bytes:
    """Silence at 16 kHz in a container, which compresses to next to nothing."""
    silence = np.zeros(round(RATE * seconds), np.int16)
    if form == "mp4":
        return by_ffmpeg("mp4", "aac", np.repeat(silence, 3))  # at 48 kHz
    sink = io.BytesIO()
    with soundfile.SoundFile(sink, "w", RATE, 1, format=form.partition(" ")[0]) as sound:
        for start in range(
            0, len(silence), RATE
        ):  # libsndfile ends the process over long pieces of Vorbis
            sound.write(silence[start : start + RATE])
    raw = sink.getvalue()
    if form == "FLAC without length":
        facts = int.from_bytes(raw[18:26], "big")
        raw = raw[:18] + (facts & ~((1 << 36) - 1)).to_bytes(8, "big") + raw[26:]
    return raw
