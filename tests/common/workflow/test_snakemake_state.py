"""What is private to Snakemake, held to the pinned release: its command line, its records, its
objects."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.cli import get_argument_parser
from snakemake.exceptions import LockException, WorkflowError
from snakemake.shell import shell

from millrace.common.workflow import snakemake_state

SNAKEMAKE = "/usr/bin/snakemake"


def parsed(
    line: str, program: str = SNAKEMAKE, **options: Callable[[str], str]
) -> snakemake_state.Call:
    return snakemake_state.parse([program, *line.split()], get_argument_parser, **options)


@pytest.mark.parametrize(
    "line, asked",
    [
        ("asr_data", {"asr"}),
        ("-n --cores 2 asr music_index", {"asr", "music"}),
        ("--until asr_data", {"asr"}),
        ("-R asr_train_model --", {"asr"}),
        ("--prioritize asr_data --", {"asr"}),
        ("--cores 2 -- image", {"image"}),
        ("-c2 --configfile asr_big.yaml", set()),
        ("--configfile asr_big.yaml image_demo.yaml --", set()),
        ("--config asr={}", set()),
        ("--directory asr_data", set()),
        ("results/asr/report/runs.html", set()),
        ("--slurm-jobname-prefix asr_data", set()),
    ],
)
def test_a_lane_is_asked_for_by_the_name_of_a_rule_only(line: str, asked: set[str]):
    for program in (SNAKEMAKE, "/venv/site-packages/snakemake/__main__.py"):
        assert parsed(line, program).lanes() == asked
    for program in ("/usr/bin/pytest", "/venv/site-packages/pytest/__main__.py"):
        assert parsed(line, program) == snakemake_state.Call()


@pytest.mark.parametrize(
    "pattern, word", [("millrace_*", "millrace_asr_data"), ("*_two", "asr_data_two")]
)
def test_a_module_may_rename_the_rules(pattern: str, word: str):
    def renamed(rule: str) -> str:
        return pattern.replace("*", rule)

    assert parsed(word, rule_name=renamed).asked == {"asr_data"}
    assert parsed("asr_data", rule_name=renamed).lanes() == set()


@pytest.mark.parametrize(
    "line, only_reads",
    [
        ("", False),
        ("--forceall speech", False),
        ("--report-after-run --report", False),
        ("--report out.html", True),
        ("--summary", True),
        ("-D", True),
        ("--dag", True),
        ("--list-target-rules", True),
        ("--unlock", True),
        ("--list-changes code", True),
        ("--archive a.tar.gz", True),
        ("--cleanup-shadow", True),
        ("--list-conda-envs", True),
        ("--delete-all-output", True),
    ],
)
def test_what_runs_nothing_is_told_from_a_run(line: str, only_reads: bool):
    assert parsed(line).only_reads is only_reads


def test_commands_of_others_keep_their_prefix_and_ours_have_both():
    ours = snakemake_state.own_shell(shell, "export OURS='{{1}}'; ")
    command = "echo ${{OUTER:-none}} ${{OURS:-none}}"
    assert ours(command, read=True) == "none {1}\n"
    try:
        shell.prefix("export OUTER=0; ")
        assert ours(command, read=True) == "0 {1}\n"
        assert shell(command, read=True) == "0 none\n"
    finally:
        shell._process_prefix = None


def test_a_remedy_names_the_workflow_as_it_was_called():
    line = "music -s ../Snakefile --directory d --configfile c.yaml --config asr={x:1} --cores 2"
    call = parsed(line)
    place = "-s ../Snakefile --directory d --configfile c.yaml --config 'asr={x:1}'"
    assert call.command("--unlock") == f"snakemake {place} --unlock"
    assert call.command("--report report.html") == f"snakemake music {place} --report report.html"
    assert parsed("").command("--unlock") == "snakemake --unlock"


@pytest.mark.parametrize("prefix", ["sub/", "results/"])
def test_a_module_that_moves_our_files_is_refused_by_name(prefix: str):
    with pytest.raises(
        SystemExit, match=rf"module statement: `prefix` .* results/ would be {prefix}results/"
    ):
        snakemake_state.refuse_other_paths(lambda path: f"{prefix}{path}")
    with pytest.raises(SystemExit, match=r"logs/ would be notes/.*--directory"):
        snakemake_state.refuse_other_paths(lambda path: path.replace("logs/", "notes/"))
    with pytest.raises(SystemExit, match=r"benchmarks/ would be times/"):
        snakemake_state.refuse_other_paths(lambda path: path.replace("benchmarks/", "times/"))
    snakemake_state.refuse_other_paths(str)


# What the pinned release writes in a folder while a job runs, and after it. The name of the second
# output is too long for one file's name.
SNAKEFILE = """
from snakemake.jobs import Job
from millrace.common.workflow import snakemake_state
snakemake_state.note_no_failed_job(Job)
LONG = "b" * 200 + ".txt"
rule all:
    input: "made.txt", LONG
