"""Error rates by language, by duration and overall, with intervals by bootstrap over recordings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from millrace.asr.buckets.edges import bucket_ids
from millrace.asr.evaluation.hypotheses import Hypothesis
from millrace.common.errors import counted

_DRAWS, _SEED = 1000, 20_240_601


def of_split(lines: Sequence[Hypothesis], edges: Sequence[float]) -> dict[str, Any]:
    """`rates` of a split: `overall`, `by_language`, and `by_duration` of buckets with `edges` in
    seconds."""
    names = bucket_ids(edges)
    by_language: dict[str, list[Hypothesis]] = defaultdict(list)
    by_duration: dict[str, list[Hypothesis]] = {name: [] for name in names}
    # The first and the last bucket also hold what lies outside of the edges.
    buckets = np.searchsorted(
        list(edges)[1:-1], [line["duration_s"] for line in lines], side="right"
    )
    for line, bucket in zip(lines, buckets, strict=True):
        by_language[line["language"]].append(line)
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
    samples, seconds = 0, 0.0
    for line in lines:
        counts = np.array([line["edits"], line["characters"], line["word_edits"], line["words"]])
        sums[line["recording"]] = sums.get(line["recording"], 0) + counts
        samples, seconds = samples + 1, seconds + line["duration_s"]
    table = np.array([sums[name] for name in sorted(sums)]).reshape(-1, 4)
    (cer, wer), ranges = _rates_of(table.sum(0)), [None, None]

    # Clips of one recording share speaker and room, so whole recordings are drawn, not clips.
    if len(table) > 1:
        generator = np.random.default_rng(_SEED)
        draws = (generator.integers(0, len(table), len(table)) for _ in range(_DRAWS))
        drawn = np.array([_rates_of(table[rows].sum(0)) for rows in draws])
        ranges = np.quantile(drawn, (0.025, 0.975), axis=0).T.tolist()
    facts = {"samples": samples, "recordings": len(table), "seconds": round(seconds, 3)}
    return {**facts, "cer": cer, "cer_range": ranges[0], "wer": wer, "wer_range": ranges[1]}


def _rates_of(sums: np.ndarray) -> tuple[float, float]:
    edits, characters, word_edits, words = sums.tolist()
    return edits / max(characters, 1), word_edits / max(words, 1)


def shown(rate: Mapping[str, Any], name: str = "cer") -> str:
    """`53.3 % (50.1–56.4)`."""
    low_high = rate[f"{name}_range"]
    span = " ({:.1f}–{:.1f})".format(*(100 * end for end in low_high)) if low_high else ""
    return f"{100 * rate[name]:.1f} %{span}"


def lines_of(split: str, of: Mapping[str, Any]) -> Iterable[str]:
    """What a log says of a split: a line for all samples, each language, each duration bucket."""
    for name, rate in [
        ("all", of["overall"]),
        *of["by_language"].items(),
        *of["by_duration"].items(),
    ]:
        counts = (
            f"{counted(rate['samples'], 'sample')} of {counted(rate['recordings'], 'recording')}"
        )
        yield f"{split} {name}: CER {shown(rate)}, WER {shown(rate, 'wer')}; {counts}"
