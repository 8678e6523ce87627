"""The names of countries, partitions, shards and their members as they stand in paths: what is
quoted or cut, how many shards a partition has, which audio formats there are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from millrace.common import jsonl

# Formats of audio, which are the extensions of members too. A new one also needs an encoder
# (`audio.encode`), its size (`shards.plan.audio_bytes`) and a word in the schema of the
# configuration.
AUDIO_FORMATS = ("flac", "mp3", "opus", "wav")
# A partition owns this many shard numbers, so that numbers are stable whatever its neighbours grow
# to.
SHARD_NUMBERS = 100
# Names of countries that quote to more than this are cut; file names take 255 bytes.
_LONGEST_NAME = 100
_ID = re.compile(
    r"(?P<country>[^/.]+)-(?P<folder>train-\d+|train|validation|test)-(?P<number>\d{5,})"
)
# Sidecars and copies that were left out are hidden by a dot, temporaries by one more.
_FILE = re.compile(
    rf"\.{{0,2}}(?P<shard>{_ID.pattern})\.(?:tar|index\.parquet|left_out)(?P<temporary>\..+\.partial)?"
)


def safe_name(name: str) -> str:
    """A name for file names and wildcards; unquote gives it back, unless a digest stands for its
    end."""
    if len(safe := _quoted(name)) <= _LONGEST_NAME:
        return safe
    end = f"~{jsonl.digest(name)[:16]}"
    head = name
    while len(_quoted(head)) > _LONGEST_NAME - len(end):
        head = head[:-1]
    return _quoted(head) + end


def safe_key(key: str) -> str:
    """`key` for a member's name before the dot: letters, digits, `_`, `-`, the rest as %XX of
    UTF-8.

    `urllib.parse.unquote` gives the key back. A dot would merge samples.
    """
    safe = _quoted(key).replace("~", "%7E")
    # Two leading underscores hide a member from `datasets`.
    if safe.startswith("__"):
        return "%5F" + safe[1:]
    return safe


def _quoted(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")


@dataclass(frozen=True)
class Partition:
    """Where its shards lie: `<country>/<folder>/<country>-<folder>-<number>.tar`, numbers `first`
    to + 99."""

    country: str
    folder: str
    first: int

    @classmethod
    def parse(cls, partition_id: str) -> Partition | None:
        """From `<country>-<split>[-<subset>]-<NNNNN>`; None if it is not of this form."""
        match = _ID.fullmatch(partition_id)
        if not match or int(match["number"]) % SHARD_NUMBERS:
            return None
        return cls(match["country"], match["folder"], int(match["number"]))

    @property
    def split(self) -> str:
        """Its split, of which train has subsets."""
        return self.folder.partition("-")[0]

    @property
    def stem(self) -> str:
        """What the names of its shards begin with, and those of the whole split and subset."""
        return f"{self.country}-{self.folder}"

    @property
    def order(self) -> tuple[int, int, int]:
        """What sorts partitions: test, validation, then the subsets of train by their number."""
        subset = self.folder.partition("-")[2]
        place = ("test", "validation", "train").index(self.split)
        return place, int(subset or 0), self.first

    def __str__(self) -> str:
        return f"{self.stem}-{self.first:05d}"

    def shard(self, number: int) -> str:
        """Path of a tar, relative to the output folder."""
        return f"{self.country}/{self.folder}/{self.stem}-{number:05d}.tar"


@dataclass(frozen=True)
class ShardFile:
    """A file's name: its partition, its shard (the tar's name without suffix), the ending of a
    temporary."""

    partition: Partition
    shard: str
    temporary: str

    @classmethod
    def parse(cls, name: str) -> ShardFile | None:
        """From the name of a tar, of a file beside it, or a temporary of one of them; None for all
        other files."""
        match = _FILE.fullmatch(name)
        if not match:
            return None
        number = int(match["number"])
        partition = Partition(match["country"], match["folder"], number - number % SHARD_NUMBERS)
        return cls(partition, match["shard"], match["temporary"] or "")
