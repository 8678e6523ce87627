"""Bench of finding copies: planted ones in real speech, the join of a large corpus, any splits.

python -m tests.bench.bench_copies planted --archives resources/speech/debian
python -m tests.bench.bench_copies join --segments 10000000 --folder /tmp/millrace-bench
python -m tests.bench.bench_copies splits --hours 2 --folder /tmp/millrace-bench
python -m tests.bench.bench_copies lane --folder /tmp/millrace-bench
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import soundfile

from millrace.audit.splits import compare, content
from millrace.audit.splits.samples import Place, Sample
from millrace.common import cli
from millrace.common.fingerprints import matches
from millrace.common.fingerprints.scale import SEARCHED_STEPS
from millrace.common.leaks.leakage import BY_SOUND, NOT_AT_ALL
from millrace.common.loading.decode import decode
from millrace.speech import fetch_corpus
from millrace.speech.country import copies
from millrace.speech.demo.corpus import encode
from millrace.speech.shards import prints
from millrace.speech.shards.index import write_table
from tests.common.fingerprints import planted
from tests.corpora import RATE, noise
from tests.workflow.workflow import Workflow

SECONDS = 5.0  # of a segment
PARTITION = 1000  # segments
# Of 2,469 prompts of five voices, 8 % of the words occur in 48 minutes of others, half a time each
# on average, and the most frequent one is one in 2,900. So is what `drawn` gives.
EXPONENT, LEAST = 5, 0.02
FASTER = (5, 10, 15, 20)  # percent


def drawn(rng: np.random.Generator, count: int) -> np.ndarray:
    """Words as frequent as those of speech."""
    numbers = rng.uniform(LEAST, 1, count) ** EXPONENT * 2**32
    return (numbers.astype(np.uint64) * np.uint64(0x9E3779B1)).astype(np.uint32)


def measure_planted(archives: Path) -> None:
    """The table of docs/leaks.md."""
    recordings = planted.corpus(archives)
    known = planted.known_of(recordings)
    for kind, make in (planted.KINDS | planted.OTHERS).items():
        _, cuts, found = planted.plant(recordings, known, make)
        own = [
            match
            for match in found
            if known.pieces.recordings[match.of_piece] == cuts[match.piece].recording
        ]
        recall = len({match.piece for match in own}) / len(cuts)
        errors = np.median([match.errors for match in own]) if own else 0.5
        print(f"| {kind} | {len(cuts)} | {recall:.3f} | {1 - errors:.2f} |", flush=True)


def write_prints(folder: Path, split: str, number: int, words: int) -> Path:
    """The prints of a partition, drawn."""
    rng = np.random.default_rng([number, len(split)])
    rows = drawn(rng, PARTITION * words).reshape(PARTITION, words)
    table = pa.table(
        {
            "key": [f"here_{split}_{number}_{row}" for row in range(PARTITION)],
            "country": ["here"] * PARTITION,
            "video_id": [f"{split}_{number}"] * PARTITION,
            "split": [split] * PARTITION,
            "start_seconds": np.arange(PARTITION) * SECONDS,
            "sha256": [f"{split}{number}:{row}" for row in range(PARTITION)],
            "words": [row.tobytes() for row in rows],
        },
        schema=prints.SCHEMA,
    )
    path = folder / "partitions" / f"here-{split}-{number * 100:05d}" / "prints.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, table)
    return path


def measure_join(segments: int, folder: Path) -> None:
    """One of the parts of the held-out splits that memory holds, against a few partitions of train;
    scaled to all. Of the segments, a tenth is test, and a tenth validation."""
    words = round((SECONDS - 0.32) / 0.008) + 1
    searched = words // SEARCHED_STEPS + 1
    at_once = matches.WORDS_AT_ONCE // (PARTITION * words) + 1
    known = [write_prints(folder, "test", number, words) for number in range(at_once)]
    few, many = (
        [write_prints(folder, "train", number, searched) for number in range(count)]
        for count in (2, 22)
    )
    seconds = {}
    for own in (few, many):
        started = time.process_time()
        found = copies.find(own, known)
        seconds[len(own)] = time.process_time() - started
    a_partition = (seconds[22] - seconds[2]) / 20
    a_part = seconds[2] - 2 * a_partition
    parts = 0.2 * segments / PARTITION / at_once
    partitions = 0.8 * segments / PARTITION
    line = {
        "held_out_words": at_once * PARTITION * words,
        "seconds_to_sort_them": round(a_part, 1),
        "seconds_a_partition": round(a_partition, 3),
        "false_pairs": len(found),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "parts": round(parts, 1),
        "cpu_hours_of_all": round(parts * (a_part + partitions * a_partition) / 3600, 2),
    }
    print(json.dumps(line))


def measure_splits(hours: float, folder: Path) -> None:
    """check_splits of recordings of noise of ten minutes, in two processes; and decoding alone."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(round(6 * hours)):
        paths.append(folder / f"{number}.flac")
        soundfile.write(paths[-1], noise(600, number), RATE)
    held_out = paths[::10]
    train = [path for path in paths if path not in held_out]

    started = time.process_time()
    for path in paths:
        content._mono(path.read_bytes())
    decoding = time.process_time() - started
    samples = [Sample(path.name, Place(str(path))) for path in paths]
    line = {"hours": len(samples) / 6, "decoding_cpu_s": round(decoding, 1)}

    before = _cpu()
    started = time.perf_counter()
    pairs, _ = compare.compare(_linked(folder, "train", train), _held(folder, held_out), 2)
    wall, cpu = time.perf_counter() - started, _cpu() - before
    scale = 100 / line["hours"]
    line |= {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "pairs": len(pairs)}
    line["minutes_of_100_hours_on_two_cores_beyond_decoding"] = round(
        (cpu - decoding) * scale / 60 / 2, 2
    )
    print(json.dumps(line))


