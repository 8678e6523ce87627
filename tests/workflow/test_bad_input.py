"""A corpus with every defect we know of: each ends as a counted reject or a counted repair, and
none stops the rest."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests import corpora
from tests.workflow.workflow import Workflow

pytestmark = [pytest.mark.e2e, pytest.mark.long]

AUDIO = "spain/downloaded_audio/mp4_converted"
GOOD = {"start": 1.0, "end": 5.0, "cer": 0.0, "start_idx": 0, "end_idx": 3}
GOOD |= {"asr_text": "a b c", "human_text": "a b c"}
# Some of those of tests/speech/manifest/test_segments.py, which says each one's reason.
SEGMENTS: list[dict] = [
    {"start": None},
    {"start": "soon"},
    {"start": 50.0, "end": 55.0},
    {"human_text": None},
    {"cer": 0.9},
]


def put(root: Path, video_id: str, segments: list, audio: bytes | None = None) -> None:
    """Add a recording of `spain` with 40 s of noise, or with other audio."""
    if audio is None:
        seed = sum(video_id.encode()) * 7919 + len(video_id)
        corpora.write_audio(root, "spain", f"{video_id}.wav", corpora.noise(40.0, seed))
    else:
        (root / AUDIO / f"{video_id}.opus").write_bytes(audio)
    value = {"audio_file": f"x/{video_id}.opus", "segments": segments}
    corpora.write_alignment(root, "spain", f"{video_id}_t1", value)


def at(number: int, **change) -> dict:
    """A good segment of its own place in the recording."""
    return {**GOOD, "start": 1.0 + 5 * number, "end": 5.0 + 5 * number, **change}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    root = folder / "countries"
    for number in range(8):
        put(root, f"good_{number}", [at(k) for k in range(7)])
    # Audio: missing, empty, cut, wrongly named.
    for video_id in ("audio_missing", "audio_cut", "audio_misnamed"):
        put(root, video_id, [at(0), at(6)])
    put(root, "audio_empty", [at(0)], b"")
    (root / AUDIO / "audio_missing.wav").unlink()
    os.truncate(root / AUDIO / "audio_cut.wav", 44 + 2 * 16000 * 20 + 1)
    (root / AUDIO / "audio_misnamed.wav").rename(root / AUDIO / "audio_misnamed.mp3")
    # Files.
    corpora.write_alignment(root, "spain", "json_cut", json.dumps([GOOD]).encode()[:50])
    corpora.write_alignment(root, "spain", "json_nothing", b'{"audio_file": "x.opus"}')
    alignments = root / "spain/Alignment/alignment_output"
    (alignments / "a_folder_aligned.json").mkdir()
    (alignments / "a_dead_link_aligned.json").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    (root / "spain/downloaded_audio/up").symlink_to("..")
    (root / "spain/downloaded_audio/up_too").symlink_to("..")
    put(root, "json_bom", [at(0)])
    path = alignments / "json_bom_t1_aligned.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    # Segments.
    bad = [at(0, **change) for change in SEGMENTS]
    put(root, "segments", [*bad, None, "text", at(1), at(2)])
    # Duplicates, and a second transcript.
    put(root, "twice", [at(0), at(0), at(1, end=9.0001), at(1, end=9.0004, cer=0.2)])
    second = {"audio_file": "twice.opus", "segments": [at(0, cer=0.1), at(2)]}
    corpora.write_alignment(root, "spain", "twice_t2", second)
    (root / "latvia").mkdir()
    section = {"countries_root": "countries", "assignment_file": "a.jsonl", "partition_hours": 0.1}
    workflow = Workflow(folder, speech={**section, "max_error_fraction": 0.5})
    workflow.run("speech_shards")
    return workflow


def rejects(workflow: Workflow) -> list[dict]:
    with open(workflow.folder / "results/speech/shards/spain_rejects.csv", newline="") as handle:
        return list(csv.DictReader(handle))


def final(workflow: Workflow) -> pd.DataFrame:
    path = workflow.folder / "results/speech/shards/spain_manifest.csv"
    return pd.read_csv(path)


def test_every_segment_defect_is_rejected_and_none_takes_others_along(ran):
    lost = [row for row in rejects(ran) if row["video_id"] == "segments"]
    assert len(lost) == len(SEGMENTS) + 2
    kept = final(ran).query("video_id == 'segments' and status == 'completed_local_tar'")
    assert list(kept.start_seconds) == [6.0, 11.0]


def test_every_audio_defect_has_its_reason(ran):
    found = {row["video_id"]: row["reason"] for row in rejects(ran) if "audio" in row["video_id"]}
    assert found == {
        "audio_missing": "audio_missing",
        "audio_empty": "audio_load",
        "audio_cut": "time_out_of_range",
    }
    done = final(ran).query("status == 'completed_local_tar'").video_id
    assert {"audio_cut", "audio_misnamed"} <= set(done)


def test_every_file_defect_has_its_reason(ran):
    found = {row["file"]: row["reason"] for row in rejects(ran) if not row["segment"]}
    assert found == {
        "json_cut_aligned.json": "json_damaged",
        "json_nothing_aligned.json": "no_segments",
        "a_folder_aligned.json": "json_unreadable",
        "a_dead_link_aligned.json": "json_unreadable",
    }


def test_rejects_are_for_people(ran):
    for row in rejects(ran):
        assert row["file"] and row["reason"] and len(row["detail"]) > 5
        assert "Traceback" not in row["detail"] and "Error(" not in row["detail"]


def test_the_ledger_adds_up(ran):
    ledger = ran.read("results/speech/shards/spain_ledger.json")
    files = list((ran.folder / "countries/spain/Alignment/alignment_output").iterdir())
    assert ledger["files"]["rows_in"] == len(files)
    found = 0
    for path in files:
        try:
            found += len(json.loads(path.read_text("utf-8-sig"))["segments"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    segments = ledger["segments"]
    assert segments["rows_in"] == found == segments["rows_out"] + segments["rows_rejected"]
    assert (
        segments["rows_out"]
        == pq.read_metadata(ran.folder / "results/speech/index.parquet").num_rows
    )
    assert segments["repaired"]["json_bom"] == 1
    assert sum(1 for row in rejects(ran) if row["segment"]) == segments["rows_rejected"]
    latvia = ran.read("results/speech/shards/latvia_ledger.json")
    assert latvia["notes"] == ["no_alignment_files"] and latvia["segments"]["rows_in"] == 0


def test_too_many_errors_fail_the_country_with_the_list_and_not_the_others(ran, tmp_path):
    shutil.copytree(ran.folder, tmp_path / "copy", symlinks=True)
    corpora.make_corpus(tmp_path / "copy/countries", {"malta": 4}, 10)
    strict = Workflow(
        tmp_path / "copy", speech={**ran.config["speech"], "max_error_fraction": 0.05}
    )
    done = strict.call("speech_shards", "--keep-going")
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Millrace: failed: speech_merge_shards spain: country spain: ")
    assert last.endswith(" (log: logs/speech/merge_shards/spain.log)")
    log = (strict.folder / "logs/speech/merge_shards/spain.log").read_text()
    assert "max_error_fraction 0.05" in log and "audio_missing" in log and "Traceback" not in log
    assert (strict.folder / "logs/speech/merge_shards/spain.rejects.csv").exists()
    assert (strict.folder / "results/speech/shards/malta_manifest.csv").exists()
    assert not np.any([path.suffix == ".partial" for path in strict.folder.rglob("*")])
    # The merged index of before is there, but no target takes it for complete.
    assert {"speech_merge_shards", "speech_merge_index"} <= {
        job.rule for job in strict.dry("speech_shards")
    }
