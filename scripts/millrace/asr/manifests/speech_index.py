"""The speech lane's index.parquet: all splits in one file, with the offsets of their members."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from millrace.asr.manifests import columns as mc
from millrace.asr.manifests import parquet

_SPLITS = {"train": ["train"], "dev": ["validation", "valid", "val", "dev"], "test": ["test"]}


class Reader(parquet.Reader):
    """The rows of one split; `transcript` is the column to train on."""

    has_offsets = True
    more_columns = ("split", "offset", "size")

    def aliases(self) -> dict[str, tuple[str, ...]]:
        return {
            "tar_path": ("shard",),
            "tar_member_name": ("member",),
            "transcript": (self.transcript,),
            "language": ("language",),
            "duration_s": ("duration_seconds",),
        }

    def own_rows(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.is_in(mc.text(batch.column("split")), value_set=pa.array(_SPLITS[self.split], mc.TEXT))
