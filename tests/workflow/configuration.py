"""docs/configuration.md out of the schemas and the keys of music's training configuration: `python
-m tests.workflow.configuration` writes it, a test compares it."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator

from millrace.common.workflow.config import DEFAULT_LANES, LANE_NAMES, load_schema
from millrace.music.models.config import LARGEST, ClewsConfig, Key
from millrace.music.training import conf_keys
from tests.workflow.workflow import ROOT

PAGE = ROOT / "docs/configuration.md"
HEAD = """# Every key of config.yaml

Written by `make docs` from rules/schemas/*.schema.yaml; edit those. A key that is not listed here
is an error that names it. `lanes` lists the lanes that `snakemake` without a target builds: {lanes}
by default. The name of a target, such as `image_records`, switches its lane on.
"""


def values(rule: dict) -> str:
    """What a key takes, in words."""
    if "enum" in rule:
        return " or ".join(f"`{value}`" for value in rule["enum"])
    if "oneOf" in rule:
        return "; or ".join(values(part) for part in rule["oneOf"])
    kind = rule.get("type", "object")
    text = " or ".join(kind) if isinstance(kind, list) else {"array": "list"}.get(kind, kind)
    if "items" in rule:
        text += f" ({values(rule['items'])} each)"
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    limits = [f"{word} {rule[name]:g}" for name, word in bounds.items() if name in rule]
    return f"{text}, {', '.join(limits)}" if limits else text


def rows(properties: dict, schema: dict, above: str = "") -> Iterator[str]:
    """A row of the table for every key, those of nested objects below their own."""
    for key, given in properties.items():
        shared = schema["$defs"][given["$ref"].rpartition("/")[2]] if "$ref" in given else {}
        rule = {**shared, **given}
        default = f"`{json.dumps(rule['default'])}`" if "default" in rule else ""
        meaning = " ".join(rule.get("description", "").split())
        meaning = meaning.replace("|", "\\|").replace("<", "&lt;")
        yield f"| `{above}{key}` | {values(rule)} | {default} | {meaning} |"
        yield from rows(rule.get("properties", {}), schema, f"{above}{key}.")


def page() -> str:
    """The whole page."""
    parts = [HEAD.format(lanes=", ".join(f"`{lane}`" for lane in DEFAULT_LANES))]
    for lane in LANE_NAMES:
        schema = load_schema(ROOT / f"rules/schemas/{lane}.schema.yaml")
        parts.append(f"\n## {lane}\n\n{HEADS}")
        parts += [f"{row}\n" for row in rows(schema["properties"], schema)]
    parts += [
        f"\n## {title}\n\n{HEADS}" + "".join(f"{row}\n" for row in table)
        for title, table in music_tables()
    ]
    return "".join(parts)


HEADS = "| Key | Takes | Default | Meaning |\n| --- | --- | --- | --- |\n"


def music_tables() -> list[tuple[str, list[str]]]:
    """Titles and rows of the keys of a training configuration, and of those of an evaluation."""
    training = [*conf_keys.TRAINING, *ClewsConfig.table(), *conf_keys.AUGMENTATIONS]
    return [
        (
            "music: a training configuration (music.conf, conf=FILE, a.b=c)",
            [music_row(key) for key in training],
        ),
        (
            "music: an evaluation (evaluate_model a=b)",
            [music_row(key) for key in conf_keys.EVALUATION],
        ),
    ]


def music_row(key: Key) -> str:
    """A row of the table of these keys."""
    kinds = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "list",
    }
    takes = " or ".join(f"`{value}`" for value in key.among) or kinds[type(key.default)]
    if key.at_least:
        takes += f", at least {key.at_least:g}"
    if key.at_most < LARGEST:
        takes += f", at most {key.at_most:g}"
    default = json.dumps(key.default)
    return f"| `{key.name}` | {takes} | `{default}` | {html.escape(key.meaning, quote=False)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
