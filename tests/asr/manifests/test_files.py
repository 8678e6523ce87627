"""Which files in a folder are taken for the manifests of a split."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from millrace.asr.buckets.addresses import TarIndices
from millrace.asr.buckets.build import BucketChoices, build
from millrace.asr.manifests import files as manifest_files
from millrace.asr.manifests.manifest import scanned
from millrace.common.errors import MillraceError
from tests.asr.bucket_corpus import corpus, files, rejects, write_manifest

# What NeMo's convert_to_tarred_audio_dataset.py writes.
NEMO = [
    "tarred_audio_manifest.json",
    "sharded_manifests/manifest_0.json",
    "sharded_manifests/manifest_10.json",
]
NEMO += ["sharded_manifests/notes.json", "metadata.yaml", "audio_0.tar", "audio_10.tar"]
VERSIONED = "tarred_audio_manifest_version_12.json"
HUB = [f"train-{number:05d}-of-00003.parquet" for number in range(3)]


def find(folder: Path, names: list[str]) -> dict[str, list[str]]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    splits = manifest_files.find(folder).items()
    return {
        split: [str(Path(path).relative_to(folder)) for path in paths] for split, paths in splits
    }


@pytest.mark.parametrize(
    "names, train",
    [
        (["train.parquet", "train_old.parquet"], ["train.parquet"]),
        (["train.json", "train.parquet"], ["train.parquet"]),
        (["train.json", "train_state.json"], ["train.json"]),
        ([*HUB[::-1], "readme.md", "._train-00000-of-00003.parquet"], HUB),
        (["train-00000-of-00002-0a1b2c.parquet", "train-00001-of-00002-ffee00.parquet"], None),
        (["train_10.jsonl", "train_2.jsonl"], ["train_10.jsonl", "train_2.jsonl"]),
        (["train_clean_100.parquet", "train_other.parquet"], None),
        (["train-1-of-2.parquet", "train-2-of-2.parquet"], None),
        (["train/b.parquet", "train/_b.parquet", "train/x.tar"], ["train/b.parquet"]),
        (["train/clips_test.parquet"], None),
        (["train.parquet/part-0.parquet", "train.parquet/part-1.parquet"], None),
        (["train/manifest_0.json", "train/u17.json"], ["train/manifest_0.json"]),
        (
            [f"train/{name}" for name in (*NEMO, "manifest.json")],
            ["train/tarred_audio_manifest.json"],
        ),
        ([f"train/{name}" for name in NEMO[1:]], [f"train/{name}" for name in NEMO[1:3]]),
        (
            [f"train/{name}" for name in (NEMO[0], VERSIONED, VERSIONED.replace("12", "9"))],
            [f"train/{VERSIONED}"],
        ),
        ([f"train/bucket{n}/{NEMO[0]}" for n in (1, 2)], None),
        (["train_state.json", "training.parquet", "my_train.parquet", "train.jsonl.gz"], []),
    ],
)
def test_a_split_in_one_file_in_pieces_or_in_a_folder(tmp_path, names, train):
    expected = {"train": sorted(names) if train is None else train, "dev": ["dev.parquet"]}
    assert {"train": [], **find(tmp_path, [*names, "dev.parquet"])} == expected


@pytest.mark.parametrize(
    "names, message",
    [
        (
            ["train.parquet", *HUB],
            "train: train.parquet and train-00000-of-00003.parquet (of 3 files)",
        ),
        (["train.parquet", "train.jsonl"], "two manifests of train: train.jsonl and train.parquet"),
        (["train.parquet", "train/a.jsonl"], "train.parquet and train/a.jsonl"),
        (["train_0.parquet", "train_1.jsonl"], "parquet and JSONL are mixed in train"),
        (["train_0.parquet", "train_dev.parquet"], "train_dev.parquet names two splits"),
        (HUB[:1] + HUB[2:], "2 of 3 pieces of train are there: number 1 is not"),
        ([*HUB, "train-00000-of-00002.parquet"], "pieces of several sets"),
        ([*HUB[:2], "train-00002-of-00004.parquet"], "pieces of several sets"),
        (
            [f"train-{number}-of-2.parquet" for number in range(3)],
            "3 of 2 pieces of train are there",
        ),
        (
            [
                f"train-0000{n}-of-00002-{hash_}.parquet"
                for n, hash_ in ((0, "ab"), (1, "ab"), (0, "cd"))
            ],
            "pieces of several sets",
        ),
        (["test/en-00001-of-00002.jsonl"], "1 of 2 pieces of test/en are there: number 0 is not"),
    ],
)
def test_a_split_given_twice_or_in_part_is_an_error(tmp_path, names, message):
    with pytest.raises(MillraceError) as error:
        find(tmp_path, names)
    assert message in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    "name, split, number",
    [
        ("x/train-00003-of-00008.jsonl", "train", 3),
        ("train/dev.json", "dev", None),
        ("test/manifest_12.json", "test", 12),
        ("dev.parquet/part-00007.parquet", "dev", 7),
        ("x/other.parquet", "", None),
    ],
)
def test_what_a_name_says(name, split, number):
    assert (
        manifest_files.split_of(Path(name)) == split
        and manifest_files.shard_number(Path(name)) == number
    )


def test_pieces_give_the_buckets_that_one_file_gives_and_rejects_name_the_piece(
    tmp_path,
):
    rows, index = corpus(tmp_path, tars=4, members=25)
    rows[60] = {**rows[60], "tar_member_name": "nowhere.flac"}
    rows[61] = {**rows[61], "transcript": ""}
    for folder, cuts in (("whole", [0, 100]), ("cut", [0, 7, 55, 56, 100])):
        (tmp_path / folder).mkdir()
        for number, (start, end) in enumerate(itertools.pairwise(cuts)):
            name = "train" if len(cuts) == 2 else f"train-{number:05d}-of-{len(cuts) - 1:05d}"
            write_manifest(tmp_path / folder / f"{name}.parquet", rows[start:end])
        manifests = scanned([tmp_path / folder], {})
        build(manifests, TarIndices([index]), tmp_path / folder / "out", BucketChoices())
    whole, cut = (files(tmp_path / folder / "out") for folder in ("whole", "cut"))
    different = {name for name in whole.keys() | cut.keys() if whole.get(name) != cut.get(name)}
    assert different == {"rejects.jsonl"}
    places = {(Path(one["file"]).name, one["row"]) for one in rejects(tmp_path / "cut/out")}
    assert places == {("train-00003-of-00004.parquet", 4), ("train-00003-of-00004.parquet", 5)}
