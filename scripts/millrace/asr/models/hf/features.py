"""What transformers' models hear: raw waveforms and Whisper's mel on the device, other features on the
host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Prepared
from millrace.asr.models.mel import SAMPLING_RATE, LogMel
from millrace.common.errors import MillraceError


class HfFeatures:
    """Features as `extractor` computes them, for a whole padded batch; holds no weights."""

    def __init__(self, extractor: Any, config: Any) -> None:
        self.extractor, self.config = extractor, config
        kind = type(extractor).__name__
        self.kind = {"WhisperFeatureExtractor": "mel", "Wav2Vec2FeatureExtractor": "waveform"}.get(
            kind, "host"
        )
        if extractor.sampling_rate != SAMPLING_RATE:
            raise MillraceError(
                f"the model hears {extractor.sampling_rate} Hz, the buckets hold {SAMPLING_RATE} Hz",
                remedy="Choose a model for 16 kHz",
            )
        self.mel = None
        if self.kind == "mel":
            self.mel = LogMel(extractor.feature_size, SAMPLING_RATE, extractor.n_fft, extractor.hop_length)
            # Whisper's encoder takes this many frames, no fewer: 30 s for the published models.
            self.window = 2 * config.max_source_positions * extractor.hop_length

    @property
    def longest(self) -> int | None:
        """The most samples of a clip that the model can hear; None for any number."""
        return self.window if self.kind == "mel" else None

    def on_host(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Tensors that must be computed before the batch goes to the device."""
        if self.kind != "host" or batch.empty:
            return {}
        lengths = batch.lengths.tolist()
        clips = [clip[:length].numpy() for clip, length in zip(batch.audio.cpu(), lengths, strict=True)]
        found = self.extractor(
            clips, sampling_rate=SAMPLING_RATE, padding=True, return_attention_mask=True, return_tensors="pt"
        )
        return {f"hf_{name}": value for name, value in found.items()}

    def on_device(self, prepared: Prepared, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Arguments of the model, in its dtype where they are not masks."""
        if self.kind == "host":
            found = {name[3:]: value for name, value in prepared.tensors.items() if name.startswith("hf_")}
        elif self.kind == "mel":
            audio = prepared["audio"][:, : self.window]
            found = {"input_features": self.mel(F.pad(audio, (0, self.window - audio.shape[1])))}
        else:
            found = self._waveform(prepared["audio"], prepared["lengths"])
        return {
            name: value.to(dtype) if value.is_floating_point() else value for name, value in found.items()
        }

    def _waveform(self, audio: torch.Tensor, lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        shortest = _shortest(self.config)
        audio = F.pad(audio, (0, max(shortest - audio.shape[1], 0)))
        inside = torch.arange(audio.shape[1], device=audio.device) < lengths[:, None]
        if self.extractor.do_normalize:
            count = lengths.clamp(min=1)[:, None]
            centred = (audio - (audio * inside).sum(1, keepdim=True) / count) * inside
            audio = centred / (centred.square().sum(1, keepdim=True) / count + 1e-7).sqrt()
        found = {"input_values": audio}
        if self.extractor.return_attention_mask:
            # Too short a clip would have no frame at all, which these models cannot take.
            heard = torch.arange(audio.shape[1], device=audio.device) < lengths.clamp(min=shortest)[:, None]
            found["attention_mask"] = heard.long()
        return found

    def batch_steps(self, lengths: Sequence[int], tensors: Mapping[str, torch.Tensor]) -> list[int]:
        """Encoder steps of clips of so many samples, one at least; `tensors` are those of `on_host`."""
        mask = tensors.get("hf_attention_mask")
        return (
            [self.steps(length) for length in lengths] if mask is None else mask.sum(1).clamp(min=1).tolist()
        )

    def steps(self, samples: int) -> int:
        """Encoder steps of a clip, one at least."""
        if self.kind == "mel":
            return self.config.max_source_positions
        if self.kind == "host":
            return max(samples // 320, 1)
        for kernel, stride in _convolutions(self.config):
            samples = (samples - kernel) // stride + 1
        return max(samples, 1)

    def width(self, samples: int) -> int:
        """Samples that the encoder works on for a batch padded to `samples`."""
        return self.window if self.kind == "mel" else samples

    def flops(self, samples: Sequence[int], tokens: Sequence[int] = ()) -> np.ndarray:
        """float64 (B,): a forward pass over clips alone, and over the decoder's `tokens`, from the
        configuration."""
        config, counts = self.config, np.asarray(samples, dtype=np.float64)
        if self.kind == "mel":
            steps = np.minimum(counts, self.window) / (2 * self.extractor.hop_length)
        else:
            steps = np.array([self.steps(length) for length in samples], dtype=np.float64)
        width = getattr(config, "d_model", None) or config.hidden_size
        layers = getattr(config, "encoder_layers", None) or config.num_hidden_layers
        inner = getattr(config, "encoder_ffn_dim", None) or config.intermediate_size
        total = layers * (steps * (4 * width**2 + 2 * width * inner) + 2 * width * steps**2)
        if self.kind == "waveform":
            inputs = 1
            for (kernel, stride), outputs in zip(
                _convolutions(config), getattr(config, "conv_dim", ()), strict=False
            ):
                counts = counts / stride
                total = total + counts * kernel * inputs * outputs
                inputs = outputs
        if len(tokens):
            written = np.asarray(tokens, dtype=np.float64)
            layers = getattr(config, "decoder_layers", None) or config.num_hidden_layers
            inner = getattr(config, "decoder_ffn_dim", None) or config.intermediate_size
            layer = written * (6 * width**2 + 2 * width * inner) + steps * 2 * width**2
            layer = layer + width * written**2 + 2 * width * written * steps
            total = total + layers * layer + written * width * config.vocab_size
        return 2 * total


def _convolutions(config: Any) -> list[tuple[int, int]]:
    kernels, strides = getattr(config, "conv_kernel", ()), getattr(config, "conv_stride", ())
    if not kernels:
        return [(127, 64), (7, 3), (3, 2)]  # Moonshine's, which are not in its configuration
    return list(zip(kernels, strides, strict=True))


def _shortest(config: Any) -> int:
    """The fewest samples that give one step."""
    samples = 1
    for kernel, stride in reversed(_convolutions(config)):
        samples = (samples - 1) * stride + kernel
    return samples
