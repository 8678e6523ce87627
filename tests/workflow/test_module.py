"""Another workflow imports Millrace as a module: the same files come out, and its own things stay
its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import corpora
from tests.workflow.test_dry_runs import counts, said
from tests.workflow.workflow import ROOT, Workflow

OUTER = """
import gc, json
from snakemake.exceptions import LockException

shell.prefix("export OUTER=outer; ")
before = LockException.__init__, gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()


rule everything:
    input:
        "environment.txt",
        "results/speech/manifest/malta_manifest.csv",


module millrace:
    snakefile:
        "{root}/Snakefile"
    {statement}
    config:
        config["millrace"]


use rule * from millrace as millrace_*


after = LockException.__init__, gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()
with open("same.json", "w") as handle:
    json.dump(before == after, handle)


rule environment:
    output:
        "environment.txt",
    shell:
        "echo $OUTER ${{{{MILLRACE_RUN:-none}}}} > {{output}}"
"""
pytestmark = [pytest.mark.e2e, pytest.mark.long]
FRACTIONS = {"train": 0.4, "validation": 0.3, "test": 0.3}


class Importing(Workflow):
    """A workflow in `folder` that uses Millrace as a module."""

    def __init__(self, folder: Path, statement: str = "", **config: object) -> None:
        super().__init__(folder, millrace=config)
        (folder / "Snakefile").write_text(OUTER.format(root=ROOT, statement=statement))

    def command(self, *arguments: str) -> list[str]:
        command = super().command(*arguments)
        command[command.index("--snakefile") + 1] = "Snakefile"
        return command


def section(**more: object) -> dict:
    speech = {
        "countries_root": "corpus",
        "assignment_file": "kept/a.jsonl",
        "partition_hours": 0.01,
    }
    return {"lanes": ["speech"], "speech": speech | more}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Workflow, Workflow]:
    """The manifests of one corpus, without a module (and without hooks) and with it."""
    folders = [tmp_path_factory.mktemp(name) for name in ("alone", "imported")]
    corpora.make_corpus(folders[0] / "corpus", {"malta": 8}, seconds=10)
    shutil.copytree(folders[0] / "corpus", folders[1] / "corpus")
    workflows = Workflow(folders[0], **section()), Importing(folders[1], **section())
    for workflow, target in zip(workflows, ("speech_manifest", "everything"), strict=True):
        workflow.dry(target)
        assert not (workflow.folder / "kept").exists()
        workflow.run(target, *(["--no-hooks"] if target == "speech_manifest" else []))
    return workflows


def test_a_module_keeps_the_same_placements_and_no_change_of_fractions_moves_them(built):
    alone, imported = built
    files = {path: content for path, (content, _) in alone.files("kept/*").items()}
    assert sorted(files) == ["kept/a.jsonl", "kept/a.settings.json"]
    assert {path: content for path, (content, _) in imported.files("kept/*").items()} == files
    other = section(split_fractions=FRACTIONS)
    for workflow, target in (
        (Workflow(alone.folder, **other), "speech_manifest"),
        (Importing(imported.folder, **other), "everything"),
    ):
        assert workflow.dry(target) == []
        (note,) = (line for line in said(workflow.call("-n", target)) if "split_fractions" in line)
        assert (
            "split_fractions test 0.05, train 0.9, validation 0.05 -> test 0.3, train 0.4" in note
        )
        assert "8 (" in note and "keep their place" in note


def test_what_is_the_importing_workflows_own_stays(built):
    _, imported = built
    assert imported.read("same.json") is True
    assert (imported.folder / "environment.txt").read_text() == "outer none\n"
    # Its first rule is the default, and the lanes of the module's config are built.
    assert imported.dry() == []
    assert counts(imported.dry("millrace_all"))["millrace_speech_create_shards"] > 2
    assert "millrace_asr_build_bucket_manifests" in counts(imported.dry("millrace_asr_data"))


def test_a_missing_assignment_beside_results_is_an_error_and_nothing_is_drawn(built):
    for workflow, target in zip(built, ("speech_manifest", "everything"), strict=True):
        file, before = (
            workflow.folder / "kept/a.jsonl",
            workflow.files("results/speech/partitions/*.json"),
        )
        moved = file.rename(file.with_suffix(".moved"))
        done = workflow.call(target)
        (line,) = said(done)
        assert done.returncode == 1
        assert line.startswith("Millrace: speech: kept/a.jsonl: the file is missing")
        assert "`git checkout kept/a.jsonl`" in line and "delete results/speech" in line
        assert workflow.files("results/speech/partitions/*.json") == before and not file.exists()
        moved.rename(file)
        assert workflow.dry(target) == []


@pytest.mark.parametrize(
    "statement, moved",
    [('prefix: "sub"', "sub/results/"), ('replace_prefix: {"results/": "out/"}', "out/")],
)
def test_a_module_with_a_prefix_is_refused_by_name(tmp_path, statement, moved):
    done = Importing(tmp_path, statement, **section()).call("-n")
    (line,) = said(done)
    assert done.returncode == 1 and f"results/ would be {moved}" in line and "--directory" in line
    assert "Traceback" not in done.stderr and not (tmp_path / "results").exists()
