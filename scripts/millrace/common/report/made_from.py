"""What a page was made from: version, corpus and config, as its last line says.

The workflow hands it on in the environment of its commands: as a parameter of the rules, each
change of the config would make all pages pending.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any

from millrace.common import jsonl

VERSION = "0.4.0"
_VARIABLE = "MILLRACE_MADE_FROM"
# The key of each lane's config that says where its corpus lies.
_CORPUS_KEYS = {
    "speech": "countries_root",
    "asr": "manifest_dir",
    "music": "jsonl",
    "image": "raw_data_dir",
}


def export(config: Mapping[str, Any]) -> str:
    """The shell command that hands the facts of all lanes on."""
    facts = {}
    for lane in sorted(_CORPUS_KEYS.keys() & config.keys()):
        section = config[lane]
        corpus = section.get(_CORPUS_KEYS[lane])
        if section.get("source") == "speech":
            corpus = "of the speech lane"
        config_digest = f"config {jsonl.digest(section)[:12]}"
        facts[lane] = f"corpus {corpus}, {config_digest}" if corpus else config_digest
    return f"export {_VARIABLE}={shlex.quote(json.dumps(facts))}; "


def line(lane: str) -> str:
    """The last line of a lane's page; by hand the version alone is known."""
    facts = json.loads(os.environ.get(_VARIABLE, "{}"))
    return ", ".join(filter(None, [f"Millrace {VERSION}", facts.get(lane)]))
