"""What README and docs/ say is so: their snippets run on real shards, tables are complete, commands
exist."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import yaml

from millrace.common.workflow import config as workflow_config
from millrace.speech.hub import published
from tests import corpora
from tests.corpora import RATE
from tests.workflow.workflow import ROOT, Workflow

PATHS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = {path.stem: path.read_text() for path in PATHS}
SNIPPETS = {name: re.findall(r"```python\n(.*?)```", text, re.S) for name, text in PAGES.items()}
TRAINERS = re.findall(
    r"^## ([^\n]*)\n(?:(?!^## |^```).)*```python\n(.*?)```", PAGES["python"], re.M | re.S
)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Workflow:
    """A country's shards, made by a run."""
    folder = tmp_path_factory.mktemp("readme")
    countries = folder / "resources/speech/countries"
    corpora.make_corpus(countries, {"malta": 3}, seconds=10)
    add_repeats(countries)
    workflow = Workflow(folder)
    workflow.run("speech_shards")
    return workflow


def add_repeats(countries: Path) -> None:
    """A recording that repeats the first two segments of each of the others: some lie in another
    split, wherever it gets."""
    originals = sorted(countries.glob("malta/downloaded_audio/*/*.wav"))
    sounds = [soundfile.read(path, dtype="int16")[0][: 9 * RATE] for path in originals]
    corpora.write_audio(countries, "malta", "repeats.wav", np.concatenate(sounds) // 2)
    segments = corpora.segments(9.0 * len(sounds), random.Random(1))
    value = {"audio_file": "repeats.wav", "segments": segments}
    corpora.write_alignment(countries, "malta", "repeats_t1", value)


@pytest.fixture(scope="module")
def bucketed(built) -> Workflow:
    """The same with the buckets of the ASR lane."""
    built.run("asr_data")
    return built


def printed_keys(code: str, folder: Path, environment: dict[str, str]) -> list[str]:
    """The first word of each line that a snippet prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.split()[0] for line in done.stdout.splitlines()]


@pytest.mark.e2e
@pytest.mark.parametrize(
    "page, number, split",
    [("README", 0, "train"), ("speech", 1, "train"), ("speech", 2, "test")],
)
def test_snippets_read_every_segment_and_no_foreign_tar(built, page, number, split, tmp_path):
    index = built.folder / "results/speech/index.parquet"
    expected = pq.read_table(index, filters=[("split", "=", split)])
    tar = built.folder / "results/speech/shards" / expected["shard"][0].as_py()
    foreign = shutil.copy(tar, tar.with_name("foreign.tar"))
    environment = built.environment(HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    printed = printed_keys(SNIPPETS[page][number], built.folder, environment)
    foreign.unlink()
    assert printed == expected["key"].to_pylist() != []


@pytest.mark.e2e
def test_lists_and_what_is_published_have_the_keys_of_the_index_without_copies(built):
    results = built.folder / "results/speech"
    rejects = (results / "shards/malta_rejects.csv").read_text()
    assert rejects.count("duplicate_across_splits") > 0
    index = pq.read_table(results / "index.parquet").to_pydict()
    table = published.shards(results / "index.parquet")
    rows = list(published.rows(table, results / "shards"))
    assert sum(row["samples"] for row in rows) == len(index["key"])
    for split in ("train", "validation", "test"):
        keys = [key for key, of in zip(index["key"], index["split"], strict=True) if of == split]
        listed = (results / f"shards/malta_{split}_shards.txt").read_text().splitlines()
        tars = table["shard"][table["split"] == split].tolist()
        assert keys_in(results, listed) == keys_in(results, tars) == sorted(keys) != []


def keys_in(results: Path, tars: list[str]) -> list[str]:
    """The keys of all samples in these tars."""
    keys = []
    for name in tars:
        with tarfile.open(results / "shards" / name) as tar:
            texts = [member for member in tar if member.name.endswith(".json")]
            keys += [json.load(tar.extractfile(member))["key"] for member in texts]
    return sorted(keys)


@pytest.mark.e2e
def test_old_shards_are_read_by_the_keys_of_the_index(built, tmp_path):
    """As a tar was before copies left it: with a segment more."""
    shutil.copytree(built.folder / "results/speech", tmp_path / "results/speech")
    index = tmp_path / "results/speech/index.parquet"
    table = pq.read_table(index)
    first = table["split"].to_pylist().index("train")
    pq.write_table(pa.concat_tables([table.slice(0, first), table.slice(first + 1)]), index)
    expected = pq.read_table(index, filters=[("split", "=", "train")])["key"].to_pylist()
    printed = printed_keys(SNIPPETS["leaks"][0], tmp_path, built.environment())
    assert printed == expected != []


def test_what_stands_on_two_pages_is_the_same():
    assert SNIPPETS["README"][:2] == [SNIPPETS["speech"][0], SNIPPETS["asr"][0]]
    assert set(SNIPPETS["README"]) <= {*SNIPPETS["speech"], *SNIPPETS["asr"]}
    assert len(SNIPPETS["speech"]) == 3 and len(SNIPPETS["python"]) == len(TRAINERS) == 9
    assert max(len(code.splitlines()) for code in SNIPPETS["python"]) <= 26


@pytest.mark.e2e
def test_the_snippet_of_the_asr_lane_reads_the_training_rows(bucketed, monkeypatch, capsys):
    monkeypatch.chdir(bucketed.folder)
    exec(SNIPPETS["asr"][0], {"__name__": "__main__"})
    index = pq.read_table("results/speech/index.parquet", filters=[("split", "=", "train")])
    sizes = re.findall(r"torch.Size\(\[(\d+),", capsys.readouterr().out)
    assert sum(map(int, sizes)) == index.num_rows > 0


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title, code", TRAINERS, ids=[title for title, _ in TRAINERS])
def test_the_snippets_for_trainers_run(bucketed, title, code, monkeypatch, capfd):
    monkeypatch.chdir(bucketed.folder)
    if title == "Resume":
        with pytest.raises(SystemExit, match="goes on with step 2 of epoch 1"):
            exec(code, {"__name__": "__main__"})
        assert capfd.readouterr().out.splitlines()[-1].startswith("epoch 1, step 1:")
    exec(code, {"__name__": "__main__"})
    said = "".join(capfd.readouterr())
    if title == "Resume":
        assert said.startswith("epoch 1, step 2:")
    words = {"Lightning": "Epoch 1/1", "The Hugging Face Trainer": "'epoch': '2'"}
    assert words.get(title, "") in said != ""


# README repeats what the lanes' pages have (above).
LOADERS = {
    f"{page} {number}": code
    for page, codes in SNIPPETS.items()
    for number, code in enumerate(codes)
    if page != "README" and re.search(r"open_(loader|tars)[(,]|BatchLoader\(", code)
}
# A factory for the audit: what a snippet iterates first, or its `loader` where it is guarded.
FACTORY = '''
import sys

from millrace.common.loading.loader import BatchLoader


class Begun(BaseException):
    """A loader is about to be read."""


def begin(loader):
    raise Begun(loader)


def loader():
    iterate = BatchLoader.__iter__
    BatchLoader.__iter__ = begin
    sys.modules.pop("snippet", None)
    try:
        import snippet
    except Begun as begun:
        return begun.args[0]
    finally:
        BatchLoader.__iter__ = iterate
    return snippet.loader
'''


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("name", LOADERS)
def test_the_audit_finds_no_fault_in_a_loader_of_the_docs(bucketed, name, tmp_path):
    (tmp_path / "snippet.py").write_text(LOADERS[name])
    (tmp_path / "factory.py").write_text(FACTORY)
    (bucketed.folder / "loader.json").unlink(missing_ok=True)  # of a loader of one rank
    command = [sys.executable, "-m", "millrace.audit.check_loader", "--ranks=2", "--timeout=300"]
    command += ["--loader", f"{tmp_path}/factory.py:loader"]
    environment = bucketed.environment(PYTHONPATH=f"{ROOT}/scripts:{tmp_path}")
    place = {"cwd": bucketed.folder, "env": environment}
    done = subprocess.run(command, **place, capture_output=True, text=True)
    passed = re.search(r"^PASS .*\bDP2\b", done.stdout, re.M)
    assert done.returncode == 0 and passed, done.stdout + done.stderr


@pytest.mark.e2e
def test_touched_audio_is_pending_and_can_be_accepted(built):
    audio = next(built.folder.glob("resources/speech/countries/malta/downloaded_audio/*/*.wav"))
    assert built.dry("speech_shards") == []
    audio.touch()
    assert {job.rule for job in built.dry("speech_shards")} >= {
        "speech_generate_manifest",
        "speech_create_shards",
    }
    built.run("--touch", "speech_shards")
    assert built.dry("speech_shards") == []


@pytest.mark.e2e
def test_keys_that_change_places_make_their_steps_pending_and_are_named(built):
    # 1 and 0.3 before, 0.3 and 1 now: as a set, which is how Snakemake compares params, they are
    # the same.
    jobs = built.dry("speech_shards", "--config", "speech={max_shard_size_gb: 0.3, max_cer: 1}")
    reasons = [job.reason for job in jobs if job.rule == "speech_create_shards"]
    assert reasons and all(
        "--max-cer 1" in reason and "--max-shard-size-gb 0.3" in reason for reason in reasons
    )


@pytest.mark.e2e
@pytest.mark.parametrize(
    "table, files",
    [
        (
            "manifest/<country>_manifest.csv",
            ["manifest/malta_manifest.csv", "shards/malta_manifest.csv"],
        ),
        ("manifest/<country>_splits.csv", ["manifest/malta_splits.csv"]),
        ("shards/<country>_rejects.csv", ["shards/malta_rejects.csv"]),
    ],
)
def test_the_columns_of_the_table_are_those_that_are_there(built, table, files):
    shown = re.search(rf"\| `{table}` \| [^|]*?: (.*) \|", PAGES["speech"])[1]
    built.run("speech_manifest")
    for file in files:
        head = (built.folder / "results/speech" / file).read_text().splitlines()[0]
        assert head == shown.replace(", ", ",")


def test_every_target_for_people_is_in_the_table(rules):
    cells = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*)", PAGES["README"], re.M)
    listed = {name for cell in cells for name in re.findall("[a-z_]+", cell)}
    assert {name for name, rule in rules.items() if not rule["shell"]} <= listed <= set(rules)


def test_the_keys_it_explains_are_in_the_schema():
    schemas = [
        yaml.safe_load(path.read_text())["properties"]
        for path in (ROOT / "rules/schemas").glob("*.yaml")
    ]
    keys = {key for schema in schemas for key in schema}
    explained = set(re.findall(r"^- `([a-z_]+)`:", PAGES["speech"] + PAGES["asr"], re.M))
    assert explained and explained <= keys


def test_the_config_for_an_own_corpus_has_four_lines_and_known_keys():
    text = re.search(r"```yaml\n(.*?)```", PAGES["README"], re.S)[1]
    assert len(text.splitlines()) == 4
    checked = workflow_config.checked_config(yaml.safe_load(text), ROOT / "rules/schemas")
    assert checked["speech"]["countries_root"] == "/data/countries"


def anchors(text: str) -> set[str]:
    return {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall("^#+ (.*)", text, re.M)
    }


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_files_links_and_make_targets_are_there(path):
    text = path.read_text()
    for link, anchor in re.findall(r"\]\((?!https?:)([\w./-]+)#?([\w-]*)\)", text):
        assert (path.parent / link).exists(), link
        assert not anchor or anchor in anchors((path.parent / link).read_text()), anchor
    for name in re.findall(r"`((?:rules|scripts|envs|profiles|tests|\.ci)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), name
    for target in re.findall(r"`?make ([a-z]+)`", text):
        assert re.search(rf"^{target}:.*## ", (ROOT / "Makefile").read_text(), re.M), target


def test_the_readme_is_short():
    assert len(PAGES["README"].splitlines()) <= 180


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_assignment_file_gets_into_version_control_with_the_command_it_gives(tmp_path):
    command = re.search(r"`(git add [^`]*)`", PAGES["speech"])[1].split()
    assert (
        command[-1]
        == yaml.safe_load((ROOT / "config.yaml").read_text())["speech"]["assignment_file"]
    )
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / command[-1]).parent.mkdir(parents=True)
    (tmp_path / command[-1]).touch()
    for step in (["git", "init", "--quiet"], command):
        subprocess.check_call(step, cwd=tmp_path)
    listed = subprocess.check_output(["git", "ls-files"], cwd=tmp_path, text=True)
    assert listed.split() == [command[-1]]


# Lists that are looked things up in, and the lives of single data.
LISTS = {"README", "configuration", "licences"}
TASKS = sorted(name for name in PAGES.keys() - LISTS if not name.startswith("life-of-"))


@pytest.mark.parametrize("name", TASKS)
def test_a_page_opens_with_a_task_and_a_command(name):
    opening = PAGES[name].splitlines()[:14]
    assert any(line.startswith("**Task: ") for line in opening)
    assert any(line.startswith(("```console", "```bash")) for line in opening)
