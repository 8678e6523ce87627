"""Small tars with their index and manifests, for the tests of the bucket build."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.asr.buckets.addresses import TarIndices
from millrace.asr.buckets.build import BucketChoices, build
from millrace.asr.buckets.config import NAME
from millrace.asr.manifests.manifest import PIECE, manifest_of
from millrace.asr.tars.index import write_index
from millrace.asr.tars.scan import scan
from millrace.common.ledger import Ledger
from tests.asr import audio_tars

COLUMNS = ("tar_path", "tar_member_name", "transcript", "language", "duration_s")


def write_tar(path: Path, members: Sequence[str], dotted: bool = False) -> Path:
    """A tar whose members hold their own name and the tar's, so that an address can be checked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [
        f"{path.parent.name}/{path.name}:{name}:{number}" for number, name in enumerate(members)
    ]
    names = [("./" if dotted else "") + name for name in members]
    bodies = [text.encode(errors="surrogateescape") for text in texts]
    audio_tars.write_tar(path, dict(zip(names, bodies, strict=True)))
    return path


def index_of(tars: Sequence[Path], target: Path) -> Path:
    write_index(target, [scan(str(tar)) for tar in tars])
    return target


def index_of_rows(rows: Sequence[dict], target: Path) -> Path:
    """The index of the tars that rows name."""
    return index_of(sorted({Path(row["tar_path"]) for row in rows}), target)


def corpus(
    folder: Path, tars: int = 4, members: int = 60, seed: int = 0
) -> tuple[list[dict], Path]:
    """Rows (shuffled) of tars all named alike in folders of their own, and their index."""
    rng = np.random.default_rng(seed)
    rows, paths = [], []
    for tar in range(tars):
        numbers = range(members)
        names = [f"clips/utt_{tar}_{n:04d}.flac" if n % 7 else f".hid{n}" for n in numbers]
        paths.append(
            write_tar(folder / f"shard_{tar:03d}" / "audio_16k.tar", names, dotted=tar % 2 == 0)
        )
        for name in names:
            seconds = rng.choice([rng.uniform(0.2, 12), rng.uniform(12, 30)], p=[0.9, 0.1])
            written = "./" + name if rng.random() < 0.3 else name
            said = {"transcript": f'text of {name} ü\n"quoted"'}
            said["language"] = str(rng.choice(["en", "de"]))
            said["duration_s"] = float(np.round(seconds, 3))
            rows.append(row_of(paths[-1], written, **said))
    rng.shuffle(rows)
    return rows, index_of(paths, folder / "index.parquet")


def row_of(tar: str | Path, member: str, **more: object) -> dict:
    """A row of a member, that nothing is wrong with."""
    row = {"tar_path": str(tar), "tar_member_name": member, "transcript": "t"}
    return {**row, "language": "de", "duration_s": 1.0, **more}


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_manifest(path: Path, rows: Sequence[dict] | pa.Table, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
    pq.write_table(table, path, **options)
    return path


def build_from(
    target: Path,
    index: Path,
    choices: BucketChoices | None = None,
    piece_rows: int = PIECE,
    **splits: Path | Sequence[dict],
) -> dict[str, Ledger]:
    """Build buckets of one manifest a split, given as a file or as rows; the ledgers by split."""
    manifests = []
    for split, rows in splits.items():
        path = rows
        if not isinstance(rows, Path):
            path = write_manifest(target.parent / f"{target.name}_manifests/{split}.parquet", rows)
        manifest = manifest_of(split, [path])
        manifest.piece_rows = piece_rows
        manifests.append(manifest.scan())
    ledgers = build(manifests, TarIndices([index]), target, choices or BucketChoices())
    return {ledger.scope: ledger for ledger in ledgers}


def build_train(
    target: Path,
    index: Path,
    train: Path | Sequence[dict],
    choices: BucketChoices | None = None,
) -> Ledger:
    """Build buckets of a manifest of train alone; its ledger."""
    return build_from(target, index, choices, train=train)["train"]


def train_rows(folder: Path) -> list[dict]:
    """The rows of all buckets in a folder."""
    return [row for path in sorted((folder / "train").iterdir()) for row in rows_of(path)]


def config_of(folder: Path) -> dict:
    return json.loads((folder / NAME).read_text())


def rows_of(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist()


def content(row: dict) -> bytes:
    """The bytes at a row's address."""
    with open(row["tar_path"], "rb") as tar:
        tar.seek(row["offset"])
        return tar.read(row["size"])


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def rejects(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rejects.jsonl").read_text().splitlines()]


def speech_index(folder: Path) -> Path:
    """The speech lane's index of one shard of 12 members, and of one that is missing."""
    name, splits = "de/train/de-train-00000.tar", ("train", "train", "validation", "test")
    tar = scan(str(write_tar(folder / "shards" / name, [f"k{n}.flac" for n in range(12)])))
    rows = []
    for n, (member, offset, size) in enumerate(zip(tar.names, tar.offsets, tar.sizes, strict=True)):
        row = {"key": f"k{n}", "language": "de", "split": splits[n % 4], "shard": name}
        row |= {"member": member.decode(), "offset": int(offset), "size": int(size)}
        row |= {"duration_seconds": 1.0 + n, "asr_transcript": f"asr {n}"}
        row |= {"human_transcript": f"human {n}" if n != 8 else ""}
        rows.append(row)
    rows.append({**rows[0], "shard": "gone.tar", "split": "train"})
    return write_manifest(folder / "shards" / "index.parquet", rows)
