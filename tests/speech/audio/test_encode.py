"""Segments as bytes of a file: exact or in place, and the same in every process."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from millrace.common.errors import MillraceError
from millrace.speech.audio import cut as audio
from millrace.speech.audio.encode import check_format
from tests.speech.audio.recordings import offset, signal


@pytest.mark.parametrize("audio_format", ["flac", "wav"])
@pytest.mark.parametrize("length", [1, 100, 4096, 50001])
def test_lossless_encoding_is_exact(audio_format, length):
    samples = signal(4, 16000)[:length]
    raw = audio.encode(samples, 16000, audio_format)
    decoded, rate = soundfile.read(io.BytesIO(raw), dtype="int16")
    np.testing.assert_array_equal(decoded, samples)
    assert rate == 16000


@pytest.mark.parametrize("rate", [8000, 12000, 16000, 24000, 48000])
@pytest.mark.parametrize("audio_format", ["opus", "mp3"])
def test_lossy_encoding_keeps_place_and_length(tmp_path, audio_format, rate):
    for length in (rate // 100, rate, 3 * rate + 123):
        samples = signal(5, rate)[rate : rate + length]
        (tmp_path / "a").write_bytes(audio.encode(samples, rate, audio_format))
        info = audio.probe(tmp_path / "a")
        segment = next(audio.cut(tmp_path / "a", [(0.0, info.duration_seconds)], rate))
        assert not isinstance(segment, audio.AudioError), (length, info)
        assert abs(len(segment) - length) <= (0.02 if audio_format == "opus" else 0.08) * rate, (
            length
        )
        if length >= rate:
            assert abs(offset(samples, segment, rate // 10)) <= rate // 100


@pytest.mark.parametrize(
    "audio_format, rate, bits",
    [
        ("opus", 16000, 32_000),
        ("opus", 24000, 64_000),
        ("mp3", 24000, 64_000),
        ("mp3", 32000, 96_000),
    ],
)
def test_lossy_encoding_has_the_bits_that_its_rate_needs(audio_format, rate, bits):
    raw = audio.encode(signal(8, rate), rate, audio_format)
    assert len(raw) == pytest.approx(bits, rel=0.05)  # 8 s, a byte has 8 bits


def test_encoding_is_deterministic_across_processes():
    code = (
        "import hashlib, numpy as np; from millrace.speech.audio import cut as audio\n"
        "from millrace.speech.names import AUDIO_FORMATS\n"
        "x = (np.sin(np.arange(40000) ** 1.2 / 50) * 9000).astype(np.int16)\n"
        "print([hashlib.sha256(audio.encode(x, 16000, f)).hexdigest() for f in AUDIO_FORMATS])"
    )
    root = Path(__file__).parents[3]
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout and runs[0].stdout.count("'") == 8


@pytest.mark.parametrize(
    "rate, audio_format",
    [(44100, "opus"), (22050, "opus"), (7000, "mp3"), (0, "wav"), (655351, "flac")],
)
def test_rates_that_a_codec_lacks_are_refused(rate, audio_format):
    with pytest.raises(MillraceError) as caught:
        check_format(rate, audio_format)
    assert caught.value.remedy
