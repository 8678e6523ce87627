"""The card of a published model (README.md), and which files of a run's folder go with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from millrace.common.errors import MillraceError, own_file
from millrace.common.hub.plan import File

# Weights, configs, tokenizers and vocabularies; what else lies in the folder stays here.
_PUBLISHED = (".safetensors", ".json", ".txt", ".model", ".jinja")

_BODY = """
# {repo}

A model for automatic speech recognition: `{model}`, {parameters:,} parameters, trained with Millrace at commit
`{commit}`. {load}

| Split | Hours | Samples | Loss | CER | WER |
| --- | ---: | ---: | ---: | ---: | ---: |
{table}

Hours of training by language: {languages}. It was trained for {steps:,} steps, {samples:,} samples in all.

## Settings

{settings}
"""
_NATIVE = "Its code is Millrace's: `millrace.asr.models.registry.load(folder)` on a copy of these files."
_TRANSFORMERS = "It loads with `transformers`, by the name of this repository."


def files(folder: Path) -> list[File]:
    """The files of a model's folder; hidden ones, links and what no model needs are left out."""
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in _PUBLISHED and path.is_file()]
    names = {path.relative_to(folder).as_posix(): path for path in paths if not path.is_symlink()}
    if "config.json" not in names:
        raise MillraceError("there is no model here", str(folder), "Train the run: snakemake asr_train")
    return [
        File.of(name, path) for name, path in names.items() if "/." not in f"/{name}" and name != "README.md"
    ]


def languages(bucket_config: Path, buckets: Mapping) -> dict[str, float]:
    """Hours of training by language, of the bucket parquets."""
    hours: Counter[str] = Counter()
    for bucket in buckets["buckets"]:
        with own_file(path := bucket_config.parent / bucket["path"]):
            table = pq.read_table(path, columns=["language", "duration_s"], partitioning=None)
        sums = table.group_by("language", use_threads=False).aggregate([("duration_s", "sum")])
        hours.update({row["language"] or "": row["duration_s_sum"] / 3600 for row in sums.to_pylist()})
    return dict(hours)


def render(
    repo: str, licence: str, commit: str, metrics: Mapping, buckets: Mapping, run: Mapping, config: Mapping,
    languages: Mapping[str, float],
) -> str:  # fmt: skip
    """The card of a run: metrics.json, bucket_config.json, run.json and the model's config.json; `languages`: hours
    of training."""
    native = str(config.get("model_type", "")).startswith("millrace")
    facts: dict[str, Any] = {
        "license": licence or "unknown",
        "pipeline_tag": "automatic-speech-recognition",
        "library_name": "millrace" if native else "transformers",
        "language": [name for name in sorted(languages) if name not in ("", "und")],
        "tags": ["speech", "millrace"],
    }
    head = "".join(f"{name}: {json.dumps(value)}\n" for name, value in facts.items() if value != [])
    rates = {"dev": metrics.get("last_evaluation") or {}, "test": metrics.get("test") or {}}
    lines = [f"| train | {buckets['total_hours']:,.2f} | {buckets['total_samples']:,} | | | |"]
    for split, facts in buckets["splits"].items():
        cells = [
            f"{rates.get(split, {})[key]:.3f}" if key in rates.get(split, {}) else ""
            for key in ("loss", "cer", "wer")
        ]
        lines.append(f"| {split} | {facts['hours']:,.2f} | {facts['samples']:,} | {' | '.join(cells)} |")
    # Settings are numbers and words; a path of this machine is nobody else's business.
    settings = {key: value for key, value in sorted(run.items()) if "/" not in str(value) and key != "plan"}
    body = _BODY.format(
        repo=repo, model=Path(str(metrics["model"])).name, parameters=metrics["parameters"], commit=commit,
        load=_NATIVE if native else _TRANSFORMERS, table="\n".join(lines), steps=metrics["optimizer_steps"],
        languages=", ".join(f"{name or 'unknown'} {hours:,.2f}" for name, hours in sorted(languages.items())),
        samples=metrics["samples"], settings="\n".join(f"- `{key}`: {value}" for key, value in settings.items()),
    )  # fmt: skip
    return f"---\n{head}---\n{body}"
