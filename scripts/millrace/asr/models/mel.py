"""Log-mel features of a whole padded batch, computed on the device of the audio."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SAMPLING_RATE = 16_000
# 25 ms windows every 10 ms, as Whisper and Qwen3-ASR have them.
N_FFT = 400
HOP = 160


class LogMel(nn.Module):
    """Whisper's log-mel: that of transformers' Whisper and Qwen3-ASR feature extractors within
    1e-4.

    It holds no parameters, buffers or dtype: a model cast to half precision keeps float32 features.
    """

    def __init__(self, bins: int = 80, n_fft: int = N_FFT, hop: int = HOP) -> None:
        super().__init__()
        self.bins = bins
        self.n_fft = n_fft
        self.hop = hop
        self._constants: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def frames(self, samples: int) -> int:
        """Frames of an audio tensor `samples` wide."""
        return samples // self.hop

    def valid_frames(self, length: int, samples: int) -> int:
        """Frames that begin inside the first `length` of `samples` samples: the extractors'
        masks."""
        return min(-(-length // self.hop), self.frames(samples))

    @torch.no_grad()
    def forward(self, audio: Tensor) -> Tensor:
        """float32 (B, T), zeros after each clip's end -> float32 (B, bins, T // hop).

        The window is reflected at the ends of the tensor. T is n_fft at least: the caller pads.
        """
        if not len(audio):
            return audio.new_zeros((0, self.bins, self.frames(audio.shape[1])))
        with torch.autocast(audio.device.type, enabled=False):
            window, filters = self._on(audio.device)
            spectrum = torch.stft(
                audio.float(), self.n_fft, self.hop, window=window, return_complex=True
            )
            spectrum = spectrum[..., :-1]
            power = spectrum.real.square() + spectrum.imag.square()
            mel = (filters @ power.to(filters.dtype)).float()

            # Limit to 80 dB below the loudest. Silence after a clip's end is never the loudest, so
            # that is the clip's own maximum whatever the padding.
            log = mel.clamp(min=1e-10).log10()
            loudest = log.amax(dim=(1, 2), keepdim=True)
            log = torch.maximum(log, loudest - 8.0)
            return (log + 4.0) / 4.0

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Window (n_fft,) and Slaney's triangular filters (bins, 1 + n_fft // 2); copied to a
        device once."""
        if device not in self._constants:
            from transformers.audio_utils import mel_filter_bank

            bank = mel_filter_bank(
                num_frequency_bins=1 + self.n_fft // 2,
                num_mel_filters=self.bins,
                min_frequency=0.0,
                max_frequency=SAMPLING_RATE / 2,
                sampling_rate=SAMPLING_RATE,
                norm="slaney",
                mel_scale="slaney",
            )
            # float64 on a GPU: TF32, which training may switch on, would be wrong in the fourth
            # digit.
            dtype = torch.float64 if device.type == "cuda" else torch.float32
            filters = torch.tensor(bank.T, dtype=dtype, device=device)
            window = torch.hann_window(self.n_fft, device=device)
            self._constants[device] = window, filters
        return self._constants[device]

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_constants": {}}


def standardised(values: Tensor, inside: Tensor, epsilon: float) -> Tensor:
    """Values with mean 0 and variance 1 along the last axis, over those `inside`; zeros outside."""
    count = inside.sum(-1, keepdim=True).clamp(min=1)
    mean = (values * inside).sum(-1, keepdim=True) / count
    centred = (values - mean) * inside
    variance = centred.square().sum(-1, keepdim=True) / count
    return centred / (variance + epsilon).sqrt()


def padded_to(audio: Tensor, samples: int) -> Tensor:
    """Audio (B, T) with zeros up to `samples`, if it is shorter."""
    missing = samples - audio.shape[1]
    if missing <= 0:
        return audio
    return F.pad(audio, (0, missing))
