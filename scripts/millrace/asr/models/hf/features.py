"""Inputs of transformers' models: waveforms and Whisper's mel on the device, other features on the
host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Prepared
from millrace.asr.models.mel import SAMPLING_RATE, LogMel, padded_to
from millrace.common.errors import MillraceError

_KINDS = {
    "WhisperFeatureExtractor": "mel",
    "Wav2Vec2FeatureExtractor": "waveform",
}  # others: "host"


class HfFeatures:
    """Features as `extractor` computes them, for a whole padded batch; holds no weights."""

    def __init__(self, extractor: Any, config: Any) -> None:
        self.extractor, self.config = extractor, config
        self.kind = _KINDS.get(type(extractor).__name__, "host")
        if extractor.sampling_rate != SAMPLING_RATE:
            raise MillraceError(
                f"the model hears {extractor.sampling_rate} Hz, the buckets hold"
                f" {SAMPLING_RATE} Hz",
                remedy="Choose a model for 16 kHz",
            )
        self.mel: LogMel | None = None
        self.max_samples = 0  # 0: clips of any length
        if self.kind == "mel":
            self.mel = LogMel(extractor.feature_size, extractor.n_fft, extractor.hop_length)
            # Whisper's encoder always takes this many samples: 30 s for the published models.
            self.max_samples = 2 * config.max_source_positions * extractor.hop_length

        if self.kind == "waveform":
            # (kernel, stride) of the convolutions; Moonshine's are not in its configuration.
            kernels, strides = (
                getattr(config, "conv_kernel", ()),
                getattr(config, "conv_stride", ()),
            )
            self.convolutions = list(zip(kernels, strides, strict=True)) or [
                (127, 64),
                (7, 3),
                (3, 2),
            ]
            self.min_samples = 1  # the fewest that give one step
            for kernel, stride in reversed(self.convolutions):
                self.min_samples = (self.min_samples - 1) * stride + kernel

    def on_host(self, batch: Batch) -> tuple[dict[str, Tensor], list[int]]:
        """Tensors that must be computed before the batch goes to the device, and the clips' encoder
        steps."""
        lengths = batch.lengths.tolist()
        steps = [self.steps(length) for length in lengths]
        if self.kind != "host" or batch.empty:
            return {}, steps
        clips = [
            clip[:length].numpy() for clip, length in zip(batch.audio.cpu(), lengths, strict=True)
        ]
        inputs = self.extractor(
            clips,
            sampling_rate=SAMPLING_RATE,
            padding=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        if "attention_mask" in inputs:
            steps = inputs["attention_mask"].sum(1).clamp(min=1).tolist()
        return {f"hf_{name}": value for name, value in inputs.items()}, steps

    def on_device(self, prepared: Prepared, dtype: torch.dtype) -> dict[str, Tensor]:
        """Arguments of the model, in its dtype if they are not masks."""
        if self.kind == "host":
            names = [name for name in prepared.tensors if name.startswith("hf_")]
            inputs = {name.removeprefix("hf_"): prepared[name] for name in names}
        elif self.mel is not None:
            audio = padded_to(prepared["audio"], self.max_samples)
            inputs = {"input_features": self.mel(audio[:, : self.max_samples])}
        else:
            audio, lengths = (
                padded_to(prepared["audio"], self.min_samples),
                prepared["lengths"][:, None],
            )
            places = torch.arange(audio.shape[1], device=audio.device)
            if self.extractor.do_normalize:
                # Mean 0 and variance 1 over each clip's own samples.
                inside, count = places < lengths, lengths.clamp(min=1)
                centred = (audio - (audio * inside).sum(1, keepdim=True) / count) * inside
                audio = centred / (centred.square().sum(1, keepdim=True) / count + 1e-7).sqrt()
            inputs = {"input_values": audio}
            if self.extractor.return_attention_mask:
                # Too short a clip would have no frame at all, which these models cannot take.
                inputs["attention_mask"] = (places < lengths.clamp(min=self.min_samples)).long()
        return {name: t.to(dtype) if t.is_floating_point() else t for name, t in inputs.items()}

    def steps(self, samples: int) -> int:
        """Encoder steps of a clip, one at least."""
        if self.kind == "mel":
            return self.config.max_source_positions
        if self.kind == "host":
            return max(samples // 320, 1)  # 20 ms
        for kernel, stride in self.convolutions:
            samples = (samples - kernel) // stride + 1
        return max(samples, 1)

    def flops(self, samples: Sequence[int], tokens: Sequence[int] = ()) -> np.ndarray:
        """float64 (B,): a forward pass over clips, and over the decoder's `tokens` if there is
        one."""
        config, counts = self.config, np.asarray(samples, dtype=np.float64)
        width = getattr(config, "d_model", None) or config.hidden_size

        # Encoder: a layer's products with weights, and attention over all pairs of steps.
        if self.kind == "mel":
            steps = np.minimum(counts, self.max_samples) / (2 * self.extractor.hop_length)
        else:
            steps = np.array([self.steps(length) for length in samples], dtype=np.float64)
        layers = getattr(config, "encoder_layers", None) or config.num_hidden_layers
        inner = getattr(config, "encoder_ffn_dim", None) or config.intermediate_size
        total = layers * (steps * (4 * width**2 + 2 * width * inner) + 2 * width * steps**2)

        # The convolutions before it, as far as the configuration tells their widths.
        if self.kind == "waveform":
            widths = getattr(config, "conv_dim", ())
            layers = zip(self.convolutions, (1, *widths), widths, strict=False)
            for (kernel, stride), inputs, outputs in layers:
                counts = counts / stride
                total = total + counts * kernel * inputs * outputs

        # Decoder: attention to its own tokens (causal: half of all pairs) and to the encoder's
        # steps; head.
        if len(tokens):
            written = np.asarray(tokens, dtype=np.float64)
            layers = getattr(config, "decoder_layers", None) or config.num_hidden_layers
            inner = getattr(config, "decoder_ffn_dim", None) or config.intermediate_size
            layer = written * (6 * width**2 + 2 * width * inner) + steps * 2 * width**2
            layer = layer + width * written**2 + 2 * width * written * steps
            total = total + layers * layer + written * width * config.vocab_size
        return 2 * total
