"""The published corpus is loaded by `datasets` as it is in the index; tokens and paths stay
here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.common.hub.server import serve
from millrace.common.hub.store import Repository, Store
from millrace.speech import upload_shards, write_card
from tests.common.hub.faults import TOKEN
from tests.speech.hub.corpus import write_corpus

pytestmark = pytest.mark.usefixtures("online")

ROOT = Path(__file__).parents[2]
MARKER = "hf_markerOfATokenThatIsNowhere"
COUNTRIES = {"norway": ("train", "validation", "test"), "new zealand": ("train", "validation")}


def flags(**values: object) -> list[str]:
    return [
        text
        for name, value in values.items()
        for text in (f"--{name.replace('_', '-')}", str(value))
    ]


def made(folder: Path) -> dict[str, object]:
    """What write_card makes and publishing takes, and the folder of the shards."""
    card, manifest = folder / "hub/README.md", folder / "hub/manifest.jsonl"
    return {
        "card": card,
        "manifest": manifest,
        "shards_dir": folder / "shards",
        "repo": "me/speech",
    }


def write(folder: Path) -> int:
    return write_card.main(
        flags(**made(folder), index=folder / "index.parquet", licence="cc-by-4.0")
    )


def publish(folder: Path, *more: str, **others: str) -> int:
    assert write(folder) == 0
    place = {"server_dir": folder / "server", "result": folder / "hub/receipt.json"}
    return upload_shards.main([*flags(**{**made(folder), **place, **others}), *more])


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """(folder, index) of a corpus that was published on the local Hub, in a process with a
    token."""
    folder = tmp_path_factory.mktemp("published")
    index = write_corpus(folder, COUNTRIES)
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.speech.test_upload_shards import"
        " publish\nsys.exit(publish(Path(sys.argv[1])))"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/scripts:{ROOT}", "HF_TOKEN": MARKER}
    environment |= {"HF_HUB_OFFLINE": "1"}  # which is not meant for the local Hub
    with open(folder / "log.txt", "w") as log:
        command = [sys.executable, "-c", program, str(folder)]
        subprocess.run(command, check=True, env=environment, stderr=log)
    return folder, index


LOAD = """
import json, sys
from datasets import load_dataset
for country, splits in json.loads(sys.argv[1]).items():
    for split in splits:
        for streaming in (True, False):
            for sample in load_dataset("me/speech", country, split=split, streaming=streaming):
                print(json.dumps([country, split, streaming, len(sample["flac"]), sample["json"]]))
for example in sys.argv[2:]:
    print("example")
    exec(example)
