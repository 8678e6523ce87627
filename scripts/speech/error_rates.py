"""Character and word error rates, as jiwer counts them."""

from __future__ import annotations

from collections.abc import Sequence


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[list[float], list[float]]:
    """CER and WER of each pair, by jiwer with its default transforms.

    Source: (substitutions + deletions + insertions) / length of the reference, over characters or words. A reference
    that jiwer finds empty counts 0 when the hypothesis is empty too, else 1.
    """
    import jiwer

    cers, wers = [], []
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        if not reference.strip():
            rate = float(bool(hypothesis.strip()))
            cers.append(rate)
            wers.append(rate)
            continue
        cers.append(float(jiwer.cer(reference, hypothesis)))
        wers.append(float(jiwer.wer(reference, hypothesis)))
    return cers, wers
