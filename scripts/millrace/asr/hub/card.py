"""The card of a published model, and which files of a run's folder go with it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

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


def render(repo: str, licence: str, commit: str, metrics_path: Path, bucket_config: Path) -> str:
    """The card of a run; `commit` says which code published it."""
    metrics, buckets = jsonl.read(metrics_path), jsonl.read(bucket_config)
    run = jsonl.read(metrics_path.with_name("run.json"))["run"]
    kind = jsonl.read(metrics_path.parent / "model/config.json").get("model_type", "")
    hours: Counter[str] = Counter()
    for bucket in buckets["buckets"]:
        with own_file(path := bucket_config.parent / bucket["path"]):
            table = pq.read_table(path, columns=["language", "duration_s"], partitioning=None)
        sums = table.group_by("language", use_threads=False).aggregate([("duration_s", "sum")])
        hours.update(
            {row["language"] or "und": row["duration_s_sum"] / 3600 for row in sums.to_pylist()}
        )

    rows = {"train": {"hours": buckets["total_hours"], "samples": buckets["total_samples"]}}
    losses = {"dev": metrics.get("last_evaluation") or {}, "test": metrics.get("test") or {}}
    lines = []
    for split, row in (rows | buckets["splits"]).items():
        known = [losses.get(split, {}).get(key) for key in ("loss", "cer", "wer")]
        cells = ["" if value is None else f"{value:.3f}" for value in known]
        lines.append(
            f"| {split} | {row['hours']:,.2f} | {row['samples']:,} | {' | '.join(cells)} |"
        )
    groups = [(split, of["by_language"]) for split, of in metrics.get("error_rates", {}).items()]
    rates_by_language = [
        f"| {split} | {name} | {of['samples']:,} | {rates.shown(of)} | {rates.shown(of, 'wer')} |"
        for split, by_language in groups
        for name, of in by_language.items()
    ]
    is_own = str(kind).startswith("millrace")
    facts = {
        "license": licence or "unknown",
        "pipeline_tag": "automatic-speech-recognition",
        "library_name": "millrace" if is_own else "transformers",
        "language": sorted(set(hours) - {"und"}),
        "tags": ["speech", "millrace"],
    }
    head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in facts.items())
    loader = "millrace.asr.models.registry.load(folder)" if is_own else "transformers"
    body = {
        "repo": repo,
        "commit": commit,
        "loader": loader,
        "table": "\n".join(lines),
        "rates": "",
    }
    if rates_by_language:
        body["rates"] = "\n".join([_RATES, *rates_by_language, ""])
    body |= {
        "languages": ", ".join(f"{name} {amount:,.2f}" for name, amount in sorted(hours.items()))
    }
    # Numbers and words; a path of this machine is nobody else's business.
    settings = [f"- `{key}`: {run[key]}" for key in sorted(run) if "/" not in str(run[key])]
    body |= {"settings": "\n".join(settings), "model": Path(str(metrics["model"])).name}
    return f"---\n{head}---\n{_BODY.format_map(metrics | body)}"
