"""Shards of a folder that holds a country's CSVs only: order, statuses, trials, and what is
refused."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millrace.common.errors import MillraceError
from millrace.speech import create_shards
from millrace.speech.country import tables
from millrace.speech.country.csv_manifest import CsvManifest
from millrace.speech.shards import build as shards
from tests.speech.shard_corpus import corpus, digests, row, tree, write_recording

PENDING, COMPLETED = "pending_local_tar", "completed_local_tar"
# Two recordings of each; subset 10 comes after 2.
GROUPS = (
    "testland-train-10-00000",
    "testland-train-2-00000",
    "testland-validation-00000",
    "testland-test-00000",
)


def write_tables(folder: Path, rows: list[dict]) -> Path:
    """The two CSVs of testland, and nothing else; the manifest's path."""
    recordings = {r["video_id"]: r | {"duration_hours": 0.1, "size_mb": 1.0} for r in rows}
    tables.write_splits(folder / "testland_splits.csv", recordings.values())
    tables.write_csv(folder / "testland_manifest.csv", tables.MANIFEST_COLUMNS, rows)
    return folder / "testland_manifest.csv"


@pytest.fixture
def manifest(tmp_path) -> Path:
    rows = []
    for number, group in enumerate(GROUPS):
        for each in corpus(tmp_path / f"src{number}", recordings=2, segments=4, partition=group):
            video = f"{number}_{each['video_id']}"
            rows.append(
                each
                | {
                    "video_id": video,
                    "key": f"testland_{video}_{each['start_seconds']}",
                    "batch_id": "",
                }
            )
    return write_tables(tmp_path / "manifests", rows)


def out_of(manifest: Path) -> Path:
    """Where its shards go."""
    return manifest.parent.parent / "out"


def create(manifest: Path, *flags: str) -> int:
    folders = ["--manifest-dir", str(manifest.parent), "--output-dir", str(out_of(manifest))]
    return create_shards.main(
        [*folders, "--country", "testland", "--max-shard-size-gb", "0.0002", *flags]
    )


def rows_of(manifest: Path) -> list[dict[str, str]]:
    with open(manifest, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def edit(manifest: Path, change: Callable[[list[dict[str, str]]], object]) -> None:
    rows = rows_of(manifest)
    change(rows)
    tables.write_cells(manifest, list(rows[0]), [list(each.values()) for each in rows])


def statuses(manifest: Path) -> Counter:
    return Counter(each["status"] for each in rows_of(manifest))


def completed_videos(manifest: Path) -> list[str]:
    return sorted({each["video_id"] for each in rows_of(manifest) if each["status"] == COMPLETED})


def test_shards_are_made_of_test_then_validation_then_the_subsets_of_train(manifest, capsys):
    before = rows_of(manifest)
    assert create(manifest) == 0
    lines = [line.split()[2:] for line in capsys.readouterr().err.splitlines()]
    assert [line[0] for line in lines if "segments," in line] == [
        f"{group}:" for group in reversed(GROUPS)
    ]
    assert lines[-1] == [f"{manifest}:", "32", "completed_local_tar"]
    after = rows_of(manifest)
    assert statuses(manifest) == {COMPLETED: 32}
    assert [each | {"status": PENDING} for each in after] == before
    out = out_of(manifest)
    index = pq.read_table(out / "partitions/testland-train-2-00000/index.parquet").to_pylist()
    assert {each["key"] for each in index} == {
        each["key"] for each in after if each["subset_id"] == "2"
    }
    assert index[0]["shard"] == "testland/train-2/testland-train-2-00000.tar"
    assert sorted(path.name for path in manifest.parent.iterdir()) == [
        "testland_manifest.csv",
        "testland_splits.csv",
    ]


def test_the_file_says_after_each_shard_what_is_in_it(manifest, monkeypatch):
    real, counts = shards._build_shard, []

    def counted(*arguments):
        counts.append(statuses(manifest)[COMPLETED])
        return real(*arguments)

    monkeypatch.setattr(shards, "_build_shard", counted)
    assert create(manifest) == 0
    assert len(counts) > len(GROUPS) and counts == sorted(set(counts))


def test_a_run_that_was_stopped_goes_on_and_a_second_one_touches_nothing(manifest, monkeypatch):
    real, count = shards._build_shard, []

    def stopping(*arguments):
        count.append(1)
        if len(count) > 3:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "_build_shard", stopping)
        assert create(manifest) == 130
    out = out_of(manifest)
    half, made = statuses(manifest), tree(out)
    assert 0 < half[COMPLETED] < 32 and half[PENDING] + half[COMPLETED] == 32
    assert create(manifest) == 0 and statuses(manifest) == {COMPLETED: 32}
    assert (
        tree(out).items()
        >= {name: file for name, file in made.items() if name.endswith(".tar")}.items()
    )
    whole, text = tree(out / "testland"), manifest.stat().st_mtime_ns
    assert create(manifest) == 0
    assert tree(out / "testland") == whole and manifest.stat().st_mtime_ns == text


