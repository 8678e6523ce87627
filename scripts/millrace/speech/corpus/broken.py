"""Alignment files that cannot be read any more: what will leave the shards with them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import orjson

from millrace.common import jsonl


def segments_in_shards(files: Collection[tuple[str, str]], results: Path) -> int:
    """How many segments of alignment files, given by country and name, lie in the shards that were
    built."""
    # Most partition files name none of them: so they need not be parsed.
    names = [orjson.dumps(name)[1:-1] for _, name in files]
    count = 0
    for partition in sorted((results / "partitions/built").glob("*.json")):
        content = partition.read_bytes()
        if not any(name in content for name in names):
            continue
        transcripts = _transcripts(jsonl.read_or({}, partition), files)
        index = results / f"shards/partitions/{partition.stem}/index.parquet"
        if transcripts and index.exists():
            count += _rows(index, transcripts)
    return count


def _transcripts(content: dict, files: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """The ids of recording and transcript of those of a partition's alignments that are among
    `files`."""
    ids = set()
    for recording in content.get("recordings", ()):
        for transcript in recording["transcripts"]:
            name = Path(transcript["path"]).name
            if (content["country"], name) in files:
                ids.add((recording["video_id"], transcript["transcript_id"]))
    return ids


def _rows(index: Path, transcripts: set[tuple[str, str]]) -> int:
    import pyarrow.parquet as pq  # a parse without broken files does without

    try:
        columns = ["video_id", "transcript_id"]
        in_tar = [("offset", ">=", 0)]
        table = pq.read_table(index, columns=columns, filters=in_tar, partitioning=None)
    except (OSError, ValueError):  # damaged: who reads it next says so
        return 0
    videos = table["video_id"].to_pylist()
    of_videos = table["transcript_id"].to_pylist()
    pairs = zip(videos, of_videos, strict=True)
    return sum(pair in transcripts for pair in pairs)
