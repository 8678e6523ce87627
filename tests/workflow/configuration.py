"""docs/configuration.md out of the schemas: `python -m tests.workflow.configuration` writes it, a test
compares it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from millrace.common.workflow.config import DEFAULT_LANES, LANES, load_schema
from tests.workflow.workflow import ROOT

PAGE = ROOT / "docs/configuration.md"
HEAD = """# Every key of config.yaml

Written by `make docs` from rules/schemas/*.schema.yaml; edit those. A key that is not listed here is an
error that names it. `lanes` lists the lanes that `snakemake` without a target builds: {lanes}
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
    for key, rule in properties.items():
        if "$ref" in rule:
            rule = {**schema["$defs"][rule["$ref"].rpartition("/")[2]], **rule}
        default = f"`{json.dumps(rule['default'])}`" if "default" in rule else ""
        meaning = " ".join(rule.get("description", "").split()).replace("|", "\\|").replace("<", "&lt;")
        yield f"| `{above}{key}` | {values(rule)} | {default} | {meaning} |"
        yield from rows(rule.get("properties", {}), schema, f"{above}{key}.")


def page() -> str:
    """The whole page."""
    parts = [HEAD.format(lanes=", ".join(f"`{lane}`" for lane in DEFAULT_LANES))]
    for lane in LANES:
        schema = load_schema(ROOT / f"rules/schemas/{lane}.schema.yaml")
        parts.append(f"\n## {lane}\n\n| Key | Takes | Default | Meaning |\n| --- | --- | --- | --- |\n")
        parts += [f"{row}\n" for row in rows(schema["properties"], schema)]
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
