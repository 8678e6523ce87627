"""The card of the published corpus (README.md): what `datasets` needs to load it, and what people want to know."""

from __future__ import annotations

import json
import re
from typing import Any

import pandas as pd

from millrace.speech.corpus.splits import SPLITS
from millrace.speech.hub.manifest import path_in_repository
from millrace.speech.names import safe_name
from millrace.speech.shards.plan import FIELD_TYPES

# The Hub's classes of size, by the first number of samples that is too large for them.
_SIZES = [
    (10**3, "n<1K"),
    (10**4, "1K<n<10K"),
    (10**5, "10K<n<100K"),
    (10**6, "100K<n<1M"),
    (10**7, "1M<n<10M"),
]
_NO_CONFIG_NAME = re.compile(r'[<>:/\\|?*"]')  # what `datasets` refuses, and a quote

_BODY = """
# {title}

{samples:,} segments of speech with their texts, {hours:,.2f} hours in {shards:,} shards: tars in WebDataset format, in which
each sample is an audio file and a JSON file. `manifest.jsonl` lists every shard with its SHA-256, size in bytes, samples and
seconds. Error rates are those of the recogniser's texts (`asr_transcript`) against the human ones (`human_transcript`),
means over segments. Numbers that are not known are -1, texts that are not known are empty. Made with Millrace.

| Country | Language | Split | Segments | Hours | CER | WER |
| --- | --- | --- | ---: | ---: | ---: | ---: |
{table}

## How to load it

With `datasets`; `data.cast_column({format}, datasets.Audio(sampling_rate={rate}))` decodes the audio, which needs
`torchcodec` and FFmpeg:

```python
import datasets

data = datasets.load_dataset({repo}, {config}, split={split}, streaming=True)
for sample in data:
    print(sample["json"]["key"], sample["json"]["human_transcript"])
```

With `webdataset`, from a copy of the files:

```python
from glob import glob

import webdataset
from huggingface_hub import snapshot_download

folder = snapshot_download({repo}, repo_type="dataset", allow_patterns={pattern})
for sample in webdataset.WebDataset(sorted(glob(f"{{folder}}/{glob}")), shardshuffle=False).decode():
    print(sample["json"]["key"], sample["json"]["human_transcript"])
```

With `huggingface_hub` and Python's own `tarfile`, shard by shard:

```python
import json
import tarfile

from huggingface_hub import hf_hub_download

with tarfile.open(hf_hub_download({repo}, {shard}, repo_type="dataset")) as tar:
    for member in tar:
        if member.name.endswith(".json"):
            sample = json.load(tar.extractfile(member))
            print(sample["key"], sample["human_transcript"])
```
"""


def render(shards: pd.DataFrame, repo: str, licence: str) -> str:
    """The card of a corpus with these shards (millrace.speech.hub.manifest.shards)."""
    configs = [_config(str(name), rows) for name, rows in shards.groupby("country", sort=False)]
    samples = int(shards["samples"].sum())
    size = next((name for limit, name in _SIZES if samples < limit), "n>10M")
    languages = [name for name in sorted(set(shards["language"])) if name != "und"]
    facts: dict[str, Any] = {
        "pretty_name": repo.partition("/")[2],
        "license": licence or "unknown",
        "language": languages,
        "task_categories": ["automatic-speech-recognition"],
        "size_categories": [size],
        "tags": ["audio", "speech", "webdataset", "millrace"],
        "configs": [config for config, _ in configs],
        "dataset_info": [info for _, info in configs],
    }
    head = "".join(_yaml(name, value) for name, value in facts.items() if value != [])
    first = shards.iloc[0]
    path = path_in_repository(first["shard"], first["split"])
    folder = path.rpartition("/")[0]
    example = {"repo": repo, "config": configs[0][0]["config_name"], "split": first["split"]}
    example |= {
        "shard": path,
        "pattern": f"{folder}/*",
        "format": first["format"],
        "rate": int(first["sample_rate"]),
    }
    totals = {"samples": samples, "hours": shards["seconds"].sum() / 3600, "shards": len(shards)}
    texts = {name: json.dumps(text, ensure_ascii=False) for name, text in example.items()}
    body = _BODY.format(title=repo, table=_table(shards), glob=f"{folder}/*.tar", **totals, **texts)
    return f"---\n{head}---\n{body}"


def _config(country: str, shards: pd.DataFrame) -> tuple[dict, dict]:
    """What YAML says of a country: where its splits lie, and the types of its fields."""
    name = safe_name(country) if _NO_CONFIG_NAME.search(country) else country
    splits = [split for split in SPLITS if split in set(shards["split"])]
    folder = path_in_repository(shards.iloc[0]["shard"], "").split("/")[1]
    files = [{"split": split, "path": f"data/{folder}/{split}/*.tar"} for split in splits]
    fields = [{"name": field, "dtype": kind} for field, kind in FIELD_TYPES.items()]
    features = [{"name": name, "dtype": "string"} for name in ("__key__", "__url__")]
    # Not as audio: that could not even be read where torchcodec and FFmpeg are missing.
    features += [{"name": kind, "dtype": "binary"} for kind in sorted(set(shards["format"]))]
    features.append({"name": "json", "struct": fields})
    return {"config_name": name, "data_files": files}, {"config_name": name, "features": features}


def _yaml(name: str, value: Any) -> str:
    """A key with its value; JSON is YAML with every text in quotes, so that `no` stays Norwegian."""
    if isinstance(value, list):
        return f"{name}:\n" + "".join(f"- {json.dumps(item, ensure_ascii=False)}\n" for item in value)
    return f"{name}: {json.dumps(value, ensure_ascii=False)}\n"


def _table(shards: pd.DataFrame) -> str:
    lines = []
    sums = shards.groupby(["country", "language", "order", "split"]).sum(numeric_only=True).reset_index()
    for row in sums.to_dict("records"):
        rates = [
            f"{row[f'{rate}_sum'] / row[f'{rate}_count']:.3f}" if row[f"{rate}_count"] else "unknown"
            for rate in ("cer", "wer")
        ]
        cells = [row["country"].replace("|", r"\|"), row["language"], row["split"]]
        cells += [f"{int(row['samples']):,}", f"{row['seconds'] / 3600:,.2f}", *rates]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
