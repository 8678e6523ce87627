"""What the Snakefile asks of the lanes: sources in step, one line to the user, a prefix that
survives odd folders."""

from __future__ import annotations

import base64
import gc
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.cli import get_argument_parser

from millrace.common import atomic
from millrace.common.errors import MillraceError
from millrace.common.workflow import config, lanes, snakemake_state, status
from millrace.common.workflow.differences import Items
from millrace.common.workflow.lost import Listed
from millrace.common.workflow.partitions import Assignment
from millrace.common.workflow.snakemake_state import Call
from millrace.common.workflow.sources import Found, Partitions, Sources, SourcesMissing, Write
from tests.workflow.workflow import ROOT


@dataclass
class Settings:
    """A lane without settings."""


def lanes_of(
    on: bool = True,
    main: bool = True,
    dry_run: bool = False,
    jobs: int | None = None,
    asked: Call | None = None,
    **section: object,
) -> lanes.Lanes:
    """Lanes of which speech is on, or none."""
    config = {"lanes": ["speech"] if on else [], "speech": section}
    return lanes.Lanes(config, ROOT, main, dry_run, jobs, asked)


PLACED = {"g": ["a"]}


def synced(*_: object) -> Found:
    assignment = Assignment("assignment.jsonl", 1.0)
    assignment.place("x", "a", 1.0)

    def build(write: Write) -> Partitions:
        write("a", {})
        return Partitions(assignment, {"g": ["a"]})

    return Found(build)


def must_not_sync(*_: object) -> Found:
    raise AssertionError("synced")


def failing(error: Exception):
    def collect(*_: object) -> Found:
        raise error

    return collect


def module_of(collect) -> SimpleNamespace:
    """A lane's sources.py."""
    return SimpleNamespace(
        Settings=Settings, collect=collect, QUIET_KEYS={"quiet"}, REMEDY="do this"
    )


def sources_of(of: lanes.Lanes, collect) -> Sources:
    return of.sources("speech", module_of(collect))


def ask(of: lanes.Lanes, collect=synced) -> dict:
    return sources_of(of, collect).partitions


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are looked for in the current folder."""
    monkeypatch.chdir(tmp_path)


def test_the_main_process_syncs_and_says_nothing_when_all_is_well(capsys):
    assert ask(lanes_of()) == PLACED
    assert capsys.readouterr().err == ""


def test_a_spawned_job_and_a_lane_that_is_off_only_load():
    assert ask(lanes_of(main=False), must_not_sync) == {}
    ask(lanes_of())
    assert (
        ask(lanes_of(main=False), must_not_sync) == ask(lanes_of(on=False), must_not_sync) == PLACED
    )


def test_a_locked_workflow_only_loads_and_says_so(tmp_path: Path, capsys):
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    ask(lanes_of())
    (tmp_path / ".snakemake/locks/0.input.lock").write_text("")
    locked = lanes_of()
    assert ask(locked, must_not_sync) == ask(locked, must_not_sync) == PLACED
    assert capsys.readouterr().err.count("lock") == 1


def test_what_a_killed_run_has_left_keeps_its_partitions(monkeypatch):
    ask(lanes_of())
    monkeypatch.setattr(lanes.left_over, "check", lambda *_, **__: "steps go on")
    assert ask(lanes_of(), must_not_sync) == PLACED


@pytest.mark.parametrize(
    "dry_run, jobs, asked",
    [
        (False, None, (True, False, "snakemake --unlock")),
        (True, None, (False, False, "snakemake --unlock")),
        (False, 4, (True, True, "snakemake --unlock")),
    ],
)
def test_what_a_killed_run_has_left_is_looked_for_where_jobs_run(monkeypatch, dry_run, jobs, asked):
    seen = []

    def check(say, acts: bool, on_cluster: bool, unlock: str) -> str:
        seen.append((acts, on_cluster, unlock))
        return ""

    monkeypatch.setattr(lanes.left_over, "check", check)
    lanes_of(dry_run=dry_run, jobs=jobs)
    assert seen == [asked]


def test_a_missing_source_ends_the_targets_that_need_it_in_one_line():
    ask(lanes_of())
    some = lanes_of()
    missing = sources_of(
        some, failing(SourcesMissing("no corpus at x", pristine=True))
    )  # but built once
    some.register_targets("speech", lambda: missing.required().partitions["g"])
    with pytest.raises(
        SystemExit, match=r"^Millrace: speech: no corpus at x any more\. Bring it back$"
    ):
        some.targets()
    # What the last sync left is still there for what does not ask for sources.
    assert missing.partitions == PLACED


@pytest.mark.parametrize(
    "target, said",
    [
        ("speech_fetch_corpus", ""),
        ("speech", "Millrace: speech: no corpus: do this\n"),
    ],
)
def test_a_demo_that_is_fetched_is_not_missed(capsys, target, said):
    some = lanes_of(asked=Call(frozenset({target})))
    sources_of(some, failing(SourcesMissing("no corpus", pristine=True)))
    assert capsys.readouterr().err == said


def test_a_lane_that_is_off_and_was_never_built_has_nothing_to_give():
    with pytest.raises(
        SystemExit, match=r"speech: it is not among `lanes`, and nothing of it was built: do this"
    ):
        sources_of(lanes_of(on=False), must_not_sync).required()
    ask(lanes_of())
    assert sources_of(lanes_of(on=False), must_not_sync).required().partitions == PLACED


def test_at_the_end_of_a_failed_run_the_audit_of_a_loader_is_named_too(tmp_path: Path):
    """It is no lane of the config: the rules that train ask for it."""
    program = """
