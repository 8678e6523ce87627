"""The manifest of a partition: rows, rejects and ledger from real alignment files and real
audio."""

import csv
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millrace.common import jsonl
from millrace.speech import create_shards
from millrace.speech.columns import SCHEMA
from millrace.speech.country import tables
from millrace.speech.generate_manifest import main
from tests import corpora
from tests.files import contents
from tests.speech.chain import Chain, edit


@pytest.fixture
def chain(tmp_path):
    made = Chain(tmp_path)
    corpora.add_recording(made.root, "germany", "one", 20)
    return made


PARTITION = "germany-train-1-00000"


def generate(chain: Chain, *arguments: str) -> dict:
    """Sync, make the manifest, and read its ledger."""
    assert (
        chain.sync().partitions == {"germany": [PARTITION]}
        and chain.generate(PARTITION, *arguments) == 0
    )
    return jsonl.read(chain.part(PARTITION) / "ledger.json")


def test_rows_have_the_columns_and_values_of_the_corpus(chain):
    generate(chain)
    table = pq.read_table(chain.part(PARTITION) / "manifest.parquet")
    assert table.schema.equals(SCHEMA) and table.num_rows == 4
    row, segment = table.to_pylist()[1], jsonl.read(chain.aligned("germany", "one"))["segments"][1]
    assert (
        row["key"] == "germany_one_4750_8750"
        and row["language"] == "de"
        and row["batch_id"] == PARTITION
    )
    assert (row["human_transcript"], row["asr_transcript"]) == (
        segment["human_text"],
        segment["asr_text"],
    )
    assert (
        row["cer"] == segment["cer"]
        and row["wer"] > 0
        and row["original_transcript_start_idx"] == 8
    )
    (recording,) = jsonl.read(chain.part(PARTITION) / "recordings.json")
    assert recording["duration_hours"] == pytest.approx(20 / 3600) and recording["split"] == "train"
    assert recording["size_mb"] == Path(recording["source_audio_path"]).stat().st_size / 1e6


def test_the_ledger_counts_rejects_and_repairs(chain):
    def spoil(value: dict) -> None:
        first, second = value["segments"][:2]
        value["segments"] += [
            {"start": 1},
            "text",
            {**first, "cer": None},
            {**second, "start": 0.1},
        ]

    path = chain.aligned("germany", "one")
    edit(path, spoil)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    ledger = generate(chain, "--max-duration", "5")
    assert ledger["repaired"]["json_bom"] == 1
    reasons = ["time_missing", "segment_not_an_object", "duplicate_exact", "too_long"]
    assert (ledger["rows_in"], ledger["rows_out"]) == (8, 4) and ledger["repaired"][
        "cer_computed"
    ] == 1
    assert ledger["rejected"] == dict.fromkeys(reasons, 1)
    rejects = [row for _, row, _ in jsonl.lines(chain.part(PARTITION) / "rejects.jsonl")]
    assert {row["segment"]: row["reason"] for row in rejects} == dict(enumerate(reasons, 4))


def test_the_same_input_gives_the_same_bytes_and_other_audio_as_long_gives_others(chain):
    generate(chain)
    made = contents(chain.part(PARTITION))
    generate(chain)
    assert contents(chain.part(PARTITION)) == made and len(made) == 4

    # Or Snakemake, which compares contents, would leave the shards as they are.
    os.utime(chain.root / "germany/downloaded_audio/mp4_converted/one.wav")
    generate(chain)
    again = contents(chain.part(PARTITION))
    assert again["manifest.parquet"] != made["manifest.parquet"]


def test_an_alignment_that_broke_since_the_parse_is_listed(chain, capsys):
    alignment = chain.aligned("germany", "one")
    chain.sync()
    alignment.write_bytes(b"{")
    assert chain.generate(PARTITION) == 0
    log = capsys.readouterr().err
    assert f"{PARTITION}: 0 segments found, 0 in the manifest, 0 rejected\n" in log
    assert f"{alignment.name} is left out: cut off at line 1" in log
    ledger = jsonl.read(chain.part(PARTITION) / "ledger.json")
    rejects = [row for _, row, _ in jsonl.lines(chain.part(PARTITION) / "rejects.jsonl")]
    assert [(row["file"], row["segment"]) for row in rejects] == [(alignment.name, None)]
    assert ledger["rejected"] == {} and ledger["rows_in"] == 0


