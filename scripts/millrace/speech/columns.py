"""Columns and status words of the lane's tables, apart from how they are made: no audio library is
needed."""

from __future__ import annotations

import pyarrow as pa

# Statuses of a segment.
PENDING = "pending_local_tar"
COMPLETED = "completed_local_tar"
OVER_CER = "error_local_tar_cer"
DUPLICATE = "error_local_tar_duplicate"
PROCESSING = "error_local_tar_processing"
MISSING_SOURCE = "error_local_tar_missing_source"
AUDIO_LOAD = "error_local_tar_audio_load"

_TEXT = pa.string()
_REAL = pa.float64()
_WHOLE = pa.int64()

# Which segment: country to transcript.
_IDENTITY = [
    ("key", _TEXT),
    ("country", _TEXT),
    ("language", _TEXT),
    ("video_id", _TEXT),
    ("transcript_id", _TEXT),
]
_SPLIT = [("split", _TEXT), ("subset_id", _WHOLE)]
# What is said in it, how far the recogniser is from that, and which tokens of the transcript it is.
_WORDS = [
    ("asr_transcript", _TEXT),
    ("human_transcript", _TEXT),
    ("cer", _REAL),
    ("wer", _REAL),
]
_TOKENS = [
    ("original_transcript_start_idx", _REAL),
    ("original_transcript_end_idx", _REAL),
]
# Where it lies in its recording.
_SPAN = [("start_seconds", _REAL), ("end_seconds", _REAL)]
_LENGTH = ("duration_seconds", _REAL)
_AUDIO = [("source_audio_path", _TEXT), *_SPAN, _LENGTH]
# Where it lies in a tar (offset and size of the audio in bytes), and what it holds.
_TAR = [("shard", _TEXT), ("member", _TEXT), ("offset", _WHOLE), ("size", _WHOLE)]
_SOUND = [("samples", _WHOLE), ("sample_rate", pa.int32()), _LENGTH]
_STATUS = [("status", _TEXT), ("error_message", _TEXT)]

# A row of a manifest part, and of <country>_manifest.csv.
SCHEMA = pa.schema([*_IDENTITY, *_AUDIO, *_WORDS, *_TOKENS, *_STATUS, ("batch_id", _TEXT), *_SPLIT])
# A segment in a tar.
INDEX_SCHEMA = pa.schema([*_IDENTITY, *_SPLIT, *_TAR, *_SOUND, *_SPAN, *_WORDS, ("sha256", _TEXT)])
# What is kept of a segment beside its tar, and of every row of a partition: also what became of it,
# and of one that is cut the fingerprint of its sound, by which copies are found.
_OUTCOME = pa.schema([*_STATUS, ("words", pa.large_binary())])
SIDECAR_SCHEMA = pa.unify_schemas([INDEX_SCHEMA, _OUTCOME])
