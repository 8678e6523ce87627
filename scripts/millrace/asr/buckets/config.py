"""bucket_config.json as its readers see it: the buckets in the order that numbers the rows; other
splits."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from millrace.common import jsonl
from millrace.common.errors import MillraceError

_BUILD = "Build the buckets: snakemake asr_data"


@dataclass(frozen=True)
class BucketConfig:
    """`ids` and `paths` (parquets) of the buckets, in one order; `splits`: parquets of other splits
    by name.

    `file` is the file itself. The parquets are relative to its folder, so that this can be moved.
    `tar_root` is the folder from which relative tar paths in the parquets are resolved: absolute,
    and without links. `edges` of the buckets in seconds, if the file has them.
    """

    file: Path
    ids: list[str]
    paths: list[Path]
    splits: dict[str, Path]
    tar_root: Path
    edges: tuple[float, ...] = ()

    @classmethod
    def read(cls, place: str | os.PathLike) -> BucketConfig:
        """Read it from `place`, the file or its folder. Raises MillraceError."""
        file = (
            Path(place)
            if Path(place).name == "bucket_config.json"
            else Path(place) / "bucket_config.json"
        )
        try:
            content = jsonl.read(file)
            buckets, others = content["buckets"], content.get("splits") or {}
            ids = [bucket["bucket_id"] for bucket in buckets]
            if not all(isinstance(name, str) for name in ids):
                raise TypeError("a bucket_id is no text")
            named = [*zip(ids, buckets, strict=True), *others.items()]
            paths = [
                file.parent / (entry.get("path") or f"{name}.parquet") for name, entry in named
            ]
            splits = dict(zip(others, paths[len(ids) :], strict=True))
            edges = tuple(map(float, content.get("edges") or ()))
            tar_root = Path(os.path.realpath(file.parent / (content.get("tar_root") or "")))
        except FileNotFoundError:
            raise MillraceError(
                "there are no buckets here", where=str(file), remedy=_BUILD
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MillraceError(
                f"not a bucket configuration ({error!r})", str(file), _BUILD
            ) from None
        return cls(file, ids, paths[: len(ids)], splits, tar_root, edges)

    def parquets(self, split: str = "train") -> list[Path]:
        """The bucket parquets, or that of another split. Raises MillraceError where there are
        none."""
        if split != "train" and split not in self.splits:
            raise MillraceError(f"there is no split {split}", where=str(self.file), remedy=_BUILD)
        paths = self.paths if split == "train" else [self.splits[split]]
        missing = [path.name for path in paths if not path.is_file()]
        if missing or not paths:
            problem = f"the bucket files are not there: {', '.join(missing)}"
            raise MillraceError(
                problem if missing else "it names no buckets", str(self.file), _BUILD
            )
        return paths


def output_folder(output: Path) -> Path:
    """The bucket folder that is named by itself or by its bucket_config.json. Raises
    MillraceError."""
    if output.name == "bucket_config.json":
        return output.parent
    if output.suffix == ".json":
        problem = "the buckets' config is always bucket_config.json"
        raise MillraceError(problem, str(output), "Name that or a folder")
    return output


def relative_tar_root(folder: Path, tars: Iterable[str]) -> str:
    """The working folder, where relative tar paths start, as seen from `folder`; "" if all are
    absolute."""
    if all(map(os.path.isabs, tars)):
        return ""
    return os.path.relpath(os.path.realpath("."), os.path.realpath(folder))
