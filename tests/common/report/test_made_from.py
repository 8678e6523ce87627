"""The last line of a page says what it was made from."""

from __future__ import annotations

import json
import shlex

from millrace.common.report import made_from

CONFIG = {
    "speech": {"countries_root": "/data/countries", "max_cer": 0.3},
    "asr": {"source": "speech", "manifest_dir": ""},
    "music": {"jsonl": "a b.jsonl"},
    "image": {"raw_data_dir": "images"},
}


def exported(config: dict) -> str:
    name, _, value = shlex.split(made_from.export(config))[1].partition("=")
    assert name == "MILLRACE_MADE_FROM"
    return value.removesuffix(";")


def test_a_page_names_version_corpus_and_config(monkeypatch):
    monkeypatch.setenv("MILLRACE_MADE_FROM", exported(CONFIG))
    line = made_from.line("speech")
    assert line.startswith(f"Millrace {made_from.VERSION}, corpus /data/countries, config ")
    assert "corpus of the speech lane, " in made_from.line("asr")
    assert "corpus a b.jsonl, " in made_from.line("music")
    tars = {"asr": {"source": "manifests", "manifest_dir": "/tars"}}
    assert json.loads(exported(tars))["asr"].startswith("corpus /tars, ")

    # The digest is that of the lane's own section.
    changed = CONFIG | {"speech": {**CONFIG["speech"], "max_cer": 0.2}}
    others = json.loads(exported(changed))
    assert others["speech"] != json.loads(exported(CONFIG))["speech"]
    assert others["image"] == json.loads(exported(CONFIG))["image"]


def test_by_hand_a_page_names_the_version(monkeypatch):
    monkeypatch.delenv("MILLRACE_MADE_FROM", raising=False)
    assert made_from.line("speech") == f"Millrace {made_from.VERSION}"
