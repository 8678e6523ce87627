"""The card of the published corpus: what `datasets` needs to load it, and what people want to
know."""

from __future__ import annotations

import json
import re
from typing import Any

import pandas as pd

from millrace.speech.hub.published import published_path
from millrace.speech.names import safe_name
from millrace.speech.shards.plan import FIELD_TYPES

# The Hub's classes of size, by the first number of samples that is too large for them.
_SIZES = {
    10**3: "n<1K",
    10**4: "1K<n<10K",
    10**5: "10K<n<100K",
    10**6: "100K<n<1M",
    10**7: "1M<n<10M",
}
_NO_CONFIG_NAME = re.compile(r'[<>:/\\|?*"]')  # what `datasets` refuses, and a quote

_BODY = """
# {title}

{samples:,} segments of speech with their texts, {hours:,.2f} hours in {shards:,} shards
(WebDataset: tars in which each sample is an audio file and a JSON file; `manifest.jsonl` lists
them). A number that is not known is -1, a text that is not known is empty. Made with Millrace.

| Country | Language | Split | Segments | Hours |
| --- | --- | --- | ---: | ---: |
{table}

## How to load it

With `datasets`; `data.cast_column({format}, datasets.Audio(sampling_rate={rate}))` decodes the
audio, which needs `torchcodec` and FFmpeg. The same shard with `webdataset`, and with Python alone:

{python}import datasets

for sample in datasets.load_dataset({repo}, {config}, split={split}, streaming=True):
    print(sample["json"]["key"], sample["json"]["human_transcript"])
```

{python}import huggingface_hub, webdataset

shard = huggingface_hub.hf_hub_download({repo}, {shard}, repo_type="dataset")
for sample in webdataset.WebDataset(shard, shardshuffle=False).decode():
    print(sample["json"]["key"], sample["json"]["human_transcript"])
```

{python}import huggingface_hub, json, tarfile

with tarfile.open(huggingface_hub.hf_hub_download({repo}, {shard}, repo_type="dataset")) as tar:
    for name in tar.getnames():
        if name.endswith(".json"):
            sample = json.load(tar.extractfile(name))
            print(sample["key"], sample["human_transcript"])
```
"""


def render(shards: pd.DataFrame, repo: str, licence: str) -> str:
    """The card of a corpus with these shards (millrace.speech.hub.published.shards)."""
    configs = []
    infos = []
    for country, rows in shards.groupby("country", sort=False):
        name = safe_name(country) if _NO_CONFIG_NAME.search(country) else country
        folders = {}
        for row in rows.itertuples():
            path = published_path(row.shard, row.split)
            folders[row.split] = path.rpartition("/")[0]
        files = [{"split": split, "path": f"{folder}/*.tar"} for split, folder in folders.items()]
        configs.append({"config_name": name, "data_files": files})
        # Audio as bytes: declared as audio, nothing could be read where torchcodec or FFmpeg is
        # missing.
        types = {
            "__key__": "string",
            "__url__": "string",
            **dict.fromkeys(rows["format"], "binary"),
        }
        features = [*_fields(types), {"name": "json", "struct": _fields(FIELD_TYPES)}]
        infos.append({"config_name": name, "features": features})
    samples = int(shards["samples"].sum())
    first = shards.iloc[0]
    facts: dict[str, Any] = {
        "pretty_name": repo.partition("/")[2],
        "license": licence or "unknown",
        "language": sorted(set(shards["language"]) - {"und"}),
        "task_categories": ["automatic-speech-recognition"],
        "size_categories": [
            next((name for limit, name in _SIZES.items() if samples < limit), "n>10M")
        ],
        "tags": ["audio", "speech", "webdataset", "millrace"],
        "configs": configs,
        "dataset_info": infos,
    }
    example = {
        "repo": repo,
        "config": configs[0]["config_name"],
        "rate": int(first["sample_rate"]),
        "shard": published_path(first["shard"], first["split"]),
        "split": first["split"],
        "format": first["format"],
    }
    example = {name: json.dumps(value) for name, value in example.items()}
    totals = {
        "samples": samples,
        "hours": shards["seconds"].sum() / 3600,
        "shards": len(shards),
    }
    body = _BODY.format(python="```python\n", title=repo, table=_table(shards), **totals, **example)
    return (
        f"---\n{''.join(_yaml(name, value) for name, value in facts.items() if value)}---\n{body}"
    )


def _fields(types: dict[str, str]) -> list[dict]:
    return [{"name": field, "dtype": kind} for field, kind in types.items()]


def _yaml(name: str, value: Any) -> str:
    """A key with its value; JSON is YAML with every text in quotes, so that `no` stays
    Norwegian."""
    if isinstance(value, list):
        return f"{name}:\n" + "".join(
            f"- {json.dumps(item, ensure_ascii=False)}\n" for item in value
        )
    return f"{name}: {json.dumps(value, ensure_ascii=False)}\n"


def _table(shards: pd.DataFrame) -> str:
    lines = []
    by = ["country", "order", "language", "split"]
    for row in shards.groupby(by, as_index=False).sum(numeric_only=True).to_dict("records"):
        cells = [row["country"].replace("|", r"\|"), row["language"], row["split"]]
        cells += [f"{row['samples']:,}", f"{row['seconds'] / 3600:,.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