def test_audio_that_cannot_be_read_is_a_warning_here_and_an_error_where_it_is_cut(chain):
    (chain.root / "germany/downloaded_audio/mp4_converted/one.wav").write_bytes(b"no audio" * 500)
    ledger = generate(chain)
    assert ledger["rows_out"] == 4 and sum(ledger["warnings"].values()) == 1


def test_repairs_of_one_transcript_outlive_the_next(chain):
    """A transcript that states every CER must not wipe out what was counted for the one before."""
    first, second = (chain.aligned("germany", "one", transcript) for transcript in ("t1", "t2"))
    shutil.copy(first, second)
    edit(first, lambda value: [segment.update(cer=None) for segment in value["segments"]])
    edit(
        second,
        lambda value: [
            segment.update(start=segment["start"] + 0.1) for segment in value["segments"]
        ],
    )
    assert generate(chain)["repaired"]["cer_computed"] == 4


@pytest.mark.parametrize("normalise, cer, wer", [("True", 0.0, 0.0), ("False", 4 / 15, 1.0)])
def test_a_missing_cer_is_that_of_normalised_texts(chain, normalise, cer, wer):
    texts = {"human_text": "Order, Minister", "asr_text": "order minister.", "cer": None}
    edit(chain.aligned("germany", "one"), lambda value: value["segments"][0].update(texts))
    generate(chain, "--normalise-text", normalise)
    row, stated = pq.read_table(chain.part(PARTITION) / "manifest.parquet").to_pylist()[:2]
    assert (row["cer"], row["wer"]) == (pytest.approx(cer), wer) and stated["cer"] == 0.05


def test_segments_behind_the_end_of_a_cut_wav_are_rejects_and_the_wav_has_a_warning(chain):
    path = chain.root / "germany/downloaded_audio/mp4_converted/one.wav"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    ledger = generate(chain)
    assert ledger["warnings"] == {"size_wrong": 1}
    assert ledger["rejected"]["time_out_of_range"] >= 2


@pytest.fixture
def italy(tmp_path, monkeypatch) -> Path:
    """The folder of the CSVs, beside the corpus; commands are typed there."""
    corpora.make_corpus(tmp_path / "countries", {"italy": 6}, seconds=10)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "manifests"


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def splits_of(folder: Path) -> dict[str, str]:
    return {row["video_id"]: row["split"] for row in table(folder / "italy_splits.csv")}


def edit_table(path: Path, **cells: str) -> None:
    """Give the first row other cells."""
    first, *rows = table(path)
    tables.write_cells(
        path, list(first), [list((first | cells).values()), *(list(r.values()) for r in rows)]
    )


def test_a_country_by_hand_has_the_tables_of_the_workflow(italy, capsys):
    assert main(["--country", "italy"]) == 0
    rows, splits = table(italy / "italy_manifest.csv"), table(italy / "italy_splits.csv")
    assert list(rows[0]) == list(tables.MANIFEST_COLUMNS) and list(splits[0]) == list(
        tables.SPLITS_COLUMNS
    )
    assert {row["status"] for row in rows} == {"pending_local_tar"} and len(
        {r["key"] for r in rows}
    ) == len(rows)
    assert len(splits) == 6 and set(splits_of(italy).values()) == {"train", "validation", "test"}
    assert {(r["video_id"], r["split"], r["subset_id"]) for r in rows} == {
        (r["video_id"], r["split"], r["subset_id"]) for r in splits
    }
    assert {r["subset_id"] for r in rows if r["split"] == "train"} == {"1"}
    counts = f"{len(rows)} segments found, {len(rows)} in the manifest, 0 rejected"
    assert f"italy_manifest.csv: {counts}\n" in capsys.readouterr().err


