"""The balance of a country: every segment found is in a shard, or rejected with a reason, and not
too many are in error."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from millrace.common.errors import MillraceError
from millrace.common.ledger import Ledger
from millrace.speech.columns import COMPLETED
from millrace.speech.corpus.country_folder import FILE_CHOICES
from millrace.speech.country.tables import PartitionFiles
from millrace.speech.manifest.rejects import CHOICES, reason_of


class Balance:
    """The ledgers of a country (as millrace.speech.sources wrote it): `segments`, and of alignment
    `files`.

    Rejects are counted as they pass by, by reason, and by reason and file.
    """

    def __init__(self, country: dict, parts: Sequence[PartitionFiles]) -> None:
        self._country = country
        self._parts = parts
        self._segments: Counter[str] = Counter()
        self._alignments: Counter[str] = Counter()
        self._files: Counter[tuple[str, str]] = Counter()

    def rejects(self) -> Iterator[dict]:
        """All that is in no shard: files of the country, then segments, partition by partition."""
        facts = {"country": self._country["country"], "segment": None}
        of_files = (facts | row for row in self._country["rejected"])
        for row in itertools.chain(of_files, _segment_rejects(self._parts)):
            if row["segment"] is None:
                self._alignments[row["reason"]] += 1
            else:
                self._segments[row["reason"]] += 1
            self._files[row["reason"], row["file"]] += 1
            yield row

    def check(self, segments_in_shards: int) -> None:
        """Draw up the ledgers once all rejects have passed by, and check that they add up."""
        stage = "speech_merge_shards"
        country = self._country
        self.segments = Ledger.total(
            stage, country["country"], (part.balance() for part in self._parts)
        )
        # What left at the manifest is counted again from its rows, so that a lost file shows.
        self.segments.rejected = +self._segments
        self.segments.rows_out = segments_in_shards
        self.segments.check()
        # Transcripts that the parse took for whole, and the manifest could not read.
        broken = self._alignments.total() - len(country["rejected"])
        self.files = Ledger(
            stage, country["country"], "file", country["files"], country["transcripts"] - broken
        )
        self.files.rejected = self._alignments
        self.files.check()

    def as_dict(self) -> dict:
        """JSON-ready: the country's ledger file."""
        facts = {
            name: self._country[name] for name in ("country", "language", "recordings", "notes")
        }
        return {
            **facts,
            "segments": self.segments.as_dict(),
            "files": self.files.as_dict(),
        }

    def check_errors(self, max_error_fraction: float, listed: str) -> None:
        """Raise, with the worst files, if more is in error than allowed; `listed`: where all are
        listed."""
        for ledger, choices in ((self.segments, CHOICES), (self.files, FILE_CHOICES)):
            if problem := ledger.too_many_errors(choices, max_error_fraction):
                errors = ledger.errors(choices)
                files: Counter[str] = Counter()
                for (reason, file), count in self._files.items():
                    if reason in errors:
                        files[file] += count
                worst = [f"\n  {file}: {count}" for file, count in files.most_common(5)]
                remedy = (
                    f"\nThe whole list: {listed}. Mend the sources, or raise"
                    " speech.max_error_fraction; `countries` can leave this one out"
                )
                problem += f"\nMost are in:{''.join(worst)}"
                raise MillraceError(problem, f"country {ledger.scope}", remedy)


def _segment_rejects(parts: Sequence[PartitionFiles]) -> Iterator[dict]:
    for part in parts:
        yield from part.left_out()
        for row in part.final_rows():
            if row["status"] != COMPLETED:
                yield {
                    **{name: row[name] for name in ("country", "video_id", "transcript_id")},
                    "file": row["source_audio_path"],
                    "segment": row["key"],
                    "reason": reason_of(row["status"]),
                    "detail": row["error_message"],
                }
