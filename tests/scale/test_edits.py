"""Edits of large sources: job list and line of a dry run. What jobs write is put there, they are
not run."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from millrace.common.workflow import placements
from tests.scale import sources
from tests.workflow.workflow import Job, Workflow

pytestmark = [pytest.mark.e2e, pytest.mark.long]


class Built:
    """A lane at scale, of which all is built; `target` is what is asked for."""

    def __init__(self, folder: Path, target: str, **config: object) -> None:
        self.workflow, self.folder, self.target = Workflow(folder, **config), folder, target
        self.build()

    def dry(self, *arguments: str) -> tuple[list[Job], list[str]]:
        """The jobs of a dry run, and the lines that Millrace says."""
        plan = self.workflow.plan(self.target, *arguments)
        return plan.jobs, [line.removeprefix("Millrace: ") for line in plan.said]

    def build(self) -> None:
        """Put there what the pending jobs would write, and what manifest steps note of alignment
        files."""
        jobs, _ = self.dry()
        for folder in self.folder.glob("results/*/partitions"):
            placements.keep_draft(folder)  # placements are for ever, as if jobs had been run
        for path in (self.folder / path for job in jobs for path in job.output.split(", ")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}" if path.suffix == ".json" else "")

    def pending(self, *arguments: str) -> tuple[set[str], list[str]]:
        """Partitions whose jobs a dry run lists (the other jobs by their rule), and the lines."""
        jobs, said = self.dry(*arguments)
        return {job.wildcards.partition("=")[2] or job.rule for job in jobs}, said


@pytest.fixture(scope="module")
def speech(tmp_path_factory) -> Built:
    """More alignment files than one process reads, in 20 partitions."""
    folder = tmp_path_factory.mktemp("speech")
    sources.make_countries(folder / "countries", 2, 2600)
    section = {
        "countries_root": "countries",
        "assignment_file": "assignment.jsonl",
        "partition_hours": 25,
    }
    return Built(folder, "speech_shards", lanes=["speech"], speech=section)


def homes(built: Built, names: set[str], countries: str = "*") -> set[str]:
    """The partitions that hold these recordings."""
    return {
        path.stem
        for path in built.folder.glob(f"results/speech/partitions/{countries}-*.json")
        if names
        & {recording["video_id"] for recording in json.loads(path.read_text())["recordings"]}
    }


def sessions(numbers: Iterable[int]) -> set[str]:
    return {f"session-{number:05d}" for number in numbers}


FIRST, SECOND = sources.COUNTRIES[:2]
THREE, TEN = (7, 1200, 2001), range(300, 2600, 230)


def aligned(built: Built, number: int, country: str = FIRST) -> Path:
    return (
        built.folder / f"countries/{country}/{sources.ALIGNED}/session-{number:05d}_t1_aligned.json"
    )


def rewrite(path: Path, change=lambda value: value, **options) -> None:
    path.write_bytes(json.dumps(change(json.loads(path.read_bytes())), **options).encode())


def test_speech_what_means_the_same_runs_nothing(speech):
    """Touched, other key order, white space, CRLF; then moved, and without Snakemake's and our own
    notes."""
    for number in range(2600):
        os.utime(aligned(speech, number))
    for number in range(0, 2600, 13):
        rewrite(aligned(speech, number, SECOND), sort_keys=True)
        path = aligned(speech, number + 1 if number < 2599 else 1, SECOND)
        path.write_bytes(path.read_bytes().replace(b", ", b",\r\n"))
    assert speech.pending() == (set(), [])
    moved = speech.folder.with_name("moved")
    speech.folder.rename(moved)
    speech.folder = speech.workflow.folder = moved
    assert speech.pending() == (set(), [])
    for path in ("index/alignments", "index/countries", "index/state.json"):
        os.rename(moved / f"results/speech/partitions/{path}", moved / path.replace("/", "-"))
    assert speech.pending("--rerun-triggers", "mtime") == (set(), [])


def test_speech_three_texts_changed(speech):
    def change(value: dict) -> dict:
        value["segments"][9]["human_text"] = "corrected"
        return value

    for number in THREE:
        rewrite(aligned(speech, number), change)
    expected = homes(speech, sessions(THREE), FIRST)
    pending, said = speech.pending()
    assert pending > expected and pending - expected <= {FIRST, SECOND, "speech_merge_index"}
    names = ", ".join(f"{FIRST}/session-{number:05d}: text" for number in THREE)
    total = len([*speech.folder.glob("results/speech/partitions/*.json")])
    line = f"3 recordings changed ({names}), 0 new, 0 gone -> {len(expected)} of {total} partitions"
    assert sorted(said[0].split()) == sorted(f"speech: {line}".split()) and len(said) == 1
    speech.build()


def test_speech_two_thousand_added_and_ten_deleted(speech):
    rng = random.Random(1)
    before = homes(speech, sessions(TEN), FIRST)
    body = json.dumps(sources.segments(20, rng))
    for number in range(2000):
        sources.add_recording(
            speech.folder / "countries", (FIRST, SECOND)[number % 2], f"new-{number:05d}", body, rng
        )
    for number in TEN:
        aligned(speech, number).unlink()
    pending, said = speech.pending()
    total = len([*speech.folder.glob("results/speech/partitions/*.json")])
    expected = before | homes(speech, {f"new-{number:05d}" for number in range(2000)})
    assert {name for name in pending if name[-5:].isdigit()} == expected
    line = (
        f"speech: 0 recordings changed, 2000 new, 10 gone -> {len(expected)} of {total} partitions"
        " (listed"
    )
    assert len(said) == 1 and said[0].startswith(line)
    speech.build()


def test_speech_a_broken_file_is_named_with_its_line_before_anything_runs(speech):
    path = aligned(speech, 8)
    rewrite(path, indent=1)
    raw = path.read_bytes()
    path.write_bytes(raw[:3000] + b"\n" + raw[3000:].replace(b'"end":', b'"end"', 1))
    pending, said = speech.pending()
    assert (
        homes(speech, {"session-00008"}, FIRST) == set()
        and len([n for n in pending if n[-5:].isdigit()]) == 1
    )
    assert (
        f"1 alignment file is left out: {FIRST}: {path.name}: not valid JSON" in said[0]
        and ": line " in said[0]
    )
    assert f"1 gone ({FIRST}/session-00008)" in said[1]
    path.write_bytes(raw)
    assert speech.pending()[1] == []


SECTION = {"source": "manifests", "manifest_dir": "manifests", "tar_root": "manifests"}


@pytest.fixture(scope="module")
def tars(tmp_path_factory) -> Built:
    """300 tars with 9,000 rows: their manifest is too large for Snakemake's own comparison of
    content."""
    folder = tmp_path_factory.mktemp("tars")
    sources.make_tars(folder, 300, 30)
    return Built(folder, "asr_data", lanes=["asr"], asr=SECTION)


BUCKETS = {"asr_build_bucket_manifests"}


def shuffled(lines: list[str]) -> list[str]:
    reordered = [json.dumps(json.loads(line), sort_keys=True) for line in lines]
    return random.Random(1).sample(reordered, len(lines))


def changed(lines: list[str]) -> list[str]:
    return [
        line.replace('"text": "', '"text": "not ') if n in THREE else line
        for n, line in enumerate(lines)
    ]


def added(lines: list[str]) -> list[str]:
    return lines + [line.replace("clip_", "more_") for line in lines[:2000]]


def in_new_tars(lines: list[str]) -> list[str]:
    return [*lines, lines[0].replace("tars/audio_0.tar", "tars/new.tar")]


@pytest.mark.parametrize(
    "edit, partitions, line",
    [
        (lambda lines: lines, set(), None),
        (shuffled, set(), None),
        (lambda lines: [f"{line}\r" for line in lines], set(), None),
        (
            changed,
            BUCKETS,
            "1 manifest changed (train.jsonl: rows changed), 0 new, 0 gone -> the buckets",
        ),
        (
            added,
            BUCKETS,
            "1 manifest changed (train.jsonl: 2000 rows more), 0 new, 0 gone -> the buckets",
        ),
        (
            lambda lines: lines[10:],
            BUCKETS,
            "1 manifest changed (train.jsonl: 10 rows fewer), 0 new, 0 gone -> the buckets",
        ),
        (
            in_new_tars,
            {*BUCKETS, "tars-00012"},
            (
                "0 tars changed, 1 new (tars/new.tar), 0 gone; 1 manifest changed (train.jsonl: 1"
                " rows more), 0 new, 0 gone -> 1 of 13 partitions and the buckets"
            ),
        ),
        (
            lambda lines: [*lines[:50], lines[50][:40], *lines[51:]],
            BUCKETS,
            (
                "manifests/train.jsonl, line 51: this line is not JSON: cut off at line 1, column"
                " 40: what follows is missing (1 broken line, rejected)\n"
                "1 manifest changed (train.jsonl: rows changed), 0 new, 0 gone -> the buckets"
            ),
        ),
    ],
    ids=["touch", "reorder", "crlf", "change", "add", "delete", "new_tar", "broken"],
)
def test_asr_edits_of_a_manifest(tars, edit, partitions, line):
    path = tars.folder / "manifests/train.jsonl"
    raw = path.read_bytes()
    sources.sparse(tars.folder / "tars/new.tar", 10**9)
    path.write_text("\n".join(edit(raw.decode().splitlines())) + "\n")
    assert tars.pending() == (partitions, [f"asr: {text}" for text in (line or "").splitlines()])
    path.write_bytes(raw)
    assert tars.pending() == (set(), [])


def test_asr_a_large_manifest_is_read_whole_by_a_dry_run(tmp_path):
    """Half a line comes at the end of 50 MB."""
    sources.make_tars(tmp_path, 60, 1000)
    path = tmp_path / "manifests/train.jsonl"
    block = path.read_bytes()
    workflow = Workflow(tmp_path, lanes=["asr"], asr=SECTION)
    workflow.call("--dry-run", "asr_data")
    blocks = 50_000_000 // len(block) + 1
    path.write_bytes(block * blocks + block[:50])
    done = workflow.call("--dry-run", "asr_data")
    problem = f"manifests/train.jsonl, line {blocks * 60_000 + 1}: this line is not"
    assert done.returncode == 0 and problem in done.stderr
    assert "Traceback" not in done.stderr and not [*tmp_path.glob("results/asr/tar_index/*")]


def test_asr_lines_that_came_broken_are_said_and_rejected(tmp_path):
    sources.make_tars(tmp_path, 3, 10)
    path = tmp_path / "manifests/train.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], lines[4][:40], *lines[5:], "{"]) + "\n")
    done = Workflow(tmp_path, lanes=["asr"], asr=SECTION).call("--dry-run", "asr_data")
    assert (
        "manifests/train.jsonl, line 5: this line is not JSON: cut off at line 1, column 40"
        in done.stderr
    )
    assert "(2 broken lines, rejected)" in done.stderr and done.returncode == 0
