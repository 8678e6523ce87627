"""What the workflow needs to know of how Snakemake was called."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from snakemake.cli import get_argument_parser
from snakemake.shell import shell

from millrace.common.workflow import call

SNAKEMAKE = "/usr/bin/snakemake"


def parsed(line: str, program: str = SNAKEMAKE, **options: Callable[[str], str]) -> call.Call:
    return call.parse([program, *line.split()], get_argument_parser, **options)


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("asr_data", {"asr"}),
        ("-n --cores 2 asr music_index", {"asr", "music"}),
        ("--until asr_data", {"asr"}),
        ("-R asr_train_model --", {"asr"}),
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
    assert parsed(line, "/usr/bin/pytest") == call.Call()


@pytest.mark.parametrize(
    ("pattern", "word"), [("millrace_*", "millrace_asr_data"), ("*_two", "asr_data_two")]
)
def test_a_module_may_rename_the_rules(pattern: str, word: str):
    def renamed(rule: str) -> str:
        return pattern.replace("*", rule)

    assert parsed(word, rule_name=renamed).asked == {"asr_data"}
    assert parsed("asr_data", rule_name=renamed).lanes() == set()


@pytest.mark.parametrize(
    ("line", "only_reads"),
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
    ],
)
def test_what_runs_nothing_is_told_from_a_run(line: str, only_reads: bool):
    assert parsed(line).only_reads is only_reads


def test_commands_of_others_keep_their_prefix_and_ours_have_both():
    ours = call.own_shell(shell, "export OURS='{{1}}'; ")
    command = "echo ${{OUTER:-none}} ${{OURS:-none}}"
    assert ours(command, read=True) == "none {1}\n"
    try:
        shell.prefix("export OUTER=0; ")
        assert ours(command, read=True) == "0 {1}\n"
        assert shell(command, read=True) == "0 none\n"
    finally:
        shell._process_prefix = None


@pytest.mark.parametrize("prefix", ["sub/", "results/"])
def test_a_module_that_moves_our_files_is_refused_by_name(prefix: str):
    with pytest.raises(
        SystemExit, match=rf"module statement: `prefix` .* results/ would be {prefix}results/"
    ):
        call.refuse_other_paths(lambda path: f"{prefix}{path}")
    with pytest.raises(SystemExit, match=r"logs/ would be notes/.*--directory"):
        call.refuse_other_paths(lambda path: path.replace("logs/", "notes/"))
    call.refuse_other_paths(str)
