"""What the values themselves say: NaN, zeros, decibels, and which reading of raw bytes is a CQT
over time.

A bin of the lowest octave hears about half a second at a time, so its magnitude cannot change much
from one frame to the next: at 512 / 22,050 s the correlation of neighbouring frames was 0.90 to
0.98 for tunes and noise, and 0.09 to 0.64 after averaging over 20 frames. Read in the wrong
orientation it is lower as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_CLEAR = 0.85  # correlation of a bass bin's neighbouring frames: certainly this reading
_MARGIN = 0.04  # by which another reading must be worse
_ROUGH = 0.75  # below this no CQT of 23 ms frames
_NOISE = 0.05  # correlations of independent random numbers
_STRETCH = 1 << 22  # values that correlations are taken from


def refusal(blocks: Iterable[np.ndarray]) -> tuple[str, str]:
    """(reason, words) why values, given in pieces, cannot be fed to the model; ("", "") if they
    can.

    Linear magnitudes are expected: decibels, zeros and NaN would reach the model as scaled-up
    noise.
    """
    low, high, negative, total, bad = np.inf, -np.inf, 0, 0, 0
    for block in blocks:
        total += block.size
        if block.size and np.isfinite(least := block.min()) and np.isfinite(most := block.max()):
            low, high = min(low, float(least)), max(high, float(most))
            negative += int((block < 0).sum()) if least < 0 else 0
        else:
            bad += int((~np.isfinite(block)).sum())
    span = f"values from {low:g} to {high:g}"
    refusals = (
        ("empty", not total, "no frames"),
        ("not_finite", bad, f"{bad} of {total} values are NaN or infinite"),
        ("decibel", low <= -10 and -low > high, f"{span} are decibels; needed: 10 ** (dB / 20)"),
        ("negative", negative > 0.01 * total, f"{negative} of {total} values are below 0; {span}"),
        ("zero", low == high == 0, "all values are 0"),
        ("constant", low == high, f"all values are {high:g}"),
    )
    return next(((reason, words) for reason, is_so, words in refusals if is_so), ("", ""))


def bass_correlation(frames: np.ndarray) -> float:
    """Correlation of neighbouring frames over the lowest octave of (T, C) values."""
    return _correlation(frames[: max(2, _STRETCH // frames.shape[1]), :12], 1, 0)


def time_axis(values: np.ndarray, bins: int) -> int | None:
    """Time axis (0: (T, C), 1: (C, T)) of a track's flat values; None if they do not say."""
    readings = (
        bass_correlation(values.reshape(-1, bins)),
        bass_correlation(values.reshape(bins, -1).T),
    )
    best = int(readings[1] > readings[0])
    clear = readings[best] >= _CLEAR and readings[1 - best] <= readings[best] - _MARGIN
    return best if clear else None


def is_too_rough(frames: np.ndarray, short: bool) -> bool:
    """Whether (T, C) frames cannot follow each other within 30 ms, so that they were averaged over
    time.

    Independent random numbers pass unless the track would be `short`: they are no CQT at any hop.
    """
    rough = bass_correlation(frames)
    is_noise = abs(rough) < _NOISE and abs(_correlation(frames[: _STRETCH // 84], 0, 1)) < _NOISE
    return rough < _ROUGH and (short or not is_noise)


def _correlation(frames: np.ndarray, lag: int, neighbour: int) -> float:
    """Correlation of (T, C) values, each bin about its mean, with those `lag` frames or a bin
    further."""
    centred = frames - frames.mean(0, dtype=np.float64)
    count, width = len(centred) - lag, centred.shape[1] - neighbour
    product = (centred[lag:, neighbour:] * centred[:count, :width]).sum()
    return float(product / max((centred**2).sum(), 1e-30))


def float_kind(raw: bytes) -> str | None:
    """`<f2` or `<f4`: which of them bytes are, by their bits; None if both are possible.

    Of float32 every other half word is the end of a mantissa, its first bit set in half of the
    values or its bits all 0; of float16 all half words are alike.
    """
    words = np.frombuffer(raw[: len(raw) // 4 * 4], "<u2").reshape(-1, 2)
    words = words[words.any(axis=1)]
    if not len(words):
        return None
    ends, starts = (float((words[:, column] >> 15).mean()) for column in (0, 1))
    empty_ends, empty_starts = (float((words[:, column] == 0).mean()) for column in (0, 1))
    if abs(ends - starts) > 0.2 or (empty_ends > 0.9 and empty_starts < 0.1):
        return "<f4"
    return "<f2" if abs(ends - starts) < 0.05 and abs(empty_ends - empty_starts) < 0.2 else None
