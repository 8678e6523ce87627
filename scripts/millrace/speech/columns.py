"""The columns and status words of a manifest, apart from how it is made: merging tables needs no audio
library."""

from __future__ import annotations

import pyarrow as pa

# Statuses of a segment.
PENDING = "pending_local_tar"
COMPLETED = "completed_local_tar"
OVER_CER = "error_local_tar_cer"
PROCESSING = "error_local_tar_processing"
MISSING_SOURCE = "error_local_tar_missing_source"
AUDIO_LOAD = "error_local_tar_audio_load"

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("country", pa.string()),
        ("language", pa.string()),
        ("video_id", pa.string()),
        ("transcript_id", pa.string()),
        ("source_audio_path", pa.string()),
        ("start_seconds", pa.float64()),
        ("end_seconds", pa.float64()),
        ("duration_seconds", pa.float64()),
        ("asr_transcript", pa.string()),
        ("human_transcript", pa.string()),
        ("cer", pa.float64()),
        ("wer", pa.float64()),
        ("original_transcript_start_idx", pa.float64()),
        ("original_transcript_end_idx", pa.float64()),
        ("status", pa.string()),
        ("error_message", pa.string()),
        ("batch_id", pa.string()),
        ("split", pa.string()),
        ("subset_id", pa.int64()),
    ]
)


INDEX_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("country", pa.string()),
        ("language", pa.string()),
        ("video_id", pa.string()),
        ("transcript_id", pa.string()),
        ("split", pa.string()),
        ("subset_id", pa.int64()),
        ("shard", pa.string()),
        ("member", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("samples", pa.int64()),
        ("sample_rate", pa.int32()),
        ("duration_seconds", pa.float64()),
        ("start_seconds", pa.float64()),
        ("end_seconds", pa.float64()),
        ("asr_transcript", pa.string()),
        ("human_transcript", pa.string()),
        ("cer", pa.float64()),
        ("wer", pa.float64()),
        ("sha256", pa.string()),
    ]
)


STATUS_SCHEMA = pa.schema([("key", pa.string()), ("status", pa.string()), ("error_message", pa.string())])


SIDECAR_SCHEMA = pa.unify_schemas([INDEX_SCHEMA, STATUS_SCHEMA])