from millrace.common.workflow import lanes
of = lanes.Lanes({"lanes": []}, "/clone", is_main_process=True, dry_run=True)
log = lanes.Path("logs/audit/check_loader/asr/demo.log")
log.parent.mkdir(parents=True)
log.write_text("10:00:01 ERROR the loader died\\n")
of.say_end(failed=True, logs=["run.log"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stderr.startswith(
        "Millrace: failed: audit_check_loader asr/demo: the loader died"
    ), done.stderr


def test_the_end_of_a_run_is_told_of_each_of_its_lanes_once_and_since_it_began(monkeypatch):
    told = []
    monkeypatch.setattr(status, "say_last", told.append)
    before = time.time()
    section, asked = {"lanes": ["asr", "audit"]}, Call(place="-s x")
    of = lanes.Lanes(section, ROOT, is_main_process=True, dry_run=True, asked=asked)
    began = time.time()
    of.say_end(failed=True, logs=["run.log"])
    (run,) = told
    assert (run.lanes, run.failed, run.logs) == (["asr", "audit"], True, ["run.log"])
    assert before <= run.since <= began
    assert run.report == "snakemake -s x --report report.html"


def test_a_lane_whose_target_is_asked_for_is_switched_on():
    asked = Call(frozenset({"asr_data", "image.yaml", "music_"}))
    assert lanes_of(asked=asked).on == ["speech", "asr", "music"]
    assert lanes_of(main=False, asked=asked).on == ["speech"]


def test_a_changed_key_is_said_with_both_values_until_a_run_has_made_all_targets(capsys):
    def parse(**section: object) -> tuple[lanes.Lanes, str]:
        some = lanes_of(**section)
        ask(some)
        some.register_targets("speech", lambda: ["manifest", "index"])
        return some, capsys.readouterr().err

    old = {
        "cer": 0.3,
        "quiet": 1,
        "runs": {"a": {"lr": 1, "quiet": 1, "epochs": 2}},
        "model_options": {},
        "training": {},
        "path_map": {"/a": "/b"},
        "bench": {"enabled": False, "steps": 3},
        "calibration": {"enabled": True, "steps": 3},
    }
    new = {
        "cer": 0.2,
        "quiet": 2,
        "runs": {"a": {"lr": 2, "quiet": 2}},
        "model_options": {"hidden": 8},
        "training": {"lr": 3},
        "path_map": {},
        "bench": {"enabled": False, "steps": 4},
        "calibration": {"enabled": False, "steps": 4},
        "b": 1,
    }
    first, line = parse(**old)
    assert line == ""
    first.success(["manifest", "index"])
    said = "Millrace: speech: cer 0.3 -> 0.2; runs.a.lr 1 -> 2; model_options.hidden not set -> 8; "
    said += "training.lr not set -> 3; calibration.enabled True -> False; "
    said += "path_map./a /b -> not set; runs.a.epochs 2 -> not set\n"
    second, line = parse(**new)
    assert line == said
    second.success(["manifest"])
    third, line = parse(**new)
    assert line == said
    third.success(["manifest", "index"])
    assert parse(**new)[1] == ""
    fourth, line = parse(**old)
    fourth.success(["index"])
    assert parse(**old)[1] == line != ""


def comparing(*_: object) -> Found:
    """A partition, of which first a manifest and then shards are made."""
    outputs = ["results/speech/manifest/{}", "results/speech/shards/{}"]
    stages = {"manifest": outputs[:1]}
    items = Items(
        "recording", lambda content: content, lambda *_: ["text"], outputs, str, stages=stages
    )
    assignment = Assignment("assignment.jsonl", 1.0)

    def build(write: Write) -> Partitions:
        write("a", {"x": 1})
        return Partitions(assignment, {"a": ["a"]}, total=1)

    return Found(build, items={"": items})


def said_of(capsys, words: str, source: str = "speech", **section: object) -> str:
    """What is said of the speech lane where the command line has these words."""
    asked = snakemake_state.parse(["snakemake", *words.split()], get_argument_parser)
    made = {"lanes": ["speech", "asr"], "speech": section, "asr": {"source": source}}
    some = lanes.Lanes(made, ROOT, is_main_process=True, asked=asked)
    ask(some, comparing)
    stages = {
        "manifest": lanes.Stage(lambda: ["results/speech/manifest/a"], {"min_duration"}),
        "shards": lanes.Stage(lambda: ["results/speech/shards/a"], {"min_duration", "max_cer"}),
    }
    some.register_targets(
        "speech", lambda: ["results/speech/shards/a", "results/speech/report"], stages=stages
    )
    return capsys.readouterr().err.removeprefix("Millrace: speech: ").rstrip("\n")


@pytest.mark.parametrize(
    "words, is_said",
    [
        ("", True),
        ("--cores 2 all", True),
        ("--configfile music_large.yaml", True),
        ("speech", True),
        ("results/speech/index.parquet", True),
        ("speech_fetch_corpus", False),
        ("resources/speech/corpus.json", False),
        ("music_fetch_demo", False),
        ("music results/image/records/val/records.json", False),
        ("music asr_data", True),
        ("results/asr/buckets/bucket_config.json", True),
        ("asr_data from manifests", False),
        ("audit", True),
        ("audit from manifests", False),
        ("results/audit/asr/demo/findings.json", True),
        ("results/audit/image/demo/findings.json", False),
    ],
)
def test_changes_of_a_lane_are_said_where_its_targets_are_asked_for(capsys, words, is_said):
    target, _, source = words.partition(" from ")
    line = said_of(capsys, target, source or "speech")
    assert line == ("1 recording new -> 1 of 1 partitions" if is_said else "")


def note(kind: str, path: str) -> None:
    """As Snakemake notes how a file was made ("metadata"), or that its job has begun."""
    name = base64.urlsafe_b64encode(path.encode()).decode()
    atomic.write_json(f".snakemake/{kind}/{name}", {})


def test_what_is_said_is_what_the_targets_of_a_stage_make_pending(capsys):
    def said(words: str, **section: object) -> str:
        return said_of(capsys, words, **section)

    def make(path: str, **section: object) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("")
        atomic.write_json("results/speech/partitions/index/choices.json", {path: section})

    new = "1 recording new -> 1 of 1 partitions"
    assert said("speech_manifest") == said("results/speech/manifest/a") == said("speech") == new
    make("results/speech/manifest/a", min_duration=1, max_cer=1)
    assert said("speech_manifest") == said("results/speech/manifest/other") == ""
    assert (
        said("speech_shards")
        == said("speech_manifest speech")
        == said("results/speech/other")
        == new
    )
    changed = {"min_duration": 2, "max_cer": 2, "hub": 2}
    note("metadata", "results/speech/manifest/a")
    make("results/speech/shards/a")  # without a note, which manifests do not need
    make("results/speech/manifest/a", min_duration=1, max_cer=1)
    assert said("speech_manifest", **changed) == "min_duration 1 -> 2"
    make("results/speech/shards/a", min_duration=1, max_cer=1, hub=1)
    note("incomplete", "results/speech/shards/a")
    # Of what Snakemake has no note, it sees no other parameters.
    shutil.move(".snakemake/metadata", "away")
    with pytest.raises(SystemExit, match="lost how results/speech/manifest/a was made"):
        said("speech_shards", **changed)
    capsys.readouterr()
    for words in ("--forceall", "--forcerun speech_shards", "--persistence-backend db"):
        assert said(f"speech_shards {words}", **changed) == "min_duration 1 -> 2; max_cer 1 -> 2"
    shutil.move("away", ".snakemake/metadata")
    assert said("speech_shards", **changed) == "min_duration 1 -> 2; max_cer 1 -> 2"
    for words in ("speech", "speech_manifest speech_shards"):
        assert said(words, **changed) == "min_duration 1 -> 2; max_cer 1 -> 2; hub 1 -> 2"
    make("results/speech/shards/a", min_duration="/x")
    assert said("speech_shards", min_duration="/x/") == ""
    assert said("speech_shards", min_duration="/") == "min_duration /x -> /"
    # A key of a stage may be an object.
    atomic.write_json(
        "results/speech/partitions/index/choices.json",
        {"results/speech/shards/a": {"max_cer.a": 1, "hub.a": 1, "runs.a.lr": 1}},
    )
    nested = {"max_cer": {"a": 2}, "hub": {"a": 2}, "runs": {"b": {"lr": 1}}}
    assert said("speech_shards", **nested) == "max_cer.a 1 -> 2"


@pytest.mark.parametrize(
    "error, line",
    [
        (MillraceError("is damaged", where="a.jsonl, line 3"), "a.jsonl, line 3: is damaged"),
        (
            PermissionError(13, "Permission denied", "corpus/malta"),
            "corpus/malta: Permission denied. Mend that",
        ),
    ],
)
def test_a_source_in_error_ends_the_parse_in_one_line(error, line):
    with pytest.raises(SystemExit) as caught:
        ask(lanes_of(), failing(error))
    assert str(caught.value.code).startswith(f"Millrace: speech: {line}")


def test_targets_are_those_of_the_lanes_that_are_on():
    for on, expected in ((True, ["x", "y"]), (False, [])):
        some = lanes_of(on)
        some.register_targets("speech", lambda: ["x", "y"])
        assert some.targets() == expected


@pytest.mark.parametrize("name", ["plain", "with space", "it's", "b{r}ace", "$HOME", "a;b"])
def test_the_prefix_finds_this_clone_and_this_python_in_any_folder(tmp_path: Path, name):
    clone = tmp_path / name
    (clone / "scripts/millrace").mkdir(parents=True)
    (clone / "scripts/millrace/__init__.py").write_text("")
    prefix = lanes.Lanes({"lanes": []}, clone, is_main_process=False).shell_prefix("set()")
    # As Snakemake does it: prefix and command are one format string.
    command = (
        prefix + "python -c 'import millrace, sys; print(millrace.__file__, sys.prefix)'"
    ).format()
    for path in ("", "/somewhere"):
        env = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            ["bash", "-euc", command], env=env, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.stdout.strip() == f"{clone}/scripts/millrace/__init__.py {sys.prefix}", (
            done.stderr
        )


def test_with_conda_its_own_python_is_used():
    assert "export PATH" not in lanes_of().shell_prefix("{<DeploymentMethod.CONDA: 1>}")
    assert "export PATH" in lanes_of().shell_prefix("set()")


def test_a_command_is_told_what_pages_are_made_from():
    some = lanes_of(countries_root="{corpus}")
    command = some.shell_prefix("set()").format() + 'echo "$MILLRACE_MADE_FROM"'
    done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True)
    assert '{"speech": "corpus {corpus}, config ' in done.stdout, done.stderr


def test_a_job_process_fills_in_defaults_and_checks_nothing():
    section = {"max_cerr": 1, "max_cer": "2e-1"}
    filled = config.validate_config({"speech": section}, ROOT / "rules/schemas", check=False)[
        "speech"
    ]
    assert (filled["max_cer"], filled["sampling_rate"]) == (0.2, 16000)


def test_memory_and_time_grow_with_the_input_and_the_attempt(tmp_path: Path):
    (tmp_path / "index.parquet").write_bytes(bytes(2_000_000))
    inputs = [str(tmp_path / "index.parquet"), str(tmp_path / "not yet made.parquet")]
    memory_mb, runtime = lanes_of().memory_mb(1500, per_mb=50), lanes_of().runtime(10, per_mb=0.5)
    assert [memory_mb({}, [], attempt) for attempt in (1, 2, 3)] == [1800, 3600, 7200]
    assert [memory_mb({}, inputs, attempt) for attempt in (1, 2)] == [1900, 3800]
    assert [runtime({}, inputs, attempt) for attempt in (1, 2, 3)] == [11, 22, 33]


@pytest.mark.parametrize("main, jobs, asked", [(True, None, 1), (True, 4, 2), (False, None, 2)])
def test_on_a_cluster_a_job_asks_for_more_at_its_next_attempt_whatever_its_input(main, jobs, asked):
    of = lanes_of(main=main, dry_run=True, jobs=jobs)
    for need, first in ((of.memory_mb(1500), 1800), (of.runtime(15), 15)):
        second = need({}, 2) if callable(need) else need
        assert second == asked * first and (need if asked == 1 else need({}, 1)) == first


@pytest.mark.parametrize(
    "devices, visible, jobs, count",
    [
        (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], None, None, 2),
        (["nvidia0", "nvidia1"], "1", None, 1),
        (["nvidia0", "nvidia1"], "0,1,2,3", None, 2),
        (["nvidia0", "nvidia1"], "", None, 0),
        (["nvidia0", "nvidia1"], "-1", None, 0),
        (["null"], None, None, 0),
        (["nvidia0"], None, 4, None),
        (["nvidia0", "kfd"], None, None, None),
        (["dxg"], None, None, None),
    ],
)
def test_gpus_are_counted_where_jobs_run_here_and_can_be_counted(
    tmp_path: Path, monkeypatch, devices, visible, jobs, count
):
    for name in devices:
        (tmp_path / name).touch()
    monkeypatch.setattr(lanes, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert lanes_of(dry_run=True, jobs=jobs).gpus() == count


def test_a_lock_and_what_lies_behind_it_stop_the_sync_and_stand_in_the_error(tmp_path: Path):
    def dry() -> lanes.Lanes:
        return lanes_of(dry_run=True, asked=Call(place="-s ../Snakefile"))

    ask(dry())
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    (tmp_path / ".snakemake/locks/0.input.lock").write_text("")
    unlock = "`snakemake -s ../Snakefile --unlock`"
    message = dry().lock_message()
    assert "by whom is unknown" in message and unlock in message
    dead = tmp_path / f".snakemake/millrace.runs/1-0@{os.uname().nodename}"
    dead.parent.mkdir(exist_ok=True)
    dead.touch()
    of = dry()
    assert ask(of, must_not_sync) == PLACED
    message = of.lock_message()
    assert "a run that was killed (process 1 on" in message and unlock in message


def test_a_step_is_marked_as_one_of_this_run_by_the_main_process_only():
    assert "MILLRACE_RUN=" in lanes_of().shell_prefix("set()")
    assert "MILLRACE_RUN=" not in lanes_of(main=False).shell_prefix("set()")


def test_a_lane_that_is_asked_for_by_name_is_no_part_of_all():
    of = lanes_of(dry_run=True, asked=Call(frozenset({"asr_data", "all"})))
    of.register_targets("speech", lambda: ["x"])
    of.register_targets("asr", lambda: ["y"])
    assert of.targets() == ["x"]


def test_a_target_that_ends_before_them_makes_and_says_nothing_of_files_that_are_lost(capsys):
    listed = Listed(
        lambda: ["results/speech/shards/a.tar"], lambda path: "index", ["manifest"], lambda: ["old"]
    )
    stages = {"manifest": lanes.Stage(lambda: ["results/speech/manifest/a"], ())}
    said = "Millrace: speech: lost: a.tar\n"
    for target, line, forced in (
        ("speech_manifest", "", set()),
        ("speech", said, {"index", "old"}),
    ):
        some = lanes_of(asked=Call(frozenset({target})))
        ask(some)
        some.register_targets("speech", lambda: ["x"], stages=stages, listed=listed)
        assert capsys.readouterr().err == line
        dag = SimpleNamespace(forcefiles={"asked for"})
        inputs = some.remaking("speech", lambda wildcards: [wildcards], SimpleNamespace(dag=dag))
        assert inputs("x") == ["x"]
        assert dag.forcefiles == {"asked for", *forced}


def test_notes_of_the_sources_and_of_what_is_pending_are_said_of_their_lane(capsys):
    def noted(*_: object) -> Found:
        assignment = Assignment("assignment.jsonl", 1.0)
        return Found(lambda write: Partitions(assignment, {}, notes=["of \x1b sources"]))

    some = lanes_of()
    ask(some, noted)
    some.register_targets("speech", lambda: [], pending_notes=lambda: ["of what is pending"])
    expected = r"Millrace: speech: of \x1b sources" + "\nMillrace: speech: of what is pending\n"
    assert capsys.readouterr().err == expected


def test_an_audit_of_all_loaders_needs_each_lane_that_has_some(capsys):
    section = {"lanes": ["asr"], "asr": {"source": "manifests"}}
    asked = Call(frozenset({"audit"}))
    some = lanes.Lanes(section, ROOT, is_main_process=True, asked=asked)
    some.sources("asr", module_of(comparing))
    some.register_targets("asr", lambda: ["x"])
    assert capsys.readouterr().err == "Millrace: asr: 1 recording new -> 1 of 1 partitions\n"


def test_a_parse_leaves_the_garbage_collector_as_it_was():
    for collects in (False, True):
        (gc.enable if collects else gc.disable)()
        ask(lanes_of())
        assert gc.isenabled() == collects


def test_what_is_shown_once_is_made_again_by_each_run_and_a_dry_run_deletes_nothing(tmp_path: Path):
    diff = tmp_path / "results/speech/hub/diff.txt"
    diff.parent.mkdir(parents=True)

    def parse(dry_run: bool) -> lanes.Lanes:
        diff.write_text("add nothing")
        return lanes.Lanes({"lanes": []}, ROOT, is_main_process=True, dry_run=dry_run)

    parse(dry_run=True)
    assert diff.exists()
    run = parse(dry_run=False)
    assert not diff.exists()
    diff.write_text("add nothing")
    lanes.Lanes({"lanes": []}, ROOT, is_main_process=True, asked=Call(only_reads=True))
    assert diff.exists()
    run.say_end(failed=False, logs=[])
    assert not diff.exists()
