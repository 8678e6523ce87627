"""Make the shards of a partition: good ones on disk are kept, the others are built one after the
other."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from millrace.common import atomic, cli
from millrace.common.errors import NO_ROOM, MillraceError
from millrace.common.ledger import Ledger
from millrace.speech.audio.encode import check_format
from millrace.speech.columns import COMPLETED, INDEX_SCHEMA, SCHEMA, SIDECAR_SCHEMA
from millrace.speech.names import SHARD_NUMBERS, ShardFile
from millrace.speech.shards.index import Sidecar, index_of, read_sidecar, write_sidecar
from millrace.speech.shards.plan import Plan
from millrace.speech.shards.segment_audio import Encoded, encoded
from millrace.speech.shards.tar_writer import TarWriter, member_size

# Columns of the index that come from the manifest row; the others tell of the tar and the audio in
# it.
_COPIED = [
    name for name in INDEX_SCHEMA.names if name in SCHEMA.names and name != "duration_seconds"
]


@dataclass
class Built:
    """A partition on disk: every manifest row with its outcome, shard by shard, then those that
    needed no audio; and counts of shards."""

    rows: pa.Table  # of SIDECAR_SCHEMA
    kept: int = 0
    rebuilt: int = 0
    removed: list[Path] = field(default_factory=list)

    @property
    def index(self) -> pa.Table:
        """The segments that are in a tar."""
        return index_of([self.rows])

    @property
    def errors(self) -> Counter:
        """Rows that are in no tar, by status."""
        statuses = self.rows["status"].to_pylist()
        return Counter(status for status in statuses if status != COMPLETED)

    def line(self) -> str:
        """One line for the log."""
        errors = ", ".join(f"{count} {status}" for status, count in sorted(self.errors.items()))
        shards = f"{self.kept} kept, {self.rebuilt} built, {len(self.removed)} stale files removed"
        seconds = self.index["duration_seconds"].to_pylist()
        hours = f"{len(seconds)} segments, {sum(seconds) / 3600:.2f} h"
        return f"{hours}; shards: {shards}; {errors or 'no errors'}"


# A manifest row, its status and message.
Outcome = tuple[dict, str, str]


def build(
    plan: Plan,
    output_dir: str | os.PathLike,
    note: Callable[[Iterable[Outcome]], None] = lambda outcomes: None,
) -> Built:
    """Bring the shards of a partition under `output_dir` in step with `plan`; return what is there
    then.

    A shard stays whose segments are those that would come into it, whose sidecar has their digest,
    and whose tar has the size and SHA-256 written there. Other shards of this partition are
    removed. What becomes of rows is told to `note`: of those that need no audio first, then shard
    by shard. Raises MillraceError if the disk gets full; finished shards stay.
    """
    output_dir = Path(output_dir)
    options = plan.options
    check_format(options.sampling_rate, options.audio_format)
    _sweep(plan, output_dir, SHARD_NUMBERS)
    built = Built(SIDECAR_SCHEMA.empty_table())
    note((plan.rows[position], *outcome) for position, outcome in plan.settled.items())
    tables: list[pa.Table] = []
    hours = sum(segment.hours for segment in plan.segments)
    with (
        cli.Progress(hours, "h", f"{plan.partition}") as progress,
        contextlib.ExitStack() as streams,
        _disk_full_explained(output_dir),
    ):
        at = 0
        # One for shards in a row: a recording that goes on in the next one is decoded once.
        stream: Iterator[Encoded] | None = None
        while at < len(plan.segments):
            shard = plan.shard(len(tables))
            sidecar = _kept(plan, at, output_dir / shard)
            if sidecar is not None:
                streams.close()
                stream = None
                built.kept += 1
                for segment in plan.segments[at : at + sidecar.table.num_rows]:
                    progress.advance(segment.hours)
            else:
                if stream is None:
                    begun = encoded(plan.segments[at:], options)
                    stream = streams.enter_context(contextlib.closing(begun))
                sidecar = _build_shard(plan, at, shard, output_dir / shard, stream, progress)
                built.rebuilt += 1
            tables.append(sidecar.table)
            note(_outcomes(plan, at, sidecar.table))
            at += sidecar.table.num_rows
    built.removed = _sweep(plan, output_dir, len(tables))
    built.rows = pa.concat_tables([*tables, _settled(plan)]).combine_chunks()
    Ledger(
        "speech_create_shards",
        str(plan.partition),
        rows_in=len(plan.rows),
        rows_out=built.index.num_rows,
        rejected=built.errors,
    ).check()
    return built


def _settled(plan: Plan) -> pa.Table:
    """The outcomes of rows that needed no audio."""
    rows = []
    for position, (status, message) in plan.settled.items():
        key = plan.rows[position]["key"]
        rows.append({"key": key, "status": status, "error_message": message})
    return pa.Table.from_pylist(rows, schema=SIDECAR_SCHEMA)


def _outcomes(plan: Plan, at: int, table: pa.Table) -> Iterator[Outcome]:
    """What became of the segments of the shard that begins with segment `at`."""
    segments = plan.segments[at : at + table.num_rows]
    statuses = table["status"].to_pylist()
    messages = table["error_message"].to_pylist()
    for segment, status, message in zip(segments, statuses, messages, strict=True):
        yield segment.row, status, message


def _kept(plan: Plan, at: int, tar: Path) -> Sidecar | None:
    """The sidecar of a shard that can stay as the one that begins with segment `at`; else None."""
    sidecar = read_sidecar(tar)
    if sidecar is None or not sidecar.has_fingerprints():
        return None
    after = at + sidecar.table.num_rows
    segments = plan.segments[at:after]
    if not segments or sidecar.digest != plan.digest(segments):
        return None
    used = 0
    rows = sidecar.table.select(["member", "size"]).to_pylist()
    for segment, row in zip(segments, rows, strict=True):
        if not plan.fits(used, segment.bytes_at_most):
            return None
        if row["member"] is not None:
            used += member_size(row["member"], row["size"])
            used += member_size(f"{segment.stem}.json", len(segment.text))
    # What came after it last time may be other segments now.
    if after < len(plan.segments) and plan.fits(used, plan.segments[after].bytes_at_most):
        return None
    return sidecar if sidecar.describes(tar) else None


def _build_shard(
    plan: Plan, at: int, shard: str, tar: Path, stream: Iterator[Encoded], progress: cli.Progress
) -> Sidecar:
    """Write the tar, then its sidecar. Members go straight to the file: no shard is held in
    memory."""
    tar.parent.mkdir(parents=True, exist_ok=True)
    options = plan.options
    rate = options.sampling_rate
    rows: list[dict] = []
    writer = None
    with contextlib.ExitStack() as stack:
        for segment in itertools.islice(plan.segments, at, None):
            if writer is not None and not plan.fits(writer.size, segment.bytes_at_most):
                break
            result = next(stream)
            progress.advance(segment.hours, errors=int(result.body is None))
            row = {
                "key": segment.row["key"],
                "status": result.status,
                "error_message": result.message,
            }
            rows.append(row)
            if result.body is None:
                continue
            if writer is None:
                partial = stack.enter_context(atomic.replacing(tar))
                writer = stack.enter_context(TarWriter(partial))
            member = f"{segment.stem}.{options.audio_format}"
            offset = writer.add(member, result.body, hashed=True)
            writer.add(f"{segment.stem}.json", segment.text)
            row |= {name: segment.row[name] for name in _COPIED}
            row |= {
                "shard": shard,
                "member": member,
                "offset": offset,
                "size": len(result.body),
                "samples": result.samples,
                "sample_rate": rate,
                "duration_seconds": result.samples / rate,
                "status": COMPLETED,
                "words": result.words,
            }
    if writer is None:
        tar.unlink(missing_ok=True)
    else:
        for row in rows:
            if row["status"] == COMPLETED:
                row["sha256"] = writer.member_sha256[row["offset"]]
    table = pa.Table.from_pylist(rows, schema=SIDECAR_SCHEMA)
    digest = plan.digest(plan.segments[at : at + len(rows)])
    sidecar = Sidecar(
        digest, writer.size if writer else 0, writer.sha256 if writer else None, table
    )
    write_sidecar(tar, sidecar)
    return sidecar


def _sweep(plan: Plan, output_dir: Path, shards: int) -> list[Path]:
    """Delete this partition's shards and sidecars after its first `shards`, and dead
    temporaries."""
    partition = plan.partition
    wanted = {Path(plan.shard(number)).stem for number in range(shards)}
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


@contextlib.contextmanager
def _disk_full_explained(output_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise MillraceError(
            f"the disk is full, or a limit on it is reached ({error.strerror})",
            str(output_dir),
            "Free some space, or raise the limit, and run the same command again: finished shards"
            " are kept",
        ) from error
