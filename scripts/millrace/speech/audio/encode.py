"""Segments as the bytes of a file: bit rates, compression and sampling rates by format; with the
same libraries, the same samples give the same bytes."""

from __future__ import annotations

import io

import numpy as np
import soundfile

from millrace.common.errors import MillraceError

_RATES = {
    "opus": (8000, 12000, 16000, 24000, 48000),
    "mp3": (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000),
}
# Level 5 on libsndfile's scale 0..1. On speech, levels 6 to 8 take up to 1.8x the time for 0.1 %
# fewer bytes.
_FLAC_LEVEL = 5 / 8


def encode(samples: np.ndarray, sampling_rate: int, audio_format: str) -> bytes:
    """Encode int16 mono `samples` (n,) as flac, wav, opus (in Ogg) or mp3.

    Decoded again, opus and mp3 lie within 10 ms of the samples, and opus is as long as they are.
    """
    if audio_format == "opus":
        bit_rate = 32000 if sampling_rate <= 16000 else 64000
        return encode_av(samples, sampling_rate, "ogg", "libopus", bit_rate)
    if audio_format == "mp3":
        bit_rate = 64000 if sampling_rate <= 24000 else 96000
        return encode_av(samples, sampling_rate, "mp3", "libmp3lame", bit_rate)
    target = io.BytesIO()
    level = {"compression_level": _FLAC_LEVEL} if audio_format == "flac" else {}
    soundfile.write(
        target, samples, sampling_rate, format=audio_format.upper(), subtype="PCM_16", **level
    )
    return target.getvalue()


def check_format(sampling_rate: int, audio_format: str) -> None:
    """Raise MillraceError if no segment could be encoded: a rate that the codec lacks."""
    rates = _RATES.get(audio_format)
    if rates and sampling_rate not in rates:
        remedy = f"Choose one of {', '.join(map(str, rates))}, or flac or wav"
        raise MillraceError(
            f"{audio_format} has no sampling rate of {sampling_rate} Hz", remedy=remedy
        )
    if not 1 <= sampling_rate <= 655350:
        problem = f"a sampling rate of {sampling_rate} Hz can't be stored"
        raise MillraceError(problem, remedy="Choose 16000, for example")


def encode_av(
    samples: np.ndarray, rate: int, muxer: str, codec: str, bit_rate: int, **options: str
) -> bytes:
    """Encode int16 mono `samples` (n,) by FFmpeg's `muxer` and encoder `codec`, which takes the
    options."""
    import av

    target = io.BytesIO()
    # bitexact: no random Ogg serial number, no library versions in the file.
    with av.open(target, "w", format=muxer, options={"fflags": "+bitexact"}) as output:
        stream = output.add_stream(
            codec, rate=rate, layout="mono", options={"flags": "+bitexact", **options}
        )
        assert isinstance(stream, av.AudioStream)  # the codecs are those of audio
        stream.bit_rate = bit_rate
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(samples)[None], format="s16", layout="mono"
        )
        frame.sample_rate = rate
        frame.pts = 0
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return target.getvalue()
