"""bucket_config.json: what is refused of it, by name."""

from __future__ import annotations

import json
from pathlib import Path

from millrace.asr.buckets.config import NAME, BucketConfig
from tests.refusals import refused


def config(folder: Path, buckets: list[dict]) -> BucketConfig:
    (folder / "tars.parquet").touch()
    (folder / NAME).write_text(json.dumps({"buckets": buckets}))
    return BucketConfig.read(folder)


def test_a_split_or_parquets_that_are_not_there_are_named(tmp_path):
    buckets = config(tmp_path, [{"bucket_id": "b_0_3", "path": "b_0_3.parquet"}])
    with refused(r"there is no split eval\. Its splits: train"):
        buckets.parquets("eval")
    with refused(r"are not there: b_0_3\.parquet"):
        buckets.parquets()
    (tmp_path / "b_0_3.parquet").touch()
    assert buckets.parquets() == [tmp_path / "b_0_3.parquet"]
    buckets.tars.unlink()
    with refused(r"are not there: tars\.parquet"):
        buckets.parquets()
    with refused("it names no buckets"):
        config(tmp_path, []).parquets()
