"""The reader benchmark for people: ratios, findings in words, a table and a figure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from millrace.common import atomic
from tests.bench.readers.benchmark import FLOOR, OURS, OURS_THREADED, SEED, Result, Setting

# What the project set itself: our rate over the reader's, at least.
BARS = {
    ("raw warm", SEED): 2.0,
    ("raw cold", SEED): 2.5,
    ("batches", SEED): 2.5,
    ("batches", "webdataset"): 3.0,
    ("batches", "lhotse"): 4.0,
}
_COLOURS = {OURS: "#0b6e99", OURS_THREADED: "#0b6e99", FLOOR: "#e8ecee"}
_TITLES = {
    "raw warm": "raw members, page cache warm",
    "raw cold": "raw members, page cache cold",
    "batches": "decoded padded batches, warm",
}


def report(setting: Setting, results: Sequence[Result], equal_samples: int) -> dict:
    """A JSON-ready report: corpus, choices, a line per (kind, reader), and findings.

    Ratios and bars are those of the faster of ours: one thread, or one per core where a process reads alone.
    """
    corpus = setting.corpus
    ours = {kind: _ours([result for result in results if result.kind == kind]) for kind in setting.kinds}
    return {
        "corpus": {
            "members": len(corpus.members),
            "tars": len(corpus.tars),
            "hours": round(corpus.hours, 3),
            "mean_bytes": round(sum(member.size for member in corpus.members) / len(corpus.members)),
        },
        "choices": {
            "workers": setting.workers,
            "decode_threads": setting.decode_threads,
            "batch_seconds": setting.batch_seconds,
            "runs": setting.runs,
            "raw_members": min(setting.raw_members, len(corpus.members)),
            "cpus": len(os.sched_getaffinity(0)),
        },
        "bit_equal_samples": equal_samples,
        "results": [_line(result, ours[result.kind]) for result in results],
        "findings": findings(results),
    }


def _ours(results: Iterable[Result]) -> Result:
    """The faster of our readers."""
    return max(
        (result for result in results if result.reader in (OURS, OURS_THREADED)),
        key=lambda result: result.rate,
    )


def _line(result: Result, ours: Result) -> dict:
    bar = BARS.get((result.kind, result.reader))
    ratio = ours.rate / result.rate if result.rate and ours.rate else None
    return {
        "kind": result.kind,
        "reader": result.reader,
        "order": result.order,
        "members_per_second": round(result.rate, 1),
        "runs": [round(rate, 1) for rate in result.rates],
        "cpu_ms_per_member": round(result.cpu_ms, 4),
        "ours_is_faster_by": round(ratio, 2) if ratio else None,
        "ours_needs_less_cpu_by": round(result.cpu_ms / ours.cpu_ms, 2)
        if result.cpu_ms and ours.cpu_ms
        else None,
        "bar": bar,
        "bar_met": None if bar is None or not ratio else ratio >= bar,
        "failed": result.failed,
    }


def findings(results: Sequence[Result]) -> list[str]:
    """Sentences: who is fastest in each kind, how near the storage's own rate, where streaming beats random
    access."""
    sentences = []
    for kind in dict.fromkeys(result.kind for result in results):
        ran = {result.reader: result for result in results if result.kind == kind and result.rate}
        floor = ran.pop(FLOOR, None)
        if OURS not in ran:
            sentences.append(f"{_TITLES[kind]}: {OURS} did not run")
            continue
        best = max(ran.values(), key=lambda result: result.rate)
        if best.reader in (OURS, OURS_THREADED):
            rate = f"{best.rate:,.0f} members/s, random order"
            sentences.append(f"{_TITLES[kind]}: {best.reader} is the fastest ({rate})")
        sentences += [f"{_TITLES[kind]}: {said}" for said in _against_floor(ran, floor)]
        sentences += [f"{_TITLES[kind]}: {said}" for said in _lost(ran)]
    sentences += [
        f"{_TITLES[result.kind]}: {result.reader} did not run: {result.failed}"
        for result in results
        if result.failed
    ]
    return sentences


def _against_floor(ran: dict[str, Result], floor: Result | None) -> Iterator[str]:
    """How near our reader comes to the machine itself; a bar above that cannot be met with members of this
    size."""
    if floor is None:
        return
    ours = _ours(ran.values())
    share = f"{ours.rate / floor.rate:.0%}"
    said = f"the storage alone gives {floor.rate:,.0f} members/s, of which {ours.reader} reaches {share}"
    if SEED in ran:
        said += f"; it is {floor.rate / ran[SEED].rate:.2f} times the seed's reader"
    yield said


def _lost(ran: dict[str, Result]) -> Iterator[str]:
    """The readers that are faster than ours, and what they give up for it."""
    ours = ran[OURS]
    for result in ran.values():
        if result.rate <= ours.rate or result.reader == OURS_THREADED:
            continue
        if result.order == "stream":
            yield (
                f"streaming wins. {result.reader} reads whole tars in their order at {result.rate:,.0f} members/s, "
                f"{result.rate / ours.rate:.2f} times {OURS} in random order; it cannot choose its samples, so "
                f"duration buckets and a global shuffle are not to be had that way"
            )
        else:
            yield f"{result.reader} is faster, {result.rate:,.0f} members/s"


def table(report: dict) -> str:
    """The results as plain text."""
    lines = [f"{'':30}{'reader':32}{'order':8}{'members/s':>12}{'CPU ms':>9}{'ours is':>9}  bar"]
    for line in report["results"]:
        rate = f"{line['members_per_second']:,.0f}" if line["members_per_second"] else "failed"
        ratio = f"{line['ours_is_faster_by']:.2f}x" if line["ours_is_faster_by"] else ""
        bar = "" if line["bar"] is None else f"  {line['bar']:g}x {'met' if line['bar_met'] else 'not met'}"
        cpu = f"{line['cpu_ms_per_member']:.3f}"
        lines.append(
            f"{_TITLES[line['kind']]:30}{line['reader']:32}{line['order']:8}{rate:>12}{cpu:>9}{ratio:>9}{bar}"
        )
    return "\n".join([*lines, *report["findings"]])


def draw(report: dict, path: Path) -> None:
    """Bars of the medians with the single runs as dots, one panel per kind, as SVG or PNG, without a date in
    it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "millrace", "font.size": 9})
    kinds = list(dict.fromkeys(line["kind"] for line in report["results"]))
    figure, panels = plt.subplots(
        1, len(kinds), figsize=(1 + 5 * len(kinds), 3.4), layout="constrained", squeeze=False
    )
    for panel, kind in zip(panels[0], kinds, strict=True):
        lines = [line for line in report["results"] if line["kind"] == kind][::-1]
        names = [f"{line['reader']} ({line['order']})".replace(", ", ",\n") for line in lines]
        colours = [_COLOURS.get(line["reader"], "#b9c4cb") for line in lines]
        rates = [line["members_per_second"] for line in lines]
        panel.barh(names, rates, color=colours)
        for place, line in enumerate(lines):
            panel.plot(line["runs"], [place] * len(line["runs"]), ".", color="#333333", markersize=3)
            ratio = line["ours_is_faster_by"]
            ours = line["reader"] in (OURS, OURS_THREADED)
            note = "did not run" if line["failed"] else "" if ours or not ratio else f"ours {ratio:.2f}x"
            panel.annotate(
                note, (max([*line["runs"], 0]), place), (6, 0), textcoords="offset points", va="center"
            )
        panel.set_title(_TITLES[kind])
        panel.set_xlabel("members/s (median of interleaved runs)")
        panel.set_xlim(0, 1.35 * max([1.0, *(rate for line in lines for rate in line["runs"])]))
        panel.spines[["top", "right"]].set_visible(False)
    with atomic.replacing(path) as partial:
        form = path.suffix.lstrip(".") or "svg"
        figure.savefig(partial, format=form, metadata={"Date": None} if form == "svg" else None, dpi=150)
    plt.close(figure)
