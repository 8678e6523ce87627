"""How the fingerprint of sound is made: a word of 32 bits for each short moment, out of a
telephone's frequencies; and what is silence.

Source: Haitsma and Kalker, A Highly Robust Audio Fingerprinting System (ISMIR 2002). A bit says
whether the difference of the energies of two neighbouring bands grows. Level, codec and sampling
rate hardly change that, so two copies share most of their words. In place of their 11.6 ms the
change is taken over 64 ms, which survives low bit rates better.
"""

from __future__ import annotations

import numpy as np
import soxr

from millrace.common.fingerprints.scale import SPAN_SECONDS, STEP_SECONDS

_RATE = 5000  # Hz; the highest band ends at 2 kHz
_STEP = round(STEP_SECONDS * _RATE)
_LAG = round(0.064 * _RATE)  # samples between the two windows of a word
_WINDOW = round(SPAN_SECONDS * _RATE) - _LAG
_BANDS = 33
# Hz: what a telephone keeps.
_LOWEST = 300.0
_HIGHEST = 2000.0
_AT_ONCE = 2048  # windows, to bound memory
# Softer sound is silence: Opus makes a pattern of its own of it, within one step of 16 bits.
_SOFTEST = 1.0


def words(samples: np.ndarray, sampling_rate: int, steps: int = 1) -> np.ndarray:
    """The words of mono `samples` (n,), int16 or floats up to 1, one for each `steps` steps: uint32
    (m,).

    Word i is of the sound from `i * steps * STEP_SECONDS` on, for SPAN_SECONDS. Sound that is
    shorter has none.
    """
    if not len(samples):
        return np.zeros(0, np.uint32)
    floats = samples.astype(np.float32)
    if samples.dtype.kind == "f":
        floats *= 32768
    sound = soxr.resample(floats, sampling_rate, _RATE, quality="MQ")
    count = (len(sound) - _WINDOW - _LAG) // _STEP + 1
    if count <= 0:
        return np.zeros(0, np.uint32)

    early = np.arange(0, count, steps)
    late = early + _LAG // _STEP
    # A word's second window is another word's first one where the steps allow it.
    wanted = np.union1d(early, late)
    windows = np.lib.stride_tricks.sliding_window_view(sound, _WINDOW)[::_STEP]
    slopes = _slopes(windows, wanted)
    first = slopes[np.searchsorted(wanted, early)]
    second = slopes[np.searchsorted(wanted, late)]
    bits = second > first
    packed = np.packbits(bits, axis=1, bitorder="little")
    return packed.view(np.uint32)[:, 0]


def _slopes(windows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """By how much each band of the wanted windows is louder than the one below it: (m, 32)."""
    frequencies = np.fft.rfftfreq(_WINDOW, 1 / _RATE)
    bands = np.geomspace(_LOWEST, _HIGHEST, _BANDS + 1)
    edges = np.searchsorted(frequencies, bands)
    taper = np.hanning(_WINDOW).astype(np.float32)
    slopes = np.empty((len(wanted), _BANDS - 1), np.float32)
    for start in range(0, len(wanted), _AT_ONCE):
        chosen = slice(start, start + _AT_ONCE)
        sound = windows[wanted[chosen]]
        sound[np.abs(sound).max(axis=1) < _SOFTEST] = 0
        spectrum = np.fft.rfft(sound * taper, axis=1)
        power = spectrum.real**2 + spectrum.imag**2
        in_bands = power[:, : edges[-1]]
        energies = np.add.reduceat(in_bands, edges[:-1], axis=1)
        slopes[chosen] = np.diff(energies, axis=1)
    return slopes
