"""Small tars with their index and manifests, for the tests of the bucket build."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.asr.buckets.build import BucketChoices, build
from millrace.asr.buckets.join import TarIndices
from millrace.asr.manifests.manifest import manifests_of
from millrace.asr.tars import scan as tar_index
from millrace.asr.tars.index import write_index
from millrace.common.ledger import Ledger

COLUMNS = ("tar_path", "tar_member_name", "transcript", "language", "duration_s")


def write_tar(path: Path, members: Sequence[str], dotted: bool = False) -> Path:
    """A tar whose members hold their own name and the tar's, so that an address can be checked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, name in enumerate(members):
            body = f"{path.parent.name}/{path.name}:{name}:{number}".encode()
            info = tarfile.TarInfo(("./" if dotted else "") + name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return path


def index_of(tars: Sequence[Path], target: Path) -> Path:
    write_index(target, [tar_index.scan(str(tar)) for tar in tars])
    return target


def corpus(folder: Path, tars: int = 4, members: int = 60, seed: int = 0) -> tuple[list[dict], Path]:
    """Rows (shuffled) of tars all named alike in folders of their own, as in the seed; and their index."""
    rng = np.random.default_rng(seed)
    rows, paths = [], []
    for tar in range(tars):
        names = [
            f"clips/utt_{tar}_{number:04d}.flac" if number % 7 else f".hid{number}"
            for number in range(members)
        ]
        paths.append(write_tar(folder / f"shard_{tar:03d}" / "audio_16k.tar", names, dotted=tar % 2 == 0))
        for name in names:
            seconds = float(
                np.round(rng.choice([rng.uniform(0.2, 12), rng.uniform(12, 30)], p=[0.9, 0.1]), 3)
            )
            written = "./" + name if rng.random() < 0.3 else name
            text = f'text of {name} ü\n"quoted"'
            rows.append(
                dict(
                    zip(
                        COLUMNS,
                        (str(paths[-1]), written, text, str(rng.choice(["en", "de"])), seconds),
                        strict=True,
                    )
                )
            )
    rng.shuffle(rows)
    return rows, index_of(paths, folder / "index.parquet")


def built_corpus(folder: Path) -> tuple[Path, list[dict], Path]:
    """A corpus whose buckets are built in `folder`/out: the folder, the rows of train.parquet, the tar
    index."""
    rows, index = corpus(folder)
    write_manifest(folder / "train.parquet", rows)
    ledgers = build_from(folder / "out", index, train=folder / "train.parquet")
    assert ledgers["train"].rows_out == len(rows) and not ledgers["train"].rejected
    return folder, rows, index


def write_manifest(path: Path, rows: Sequence[dict], **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path, **options)
    return path


def build_from(
    target: Path, index: Path | None, choices: BucketChoices | None = None, **splits: Path
) -> dict[str, Ledger]:
    manifests = [
        m.scan()
        for split, path in splits.items()
        for m in manifests_of(split, [path], "", "audio_{shard_id}.tar")
    ]
    ledgers = build(manifests, TarIndices([index]) if index else None, target, choices or BucketChoices())
    return {ledger.scope: ledger for ledger in ledgers}


def rows_of(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist()


def content(row: dict) -> bytes:
    """The bytes at a row's address."""
    with open(row["tar_path"], "rb") as tar:
        tar.seek(row["offset"])
        return tar.read(row["size"])


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rejects(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rejects.jsonl").read_text().splitlines()]


def speech_index(folder: Path) -> Path:
    shard = write_tar(
        folder / "shards" / "de" / "train" / "de-train-00000.tar", [f"k{n}.flac" for n in range(12)]
    )
    found = tar_index.scan(str(shard))
    rows: list[dict] = []
    for n, (name, offset, size) in enumerate(
        zip(found.names, found.offsets.tolist(), found.sizes.tolist(), strict=True)
    ):
        rows.append(
            {
                "key": f"k{n}",
                "language": "de",
                "split": ("train", "train", "validation", "test")[n % 4],
                "shard": "de/train/de-train-00000.tar",
                "member": name.decode(),
                "offset": offset,
                "size": size,
                "duration_seconds": 1.0 + n,
                "asr_transcript": f"asr {n}",
                "human_transcript": f"human {n}" if n != 8 else "",
            }
        )
    rows.append({**rows[0], "shard": "gone.tar", "split": "train"})
    return write_manifest(folder / "shards" / "index.parquet", rows)
