"""The speech lane's index.parquet: all splits in one file, with the offsets of their members; which
names of a split mean dev."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from millrace.asr.manifests import columns as mc
from millrace.asr.manifests import parquet
from millrace.asr.manifests.manifest import ALIASES

_SPLITS = {
    "train": ["train"],
    "dev": ["validation", "valid", "val", "dev"],
    "test": ["test"],
}


class Reader(parquet.Reader):
    """The rows of one split; `transcript` is the column to train on."""

    has_offsets = True
    remedy_without_rows = (
        "No segment of that split is in the shards: shards/<country>_rejects.csv list what was "
        "left out, and speech.assignment_file says which recordings the split has"
    )

    def aliases(self) -> dict[str, tuple[str, ...]]:
        own: dict[str, tuple[str, ...]] = {
            "tar_path": ("shard",),
            "transcript": (self.transcript,),
            "split": ("split",),
            "offset": ("offset",),
            "size": ("size",),
        }
        return ALIASES | own

    def own_rows(
        self, rows: pa.Table | pa.RecordBatch, batch: pa.RecordBatch
    ) -> pa.Table | pa.RecordBatch:
        wanted = pa.array(_SPLITS[self.split], mc.TEXT)
        splits = mc.text(batch.column("split"))
        is_own = pc.is_in(splits, value_set=wanted)
        return rows.filter(is_own)
