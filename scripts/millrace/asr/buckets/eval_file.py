"""Which split of which buckets an evaluation file of the user's means: its own folder's, or the one
that was made of the same rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.asr.buckets.config import NAME, BucketConfig, read_ledgers
from millrace.asr.manifests.manifest import scanned
from millrace.common.errors import MillraceError


def find(path: str | Path, bucket_dir: str | Path) -> tuple[Path, str]:
    """Bucket folder and split of an evaluation file: its own, or where `bucket_dir` has the same
    rows.

    The original command gives the manifest that the buckets' dev was made of. Raises MillraceError
    if it was made of other rows.
    """
    path = Path(path)
    if (path.parent / NAME).is_file():
        splits = BucketConfig.read(path.parent).splits
        for split, parquet in splits.items():
            if parquet.resolve() == path.resolve():
                return path.parent, split
    manifest = scanned([], {"dev": [path]})[0]
    names: set[str] = set()
    for rows in manifest.ranges:
        for table in manifest.read(rows):
            names.update(table["tar_member_name"].to_pylist())

    config = BucketConfig.read(bucket_dir)
    rows_in = {ledger.scope: ledger.rows_in for ledger in read_ledgers(config.file)}
    for split, parquet in config.splits.items():
        members = pq.read_table(parquet, columns=["tar_member_name"]).column(0)
        if rows_in.get(split) != manifest.rows:
            continue
        if names.issuperset(pc.unique(members).to_pylist()):
            return config.file.parent, split
    problem = (
        f"its {manifest.rows} rows are not those of a split of {bucket_dir}, and it has no offsets"
    )
    remedy = (
        "Build the buckets with it: build_bucket_manifests --dev; or give dev.parquet of a bucket"
        " folder"
    )
    raise MillraceError(problem, str(path), remedy)