def measure_lane(folder: Path, repeats: int) -> None:
    """CPU seconds of the speech lane, without and with copies found by sound: on the demo corpus,
    and the same recordings at other speeds, which are no copies."""
    index = folder / "corpus.json"
    if not index.exists():
        fetch_corpus.main(["--countries-root", f"{folder}/countries", "--index", str(index)])
        for alignment in list(folder.glob("countries/*/Alignment/*/*.json")):
            for percent in FASTER:
                _write_faster(folder, alignment, percent)
    seconds: dict[str, list[float]] = {NOT_AT_ALL: [], BY_SOUND: []}
    for _ in range(repeats):
        for how, used in seconds.items():
            used.append(_seconds_of_lane(folder, how))
    medians = {how: statistics.median(used) for how, used in seconds.items()}
    more = medians[BY_SOUND] / medians[NOT_AT_ALL] - 1
    print(json.dumps({"cpu_s": seconds, "medians": medians, "more": round(more, 3)}))


def _write_faster(folder: Path, alignment: Path, percent: int) -> None:
    content = json.loads(alignment.read_bytes())
    audio = folder / content["audio_file"]
    samples = planted.faster(decode(audio.read_bytes(), RATE), percent).samples
    name = f"{audio.stem}_faster_{percent}{audio.suffix}"
    body = encode((samples * 32767).astype(np.int16), audio.suffix[1:])
    audio.with_name(name).write_bytes(body)
    content["audio_file"] = str(Path(content["audio_file"]).with_name(name))
    for segment in content["segments"]:
        for key in {"start", "end", "start_seconds", "end_seconds"} & segment.keys():
            segment[key] /= 1 + percent / 100
    target = alignment.name.replace(audio.stem, f"{audio.stem}_faster_{percent}")
    alignment.with_name(target).write_text(json.dumps(content))


def _seconds_of_lane(folder: Path, how: str) -> float:
    """CPU of the whole lane and of Snakemake, built from nothing in one job at a time."""
    place = folder / how
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    section = {"countries_root": f"{folder}/countries", "assignment_file": "assignment.jsonl"}
    workflow = Workflow(place, lanes=["speech"], speech={**section, "copies": how})
    before = _cpu()
    command = workflow.command("speech", "--cores", "1")
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    return round(_cpu() - before, 2)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _held(folder: Path, paths: list[Path]) -> dict[str, list[Path]]:
    return {"test": _linked(folder, "test", paths)}


def _linked(folder: Path, split: str, paths: list[Path]) -> list[Path]:
    """A folder with links to these files."""
    place = folder / split
    place.mkdir(exist_ok=True)
    for path in paths:
        (place / path.name).unlink(missing_ok=True)
        (place / path.name).hardlink_to(path)
    return [place]


def main() -> None:
    parser = cli.parser(__doc__, __spec__)
    parser.add_argument("what", choices=("planted", "join", "splits", "lane"))
    parser.add_argument("--archives", type=Path, default=Path("resources/speech/debian"))
    parser.add_argument("--segments", type=int, default=10_000_000)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.what == "planted":
        measure_planted(args.archives)
    elif args.what == "join":
        measure_join(args.segments, args.folder / "join")
    elif args.what == "lane":
        measure_lane(args.folder / "lane", args.repeats)
    else:
        measure_splits(args.hours, args.folder / "splits")


if __name__ == "__main__":
    main()
