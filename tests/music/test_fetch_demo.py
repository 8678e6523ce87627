"""The demo's tunes are played the same way every time, faster and higher as asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from millrace.common import debian
from millrace.common.errors import MillraceError
from millrace.music.demo import corpus
from millrace.music.demo.corpus import FONTS, TUNES
from millrace.music.demo.synthesis import Synthesiser
from tests.common.test_debian import need
from tests.refusals import refused


@pytest.fixture
def tune_and_font(tmp_path) -> tuple[Path, Path]:
    """A tune of the demo, and a soundfont."""
    try:
        folders = debian.fetch([TUNES, FONTS[0]], tmp_path)
    except MillraceError as error:
        need(False, error)
    return (
        min(folders[TUNES].rglob("flying_scotsman.mid")),
        min(folders[FONTS[0]].rglob("*.sf2")),
    )


@pytest.mark.debian
def test_a_tune_is_played_the_same_every_time_and_faster_or_higher_as_asked(tune_and_font):
    tune, font = tune_and_font
    first, second = Synthesiser(font), Synthesiser(font)
    played = first.play(tune, 1.0, 0, 3)
    assert (
        played.shape == (48_000,) and played.dtype == np.float32 and 0.01 < abs(played).max() <= 1
    )
    higher, faster = first.play(tune, 1.0, 5, 3), first.play(tune, 1.5, 0, 3)
    assert (
        played.tobytes()
        == first.play(tune, 1.0, 0, 3).tobytes()
        == second.play(tune, 1.0, 0, 3).tobytes()
    )

    def pitch(samples: np.ndarray) -> np.ndarray:
        return np.abs(np.fft.rfft(samples))[: 8_000 // 2]

    # A higher key: the spectrum, stretched by it, fits better than as it is.
    stretched = np.interp(np.arange(4_000) / 2 ** (5 / 12), np.arange(4_000), pitch(played))
    assert (
        np.corrcoef(stretched, pitch(higher))[0, 1]
        > np.corrcoef(pitch(played), pitch(higher))[0, 1]
    )
    assert (
        np.corrcoef(pitch(played), pitch(faster))[0, 1]
        > np.corrcoef(stretched, pitch(faster))[0, 1]
    )
    with refused("not a soundfont that FluidSynth reads"):
        Synthesiser(tune)


@pytest.mark.debian
def test_a_tune_that_was_rendered_before_a_fetch_was_killed_is_not_rendered_again(
    tmp_path, monkeypatch, tune_and_font
):
    tune, font = tune_and_font
    monkeypatch.setattr(corpus, "VERSIONS", 2)
    monkeypatch.setattr(corpus, "SECONDS", 3)
    first = corpus.rendered(tune, [font], 1, tmp_path / "kept")
    again = corpus.rendered(tune, [], 1, tmp_path / "kept")  # without a soundfont nothing is played
    assert [words for words, _ in again] == [words for words, _ in first]
    assert [array.tobytes() for _, array in again] == [array.tobytes() for _, array in first]

    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_bytes(kept.read_bytes()[:-100])
    mended = corpus.rendered(tune, [font], 1, tmp_path / "kept")
    assert [array.tobytes() for _, array in mended] == [array.tobytes() for _, array in first]
