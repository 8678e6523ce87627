"""The reader benchmark as text: rates, ratios against the bars, and how near the storage's own
rate."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.readers.benchmark import FLOOR, ORIGINAL, OURS, Result, Setting

# Our rate over the reader's, at least.
BARS = {("batches", ORIGINAL): 2.5, ("batches", "webdataset"): 2.5, ("batches", "lhotse"): 2.8}
_TITLES = {
    "raw warm": "raw members, page cache warm",
    "raw cold": "raw members, page cache cold",
    "batches": "decoded padded batches, warm",
}


def table(setting: Setting, results: Sequence[Result], equal_samples: int) -> str:
    """A line per reader, and a sentence on each kind and on each reader that did not run.

    Ratios are those of the faster of ours: one thread, or one per core if a process reads alone.
    """
    corpus = setting.corpus
    lines = [
        (
            f"{len(corpus.members):,} members, {len(corpus.tars)} tars, {corpus.hours:.1f} h;"
            f" {setting.workers} workers, median of {setting.runs} runs; {equal_samples} samples"
            " equal bit by bit"
        ),
        f"{'':30}{'reader':32}{'order':8}{'members/s':>12}{'CPU ms':>9}{'ours is':>9}  bar",
    ]
    for kind in dict.fromkeys(result.kind for result in results):
        group = [result for result in results if result.kind == kind]
        ours = max((r for r in group if r.reader == OURS), key=lambda r: r.rate)
        for result in group:
            ratio = ours.rate / result.rate if result.rate else 0.0
            bar = BARS.get((kind, result.reader))
            met = (
                ""
                if bar is None or not ratio
                else f"  {bar:g}x {'met' if ratio >= bar else 'not met'}"
            )
            rate = f"{result.rate:,.0f}" if result.rate else "failed"
            faster = f"{ratio:.2f}x" if ratio else ""
            lines.append(
                f"{_TITLES[kind]:30}{result.reader:32}{result.order:8}{rate:>12}{result.cpu_ms:>9.3f}{faster:>9}{met}"
            )
        lines += [f"{'':30}{r.reader} did not run: {r.failed}" for r in group if r.failed]
        floor = next((r.rate for r in group if r.reader == FLOOR), 0.0)
        if floor:
            lines.append(
                f"{'':30}{ours.reader} reaches {ours.rate / floor:.0%} of what the storage alone"
                " gives"
            )
        for result in group:
            if result.order == "stream" and result.rate > ours.rate:
                lines.append(
                    f"{'':30}{result.reader} is faster: it reads in the order of the tars and"
                    " cannot choose"
                )
    return "\n".join(lines)
