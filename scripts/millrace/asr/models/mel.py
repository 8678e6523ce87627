"""Log-mel features of a whole padded batch, where the audio lies (on the training device when there is
one)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

SAMPLING_RATE = 16_000
N_FFT, HOP = 400, 160  # 25 ms windows every 10 ms, as Whisper and Qwen3-ASR have them


class LogMel(nn.Module):
    """Whisper's log-mel: equal to transformers' WhisperFeatureExtractor and Qwen3ASRFeatureExtractor within
    1e-4.

    It holds no parameters, buffers or dtype: a model cast to half precision keeps float32 features.
    """

    def __init__(
        self, bins: int = 80, sampling_rate: int = SAMPLING_RATE, n_fft: int = N_FFT, hop: int = HOP
    ) -> None:
        super().__init__()
        self.bins, self.sampling_rate, self.n_fft, self.hop = bins, sampling_rate, n_fft, hop
        self._constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def frames(self, samples: int) -> int:
        """Frames of an audio tensor `samples` wide."""
        return samples // self.hop

    def valid_frames(self, length: int, samples: int) -> int:
        """Frames that begin inside the first `length` of `samples` samples, as the extractors' attention
        masks say."""
        return min(-(-length // self.hop), self.frames(samples))

    @torch.no_grad()
    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        """float32 (B, T) with zeros after each clip's end -> float32 (B, bins, T // hop), the window
        reflected at the ends of the tensor. T of at least n_fft is needed; the caller pads."""
        if not len(audio):
            return audio.new_zeros((0, self.bins, self.frames(audio.shape[1])))
        with torch.autocast(audio.device.type, enabled=False):
            window, filters = self._on(audio.device, isinstance(audio, FakeTensor))
            spectrum = torch.stft(
                audio.float(), self.n_fft, self.hop, window=window, center=True, return_complex=True
            )[..., :-1]
            power = spectrum.real.square() + spectrum.imag.square()
            # In float64 on a GPU: TF32, which training may switch on, would be wrong in the fourth digit.
            mel = (filters @ power.to(filters.dtype)).float()
            log = mel.clamp(min=1e-10).log10()
            # Silence after the end of a clip is never the loudest, so this is the clip's own maximum.
            log = torch.maximum(log, log.amax(dim=(1, 2), keepdim=True) - 8.0)
            return (log + 4.0) / 4.0

    def _on(self, device: torch.device, fake: bool) -> tuple[torch.Tensor, torch.Tensor]:
        if device in self._constants and not fake:
            return self._constants[device]
        dtype = torch.float64 if device.type == "cuda" else torch.float32
        filters = torch.tensor(
            mel_filters(self.bins, self.n_fft, self.sampling_rate), dtype=dtype, device=device
        )
        made = torch.hann_window(self.n_fft, device=device), filters
        if not fake:  # tensors without memory must not outlive the mode that made them
            self._constants[device] = made
        return made

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_constants": {}}


def padded_to(audio: torch.Tensor, samples: int) -> torch.Tensor:
    """Audio (B, T) with zeros up to `samples`, where it is shorter."""
    return F.pad(audio, (0, samples - audio.shape[1])) if audio.shape[1] < samples else audio


@lru_cache(maxsize=8)
def mel_filters(bins: int, n_fft: int = N_FFT, sampling_rate: int = SAMPLING_RATE) -> np.ndarray:
    """Slaney's triangular filters with unit area (Auditory Toolbox, as librosa and Whisper use them).

    float64 (bins, 1 + n_fft // 2), from 0 Hz to half the sampling rate.
    """
    edges = _hertz(np.linspace(0.0, _mel(sampling_rate / 2), bins + 2))
    frequencies = np.linspace(0.0, sampling_rate / 2, 1 + n_fft // 2)
    slopes = edges[:, None] - frequencies[None, :]
    widths = np.diff(edges)[:, None]
    rising, falling = -slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]
    return np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))[:, None]


# Slaney's scale: linear below 1 kHz (200/3 Hz a mel), then 27 mels for each factor 6.4.
_LINEAR_HZ, _KNEE_HZ, _LOG_STEP = 200.0 / 3.0, 1000.0, np.log(6.4) / 27.0


def _mel(hertz: float) -> float:
    if hertz < _KNEE_HZ:
        return hertz / _LINEAR_HZ
    return _KNEE_HZ / _LINEAR_HZ + np.log(hertz / _KNEE_HZ) / _LOG_STEP


def _hertz(mels: np.ndarray) -> np.ndarray:
    knee = _KNEE_HZ / _LINEAR_HZ
    return np.where(
        mels < knee, mels * _LINEAR_HZ, _KNEE_HZ * np.exp(_LOG_STEP * (np.maximum(mels, knee) - knee))
    )
