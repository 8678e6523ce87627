"""The jobs of the speech lane and what they have made: for `millrace status` and the end of a
run."""

from __future__ import annotations

from pathlib import Path

from millrace.common import jsonl
from millrace.common.workflow.status import by_partition, partition_files
from millrace.speech.country import repeats
from millrace.speech.inputs import PARTITIONS

_PAGE = "results/speech/report/summary.html"
_INDEX = "results/speech/index.parquet"
_LEDGER = Path("results/speech/ledger.json")


def steps() -> list[tuple[str, str, dict[str, list[str]] | None]]:
    """Name, output and jobs of each step, over the partitions of the last parse."""
    countries = partition_files("speech")
    partitions = by_partition(countries)
    whole = {}
    if countries:
        whole = {"all": [path for paths in countries.values() for path in paths]}
    return [
        ("generate_manifest", "results/speech/manifest/partitions/{}/manifest.parquet", partitions),
        ("create_shards", "results/speech/shards/partitions/{}/index.parquet", partitions),
        ("merge_manifest", "results/speech/manifest/{}_manifest.csv", countries),
        ("merge_shards", "results/speech/shards/{}_index.parquet", countries),
        ("merge_index", _INDEX, whole),
        ("report_corpus", _PAGE, whole),
        ("upload_shards", "results/speech/hub/{}", None),  # not every run publishes
    ]


def pages() -> list[str]:
    """The pages for people."""
    return [_PAGE]


def facts() -> dict[str, str]:
    """Recordings; hours, segments and rejects."""
    names = partition_files("speech")
    lines = {}
    if names:
        countries = [jsonl.read(f"{PARTITIONS}/countries/{name}.json") for name in names]
        recordings = sum(country["recordings"] for country in countries)
        lines[f"{PARTITIONS}/index/partitions.json"] = (
            f"recordings: {recordings}, countries: {len(names)}"
        )
    if _LEDGER.is_file() and Path(_INDEX).is_file():
        import pyarrow.compute as pc  # and not to numpy, which would load pandas
        import pyarrow.parquet as pq

        with pq.ParquetFile(_INDEX) as index:
            batches = index.iter_batches(columns=["duration_seconds"])
            hours = sum(pc.sum(batch["duration_seconds"]).as_py() or 0 for batch in batches) / 3600
        ledger = jsonl.read(_LEDGER)
        total = ledger["total"]
        reasons = sorted(total["rejected"].items(), key=lambda row: (-row[1], row[0]))[:5]
        rejected = (
            f"{total['rows_rejected']} rejected"
            f" ({', '.join(f'{n} {why}' for why, n in reasons) or 'none'})"
        )
        pairs = [
            pair for country in ledger["countries"] for pair in country.get("left_out_copies", [])
        ]
        shared = "".join(f"; {repeats.line(pair)}" for pair in pairs[:2])
        shared += f"; and {len(pairs) - 2} more pairs, see the report" if len(pairs) > 2 else ""
        lines[str(_LEDGER)] = (
            f"{hours:.2f} hours, {total['rows_out']} segments in shards, {rejected}{shared}"
        )
    return lines
