"""MIDI tunes rendered by FluidSynth, from the shared library that the package pygame-ce carries."""

from __future__ import annotations

import ctypes
from importlib import metadata
from pathlib import Path

import numpy as np

from millrace.common.errors import MillraceError

_POINTER = ctypes.c_void_p
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER)
_NOTES = (0x80, 0x90)
_DRUMS = 9
_PLAYING = 1


class Synthesiser:
    """A soundfont, read once: `play(tune, pace=1.1, key=-2, seconds=60)` gives equal samples each
    time."""

    def __init__(self, font: Path) -> None:
        try:
            files = metadata.files("pygame-ce") or []
            library = ctypes.CDLL(
                str(next(file.locate() for file in files if "libfluidsynth" in file.name))
            )
        except (metadata.PackageNotFoundError, StopIteration, OSError):
            remedy = "Install a wheel of it: pip install -r requirements-demo.txt"
            raise MillraceError(
                "pygame-ce brings no FluidSynth on this machine", remedy=remedy
            ) from None
        for name in ("new_fluid_settings", "new_fluid_synth", "new_fluid_player"):
            getattr(library, name).restype = _POINTER
        for level in range(5):
            library.fluid_set_log_function(level, None, None)
        self._library = library
        self._font = font
        self._settings = settings = _POINTER(library.new_fluid_settings())
        library.fluid_settings_setnum(settings, b"synth.sample-rate", ctypes.c_double(16e3))
        library.fluid_settings_setstr(settings, b"player.timing-source", b"sample")
        library.fluid_settings_setint(settings, b"synth.lock-memory", 0)
        # FluidSynth shares a soundfont's samples among the synthesisers of a process: this one
        # holds them.
        self._first = self._synthesiser()

    def _synthesiser(self) -> ctypes.c_void_p:
        synth = _POINTER(self._library.new_fluid_synth(self._settings))
        if self._library.fluid_synth_sfload(synth, str(self._font).encode(), 1) < 0:
            problem = "not a soundfont that FluidSynth reads"
            remedy = "Delete it and fetch again"
            raise MillraceError(problem, str(self._font), remedy)
        return synth

    def play(self, tune: Path, pace: float, key: int, seconds: int) -> np.ndarray:
        """float32 mono samples at 16 kHz: `pace` times as fast, all but drums `key` semitones
        higher."""
        library = self._library
        samples = np.zeros((seconds, 2, 16_000), np.float32)
        synth = self._synthesiser()  # a new one, as each begins where the tune before has left it

        def transposed(_: int, event: int) -> int:
            at = _POINTER(event)
            is_note = library.fluid_midi_event_get_type(at) in _NOTES
            if is_note and library.fluid_midi_event_get_channel(at) != _DRUMS:
                library.fluid_midi_event_set_key(at, library.fluid_midi_event_get_key(at) + key)
            return library.fluid_synth_handle_midi_event(synth, at)

        player = _POINTER(library.new_fluid_player(synth))
        callback = _CALLBACK(transposed)
        second = 0
        library.fluid_player_set_playback_callback(player, callback, synth)
        library.fluid_player_add(player, str(tune).encode())
        library.fluid_player_set_tempo(player, 0, ctypes.c_double(pace))
        library.fluid_player_play(player)
        while second < seconds and library.fluid_player_get_status(player) == _PLAYING:
            left, right = (channel.ctypes.data_as(_POINTER) for channel in samples[second])
            library.fluid_synth_write_float(synth, 16_000, left, 0, 1, right, 0, 1)
            second += 1
        library.delete_fluid_player(player)
        library.delete_fluid_synth(synth)
        return samples[:second].mean(1).ravel()
