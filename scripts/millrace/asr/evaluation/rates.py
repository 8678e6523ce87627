"""Error rates by language, by duration and overall, with intervals by bootstrap over recordings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from millrace.asr.buckets.edges import bucket_ids, bucket_of
from millrace.asr.evaluation.hypotheses import Hypothesis
from millrace.common.errors import counted

_DRAWS = 1000
_SEED = 20_240_601
_COUNTS = ("edits", "characters", "word_edits", "words")


def of_split(
    lines: Sequence[Hypothesis],
    edges: Sequence[float],
) -> dict[str, Any]:
    """`rates` of a split: `overall`, `by_language`, and `by_duration` of buckets with `edges` in
    seconds."""
    by_language: dict[str, list[Hypothesis]] = defaultdict(list)
    for line in lines:
        by_language[line["language"]].append(line)

    # The first and the last bucket also hold what lies outside of the edges.
    names = bucket_ids(edges)
    by_duration: dict[str, list[Hypothesis]] = {name: [] for name in names}
    durations = [line["duration_s"] for line in lines]
    buckets = bucket_of(np.array(durations), edges)
    for line, bucket in zip(lines, buckets, strict=True):
        if names:
            by_duration[names[bucket]].append(line)
    return {
        "overall": rates(lines),
        "by_language": {name: rates(by_language[name]) for name in sorted(by_language)},
        "by_duration": {name: rates(part) for name, part in by_duration.items() if part},
    }


def rates(lines: Iterable[Hypothesis]) -> dict[str, Any]:
    """The rates of some hypotheses, the same for any order of them: edits over the length of the
    references.

    samples, recordings, seconds, cer, cer_range, wer, wer_range; a range is the 95 % interval [low,
    high], None of fewer than two recordings.
    """
    # Edits and lengths of each recording, characters before words.
    sums: dict[str, np.ndarray] = {}
    samples = 0
    seconds = 0.0
    for line in lines:
        recording = line["recording"]
        counts = np.array([line[name] for name in _COUNTS])
        sums[recording] = sums.get(recording, 0) + counts
        samples += 1
        seconds += line["duration_s"]
    table = np.array([sums[name] for name in sorted(sums)])
    table = table.reshape(-1, len(_COUNTS))
    cer, wer = _rates_of(table.sum(0))
    cer_range, wer_range = _ranges(table)
    return {
        "samples": samples,
        "recordings": len(table),
        "seconds": round(seconds, 3),
        "cer": cer,
        "cer_range": cer_range,
        "wer": wer,
        "wer_range": wer_range,
    }


def _ranges(table: np.ndarray) -> tuple[list[float] | None, list[float] | None]:
    """Of both rates. Clips of one recording share speaker and room, so whole recordings are drawn,
    not clips."""
    if len(table) < 2:
        return None, None
    generator = np.random.default_rng(_SEED)
    drawn = []
    for _ in range(_DRAWS):
        rows = generator.integers(0, len(table), len(table))
        drawn.append(_rates_of(table[rows].sum(0)))
    ends = np.quantile(np.array(drawn), (0.025, 0.975), axis=0)
    cer_range, wer_range = ends.T.tolist()
    return cer_range, wer_range


def _rates_of(sums: np.ndarray) -> tuple[float, float]:
    edits, characters, word_edits, words = sums.tolist()
    return edits / max(characters, 1), word_edits / max(words, 1)


def shown(
    rate: Mapping[str, Any],
    name: str = "cer",
) -> str:
    """`53.3 % (50.1–56.4)`."""
    text = f"{100 * rate[name]:.1f} %"
    if rate[f"{name}_range"] is None:
        return text
    low, high = rate[f"{name}_range"]
    return f"{text} ({100 * low:.1f}–{100 * high:.1f})"


def line_of(split: str, of: Mapping[str, Any]) -> str:
    """What a log says of all samples of a split."""
    rate = of["overall"]
    samples = counted(rate["samples"], "sample")
    recordings = counted(rate["recordings"], "recording")
    errors = f"CER {shown(rate)}, WER {shown(rate, 'wer')}"
    return f"{split}: {errors}; {samples} of {recordings}"
