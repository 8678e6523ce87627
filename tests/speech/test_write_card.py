"""The card says what is there, and its YAML reads back as it was meant."""

from __future__ import annotations

import json

import pytest
import yaml

from millrace.speech import write_card
from millrace.speech.shards.plan import FIELD_TYPES
from tests.speech.hub.corpus import write_corpus
from tests.speech.test_upload_shards import flags, made, write


def card(folder) -> tuple[dict, str]:
    _, head, body = (folder / "hub/README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), body


def test_the_card_declares_configs_features_language_and_hours(tmp_path):
    index = write_corpus(
        tmp_path, {"norway": ("train", "test"), 'a "b": c|': ("validation",)}, samples=4
    )
    assert write(tmp_path) == 0
    head, body = card(tmp_path)
    assert (
        head["language"] == ["no"]
        and head["license"] == "cc-by-4.0"
        and head["size_categories"] == ["n<1K"]
    )
    odd, norway = head["configs"]
    assert odd["config_name"] == "a%20%22b%22%3A%20c%7C" and [
        each["split"] for each in odd["data_files"]
    ] == ["validation"]
    assert norway == {
        "config_name": "norway",
        "data_files": [
            {"split": split, "path": f"data/norway/{split}/*.tar"} for split in ("train", "test")
        ],
    }
    features = {field["name"]: field for field in head["dataset_info"][1]["features"]}
    assert {field["name"]: field["dtype"] for field in features["json"]["struct"]} == FIELD_TYPES
    assert set(features) == {"__key__", "__url__", "flac", "json"}
    assert "| norway | no | train | 4 | 0.00 |" in body and index.num_rows == 12
    manifest = [json.loads(line) for line in (tmp_path / "hub/manifest.jsonl").open()]
    assert sum(row["samples"] for row in manifest) == 12
    assert all(list(row) == ["path", "sha256", "size", "samples", "seconds"] for row in manifest)


@pytest.mark.parametrize("damage", ["missing", "changed", "no sidecar", "nothing"])
def test_a_shard_that_is_not_as_it_was_written_is_named(tmp_path, capsys, damage):
    write_corpus(tmp_path, {"norway": ("train",)}, samples=1)
    tar = tmp_path / "shards/norway/train-1/norway-train-1-00000.tar"
    if damage == "missing":
        tar.unlink()
    elif damage == "changed":
        tar.write_bytes(b"x")
    elif damage == "no sidecar":
        next(tar.parent.glob(".*")).unlink()
    else:
        write_corpus(tmp_path, {})
    assert write_card.main(flags(**made(tmp_path), index=tmp_path / "index.parquet")) == 1
    assert (
        "no segment is in a shard" if damage == "nothing" else str(tar)
    ) in capsys.readouterr().err
