"""A corpus with every defect we know of: each ends as a counted reject or a counted repair, and
none stops the rest."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests import corpora
from tests.workflow.workflow import Workflow

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TEXTS = ["NA", "null", "=SUM(A1)", 'say "yes", no', "two\nlines", "a\r\nb", "\u200fמשפט\u200f"]
TEXTS += ["-1", "nan", "", "a\rb", "\ttab"]
GOOD = {"start": 1.0, "end": 5.0, "cer": 0.0, "start_idx": 0, "end_idx": 3}
GOOD |= {"asr_text": "a b c", "human_text": "a b c"}
# Each is rejected (tests/speech/manifest/test_segments.py: by its reason).
SEGMENTS: list[dict] = [
    {"start": None},
    {"end": float("nan")},
    {"start": -3.0},
    {"start": "soon"},
    {"start": "1.0"},
    {"start": 9.0, "end": 6.0},
    {"start": 50.0, "end": 55.0},
    {"human_text": None},
    {"end": 2.0},
    {"end": 30.0},
    {"cer": 0.9},
]


def put(
    root: Path,
    video_id: str,
    segments: list,
    audio: object = 40.0,
    name: str | None = None,
    **fields,
) -> None:
    """Add a recording of `spain`: `audio` is seconds of noise, bytes as they are, or None for no
    file."""
    if isinstance(audio, float):
        seed = sum(video_id.encode()) * 7919 + len(video_id)
        corpora.write_audio(root, "spain", f"{video_id}.wav", corpora.noise(audio, seed))
    elif audio is not None:
        path = root / "spain/downloaded_audio/mp4_converted" / f"{video_id}.opus"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(audio)
    value = {"audio_file": f"x/{video_id}.opus", "segments": segments, **fields}
    corpora.write_alignment(root, "spain", name or f"{video_id}_t1", value)


def at(number: int, **change) -> dict:
    """A good segment of its own place in the recording."""
    return {**GOOD, "start": 1.0 + 5 * number, "end": 5.0 + 5 * number, **change}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    root = folder / "countries"
    for number in range(8):
        put(root, f"good_{number}", [at(k) for k in range(7)], 40.0)
    # Audio: missing, empty, cut, random bytes, text, wrongly named.
    put(root, "audio_missing", [at(0), at(1)], None)
    put(root, "audio_empty", [at(0)], b"")
    put(root, "audio_random", [at(0)], random.Random(1).randbytes(50_000))
    put(root, "audio_text", [at(0)], b"<html>404 not found</html>" * 50)
    put(root, "audio_cut", [at(0), at(6)], 40.0)
    path = root / "spain/downloaded_audio/mp4_converted/audio_cut.wav"
    path.write_bytes(path.read_bytes()[: 44 + 2 * 16000 * 20 + 1])
    put(root, "audio_misnamed", [at(0)], 40.0)
    shutil.move(
        root / "spain/downloaded_audio/mp4_converted/audio_misnamed.wav",
        root / "spain/downloaded_audio/mp4_converted/audio_misnamed.mp3",
    )
    # Files.
    for name, raw in {
        "json_cut": json.dumps({"audio_file": "x", "segments": [GOOD]}).encode()[:50],
        "json_empty": b"",
        "json_list": json.dumps([GOOD]).encode(),
        "json_nothing": b'{"audio_file": "x.opus"}',
    }.items():
        corpora.write_alignment(root, "spain", name, raw)
    corpora.write_alignment(root, "spain", "json_latin1", '{"audio_file": "ñ"}'.encode("latin-1"))
    alignments = root / "spain/Alignment/alignment_output"
    (alignments / "a_folder_aligned.json").mkdir()
    (alignments / "a_dead_link_aligned.json").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    (root / "spain/downloaded_audio/up").symlink_to("..")
    (root / "spain/downloaded_audio/up_too").symlink_to("..")
    put(root, "json_bom", [at(0)], 40.0)
    path = root / "spain/Alignment/alignment_output/json_bom_t1_aligned.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    # Segments.
    put(
        root,
        "segments",
        [at(0, **change) for change in SEGMENTS] + [None, "text", at(1), at(2)],
        40.0,
    )
    # Duplicates, collisions, a second transcript, the same audio twice.
    put(
        root,
        "twice",
        [at(0), at(0), at(1, end=9.0001), at(1, end=9.0004, human_text="other", cer=0.2)],
        40.0,
    )
    put(root, "twice", [at(0, human_text="second", cer=0.1), at(2)], None, "twice_t2")
    # Ids.
    for video_id in ("a", "a_b", "A", "dot.ted.id", "with space", "ñandú", "x" * 120):
        put(root, video_id, [at(0)], 20.0)
    # Texts.
    put(
        root,
        "texts",
        [at(k, human_text=text or "x", asr_text=text) for k, text in enumerate(TEXTS)],
        70.0,
    )
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
    return pd.read_csv(
        path, keep_default_na=False, dtype={"human_transcript": str, "asr_transcript": str}
    )


def test_every_segment_defect_is_rejected_and_none_takes_others_along(ran):
    lost = [row for row in rejects(ran) if row["video_id"] == "segments"]
    assert len(lost) == len(SEGMENTS) + 2
    kept = final(ran).query("video_id == 'segments' and status == 'completed_local_tar'")
    assert list(kept.start_seconds) == [6.0, 11.0]


def test_every_audio_defect_has_its_reason(ran):
    found = {
        (row["video_id"], row["reason"])
        for row in rejects(ran)
        if row["video_id"].startswith("audio")
    }
    assert {
        ("audio_missing", "audio_missing"),
        ("audio_empty", "audio_load"),
        ("audio_random", "audio_load"),
    } <= found
    assert ("audio_text", "audio_load") in found and ("audio_cut", "time_out_of_range") in found
    done = final(ran).query("status == 'completed_local_tar'").video_id
    assert {"audio_cut", "audio_misnamed"} <= set(done)


def test_every_file_defect_has_its_reason(ran):
    found = {row["file"]: row["reason"] for row in rejects(ran) if not row["segment"]}
    assert found == {
        "json_cut_aligned.json": "json_damaged",
        "json_empty_aligned.json": "json_empty",
        "json_list_aligned.json": "json_not_an_object",
        "json_nothing_aligned.json": "no_segments",
        "json_latin1_aligned.json": "json_encoding",
        "a_folder_aligned.json": "json_unreadable",
        "a_dead_link_aligned.json": "json_unreadable",
    }


def test_rejects_are_for_people(ran):
    for row in rejects(ran):
        assert row["file"] and row["reason"] and len(row["detail"]) > 5
        assert "Traceback" not in row["detail"] and "Error(" not in row["detail"]


def test_the_ledger_adds_up(ran):
    ledger = json.loads((ran.folder / "results/speech/shards/spain_ledger.json").read_bytes())
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
    latvia = json.loads((ran.folder / "results/speech/shards/latvia_ledger.json").read_bytes())
    assert latvia["notes"] == ["no_alignment_files"] and latvia["segments"]["rows_in"] == 0


def test_odd_ids_are_in_the_index_with_their_own_audio(ran):
    index = pq.read_table(ran.folder / "results/speech/index.parquet").to_pandas()
    for video_id in ("a", "a_b", "A", "dot.ted.id", "with space", "ñandú", "x" * 120):
        (row,) = index[index.video_id == video_id].to_dict("records")
        assert row["key"] == f"spain_{video_id}_1000_5000"
        assert row["member"].count(".") == 1 and row["member"].isascii()
    assert index.sha256.is_unique


def test_hostile_texts_survive_csv_and_index(ran):
    kept = final(ran).query("video_id == 'texts'").sort_values("start_seconds")
    assert list(kept.human_transcript) == [text or "x" for text in TEXTS]
    index = pq.read_table(ran.folder / "results/speech/index.parquet").to_pandas()
    rows = index[index.video_id == "texts"].sort_values("start_seconds")
    assert list(rows.human_transcript) == [
        text or "x" for text, cer in zip(TEXTS, rows.cer, strict=True) if cer <= 0.3
    ]


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
