"""Speech synthesised by espeak-ng, from the shared library that the package espeakng-loader
carries."""

from __future__ import annotations

import ctypes

import numpy as np

from millrace.common.errors import MillraceError

_SYNCHRONOUS = 2  # espeak_AUDIO_OUTPUT.AUDIO_OUTPUT_SYNCHRONOUS
_CHARS_UTF8 = 1
# espeak_PARAMETER
_RATE = 1
_PITCH = 3
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


class Synthesiser:
    """One voice of espeak-ng.

    The library keeps state between utterances: the same calls give the same samples only in a fresh
    process.
    """

    def __init__(self, voice: str) -> None:
        try:
            import espeakng_loader
        except ImportError:
            remedy = (
                "pip install -r requirements-demo.txt, or run where apt-get can fetch recordings"
            )
            raise MillraceError(
                "there is no speech synthesis on this machine", remedy=remedy
            ) from None
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        folder = str(espeakng_loader.get_data_path()).encode()
        self.sample_rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, folder, 0)
        if self.sample_rate <= 0 or self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise MillraceError(
                f"espeak-ng has no voice {voice}", remedy="Reinstall espeakng-loader"
            )
        self._chunks: list[np.ndarray] = []
        # The library holds the bare pointer: the object must live as long as this one.
        self._callback = _CALLBACK(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(
        self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: int | None
    ) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def speak(self, text: str, words_per_minute: int, pitch: int) -> np.ndarray:
        """Return `text` as int16 mono samples at `sample_rate`."""
        self._chunks = []
        self._library.espeak_SetParameter(_RATE, words_per_minute, 0)
        self._library.espeak_SetParameter(_PITCH, pitch, 0)
        raw = text.encode("utf-8") + b"\0"
        failed = self._library.espeak_Synth(
            raw, ctypes.c_size_t(len(raw)), 0, 0, 0, _CHARS_UTF8, None, None
        )
        if failed or not self._chunks:
            raise MillraceError(f"espeak-ng could not say {text!r} (code {failed})")
        return np.concatenate(self._chunks)
