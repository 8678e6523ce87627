"""Make the shards of a partition: good ones on disk are kept, the others are built one after the other."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from millrace.common import atomic, cli
from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger
from millrace.speech.audio import cut as audio
from millrace.speech.audio.encode import check_format
from millrace.speech.columns import COMPLETED, INDEX_SCHEMA, SCHEMA, SIDECAR_SCHEMA
from millrace.speech.names import ShardFile
from millrace.speech.shards.index import Sidecar, index_of, read_sidecar, sidecar_path, write_sidecar
from millrace.speech.shards.plan import Plan, PlannedShard, ShardOptions
from millrace.speech.shards.segment_audio import DISK_FULL, Encoded, encoded
from millrace.speech.shards.tar_writer import TarWriter

# Columns of the index that come from the manifest row; the others tell of the tar and the audio in it.
_COPIED = [name for name in INDEX_SCHEMA.names if name in SCHEMA.names and name != "duration_seconds"]


@dataclass
class Built:
    """A partition on disk: index, (key, status, message) of every manifest row, and counts of shards."""

    index: pa.Table
    statuses: list[tuple[str, str, str]]
    kept: int = 0
    rebuilt: int = 0
    removed: list[Path] = field(default_factory=list)
    hours: float = 0.0

    @property
    def errors(self) -> Counter:
        """Rows that are in no tar, by status."""
        return Counter(status for _, status, _ in self.statuses if status != COMPLETED)

    def line(self) -> str:
        """One line for the log."""
        errors = ", ".join(f"{count} {status}" for status, count in sorted(self.errors.items()))
        shards = f"{self.kept} kept, {self.rebuilt} built, {len(self.removed)} stale files removed"
        hours = f"{self.index.num_rows} segments, {self.hours:.2f} h"
        return f"{hours}; shards: {shards}; {errors or 'no errors'}"


def build(plan: Plan, output_dir: str | os.PathLike, retry_errors: bool = False) -> Built:
    """Bring the shards of a partition under `output_dir` in step with `plan`; return what is there then.

    A shard whose sidecar has the plan's digest and whose tar has the size and SHA-256 written there stays;
    with `retry_errors` only if none of its segments is in error. Shards of this partition that the plan does
    not have are removed. Raises MillraceError if the disk is, or would get, full; finished shards stay.
    """
    output_dir, options = Path(output_dir), plan.options
    check_format(options.sampling_rate, options.audio_format)
    sidecars: dict[str, Sidecar] = {}
    for shard in plan.shards:
        tar = output_dir / shard.shard
        sidecar = read_sidecar(tar)
        if sidecar is None or sidecar.digest != shard.digest or (retry_errors and sidecar.failed):
            continue
        if sidecar.describes(tar):
            sidecars[shard.shard] = sidecar
    to_build = [shard for shard in plan.shards if shard.shard not in sidecars]
    built = Built(INDEX_SCHEMA.empty_table(), [], kept=len(sidecars), rebuilt=len(to_build))
    built.removed = _sweep(plan, output_dir)
    _check_disk(plan, to_build, output_dir)
    segments = [segment for shard in to_build for segment in shard.segments]
    with (
        cli.Progress(sum(segment.hours for segment in segments), "h", f"{plan.partition}") as progress,
        contextlib.closing(encoded(segments, options.sampling_rate, options.audio_format)) as stream,
        _disk_full_explained(output_dir),
    ):
        # One stream for all shards: a recording that goes on in the next shard is decoded once.
        for shard in to_build:
            tar = output_dir / shard.shard
            sidecars[shard.shard] = _build_shard(shard, tar, stream, options, progress)
    tables = [sidecars[shard.shard].table for shard in plan.shards]
    built.index = index_of(tables)
    built.statuses = _statuses(plan, tables)
    built.hours = sum(built.index["duration_seconds"].to_pylist()) / 3600
    counts = {"rows_in": len(plan.rows), "rows_out": built.index.num_rows, "rejected": built.errors}
    Ledger("speech_create_shards", str(plan.partition), **counts).check()
    return built


def _build_shard(
    shard: PlannedShard, tar: Path, stream: Iterator[Encoded], options: ShardOptions, progress: cli.Progress
) -> Sidecar:
    """Write the tar, then its sidecar. Members go straight to the file: no shard is held in memory."""
    tar.parent.mkdir(parents=True, exist_ok=True)
    extension, rate = audio.AUDIO_FORMATS[options.audio_format], options.sampling_rate
    rows: list[dict] = []
    # From here on the old tar, if any, is not known to be good: no index may speak of it.
    sidecar_path(tar).unlink(missing_ok=True)
    writer = None
    with contextlib.ExitStack() as stack:
        for segment, result in zip(shard.segments, stream, strict=False):
            progress.advance(segment.hours, errors=int(result.body is None))
            row = {"key": segment.row["key"], "status": result.status, "error_message": result.message}
            rows.append(row)
            if result.body is None:
                continue
            if writer is None:
                partial = stack.enter_context(atomic.replacing(tar))
                writer = stack.enter_context(TarWriter(partial))
            member = f"{segment.stem}.{extension}"
            offset = writer.add(member, result.body, hashed=True)
            writer.add(f"{segment.stem}.json", segment.text)
            row |= {name: segment.row[name] for name in _COPIED}
            row |= {"shard": shard.shard, "member": member, "offset": offset, "size": len(result.body)}
            row |= {"samples": result.samples, "sample_rate": rate, "duration_seconds": result.samples / rate}
            row["status"] = COMPLETED
    if writer is None:
        tar.unlink(missing_ok=True)
    for row in rows:
        if row["status"] == COMPLETED:
            row["sha256"] = writer.member_sha256[row["offset"]]
    table = pa.Table.from_pylist(rows, schema=SIDECAR_SCHEMA)
    sidecar = Sidecar(shard.digest, writer.size if writer else 0, writer.sha256 if writer else None, table)
    write_sidecar(tar, sidecar)
    return sidecar


def _statuses(plan: Plan, tables: list[pa.Table]) -> list[tuple[str, str, str]]:
    outcomes = dict(plan.settled)
    for shard, table in zip(plan.shards, tables, strict=True):
        columns = (table[name].to_pylist() for name in ("status", "error_message"))
        for segment, *outcome in zip(shard.segments, *columns, strict=True):
            outcomes[segment.position] = outcome
    return [(row["key"], *outcomes[position]) for position, row in enumerate(plan.rows)]


def _sweep(plan: Plan, output_dir: Path) -> list[Path]:
    """Delete this partition's shards and sidecars that the plan does not have, and dead temporaries."""
    partition = plan.partition
    wanted = {Path(shard.shard).stem for shard in plan.shards}
    folder = output_dir / partition.country / partition.folder
    removed = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        file = ShardFile.parse(path.name)
        if file is None or file.partition != partition:
            continue
        if file.temporary:
            atomic.sweep_partials(path.with_name(path.name[1 : -len(file.temporary)]))
        elif file.shard not in wanted:
            path.unlink()
            removed.append(path)
    return removed


def _check_disk(plan: Plan, shards: list[PlannedShard], output_dir: Path) -> None:
    """Refuse what will not fit: the shards' upper bounds plus 5 %, less the old shards they replace."""
    needed = used = 0.0
    for shard in shards:
        used += 1.05 * shard.bytes_at_most
        needed = max(needed, used)
        with contextlib.suppress(OSError):
            used -= (output_dir / shard.shard).stat().st_size
    output_dir.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(output_dir).free
    if needed > free:
        raise MillraceError(
            f"the {len(shards)} shards to build may need {_size(needed)}, and {_size(free)} are free",
            where=f"partition {plan.partition} in {output_dir}",
            remedy="Free some space, or choose another --output-dir; nothing was started",
        )


@contextlib.contextmanager
def _disk_full_explained(output_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise MillraceError(
            f"the disk is full, or a limit on it is reached ({error.strerror})",
            where=str(output_dir),
            remedy="Free some space and run the same command again: finished shards are kept",
        ) from error


def _size(number: float) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"
