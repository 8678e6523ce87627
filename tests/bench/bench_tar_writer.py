"""Writing a shard with its index rows and digests, against webdataset's TarWriter without any of these.

Both sides write the same samples in the same process, in turns; the median of the rounds is reported.
    python -m tests.bench.bench_tar_writer [--rounds 7] [--folder /tmp]
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import webdataset

from millrace.common import cli
from millrace.speech.shards.tar_writer import TarWriter

Sample = tuple[str, bytes, bytes]
SIZES = {"3-15 s FLAC (100-300 kB)": (100_000, 300_000, 1_000), "small (2-6 kB)": (2_000, 6_000, 20_000)}


def samples(low: int, high: int, count: int) -> list[Sample]:
    """`count` samples of a key, `low` to `high` random audio bytes and some 700 bytes of JSON."""
    rng = random.Random(0)
    pool = rng.randbytes(high * 2)
    made = []
    for number in range(count):
        size, start = rng.randint(low, high), rng.randrange(high)
        key = f"germany_video{number:06d}_{number}_{number}"
        made.append((key, pool[start : start + size], b"{" + b"x" * 700 + b"}"))
    return made


def with_webdataset(path: Path, made: list[Sample]) -> None:
    with webdataset.TarWriter(str(path), encoder=False, mtime=0) as writer:
        for key, audio, text in made:
            writer.write({"__key__": key, "flac": audio, "json": text})


def with_millrace(path: Path, made: list[Sample], hashed: bool = False) -> None:
    """What `shards` does for an encoded sample; `hashed`: and the tar's SHA-256, by a second thread."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    with TarWriter(path, hashed) as writer:
        for key, audio, text in made:
            member = f"{key}.flac"
            rows.append((key, member, writer.add(member, audio, hashed=True), len(audio)))
            writer.add(f"{key}.json", text)
    columns = dict(zip(("key", "member", "offset", "size"), map(list, zip(*rows, strict=True)), strict=True))
    columns["sha256"] = [writer.member_sha256[offset] for offset in columns["offset"]]
    metadata = {"tar_sha256": writer.sha256} if hashed else {}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path.with_suffix(".parquet"))


Write = Callable[[Path, list[Sample]], None]
SIDES: dict[str, Write] = {"webdataset": with_webdataset, "millrace": with_millrace}
SIDES["millrace+tar_sha256"] = partial(with_millrace, hashed=True)


def seconds(write: Write, path: Path, made: list[Sample]) -> tuple[float, float]:
    """Wall and CPU seconds of writing a new file."""
    path.unlink(missing_ok=True)
    started, cpu = time.perf_counter(), time.process_time()
    write(path, made)
    return time.perf_counter() - started, time.process_time() - cpu


def main() -> None:
    parser = cli.parser(__doc__, __spec__.name if __spec__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="where to write (default: the system's temporary folder)")
    args = parser.parse_args()
    for label, (low, high, count) in SIZES.items():
        made = samples(low, high, count)
        times: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            for _ in range(args.rounds):
                for side, write in SIDES.items():
                    times[side].append(seconds(write, Path(folder) / f"{side}.tar", made))
        medians = {side: tuple(map(statistics.median, zip(*times[side], strict=True))) for side in SIDES}
        for side, (wall, cpu) in medians.items():
            base_wall, base_cpu = medians["webdataset"]
            line = {"members": label, "side": side, "members_per_second": round(2 * count / wall)}
            line |= {"times_webdataset": round(base_wall / wall, 2)}
            print(json.dumps({**line, "times_webdataset_cpu": round(base_cpu / cpu, 2)}))


if __name__ == "__main__":
    main()
