"""bucket_config.json, written and read: what it says of each bucket and split, in the order that
numbers the rows, and where relative tar paths start."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import atomic, jsonl
from millrace.common.errors import MillraceError, counted
from millrace.common.leaks import leakage
from millrace.common.ledger import Ledger

NAME = "bucket_config.json"
ROW_GROUP = 1 << 16  # rows of a row group of its parquets
_BUILD = "Build the buckets: snakemake asr_data"


@dataclass(frozen=True)
class BucketConfig:
    """`ids` and `paths` (parquets) of the buckets, in one order; `splits`: parquets of other splits
    by name.

    `file` is the file itself. The parquets are relative to its folder, so that this can be moved.
    `tar_root` is the folder from which relative tar paths in the parquets are resolved: absolute,
    and without links. `edges` of the buckets in seconds.
    """

    file: Path
    ids: list[str]
    paths: list[Path]
    splits: dict[str, Path]
    tar_root: Path
    edges: tuple[float, ...]

    @classmethod
    def read(cls, place: str | os.PathLike) -> BucketConfig:
        """Read it from `place`, the file or its folder. Raises MillraceError."""
        if Path(place).name == NAME:
            file = Path(place)
        else:
            file = Path(place) / NAME
        try:
            content = jsonl.read(file)
            ids = [bucket["bucket_id"] for bucket in content["buckets"]]
            paths = [file.parent / bucket["path"] for bucket in content["buckets"]]
            splits = {
                name: file.parent / split["path"]
                for name, split in content.get("splits", {}).items()
            }
            edges = tuple(map(float, content.get("edges", ())))
            tar_root = Path(os.path.realpath(file.parent / content.get("tar_root", "")))
        except FileNotFoundError:
            raise MillraceError("there are no buckets here", str(file), _BUILD) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MillraceError(
                f"not a bucket configuration ({error!r})", str(file), _BUILD
            ) from None
        return cls(file, ids, paths, splits, tar_root, edges)

    @property
    def tars(self) -> Path:
        """The table of tars."""
        return self.file.with_name("tars.parquet")

    def parquets(self, split: str = "train") -> list[Path]:
        """The bucket parquets, or that of another split. Raises MillraceError where there are
        none."""
        if split != "train" and split not in self.splits:
            remedy = f"Its splits: {', '.join(['train', *self.splits])}"
            raise MillraceError(f"there is no split {split}", str(self.file), remedy)
        paths = self.paths if split == "train" else [self.splits[split]]
        missing = [path.name for path in (*paths, self.tars) if not path.is_file()]
        if missing or not paths:
            problem = f"the bucket files are not there: {', '.join(missing)}"
            raise MillraceError(
                problem if missing else "it names no buckets", str(self.file), _BUILD
            )
        return paths


def output_folder(output: Path) -> Path:
    """The bucket folder that is named by itself or by its bucket_config.json. Raises
    MillraceError."""
    if output.name == NAME:
        return output.parent
    if output.suffix == ".json":
        problem = f"the buckets' config is always {NAME}"
        raise MillraceError(problem, str(output), "Name that or a folder")
    return output


class ParquetFacts(NamedTuple):
    """What was written into a parquet: its digest, and its rows with their durations.

    Whole microseconds, as their sum does not depend on the order. `longest` in seconds.
    """

    path: Path
    sha256: str
    samples: int
    microseconds: int
    longest: float

    def as_dict(self) -> dict[str, Any]:
        mean = self.microseconds / 1e6 / self.samples if self.samples else 0.0
        return {
            "sha256": self.sha256,
            "samples": self.samples,
            "hours": self.microseconds / 3.6e9,
            "mean_duration": mean,
            "max_duration": self.longest,
        }


@dataclass(frozen=True)
class Built:
    """A build, for its config: the parquets of `buckets` and of other `splits`, and the choices
    that it was made with."""

    edges: tuple[float, ...]
    buckets: list[ParquetFacts]
    splits: dict[str, ParquetFacts]
    tars: list[str]
    seed: int
    over_max: str


def write(folder: Path, built: Built) -> None:
    """Write the config as the original script does, with true percentages and paths; when all
    parquets are whole."""
    samples = sum(facts.samples for facts in built.buckets)
    microseconds = sum(facts.microseconds for facts in built.buckets)
    buckets = []
    # Without a train split there are no buckets; with one, some have rows.
    for facts, low, high in zip(built.buckets, built.edges, built.edges[1:], strict=False):
        bucket = {
            "bucket_id": facts.path.stem,
            "range": f"{low}-{high}s",
            "low_seconds": low,
            "high_seconds": high,
            **facts.as_dict(),
            "pct_samples": 100 * facts.samples / samples,
            "pct_hours": 100 * facts.microseconds / microseconds,
            "path": facts.path.relative_to(folder).as_posix(),
        }
        buckets.append(bucket)
    splits = {
        split: {**facts.as_dict(), "path": facts.path.name}
        for split, facts in sorted(built.splits.items())
    }
    content = {
        "auto": None,  # of versions that computed edges
        "buckets": buckets,
        "edges": list(built.edges),
        "over_max": built.over_max,
        "row_group_rows": ROW_GROUP,
        "seed": built.seed,
        "splits": splits,
        "tar_root": _relative_tar_root(folder, built.tars),
        "total_hours": microseconds / 3.6e9,
        "total_samples": samples,
    }
    atomic.write_json(folder / NAME, content)


def remove(folder: Path) -> None:
    """Remove the config, as the buckets are no longer those that it lists."""
    (folder / NAME).unlink(missing_ok=True)


class Totals(NamedTuple):
    """The samples of train, and the hours of train, of the other splits and of buckets that are not
    empty."""

    samples: int
    hours: list[tuple[str, float]]


def totals(file: Path) -> Totals:
    """What the config says of the data as a whole."""
    content = jsonl.read(file)
    hours = [("train", content["total_hours"])]
    hours += [(name, split["hours"]) for name, split in content["splits"].items()]
    for bucket in content["buckets"]:
        if bucket["samples"]:
            hours.append((bucket["bucket_id"], bucket["hours"]))
    return Totals(content["total_samples"], hours)


def read_ledgers(file: Path) -> list[Ledger]:
    """The ledgers of the splits, which lie beside the config; none of buckets of another origin."""
    ledgers = jsonl.read_or([], file.with_name("ledger.json"))
    return [Ledger.from_dict(ledger) for ledger in ledgers]


def leak_lines(file: Path) -> list[str]:
    """What is said of rows that are also in a held-out split."""
    return [line for ledger in read_ledgers(file) for line in leakage.lines(ledger)]


def bucket_lines(folder: Path) -> Iterator[str]:
    """A line for each bucket that the config in `folder` lists: what it holds."""
    for bucket in jsonl.read(folder / NAME)["buckets"]:
        hours = f"{bucket['hours']:.2f} hours, mean {bucket['mean_duration']:.1f} s"
        samples = counted(bucket["samples"], "sample")
        longest = f"longest {bucket['max_duration']:.1f} s"
        yield f"{bucket['bucket_id']}: {samples}, {hours}, {longest}"


def _relative_tar_root(folder: Path, tars: Iterable[str]) -> str:
    """The working folder, where relative tar paths start, as seen from `folder`; "" if all are
    absolute."""
    if all(map(os.path.isabs, tars)):
        return ""
    return os.path.relpath(os.path.realpath("."), os.path.realpath(folder))