def test_a_trial_is_of_the_first_pending_recordings_and_can_be_repeated_and_grown(manifest):
    out = out_of(manifest)
    assert create(manifest, "--max-videos", "3") == 0
    assert completed_videos(manifest) == ["0_video_0", "0_video_1", "1_video_0"]
    assert statuses(manifest) == {COMPLETED: 12, PENDING: 20}
    trial = tree(out / "testland")
    assert create(manifest, "--max-videos", "3") == 0 and tree(out / "testland") == trial
    assert create(manifest, "--max-videos", "1") == 0 and tree(out / "testland") == trial
    assert create(manifest, "--max-videos", "5") == 0
    assert completed_videos(manifest) == [
        "0_video_0",
        "0_video_1",
        "1_video_0",
        "1_video_1",
        "2_video_0",
    ]
    # A smaller one takes nothing away.
    grown = tree(out / "testland")
    assert create(manifest, "--max-videos", "1") == 0 and tree(out / "testland") == grown
    assert create(manifest) == 0 and statuses(manifest) == {COMPLETED: 32}
    made = digests(out / "testland")
    edit(manifest, lambda rows: [each.update(status=PENDING) for each in rows])
    out.rename(out.with_name("trial"))
    assert create(manifest) == 0 and digests(out / "testland") == made


def test_the_recordings_of_a_trial_come_in_the_order_of_the_rows(manifest):
    edit(manifest, lambda rows: rows.reverse())
    assert create(manifest, "--max-videos", "1") == 0
    assert completed_videos(manifest) == ["3_video_1"]


def test_a_subset_0_of_train_is_none_without_a_number(manifest):
    edit(manifest, lambda rows: [each.update(subset_id="0") for each in rows[:8]])
    assert create(manifest, "--max-videos", "1") == 0
    assert (out_of(manifest) / "testland/train-0").is_dir()


def test_only_what_is_pending_is_made(manifest):
    def set_aside(rows: list[dict[str, str]]) -> None:
        rows[0]["status"] = COMPLETED
        rows[1] |= {"status": "error_local_tar_processing", "error_message": "as was"}
        rows[2] |= {"status": "uploaded"}
        rows[3] |= {"cer": "0.31"}

    edit(manifest, set_aside)
    before = rows_of(manifest)
    assert create(manifest) == 0
    after = rows_of(manifest)
    assert after[:3] == before[:3] and statuses(manifest)[COMPLETED] == 29
    assert (
        after[3]["status"] == "error_local_tar_cer"
        and "0.31 is over the limit of 0.3" in after[3]["error_message"]
    )


def test_audio_that_fails_is_an_error_in_the_file_until_it_is_mended(manifest):
    source = Path(rows_of(manifest)[0]["source_audio_path"])
    whole = source.read_bytes()
    source.write_bytes(b"no audio" * 100)
    assert create(manifest) == 0
    errors = [each for each in rows_of(manifest) if each["error_message"]]
    assert len(errors) == 4 and {each["status"] for each in errors} == {
        "error_local_tar_audio_load"
    }
    assert all(str(source) in each["error_message"] for each in errors)
    source.write_bytes(whole)
    assert create(manifest) == 0 and statuses(manifest) == {COMPLETED: 32}
    assert not any(each["error_message"] for each in rows_of(manifest))


