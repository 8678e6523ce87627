"""The card of a published model, and which files of a run's folder go with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from millrace.asr.evaluation import rates
from millrace.common import jsonl
from millrace.common.errors import MillraceError, own_file
from millrace.common.hub.publish import File

# Weights, configs, tokenizers and vocabularies; what else lies in the folder stays here.
_PUBLISHED = (".safetensors", ".json", ".txt", ".model", ".jinja")
_BODY = """
# {repo}

A model for automatic speech recognition: `{model}`, {parameters:,} parameters, trained for
{optimizer_steps:,} steps, published by Millrace at commit {commit}. `{loader}` loads it.

| Split | Hours | Samples | Loss | CER | WER |
| --- | ---: | ---: | ---: | ---: | ---: |
{table}
{rates}
Hours of training by language: {languages}. Settings:

{settings}
"""
_RATES = """
Error rates by language; in brackets 95 % intervals by bootstrap over recordings, of two or more:

| Split | Language | Samples | CER | WER |
| --- | --- | ---: | ---: | ---: |"""


def files(folder: Path) -> list[File]:
    """The files of a model's folder; hidden ones, links and what no model needs are left out."""
    paths = [
        path for path in sorted(folder.glob("[!.]*")) if path.is_file() and not path.is_symlink()
    ]
    if folder / "config.json" not in paths:
        raise MillraceError(
            "there is no model here", str(folder), "Train the run: snakemake asr_train"
        )
    return [File.of(path.name, path) for path in paths if path.suffix in _PUBLISHED]


def render(
    repo: str,
    licence: str,
    commit: str,
    metrics_path: Path,
    bucket_config: Path,
) -> str:
    """The card of a run; `commit` says which code published it."""
    metrics = jsonl.read(metrics_path)
    buckets = jsonl.read(bucket_config)
    run = jsonl.read(metrics_path.with_name("run.json"))["run"]
    model_config = jsonl.read(metrics_path.parent / "model/config.json")
    hours = _hours([bucket_config.parent / bucket["path"] for bucket in buckets["buckets"]])
    library = "transformers"
    loader = "transformers"
    if str(model_config.get("model_type", "")).startswith("millrace"):
        library = "millrace"
        loader = "millrace.asr.models.registry.load(folder)"
    head = {
        "license": licence or "unknown",
        "pipeline_tag": "automatic-speech-recognition",
        "library_name": library,
        "language": sorted(hours.keys() - {"und"}),
        "tags": ["speech", "millrace"],
    }
    # Numbers and words; a path of this machine is nobody else's business.
    settings = [f"- `{key}`: {run[key]}" for key in sorted(run) if "/" not in str(run[key])]
    body = {
        "repo": repo,
        "commit": commit,
        "loader": loader,
        "table": "\n".join(_splits(buckets, metrics)),
        "rates": _rates(metrics.get("error_rates", {})),
        "languages": ", ".join(f"{name} {hours[name]:,.2f}" for name in sorted(hours)),
        "settings": "\n".join(settings),
        "model": Path(str(metrics["model"])).name,
    }
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items())
    return f"---\n{lines}---\n{_BODY.format_map({**metrics, **body})}"


def _hours(parquets: Iterable[Path]) -> Counter[str]:
    """Hours of training by language."""
    hours: Counter[str] = Counter()
    for path in parquets:
        with own_file(path):
            table = pq.read_table(path, columns=["language", "duration_s"], partitioning=None)
        sums = table.group_by("language", use_threads=False).aggregate([("duration_s", "sum")])
        for row in sums.to_pylist():
            hours[row["language"] or "und"] += row["duration_s_sum"] / 3600
    return hours


def _splits(buckets: Mapping[str, Any], metrics: Mapping[str, Any]) -> Iterator[str]:
    """Rows of the card's table."""
    train = {"hours": buckets["total_hours"], "samples": buckets["total_samples"]}
    losses = {"dev": metrics.get("last_evaluation"), "test": metrics.get("test")}
    for split, row in {"train": train, **buckets["splits"]}.items():
        of = losses.get(split) or {}
        known = [of.get(key) for key in ("loss", "cer", "wer")]
        cells = " | ".join("" if value is None else f"{value:.3f}" for value in known)
        yield f"| {split} | {row['hours']:,.2f} | {row['samples']:,} | {cells} |"


def _rates(error_rates: Mapping[str, Any]) -> str:
    lines = []
    for split, of in error_rates.items():
        for name, group in of["by_language"].items():
            cer = rates.shown(group)
            wer = rates.shown(group, "wer")
            lines.append(f"| {split} | {name} | {group['samples']:,} | {cer} | {wer} |")
    if lines:
        return "\n".join([_RATES, *lines, ""])
    return ""
