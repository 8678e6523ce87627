"""A run's model goes onto the Hub with its card; what else lies in its folder stays here."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi, snapshot_download

from millrace.asr import upload_model
from millrace.asr.hub import card
from millrace.common import atomic
from millrace.common.hub.server import serve
from tests.common.hub.faults import TOKEN

pytestmark = pytest.mark.usefixtures("online")

RATES = {"samples": 2, "recordings": 2, "seconds": 9.0, "cer": 0.5, "cer_range": [0.4, 0.6]}
NORWEGIAN = {**RATES, "wer": 0.75, "wer_range": None}
GERMAN = {**RATES, "samples": 1, "wer": 0.375, "wer_range": [0.25, 0.5]}
METRICS = {
    "model": "/home/me/models/tiny",
    "parameters": 12,
    "optimizer_steps": 7,
    "samples": 9,
    "loss": 1.0,
    "last_evaluation": {"loss": 2.0, "cer": 0.5, "wer": 0.75, "step": 7},
    "test": {"loss": 0.0, "cer": 0.25, "wer": 0.375},
    "error_rates": {
        "dev": {"by_language": {"no": NORWEGIAN}},
        "test": {"by_language": {"de": GERMAN}},
    },
}


def write_run(folder):
    """A run with a model, and the buckets it was trained on."""
    atomic.write_json(folder / "run/metrics.json", METRICS)
    run = {"lr": 0.1, "calibration": "/home/me/bs.json", "eval_file": "data/dev"}
    atomic.write_json(folder / "run/run.json", {"run": run})
    atomic.write_json(folder / "run/model/config.json", {"model_type": "millrace_ctc"})
    for name in ("model.safetensors", "vocab.txt", "optimizer.pt", ".hidden.json", "README.md"):
        (folder / "run/model" / name).write_bytes(name.encode())
    (folder / "run/model/link.json").symlink_to("/etc/hostname")
    rows = {"language": ["no", "no", None], "duration_s": [1800.0, 1800.0, 900.0]}
    pq.write_table(pa.table(rows), folder / "short.parquet")
    rows = {"language": ["no", "de", "no"], "duration_s": [3600.0, 1800.0, 900.0]}
    pq.write_table(pa.table(rows), folder / "long.parquet")
    paths = [{"path": "short.parquet"}, {"path": "long.parquet"}]
    buckets = {"buckets": paths, "total_hours": 3.0, "total_samples": 6}
    splits = {"dev": {"hours": 0.5, "samples": 2}, "test": {"hours": 0.25, "samples": 1}}
    atomic.write_json(folder / "bucket_config.json", {**buckets, "splits": splits})


def publish(folder) -> int:
    places = {
        "metrics": "run/metrics.json",
        "bucket-config": "bucket_config.json",
        "server-dir": "server",
        "card": "README.md",
        "receipt": "receipt.json",
    }
    flags = [f"--{name}={folder / place}" for name, place in places.items()]
    return upload_model.main([*flags, "--repo=me/model", "--licence=apache-2.0"])


def test_model_and_card_are_published_and_nothing_else_of_the_folder(tmp_path):
    write_run(tmp_path)
    assert publish(tmp_path) == 0
    with serve(tmp_path / "server", TOKEN) as endpoint:
        api = HfApi(endpoint, token=TOKEN)
        options = {"endpoint": endpoint, "token": TOKEN, "cache_dir": tmp_path / "cache"}
        folder = snapshot_download("me/model", **options)
        assert api.model_info("me/model").private
        names = {entry.path for entry in api.list_repo_tree("me/model")}
    assert names == {".gitattributes", "README.md", "config.json", "model.safetensors", "vocab.txt"}
    with open(f"{folder}/model.safetensors") as handle:
        assert handle.read() == "model.safetensors"
    text = (tmp_path / "README.md").read_text()
    for line in (
        'license: "apache-2.0"',
        'language: ["de", "no"]',
        "de 0.50, no 2.25, und 0.25",
        "| train | 3.00 | 6 |  |  |  |",
        "| dev | 0.50 | 2 | 2.000 | 0.500 | 0.750 |",
        "| test | 0.25 | 1 | 0.000 | 0.250 | 0.375 |",
        "| dev | no | 2 | 50.0 % (40.0–60.0) | 75.0 % |",
        "| test | de | 1 | 50.0 % (40.0–60.0) | 37.5 % (25.0–50.0) |",
        'library_name: "millrace"',
        "- `lr`: 0.1",
        "`tiny`",
    ):
        assert line in text
    assert "data/dev" not in text and "/home" not in text
    receipt = (tmp_path / "receipt.json").read_bytes()
    assert publish(tmp_path) == 0 and (tmp_path / "receipt.json").read_bytes() == receipt
    assert len(json.loads(receipt)["files"]) == 4


@pytest.mark.parametrize(
    "kind, library, loader",
    [
        ("millrace_ctc", "millrace", "millrace.asr.models.registry.load(folder)"),
        ("whisper", "transformers", "transformers"),
    ],
)
def test_the_card_names_the_library_that_loads_the_model(tmp_path, kind, library, loader):
    write_run(tmp_path)
    atomic.write_json(tmp_path / "run/model/config.json", {"model_type": kind})
    text = card.render(
        "me/model", "", "abc", tmp_path / "run/metrics.json", tmp_path / "bucket_config.json"
    )
    assert f'library_name: "{library}"' in text and f"`{loader}` loads it" in text
    assert 'license: "unknown"' in text


def test_a_folder_without_a_model_is_refused(tmp_path, capsys):
    write_run(tmp_path)
    config = tmp_path / "run/model/config.json"
    other = config.rename(tmp_path / "other.json")
    assert publish(tmp_path) == 1
    # A link is not published, and so it is no model's.
    config.symlink_to(other)
    assert publish(tmp_path) == 1
    assert "there is no model here" in capsys.readouterr().err
    assert not (tmp_path / "receipt.json").exists()