def test_a_tar_of_unknown_content_is_not_replaced(manifest, capsys):
    assert create(manifest, "--max-videos", "1") == 0
    folder = out_of(manifest) / "testland/train-10"
    unknown = "what it holds is unknown without .testland-train-10-00000.index.parquet beside it"
    for spoil in (lambda sidecar: sidecar.write_bytes(b"PAR1"), Path.unlink):
        for sidecar in folder.glob(".*"):
            spoil(sidecar)
        before = tree(folder)
        assert create(manifest) == 1 and tree(folder) == before
        log = capsys.readouterr().err
        assert unknown in log and "Bring that file back" in log


def test_a_recording_lies_in_one_split_by_its_rows_and_by_the_splits(manifest):
    edit(manifest, lambda rows: rows[5].update(split="test", subset_id=""))
    problem = r"row 6, and .*testland_splits.csv, line 3: .*'0_video_1' is in train and in test"
    with pytest.raises(MillraceError, match=problem):
        CsvManifest.read(manifest, "testland")
    manifest.with_name("testland_splits.csv").unlink()
    with pytest.raises(MillraceError, match=r"row 6: .*'0_video_1' is in train and in test"):
        CsvManifest.read(manifest, "testland")
    # Of rows without a name nobody knows whether they are of one recording.
    edit(manifest, lambda rows: [row.update(video_id="") for row in rows])
    CsvManifest.read(manifest, "testland")


@pytest.mark.parametrize(
    "pattern, text, words",
    [
        ("human_transcript", "text", "columns human_transcript are missing"),
        (",test,", ",dev,", "split 'dev', which is none of train, validation, test"),
        (",0.05,", ",five,", "line 2: cer 'five' is no number"),
        (",train,10", ",train,1.5", "line 2: subset_id 1.5 is no whole number"),
        (",train,10", ",train,nan", "line 2: subset_id nan is no whole number"),
        (",train,10\n", ",train\n", "line 2: 19 cells for 20 columns"),
        (",train,10\n", ",train,10,\n", "line 2: 21 cells for 20 columns"),
        (",testland,", ",,", "line 2: the country is empty"),
        (",testland,", ", ,", "line 2: the country is empty"),
        ("(?s).*", "", "columns key, country"),  # nothing at all
    ],
)
def test_a_manifest_that_cannot_be_read_is_refused_by_line(manifest, capsys, pattern, text, words):
    manifest.write_text(re.sub(pattern, text, manifest.read_text(), count=1))
    assert create(manifest) == 1
    log = capsys.readouterr().err
    assert words in log and str(manifest) in log and len(log.splitlines()) == 1
    assert not (out_of(manifest)).exists()


def test_a_folder_without_a_manifest_of_ones_own_says_what_makes_one(tmp_path, capsys):
    manifest = tmp_path / "none/x.csv"
    assert create(manifest) == 1
    assert "no manifest CSV of country 'testland'" in capsys.readouterr().err
    part = manifest.parent / "partitions/testland-test-00000/manifest.parquet"
    part.parent.mkdir(parents=True)
    part.touch()
    assert create(manifest) == 1
    log = capsys.readouterr().err
    assert "the workflow keeps its manifest here" in log and "snakemake speech_shards" in log
    part.parent.rename(part.parent.with_name("new%20zealand-test-00000"))
    with pytest.raises(MillraceError, match="the workflow keeps its manifest here"):
        CsvManifest.find(str(manifest.parent), "new zealand")


def test_cells_of_the_file_stay_as_they_are_written(tmp_path):
    """Texts that tables spoil, numbers as another program writes them, and columns of the user's
    own."""
    source = write_recording(tmp_path / "a.wav", 9, 1)
    texts = ["NA", "null", "=SUM(A1)", 'quo"te', "two\nlines", "car\rriage", "‏rtl‏", " blank "]
    rows = [row(source, n, n + 1, human_transcript=text) for n, text in enumerate(texts)]
    manifest = write_tables(tmp_path / "manifests", rows)
    edit(manifest, lambda rows: [each.update(cer="5e-2", mine=" kept ") for each in rows])
    before = rows_of(manifest)
    assert create(manifest) == 0
    assert rows_of(manifest) == [each | {"status": COMPLETED} for each in before]
