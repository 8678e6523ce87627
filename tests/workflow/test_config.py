"""The config is closed and typed: a typo is an error that names the key, before anything runs."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import jinja2
import pytest
import yaml
from jsonschema import Draft202012Validator

from millrace.audit.checks.entries import ENTRIES
from millrace.common.errors import MillraceError
from millrace.common.workflow import config as workflow_config
from tests.refusals import refused
from tests.workflow import configuration
from tests.workflow.workflow import PYTHON_M_SNAKEMAKE, ROOT, Workflow

SCHEMAS = ROOT / "rules/schemas"
CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())


def schema(lane: str) -> dict:
    return workflow_config.load_schema(SCHEMAS / f"{lane}.schema.yaml")


def problem(config: dict) -> str:
    with pytest.raises(MillraceError) as caught:
        workflow_config.checked_config(config, SCHEMAS)
    return str(caught.value)


def speech(**keys: object) -> dict:
    return {"lanes": ["speech"], "speech": keys}


def objects(rule: dict) -> Iterator[dict]:
    """The schema and all objects in it."""
    if rule.get("type") == "object":
        yield rule
    for child in rule.get("properties", {}).values():
        yield from objects(child)


@pytest.mark.parametrize("lane", workflow_config.LANE_NAMES)
def test_schemas_are_valid_closed_explained_and_complete(lane):
    whole = schema(lane)
    Draft202012Validator.check_schema(whole)
    for part in objects(whole):
        assert part.get("additionalProperties") is not None, f"{lane}: an object is open"
        assert part["additionalProperties"] is not True
        for key, rule in part.get("properties", {}).items():
            # YAML cuts a description at its comma, and makes a key of the rest.
            assert [word for word, value in rule.items() if value is None] in ([], ["default"]), (
                f"{lane} {key}"
            )
    for key, rule in whole["properties"].items():
        assert rule.get("description"), f"{lane}.{key} is not explained"
        assert "\n" not in rule["description"].strip()
        assert "default" in rule, f"{lane}.{key} has no default"
        Draft202012Validator({**rule, "$defs": whole.get("$defs", {})}).validate(rule["default"])


def test_the_config_that_is_shipped_is_valid_and_complete_where_it_overrides():
    checked = workflow_config.checked_config(CONFIG, SCHEMAS)
    assert set(checked) == {"lanes", *workflow_config.LANE_NAMES}
    for lane in workflow_config.LANE_NAMES:
        assert set(CONFIG.get(lane, {})) <= set(schema(lane)["properties"])
        assert set(checked[lane]) == set(schema(lane)["properties"])
        for key, value in CONFIG.get(lane, {}).items():
            # Objects with keys of their own are filled up with the defaults of those.
            whole = {**checked[lane][key], **value} if isinstance(value, dict) else value
            assert checked[lane][key] == whole


def test_a_missing_or_empty_section_is_its_defaults():
    rules = schema("speech")["properties"]
    expected = {key: rule["default"] for key, rule in rules.items()}
    expected["hub"] = {key: rule["default"] for key, rule in rules["hub"]["properties"].items()}
    for config in ({}, {"speech": None}, {"speech": {}}, {"lanes": ["speech"]}):
        assert workflow_config.checked_config(config, SCHEMAS)["speech"] == expected


def test_a_run_may_be_called_by_a_number_and_a_lane_that_is_off_needs_no_model():
    checked = workflow_config.checked_config({"asr": {"runs": {1: {"epochs": 2}}}}, SCHEMAS)
    assert checked["asr"]["runs"] == {"1": {"epochs": 2}}
    workflow_config.checked_config({"lanes": ["speech"], "asr": {"model": "none"}}, SCHEMAS)


def test_checking_does_not_change_what_it_was_given():
    given = speech(max_cer=0.5)
    workflow_config.checked_config(given, SCHEMAS)
    assert given == speech(max_cer=0.5)


@pytest.mark.parametrize("lane", workflow_config.LANE_NAMES)
def test_steps_and_config_have_the_same_defaults(lane):
    """By hand and under Snakemake the same thing happens."""
    rules = schema(lane)["properties"]
    rules = {**rules, **rules.get("records", {}).get("properties", {})}
    compared = 0
    for path in sorted((ROOT / "scripts/millrace" / lane).glob("*.py")):
        if "def make_parser" not in path.read_text() or path.stem.startswith("benchmark_"):
            continue
        for action in (
            importlib.import_module(f"millrace.{lane}.{path.stem}").make_parser()._actions
        ):
            if action.dest in rules and not action.required and action.default is not None:
                default = (
                    action.default[0]
                    if isinstance(action.default, list) and action.default
                    else action.default
                )
                assert default == rules[action.dest]["default"], f"{path.name}: --{action.dest}"
                compared += 1
    assert compared


@pytest.mark.parametrize(
    "text, words",
    {
        "speech: {max_cerr: 0.3}": "speech.max_cerr: no such key; docs/configuration.md",
        "speech: {hub: {endpoint: 'https://hub.org/a', repo: a/b}}": "speech.hub.endpoint … Hub",
        "speech: {split_fractions: {train: 0.9, validation: 0.05, tset: 0.05}}": (
            "speech.split_fractions.tset: no such key"
        ),
        "speech: {split_fractions: {train: 1}}": (
            "speech.split_fractions: validation, test is missing"
        ),
        "speech: {split_fractions: {train: 0.9, validation: 0.05, test: 0.0501}}": (
            "speech.split_fractions: the values must sum to 1, not 1.0001"
        ),
        "speech: {split_fractions: {train: 0.5, validation: 0.1, test: 0.1}}": (
            "speech.split_fractions"
        ),
        "speech: {split_fractions: {train: 0, validation: 0, test: 0}}": "speech.split_fractions",
        "speech: {min_duration: 3, max_duration: 3.0}": (
            "speech.min_duration: 3 is not below max_duration, which is 3.0"
        ),
        # Of a lane that is not built, and beside what is wrong with another one.
        "{lanes: [asr], speech: {min_duration: 3, max_duration: 3.0}}": (
            "speech.min_duration: 3 is not below max_duration"
        ),
        "{speech: {max_cer: -1}, asr: {edges: [2, 3, 3]}}": (
            "speech.max_cer … minimum … asr.edges … rising … not [2, 3, 3]"
        ),
        "speech: {max_cer: .nan}": "speech.max_cer",
        "speech: {partition_hours: .inf}": "speech.partition_hours",
        "speech: {max_cer: 0.3x}": "speech.max_cer … number",
        "speech: {max_cer: -1}": "speech.max_cer … minimum",
        "speech: {max_cer: null}": "speech.max_cer … no value … delete the line",
        "speech: {max_error_fraction: 1.5}": "speech.max_error_fraction … maximum",
        "speech: {partition_hours: 0}": "speech.partition_hours",
        "speech: {sampling_rate: 16000.5}": "speech.sampling_rate … a whole number, not",
        "speech: {sampling_rate: true}": "speech.sampling_rate",
        "speech: {audio_format: ogg}": "speech.audio_format … flac … opus",
        "speech: {max_cer: true}": "speech.max_cer … a number, not True",
        "speech: {countries: 7}": "speech.countries … a list, not 7",
        "speech: {countries: malta}": "speech.countries … a list, not 'malta'",
        "speech: {path_map: [a, b]}": "speech.path_map: must be keys with values",
        "speech: {countries_root: ''}": "speech.countries_root",
        "speech: {assignment_file: ''}": "speech.assignment_file",
        "speech: {audio_roots: ['']}": "speech.audio_roots.0",
        "speech: {hub: {endpoint: 'https://hub.org'}}": "speech.hub.repo … needs it",
        "asr: {hub: {endpoint: 'https://hub.org'}}": "asr.hub.repo … needs it",
        "asr: {hub: {repo: a/bc/d}}": "asr.hub.repo … namespace/name",
        "asr: {runs: {bench: {}}}": "asr.runs … 'bench' … are taken",
        "asr: {runs: {profile: {}}}": "asr.runs … 'profile' … are taken",
        "asr: {edges: [3]}": "asr.edges: cannot be [3]",
        "asr: {tar_template: 'a}.tar'}": "asr.tar_template … {shard_id}",
        "audit: {refuse: [DP16]}": "audit.refuse: cannot be ['DP16']",
        "audit: {ignore: {DP1: ''}}": "audit.ignore.DP1",
        "music: {splits: {trian: a.json}}": "music.splits … trian",
        "speech: {countries: [denmark, false]}": "speech.countries.1 … quotes",
        "speech: {sampling_rate: 16000.0}": "speech.sampling_rate … a whole number, not",
        "speech: [1]": "speech: must be keys with values",
        "speech: 0": "speech: must be keys with values … not 0",
        "speech: []": "speech: must be keys with values … not []",
        "asr: {edges: [2, 3, 3]}": "asr.edges … rising … not [2, 3, 3]",
        "asr: {edges: sead}": "asr.edges … 'sead' … default",
        "asr: {runs: {a: {epoch: 1}}}": "asr.runs.a.epoch: no such key",
        "asr: {training: {pinned: true}}": "asr.training.pinned: no such key",
        "asr: {runs: {a: null}}": "asr.runs.a: has no value; give it one",
        "asr: {tar_template: 'audio_{shard}.tar'}": "asr.tar_template … {shard_id}",
        "asr: {model: qwen3-asr-06b}": (
            "asr.model: there is no model … known are ctc, qwen3-asr-tiny"
        ),
        "asr: {model_path: /nowhere/m}": "asr.model_path: /nowhere/m is no folder … config.json",
        f"asr: {{model_path: {SCHEMAS}}}": "asr.model_path … is a folder without config.json",
        "speech.max_cer: 0.2": "speech.max_cer: no such section … below their lane",
        "speech: {split_fractions: [0.9, 0.1]}": "speech.split_fractions: must be keys with values",
        "asr: {runs: {a b: {}}}": "asr.runs … 'a b' … letters, digits",
        "asr: {runs: {..: {}}}": "asr.runs … '..' … not . or ..",
        "music: {runs: {.: {}}}": "music.runs … '.' … not . or ..",
        "image: {runs: {..: {}}}": "image.runs … '..' … not . or ..",
        "asr: {training: {lr: 1e-3x}}": "asr.training.lr … number",
        "asr: {seed: 2147483648}": "asr.seed … maximum",
        "asr: {calibration: {min_bs: 8}, runs: {a: {timeout_seconds: 1}}}": (
            "asr.calibration.min_bs: no such key … asr.runs.a.timeout_seconds: no such key"
        ),
        "asr: {throughput: {repeats: 2}, calibration: {headroom: 0.2}}": (
            "asr.throughput.repeats … asr.calibration.headroom … no such key"
        ),
        "speach: {}": "speach: no such section",
        "lanes: speech": "lanes … list",
        "lanes: [video]": "lanes … speech",
        "lanes: null": "lanes",
    }.items(),
)
def test_what_is_wrong_is_named(text, words):
    message = problem(yaml.safe_load(text))
    assert all(word in message for word in words.split(" … ")), message


def test_each_entry_of_the_audit_may_be_refused_or_ignored():
    for name in ENTRIES:
        section = {"refuse": [name], "ignore": {name: "known"}}
        checked = workflow_config.checked_config({"audit": section}, SCHEMAS)["audit"]
        assert checked["refuse"] == [name]


def test_a_token_that_was_typed_into_the_endpoint_is_not_shown():
    tokens = ("me:hf_secret@example.org", "example.org/?token=hf_secret", "me:secret@example.org")
    for token in tokens:
        message = problem(speech(hub={"endpoint": f"https://{token}", "repo": "a/b"}))
        assert (
            "secret" not in message
            and "speech.hub.endpoint: what stands there (not shown" in message
        )


def test_numbers_that_arrive_as_text_are_numbers_where_numbers_are_wanted():
    # YAML 1.1 reads 2e-5 as text, and Snakemake hands all that is nested in --config over as text.
    texts = {
        "speech": {
            "max_cer": "0.2",
            "countries": ["1", "true"],
            "split_fractions": {"test": "0.2", "train": "7e-1", "validation": 0.1},
        },
        "asr": {
            "edges": ["0", "2.5"],
            "model_options": {"hidden": "64", "mode": "a"},
            "runs": {"a": {"lr": "1E3"}},
            "calibration": {"enabled": "True"},
        },
    }
    checked = workflow_config.checked_config(texts, SCHEMAS)
    assert checked["speech"]["max_cer"] == 0.2 and checked["speech"]["countries"] == ["1", "true"]
    assert checked["speech"]["split_fractions"] == {"test": 0.2, "train": 0.7, "validation": 0.1}
    assert checked["asr"]["edges"] == [0, 2.5] and checked["asr"]["runs"] == {"a": {"lr": 1000.0}}
    assert checked["asr"]["model_options"] == {"hidden": 64, "mode": "a"}
    assert checked["asr"]["calibration"]["enabled"] is True
    with refused(r"asr\.seed: must be a whole number, not '007'"):
        workflow_config.checked_config({"asr": {"seed": "007"}}, SCHEMAS)


@pytest.mark.e2e
def test_a_key_is_overridden_for_one_run_as_the_readme_says(tmp_path):
    override = re.search(r"--config '(speech=.*?)'", (ROOT / "README.md").read_text())[1]
    assert Workflow(tmp_path).call("--dry-run", "--config", override).returncode == 0


def test_a_duplicate_key_is_named_with_its_lines(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "asr:\n  runs: {a: {lr: 1}}\nspeech:\n  max_cer: 0.1\n  max_cer: 0.2\nasr: {}\n"
    )
    with pytest.raises(SystemExit) as caught:
        workflow_config.validate_config({}, SCHEMAS, files=[path])
    text = str(caught.value.code)
    assert f"{path}: duplicate key speech.max_cer (lines 4 and 5)" in text
    assert "duplicate key asr (lines 1 and 6)" in text
    for known in (tmp_path / "none.yaml", ROOT / "config.yaml"):
        assert workflow_config.validate_config({}, SCHEMAS, files=[known])["lanes"] == [
            "speech",
            "asr",
        ]


@pytest.mark.parametrize(
    "raw, words",
    [
        (b"speech:\n\tmax_cer: 1\n", ", line 2: the file is not valid YAML (found character"),
        (b"speech: a: b\n", ", line 1: the file is not valid YAML (mapping values"),
        (b"lanes: []\na: \xff\n", "#x00ff"),
        (b"", "the file has no keys at its top"),
        (b"- speech\n", "the file has no keys at its top"),
        (b"[" * 9999, "recursion"),
    ],
)
def test_a_config_file_that_is_no_yaml_is_named_with_its_line(tmp_path, raw, words):
    path = tmp_path / "config.yaml"
    path.write_bytes(raw)
    with pytest.raises(SystemExit) as caught:
        workflow_config.check_syntax(path)
    (line,) = str(caught.value.code).splitlines()
    assert line.startswith(f"Millrace: {path}") and words in line


def test_yaml_and_no_config_file_pass(tmp_path):
    for path in (tmp_path / "none.yaml", ROOT / "config.yaml"):
        workflow_config.check_syntax(path)


def test_all_problems_are_told_at_once_one_a_line():
    message = problem({"speech": {"max_cerr": 1, "max_cer": "x", "audio_format": 7}, "lane": []})
    assert len(message.splitlines()) == 4


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--config", "speech={max_cerr: 0.2}"], ["speech.max_cerr: no such key"]),
        (["--config", "lane=[speech]"], ["lane: no such section"]),
    ],
)
def test_snakemake_stops_at_a_typo_without_a_traceback(tmp_path, arguments, words):
    done = Workflow(tmp_path).call("--dry-run", *arguments)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert all(word in said for word in words), said
    assert "Traceback" not in said


def test_the_page_of_all_keys_is_that_of_the_schemas():
    assert configuration.PAGE.read_text() == configuration.page(), "run make docs"


def test_the_front_page_of_the_report_speaks_of_the_lanes_that_are_on():
    page = jinja2.Template(
        (ROOT / "rules/report/workflow.rst").read_text(), undefined=jinja2.StrictUndefined
    )
    heads = {
        "speech": "Speech corpus",
        "asr": "Speech recognition",
        "music": "Music",
        "image": "Images",
    }
    for lanes in ([], ["music"], list(heads)):
        config = workflow_config.checked_config({**CONFIG, "lanes": lanes}, SCHEMAS)
        text = page.render(snakemake=SimpleNamespace(config=config))
        assert [lane for lane, head in heads.items() if f"**{head}**" in text] == lanes


def test_the_small_run_of_the_catalogue_can_be_planned(tmp_path):
    shutil.copytree(ROOT / ".test", tmp_path, dirs_exist_ok=True)
    command = [*PYTHON_M_SNAKEMAKE, "-s", ROOT / "Snakefile", "--cores", "1", "-n"]
    done = subprocess.run(
        [*command, "--directory", tmp_path, "image_fetch_demo"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "image_fetch_demo" in done.stdout, done.stderr
    catalogue = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())
    assert catalogue["usage"]["report"] is True
