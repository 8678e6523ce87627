"""A small recogniser: two strided convolutions, bidirectional GRUs, CTC over characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import AsrModel, Prepared, audio_counts
from millrace.asr.models.files import read_config, read_weights, write_model
from millrace.asr.models.labels import BLANK, Characters, drop_unfit, normalise, padded_ids
from millrace.asr.models.mel import HOP, N_FFT, LogMel, padded_to
from millrace.asr.models.spec_augment import SpecAugment
from millrace.common.errors import MillraceError

MODEL_TYPE = "millrace_ctc"


@dataclass(frozen=True)
class CtcConfig:
    """Sizes of the model. One recurrent layer learns fastest where there is little speech and time: two stay
    at writing blanks for three times as many steps."""

    vocabulary: Characters
    bins: int = 80
    channels: int = 32
    hidden: int = 192
    layers: int = 1
    dropout: float = 0.1
    augment: SpecAugment | None = None
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("bins", "channels", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise MillraceError(
                    f"{name} of the model is {getattr(self, name)}", remedy="Set it to 1 or more"
                )
        if not 0 <= self.dropout < 1:
            raise MillraceError(
                f"dropout of the model is {self.dropout}", remedy="Set it to 0 or more, below 1"
            )


@dataclass
class CtcPreparer:
    """Characters, feasible clips, drawn masks."""

    config: CtcConfig

    def __call__(self, batch: Batch, epoch: int | None = None) -> Prepared:
        config, lengths = self.config, batch.lengths.tolist()
        frames = [mel_frames(length) for length in lengths]
        steps = [subsampled(count) for count in frames]
        labels = [config.vocabulary.encode(text) for text in batch.transcripts]
        dropped = drop_unfit(labels, steps, batch.sample_ids)
        tensors = {"targets": padded_ids(labels, BLANK + 1)}
        if config.augment and epoch is not None:
            tensors["masks"] = config.augment.draw(config.seed, epoch, batch.sample_ids, frames, config.bins)
        width = batch.audio.shape[1]
        counts = audio_counts(lengths, width)
        counts |= {"tokens": sum(steps), "padded_tokens": len(steps) * max(steps, default=0)}
        alone, together = (
            ctc_flops(config, count) for count in (steps, [max(steps, default=0)] * len(steps))
        )
        # The GRUs run on packed sequences: padding costs convolutions only.
        counts |= {
            "flops": float(alone.total.sum()),
            "padded_flops": float((together.conv + alone.rest).sum()),
        }
        host = {"steps": steps, "label_lengths": [len(label) for label in labels]}
        return Prepared(
            batch, tensors, count=sum(map(len, labels)), counts=counts, host=host, dropped=dropped
        )


class CtcModel(AsrModel):
    """log-mel -> two 3x3 convolutions of stride 2 -> BiGRUs -> characters. The loss is a sum over characters.

    Clips whose text CTC cannot fit in their frames, and clips without text, take no part in it
    (`Prepared.dropped`). What is behind the end of a clip never matters: a clip gives the same in any batch.
    """

    def __init__(self, config: CtcConfig) -> None:
        super().__init__()
        self.config, self.mel = config, LogMel(config.bins)
        self.preparer = CtcPreparer(config)
        channels, width = config.channels, 2 * config.hidden
        self.conv1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.project = nn.Linear(channels * subsampled(config.bins), config.hidden)
        self.norm = nn.LayerNorm(config.hidden)
        self.grus = nn.ModuleList(
            nn.GRU(
                config.hidden if layer == 0 else width, config.hidden, batch_first=True, bidirectional=True
            )
            for layer in range(config.layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(width, len(config.vocabulary))
        nn.init.zeros_(self.head.bias)
        self.checkpointing = False

    def gradient_checkpointing_enable(self) -> None:
        self.checkpointing = True

    def log_probabilities(self, prepared: Prepared) -> torch.Tensor:
        """float32 (B, steps, characters + 1); steps of 40 ms."""
        steps = prepared.host["steps"]
        features = self._features(prepared)
        hidden = self._run(self._convolve, features, prepared["lengths"])
        for gru, norm in zip(self.grus, self.norms, strict=True):
            hidden = self._run(_recur, gru, norm, self.dropout(hidden), steps)
        return self.head(self.dropout(hidden)).float().log_softmax(-1)

    def forward(self, prepared: Prepared) -> tuple[torch.Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        probabilities = self.log_probabilities(prepared)
        host = prepared.host
        losses = F.ctc_loss(
            probabilities.transpose(0, 1),
            prepared["targets"],
            tuple(host["steps"]),
            tuple(host["label_lengths"]),
            blank=BLANK,
            reduction="none",
            zero_infinity=True,
        )
        taught = torch.tensor([length > 0 for length in host["label_lengths"]]).to(
            losses.device, non_blocking=True
        )
        return losses.where(taught, 0.0).sum(), prepared.count

    @torch.no_grad()
    def transcribe(self, prepared: Prepared) -> list[str]:
        if not len(prepared):
            return []
        paths = self.log_probabilities(prepared).argmax(-1).cpu().tolist()
        vocabulary, steps = self.config.vocabulary, prepared.host["steps"]
        return [vocabulary.collapse(path[:count]) for path, count in zip(paths, steps, strict=True)]

    def reference(self, transcript: str) -> str:
        # With characters that the vocabulary lacks: never to write them is an error too.
        return normalise(transcript, self.config.vocabulary.case_fold, self.config.vocabulary.punctuation)

    def flops(self, samples: Sequence[int], tokens: Sequence[int] = ()) -> np.ndarray:
        return ctc_flops(self.config, [subsampled(mel_frames(length)) for length in samples]).total

    def save_pretrained(self, folder: str | Path) -> None:
        config = {**asdict(self.config), "model_type": MODEL_TYPE}
        write_model(folder, config, self.state_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> CtcModel:
        """Raises MillraceError for a folder that holds no such model."""
        saved = read_config(folder, MODEL_TYPE)
        try:
            vocabulary = Characters(**saved.pop("vocabulary"))
            augment = saved.pop("augment", None)
            augment = SpecAugment(**augment) if augment else None
            model = cls(CtcConfig(vocabulary=vocabulary, augment=augment, **saved))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise MillraceError(
                f"config.json does not describe this model ({error!r})",
                where=str(folder),
                remedy="Save it again",
            ) from error
        read_weights(folder, model)
        return model

    def _features(self, prepared: Prepared) -> torch.Tensor:
        """Log-mel, each bin with mean 0 and variance 1 over the clip; (B, bins, L), zeros behind the end."""
        audio = prepared["audio"]
        # Silence behind the longest clip too, so that its last frames are those it has in any other batch.
        features = self.mel(padded_to(audio, audio.shape[1] + N_FFT))
        frames = _mel_frames(prepared["lengths"])
        features = features[..., : mel_frames(audio.shape[1])]
        inside = (torch.arange(features.shape[-1], device=audio.device) < frames[:, None])[:, None]
        count = frames.clamp(min=1)[:, None, None]
        mean = (features * inside).sum(-1, keepdim=True) / count
        centred = (features - mean) * inside
        features = centred / (centred.square().sum(-1, keepdim=True) / count + 1e-4).sqrt()
        if "masks" in prepared.tensors:
            features = self.config.augment.apply(features, prepared["masks"])
        return features.to(self.head.weight.dtype)

    def _convolve(self, features: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        frames = subsampled(_mel_frames(lengths), 1)
        hidden = _without_tail(F.relu(self.conv1(features[:, None].transpose(2, 3))), frames)
        hidden = F.relu(self.conv2(hidden))
        return self.norm(self.project(hidden.transpose(1, 2).flatten(2)))

    def _run(self, function: object, *arguments: object) -> torch.Tensor:
        if self.checkpointing and self.training:
            return checkpoint(function, *arguments, use_reentrant=False)
        return function(*arguments)


def mel_frames(samples: int) -> int:
    """Mel frames of a clip: those that begin inside it, one at least."""
    return max(-(-samples // HOP), 1)


def _mel_frames(samples: torch.Tensor) -> torch.Tensor:
    return torch.div(samples + HOP - 1, HOP, rounding_mode="floor").clamp(min=1)


def subsampled(frames: int, times: int = 2) -> int:
    """What `times` convolutions of stride 2, kernel 3 and padding 1 leave of `frames` (an int or a
    tensor)."""
    for _ in range(times):
        frames = (frames - 1) // 2 + 1
    return frames


def _without_tail(hidden: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
    inside = torch.arange(hidden.shape[2], device=hidden.device) < frames[:, None]
    return hidden * inside[:, None, :, None]


def _recur(gru: nn.GRU, norm: nn.LayerNorm, hidden: torch.Tensor, steps: list[int]) -> torch.Tensor:
    packed = pack_padded_sequence(hidden, steps, batch_first=True, enforce_sorted=False)
    return norm(pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=hidden.shape[1])[0])


@dataclass(frozen=True)
class CtcFlops:
    """Per clip, float64 (B,): the convolutions, and the rest."""

    conv: np.ndarray
    rest: np.ndarray

    @property
    def total(self) -> np.ndarray:
        return self.conv + self.rest


def ctc_flops(config: CtcConfig, steps: Sequence[int]) -> CtcFlops:
    """Operations of a forward pass over clips of `steps` steps of 40 ms."""
    count = np.asarray(steps, dtype=np.float64)
    channels, width, hidden = config.channels, subsampled(config.bins, 1), config.hidden
    conv = 2 * 9 * channels * 2 * width + 2 * 9 * channels**2 * subsampled(config.bins)
    rest = 2 * channels * subsampled(config.bins) * hidden
    for layer in range(config.layers):
        rest += 2 * 2 * 3 * hidden * ((hidden if layer == 0 else 2 * hidden) + hidden)
    rest += 2 * 2 * hidden * len(config.vocabulary)
    return CtcFlops(count * conv, count * rest)
