"""The published corpus is loaded by `datasets` as it is in the index; tokens and paths stay here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.common.hub.server import serve
from millrace.speech import upload_shards, write_card
from tests.speech.hub.corpus import write_corpus

ROOT = Path(__file__).parents[2]
MARKER = "hf_markerOfATokenThatIsNowhere"
COUNTRIES = {"norway": ("train", "validation", "test"), "new zealand": ("train", "validation")}


def flags(**values: object) -> list[str]:
    return [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def made(folder: Path) -> dict[str, object]:
    """What write_card makes and publishing takes, and the folder of the shards."""
    card, manifest = folder / "hub/README.md", folder / "hub/manifest.jsonl"
    return {"card": card, "manifest": manifest, "shards_dir": folder / "shards", "repo": "me/speech"}


def write(folder: Path) -> int:
    return write_card.main(flags(**made(folder), index=folder / "index.parquet", licence="cc-by-4.0"))


def publish(folder: Path, *more: str, **others: str) -> int:
    assert write(folder) == 0
    place = {"server_dir": folder / "server", "receipt": folder / "hub/receipt.json"}
    return upload_shards.main([*flags(**{**made(folder), **place, **others}), *more])


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """(folder, index) of a corpus that was published on the local Hub, in a process with a token."""
    folder = tmp_path_factory.mktemp("published")
    index = write_corpus(folder, COUNTRIES)
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.speech.test_upload_shards import publish\n"
        "sys.exit(publish(Path(sys.argv[1])))"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}", "HF_TOKEN": MARKER}
    with open(folder / "log.txt", "w") as log:
        command = [sys.executable, "-c", program, str(folder)]
        subprocess.run(command, check=True, env=environment, stderr=log)
    return folder, index


def client(folder: Path, program: str, tmp_path: Path) -> str:
    """What a program prints that knows the published corpus by the Hub's address only."""
    with serve(folder / "server") as endpoint:
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOAD = """
import json
from datasets import load_dataset
for country, splits in {countries!r}.items():
    for split in splits:
        for streaming in (True, False):
            data = load_dataset("me/speech", country, split=split, streaming=streaming)
            for sample in data:
                print(json.dumps([country, split, streaming, len(sample["flac"]), sample["json"]]))
"""


def test_every_sample_of_the_index_is_loaded_with_its_numbers(published, tmp_path):
    folder, index = published
    lines = client(folder, LOAD.format(countries=COUNTRIES), tmp_path).splitlines()
    loaded = [json.loads(line) for line in lines]
    for streaming in (True, False):
        rows = [row for row in loaded if row[2] is streaming]
        assert len(rows) == index.num_rows == 35
        for expected, (country, split, _, size, sample) in zip(index.to_pylist(), rows, strict=True):
            assert (country, split, size) == (expected["country"], expected["split"], expected["size"])
            known = {name: expected[name] for name in ("key", "human_transcript", "cer", "start_seconds")}
            known["wer"] = -1.0 if expected["wer"] is None else expected["wer"]
            known["subset_id"] = -1.0 if expected["subset_id"] is None else 1.0
            assert {name: sample[name] for name in known} == known


def test_the_three_examples_of_the_card_run(published, tmp_path):
    folder, index = published
    examples = re.findall(r"```python\n(.*?)```", (folder / "hub/README.md").read_text(), re.S)
    keys = [row["key"] for row in index.to_pylist() if row["country"] == "new zealand" and row["split"] == "train"]
    assert len(examples) == 3
    for number, example in enumerate(examples):
        (tmp_path / str(number)).mkdir()
        lines = client(folder, example, tmp_path / str(number)).splitlines()
        assert [line.rpartition(" Øl")[0] for line in lines] == keys


def test_no_token_and_no_path_of_this_machine_is_in_any_file(published):
    folder, _ = published
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if MARKER.encode() in path.read_bytes()]
    texts = (folder / "hub/README.md", folder / "hub/manifest.jsonl", folder / "hub/receipt.json")
    assert not [path for path in texts if str(folder) in path.read_text() or "/tmp" in path.read_text()]


def test_the_receipt_is_the_same_again_and_a_lost_or_stale_one_does_not_matter(published):
    folder, _ = published
    receipt = folder / "hub/receipt.json"
    content = receipt.read_bytes()
    rows = {row["path"]: row for row in map(json.loads, (folder / "hub/manifest.jsonl").open())}
    files = {row["path"]: row for row in json.loads(content)["files"]}
    assert {path: row["sha256"] for path, row in rows.items()} == {p: files[p]["sha256"] for p in rows}
    assert files.keys() - rows.keys() == {"README.md", "manifest.jsonl"}
    for wrong in (None, b'{"commit": "0", "files": []}'):
        receipt.unlink() if wrong is None else receipt.write_bytes(wrong)
        assert publish(folder) == 0 and receipt.read_bytes() == content


def test_deletes_are_refused_above_the_share_and_allowed_by_a_flag(tmp_path, capsys):
    write_corpus(tmp_path, COUNTRIES, samples=1)
    assert publish(tmp_path) == 0
    write_corpus(tmp_path, {"norway": ("train",)}, samples=1)
    assert publish(tmp_path) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "4 of 5 files below data/ would be deleted, more than max_delete_fraction 0.5" in said
    assert "--allow-delete" in said and not (tmp_path / "hub/diff.txt").exists()
    assert publish(tmp_path, "--allow-delete") == 0
    assert len(json.loads((tmp_path / "hub/receipt.json").read_bytes())["files"]) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repo": "speech"}, "not a repository"),
        ({"repo": "a/b/c"}, "not a repository"),
        ({"repo": "../speech"}, "not a repository"),
        ({"repo": "me/speech.git"}, "not a repository"),
        ({"endpoint": "http://example.org"}, "not the address of a Hub"),
        ({"endpoint": "http://127.0.0.1.example.org"}, "not the address of a Hub"),
        ({"endpoint": "ftp://localhost"}, "not the address of a Hub"),
        ({"endpoint": "https://me:hf_x@example.org"}, "Tokens belong into HF_TOKEN"),
    ],
)
def test_bad_names_and_addresses_are_refused(tmp_path, capsys, changes, words):
    write_corpus(tmp_path, {"norway": ("train",)}, samples=1)
    assert publish(tmp_path, **changes) == 1
    said = capsys.readouterr().err
    assert words in said and "hf_x" not in said and "Traceback" not in said


def test_tricks_with_paths_are_refused_and_foreign_files_ignored(tmp_path, capsys):
    write_corpus(tmp_path, {"norway": ("train",)}, samples=1)
    for name in (".snakemake_timestamp", "norway/train-1/foreign.tar", "norway/train-1/norway-train-1-00007.tar"):
        (tmp_path / "shards" / name).write_bytes(b"x")
    assert publish(tmp_path) == 0
    assert len(json.loads((tmp_path / "hub/receipt.json").read_bytes())["files"]) == 3
    manifest = tmp_path / "hub/manifest.jsonl"
    line = manifest.read_text()
    for path in ("data/../../etc/norway-train-1-00000.tar", "/etc/passwd", "data/norway/train/../x.tar"):
        manifest.write_text(line.replace("data/norway/train/norway-train-1-00000.tar", path))
        assert upload_shards.main(flags(**made(tmp_path), receipt=tmp_path / "r.json")) == 1
        assert "line 1 names no shard" in capsys.readouterr().err