"""


@pytest.fixture(scope="module")
def loaded(published, tmp_path_factory) -> list[str]:
    """What a client prints that knows only the Hub's address: all samples, then the card's
    examples."""
    folder, _ = published
    examples = re.findall(r"```python\n(.*?)```", (folder / "hub/README.md").read_text(), re.S)
    with serve(folder / "server", TOKEN) as endpoint:
        home = str(tmp_path_factory.mktemp("client"))
        client = {
            "HF_ENDPOINT": endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HOME": home,
            "HF_HUB_OFFLINE": "0",
        }
        environment = {**os.environ, **client}
        command = [sys.executable, "-c", LOAD, json.dumps(COUNTRIES), *examples]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=home)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_every_sample_of_the_index_is_loaded_with_its_numbers(published, loaded):
    _, index = published
    samples = [json.loads(line) for line in loaded[: loaded.index("example")]]
    for streaming in (True, False):
        rows = [row for row in samples if row[2] is streaming]
        assert len(rows) == index.num_rows == 35
        for expected, (country, split, _, size, sample) in zip(
            index.to_pylist(), rows, strict=True
        ):
            assert (country, split, size) == (
                expected["country"],
                expected["split"],
                expected["size"],
            )
            known = {
                name: expected[name] for name in ("key", "human_transcript", "cer", "start_seconds")
            }
            known["wer"] = -1.0 if expected["wer"] is None else expected["wer"]
            known["subset_id"] = -1.0 if expected["subset_id"] is None else 1.0
            assert {name: sample[name] for name in known} == known


@pytest.mark.long
def test_the_three_examples_of_the_card_run(published, loaded):
    _, index = published
    keys = [
        row["key"]
        for row in index.to_pylist()
        if row["shard"] == "new%20zealand/train-1/new%20zealand-train-1-00000.tar"
    ]
    lines = [line.rpartition(" Øl")[0] for line in loaded[loaded.index("example") :]]
    assert lines == ["", *keys] * 3


def test_no_token_and_no_path_of_this_machine_is_in_any_file(published):
    folder, _ = published
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files if MARKER.encode() in path.read_bytes()]
    texts = (folder / "hub/README.md", folder / "hub/manifest.jsonl", folder / "hub/receipt.json")
    assert not [
        path for path in texts if str(folder) in path.read_text() or "/tmp" in path.read_text()
    ]


def test_the_receipt_is_the_same_again_and_a_lost_or_stale_one_does_not_matter(published):
    folder, _ = published
    receipt = folder / "hub/receipt.json"
    content = receipt.read_bytes()
    rows = {row["path"]: row for row in map(json.loads, (folder / "hub/manifest.jsonl").open())}
    files = {row["path"]: row for row in json.loads(content)["files"]}
    assert {path: row["sha256"] for path, row in rows.items()} == {
        p: files[p]["sha256"] for p in rows
    }
    assert files.keys() - rows.keys() == {"README.md", "manifest.jsonl"}
    for wrong in (None, b'{"commit": "0", "files": []}'):
        receipt.unlink() if wrong is None else receipt.write_bytes(wrong)
        assert publish(folder) == 0 and receipt.read_bytes() == content


def test_the_difference_is_printed_and_nothing_is_sent(tmp_path, capsys):
    write_corpus(tmp_path, {"norway": ("train", "test"), "malta": ("train",)}, samples=1)
    diff = tmp_path / "diff.txt"
    assert publish(tmp_path, "--diff", result=diff) == 0
    assert "which does not exist yet:\ndelete nothing\nadd 5 files" in capsys.readouterr().out
    assert not list((tmp_path / "server").rglob("main"))

    assert publish(tmp_path) == 0
    write_corpus(tmp_path, {"norway": ("train", "validation")}, samples=2)
    before = sorted((tmp_path / "server").rglob("*"))
    assert publish(tmp_path, "--diff", result=diff) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert said == diff.read_text() and lines[0].startswith("me/speech on local, at commit ")
    counts = [tuple(line.split()[:2]) for line in lines[1:] if line[0] != " "]
    assert counts == [("delete", "2"), ("add", "1"), ("change", "3"), ("keep", "nothing")]
    assert "  data/malta/train/malta-train-1-00000.tar (10,240 bytes)" in lines
    assert sorted((tmp_path / "server").rglob("*")) == before


@pytest.fixture
def one_shard(tmp_path):
    write_corpus(tmp_path, {"norway": ("train",)}, samples=1)


@pytest.mark.parametrize("flags", [(), ("--public",)])
def test_a_corpus_is_public_only_if_that_is_asked(tmp_path, one_shard, flags):
    assert publish(tmp_path, *flags) == 0
    store = Store(tmp_path / "server")
    assert Repository(store, "datasets", "me/speech").is_private == (not flags)


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
    "changes, words",
    [
        ({"repo": "speech"}, "not a repository"),
        ({"repo": "a/b/c"}, "not a repository"),
        ({"repo": "../speech"}, "not a repository"),
        ({"repo": "me/speech.git"}, "not a repository"),
        ({"endpoint": "http://example.org"}, "not the address of a Hub"),
        ({"endpoint": "http://127.0.0.1.example.org"}, "not the address of a Hub"),
        ({"endpoint": "ftp://localhost"}, "not the address of a Hub"),
        ({"endpoint": "https://me:hf_x@example.org"}, "tokens belong into HF_TOKEN"),
    ],
)
def test_bad_names_and_addresses_are_refused(tmp_path, one_shard, capsys, changes, words):
    assert publish(tmp_path, **changes) == 1
    said = capsys.readouterr().err
    assert words in said and "hf_x" not in said and "Traceback" not in said


def test_tricks_with_paths_are_refused_and_foreign_files_ignored(tmp_path, one_shard, capsys):
    for name in (
        ".snakemake_timestamp",
        "norway/train-1/foreign.tar",
        "norway/train-1/norway-train-1-00007.tar",
    ):
        (tmp_path / "shards" / name).write_bytes(b"x")
    assert publish(tmp_path) == 0
    assert len(json.loads((tmp_path / "hub/receipt.json").read_bytes())["files"]) == 3
    manifest = tmp_path / "hub/manifest.jsonl"
    line = manifest.read_text()
    for path in (
        "data/../../etc/norway-train-1-00000.tar",
        "/etc/passwd",
        "data/norway/train/../x.tar",
    ):
        manifest.write_text(line.replace("data/norway/train/norway-train-1-00000.tar", path))
        assert upload_shards.main(flags(**made(tmp_path), result=tmp_path / "r.json")) == 1
        assert "line 1 names no shard" in capsys.readouterr().err
