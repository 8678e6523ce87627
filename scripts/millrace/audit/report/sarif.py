"""The fails as SARIF 2.1.0, which code scanning shows beside the file that makes the loader."""

from __future__ import annotations

import re
from pathlib import Path

from millrace.audit.report.document import Told, select, told


def sarif(document: dict) -> dict:
    """The log of one run. A loader named by its module is looked for below the working folder."""
    fails = select(document, "fail")
    rules = [
        {
            "id": entry["name"],
            "shortDescription": {"text": entry["title"]},
            "helpUri": entry["link"],
        }
        for entry in fails
    ]
    place = _place(document["loader"])
    results = [
        {
            "ruleId": entry["name"],
            "level": "error",
            "message": {"text": _message(row)},
            "locations": [{"physicalLocation": place}],
        }
        for entry in fails
        for row in told(entry)
    ]
    driver = {"name": "millrace.audit", "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _message(row: Told) -> str:
    words = [row.cause, *map(": ".join, row.evidence)]
    return f"{'; '.join(words)}. Fix: {row.remedy}"


def _place(loader: str) -> dict:
    """The file and the line of the function that makes the loader; line 1 if it is not there."""
    module, _, name = loader.rpartition(":")
    if module.endswith(".py"):
        path = Path(module)
    else:
        path = Path(module.replace(".", "/") + ".py")
    line = 1
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        found = re.search(rf"^(?:def|class) {re.escape(name)}\b", text, re.MULTILINE)
        line += text[: found.start()].count("\n") if found else 0
    return {"artifactLocation": {"uri": path.as_posix()}, "region": {"startLine": line}}
