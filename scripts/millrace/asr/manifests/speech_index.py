"""The speech lane's index.parquet: all splits in one file, with the offsets of their members."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from millrace.asr.manifests import columns as mc
from millrace.asr.manifests import parquet
from millrace.asr.manifests.manifest import ALIASES

_SPLITS = {"train": ["train"], "dev": ["validation", "valid", "val", "dev"], "test": ["test"]}


class Reader(parquet.Reader):
    """The rows of one split; `transcript` is the column to train on."""

    has_offsets = True

    def aliases(self) -> dict[str, tuple[str, ...]]:
        own = {name: (name,) for name in ("split", "offset", "size")}
        return {**ALIASES, "tar_path": ("shard",), "transcript": (self.transcript,), **own}

    def own_rows(
        self, rows: pa.Table | pa.RecordBatch, batch: pa.RecordBatch
    ) -> pa.Table | pa.RecordBatch:
        splits = pa.array(_SPLITS[self.split], mc.TEXT)
        return rows.filter(pc.is_in(mc.text(batch.column("split")), value_set=splits))