rule made:
    input: "in.txt"
    output: "made.txt"
    shell: "cp {input} {output}"
rule long:
    input: "in.txt"
    output: LONG
    params: asks=lambda wildcards: snakemake_state.force(workflow, ["made.txt"]) or "x"
    run:
        print("locked", snakemake_state.is_locked())
        print("unfinished", *snakemake_state.unfinished())
        Path(output[0]).touch()
"""


def test_the_pinned_release_keeps_its_records_as_they_are_read(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("Snakefile").write_text(SNAKEFILE)
    Path("in.txt").touch()
    assert snakemake_state.last_log() is None and not snakemake_state.is_locked()
    assert snakemake_state.unfinished() == {} and snakemake_state.record("made.txt").inputs == set()
    assert not snakemake_state.is_recorded("made.txt")
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--latency-wait", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    long = "b" * 200 + ".txt"
    assert "locked True" in done.stdout and f"unfinished {long}" in done.stdout

    assert not snakemake_state.is_locked() and snakemake_state.unfinished() == {}
    made = snakemake_state.record("made.txt")
    assert made == ("cp in.txt made.txt", {"in.txt"})
    assert snakemake_state.record(long).inputs == {"in.txt"} and snakemake_state.is_recorded(long)
    assert list(Path(".snakemake/metadata").glob("@*"))
    log = snakemake_state.last_log()
    assert (log.done, log.total, log.has_ended) == (3, 3, True)
    assert 0 <= log.written - int(log.started) < 60
    # A run with nothing to do has no table of jobs.
    subprocess.run([*command, "made.txt"], capture_output=True, check=True)
    assert len(list(Path(".snakemake/log").glob("*"))) == 2 and snakemake_state.last_log() == log
    # What is noted of a job that fails, as cp does with a folder, is how the last file was made.
    notes = {path: path.read_bytes() for path in Path(".snakemake/metadata").glob("[!@]*")}
    Path("in.txt").unlink()
    Path("in.txt").mkdir()
    assert subprocess.run([*command, "made.txt"], capture_output=True).returncode == 1
    assert not Path("made.txt").exists() and snakemake_state.unfinished() == {}
    assert {path: path.read_bytes() for path in Path(".snakemake/metadata").glob("[!@]*")} == notes


@pytest.mark.parametrize("keeps", [True, False])  # False with --drop-metadata
def test_of_the_jobs_of_a_run_only_those_that_fail_are_not_noted(keeps):
    settings, noted = SimpleNamespace(keep_metadata=keeps), []

    class Job:
        dag = SimpleNamespace(workflow=SimpleNamespace(execution_settings=settings))

        async def postprocess(self, error: bool = False) -> None:
            await asyncio.sleep(0)
            noted.append(settings.keep_metadata)

    async def run() -> None:
        await asyncio.gather(*(Job().postprocess(error=True) for _ in range(2)))  # of a group
        await Job().postprocess(error=False)

    snakemake_state.note_no_failed_job(Job)
    asyncio.run(run())
    assert noted == [False, False, keeps]


def test_the_error_of_a_lock_says_who_holds_it(monkeypatch):
    monkeypatch.setattr(LockException, "__init__", LockException.__init__)
    snakemake_state.say_who_locks(LockException, WorkflowError, lambda: "locked by me")
    assert str(LockException()) == "locked by me"