def test_a_second_run_by_hand_keeps_splits_and_shards_and_adds_what_is_new(italy):
    assert main(["--country", "italy"]) == 0
    edit_table(italy / "italy_splits.csv", split="test", subset_id="")  # a user's own choice
    manifest = italy / "italy_manifest.csv"
    manifest.unlink()
    assert main(["--country", "italy"]) == 0
    splits = splits_of(italy)
    assert splits["rec_0000"] == "test"
    shards = ["--manifest-dir", "manifests", "--output-dir", "out", "--country", "italy"]
    assert create_shards.main(shards) == 0
    done = table(manifest)
    assert {row["status"] for row in done} == {"completed_local_tar"}

    corpora.add_recording(italy.parent / "countries", "italy", "new", 15)
    # One of test, without a subset, and one of train, whose number pandas writes so.
    listed = italy / "italy_splits.csv"
    listed.write_text(listed.read_text().replace(",train,1\n", ",train,1.0\n"))
    aligned = italy.parent / "countries/italy/Alignment/alignment_output"
    gone = [aligned / f"rec_{number:04d}_t1_aligned.json" for number in (0, 2)]
    for path in gone:
        path.rename(italy / path.name)
    for number in range(2):
        manifest.rename(italy / f"former_{number}.csv")
        assert main(["--country", "italy"]) == 0
        # What comes back has the split that it had.
        assert splits_of(italy).items() >= splits.items() and "new" in splits_of(italy)
        if number == 0:
            for path in gone:
                (italy / path.name).rename(path)
    assert create_shards.main(shards) == 0
    assert {row["key"]: row for row in table(manifest)}.items() >= {
        row["key"]: row for row in done
    }.items()


def test_a_country_without_a_recording_has_no_splits_by_hand_and_is_read_again_once_it_is_mended(
    italy,
):
    alignments = sorted((italy.parent / "countries/italy/Alignment/alignment_output").iterdir())
    contents = [path.read_bytes() for path in alignments]
    for path in alignments:
        path.write_bytes(b"{")
    assert main(["--country", "italy"]) == 0
    assert not (italy / "italy_splits.csv").exists()
    shards = ["--manifest-dir", "manifests", "--output-dir", "out", "--country", "italy"]
    assert create_shards.main(shards) == 0

    for path, content in zip(alignments, contents, strict=True):
        path.write_bytes(content)
    (italy / "italy_manifest.csv").unlink()
    assert main(["--country", "italy"]) == 0
    assert len(splits_of(italy)) == 6


def test_what_is_rejected_by_hand_is_listed(italy, capsys):
    corpora.write_alignment(italy.parent / "countries", "italy", "rec_0000_t9", b"{")
    assert main(["--country", "italy", "--min-duration", "30", "--max-duration", "40"]) == 0
    rejects = table(italy / "italy_rejects.csv")
    assert (
        rejects[0]["file"] == "rec_0000_t9_aligned.json" and rejects[0]["reason"] == "json_damaged"
    )
    assert {row["reason"] for row in rejects[1:]} == {"too_short"} and rejects[1][
        "country"
    ] == "italy"
    assert table(italy / "italy_manifest.csv") == []
    log = capsys.readouterr().err
    assert f"0 in the manifest, {len(rejects) - 1} rejected ({len(rejects) - 1} too_short)" in log


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda folder: None, "italy_manifest.csv: the manifest is there, with its statuses"),
        (
            lambda folder: (
                (folder / "italy_manifest.csv").rename(folder / "former.csv"),
                edit_table(folder / "italy_splits.csv", split="all"),
            ),
            "recording 'rec_0000', split 'all'",
        ),
        (
            lambda folder: (
                shutil.copytree(folder, folder / "partitions/italy-test-00000")
                and shutil.copy(
                    folder / "italy_splits.csv",
                    folder / "partitions/italy-test-00000/manifest.parquet",
                )
            ),
            "the workflow keeps its manifest here",
        ),
    ],
)
def test_what_by_hand_would_lose_or_overwrite_something_is_refused(italy, capsys, spoil, words):
    assert main(["--country", "italy"]) == 0
    spoil(italy)
    before = contents(italy)
    capsys.readouterr()
    assert main(["--country", "italy"]) == 1
    log = capsys.readouterr().err
    assert words in log and len(log.splitlines()) == 1
    assert contents(italy) == before


def test_a_country_that_is_not_there_is_named_with_those_that_are(italy, capsys):
    assert main(["--country", "atlantis"]) == 1
    assert (
        "atlantis: no such folder" in (log := capsys.readouterr().err)
        and "Folders found: italy" in log
    )


@pytest.mark.parametrize(
    "flags", ["", "--partition x --country italy", "--partition x --manifest y"]
)
def test_a_partition_has_all_its_outputs_and_no_country(flags, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(flags.split())
    assert "give --partition with its four outputs, or --country" in capsys.readouterr().err
