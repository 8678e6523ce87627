"""A small recogniser: two strided convolutions, bidirectional GRUs, CTC over characters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Prepared
from millrace.asr.models.ctc_base import CtcBase, prepared_labels
from millrace.asr.models.files import read_config, read_weights, write_model
from millrace.asr.models.labels import BLANK, Characters, normalise
from millrace.asr.models.mel import HOP, N_FFT, LogMel, padded_to
from millrace.common.errors import MillraceError
from millrace.common.settings import check, setting
from millrace.common.training import seeding

MODEL_TYPE = "millrace_ctc"


@dataclass(frozen=True)
class SpecAugment:
    """SpecAugment (Park et al. 2019): bands of frequency and spans of time set to zero.

    `bands` bands of at most `band_bins` mel bins, `spans` spans of at most `span_share` of the
    clip.
    """

    bands: int = 2
    band_bins: int = 12
    spans: int = 2
    span_share: float = 0.05

    def draw(
        self,
        seed: int,
        epoch: int,
        sample_ids: Sequence[int] | np.ndarray,
        frames: Sequence[int],
        bins: int,
    ) -> Tensor:
        """int64 (B, bands + spans, 2): first and end of masked bins, then of masked frames.

        Drawn for (seed, epoch, sample id), whatever else is in the batch.
        """
        masks = np.zeros((len(sample_ids), self.bands + self.spans, 2), dtype=np.int64)
        for row, (sample_id, length) in enumerate(zip(sample_ids, frames, strict=True)):
            draws = seeding.generator(seed, "spec_augment", epoch, int(sample_id))
            sides = [(bins, min(self.band_bins, bins))] * self.bands
            sides += [(length, int(self.span_share * length))] * self.spans
            for number, (size, max_width) in enumerate(sides):
                width = int(draws.integers(0, max_width + 1))
                first = int(draws.integers(0, max(size - width, 0) + 1))
                masks[row, number] = first, first + width
        return torch.from_numpy(masks)

    def apply(self, features: Tensor, masks: Tensor) -> Tensor:
        """Features (B, bins, L) with zeros inside the masks of `draw`."""
        bins = torch.arange(features.shape[1], device=features.device)
        frames = torch.arange(features.shape[2], device=features.device)
        bands, spans = masks[:, : self.bands], masks[:, self.bands :]
        in_band = ((bins >= bands[..., :1]) & (bins < bands[..., 1:])).any(1)
        in_span = ((frames >= spans[..., :1]) & (frames < spans[..., 1:])).any(1)
        return features.masked_fill(in_band[:, :, None] | in_span[:, None], 0.0)


@dataclass(frozen=True)
class CtcConfig:
    """Sizes of the model. One layer learns fastest: two write only blanks for three times as many
    steps."""

    vocabulary: Characters
    bins: int = setting(40, "mel bins", at_least=1)
    channels: int = setting(8, "of the convolutions", at_least=1)
    hidden: int = setting(160, "width of the GRUs", at_least=1)
    layers: int = setting(1, "GRUs", at_least=1)
    dropout: float = setting(0.1, "share", at_least=0, below=1)
    augment: SpecAugment | None = None
    seed: int = 42

    def __post_init__(self) -> None:
        check(self, "model_options")

    def flops(self) -> tuple[int, int]:
        """Operations of a forward pass over a step of 40 ms: convolutions, and the rest."""
        channels, hidden, bins = self.channels, self.hidden, subsampled(self.bins)
        # Kernels of 3x3; a step is two outputs of the first convolution and one of the second.
        convolutions = 2 * 9 * channels * 2 * subsampled(self.bins, 1) + 2 * 9 * channels**2 * bins
        # Projection and head; three gates of two directions, each with products of the input and
        # the state.
        rest = 2 * channels * bins * hidden + 2 * 2 * hidden * len(self.vocabulary)
        rest += 2 * 2 * 3 * hidden * (2 * hidden + (self.layers - 1) * 3 * hidden)
        return convolutions, rest


@dataclass
class CtcPreparer:
    """Characters, feasible clips, drawn masks."""

    config: CtcConfig

    def __call__(self, batch: Batch, epoch: int | None = None) -> Prepared:
        config, lengths = self.config, batch.lengths.tolist()
        frames = [mel_frames(length) for length in lengths]
        steps = [subsampled(count) for count in frames]
        labels = [config.vocabulary.encode(text) for text in batch.transcripts]
        tensors = {"frames": torch.tensor(frames, dtype=torch.int64)}
        if config.augment and epoch is not None:
            tensors["masks"] = config.augment.draw(
                config.seed, epoch, batch.sample_ids, frames, config.bins
            )

        # The GRUs run on packed sequences: padding costs convolutions only.
        convolutions, rest = config.flops()
        count = np.array(steps, dtype=np.float64)
        flops, padded = (
            read * convolutions + count * rest for read in (count, count.max(initial=0))
        )
        return prepared_labels(batch, tensors, labels, steps, BLANK, flops, padded)


class CtcModel(CtcBase):
    """log-mel -> two 3x3 convolutions of stride 2 -> BiGRUs -> characters, the same in any
    batch."""

    blank = BLANK
    model_types = (MODEL_TYPE,)
    option_types: ClassVar = {
        field.name: str(field.type)
        for field in fields(CtcConfig)
        if field.name not in ("vocabulary", "augment")
    } | dict.fromkeys(("case_fold", "punctuation", "spec_augment"), "bool")

    def __init__(self, config: CtcConfig) -> None:
        super().__init__()
        self.config, self.mel = config, LogMel(config.bins)
        self.preparer = CtcPreparer(config)
        channels, hidden, width = config.channels, config.hidden, 2 * config.hidden
        self.conv1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.project = nn.Linear(channels * subsampled(config.bins), hidden)
        self.norm = nn.LayerNorm(hidden)
        kind, inputs = (
            {"batch_first": True, "bidirectional": True},
            [hidden] + [width] * (config.layers - 1),
        )
        self.grus = nn.ModuleList(nn.GRU(size, hidden, **kind) for size in inputs)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(width, len(config.vocabulary))
        nn.init.zeros_(self.head.bias)
        self.checkpointing = False

    @classmethod
    def create(cls, name: str, options: Mapping[str, Any], transcripts: Iterable[str]) -> CtcModel:
        sizes = dict(options)
        rules = {key: sizes.pop(key) for key in ("case_fold", "punctuation") if key in sizes}
        augment = SpecAugment() if sizes.pop("spec_augment", False) else None
        vocabulary = Characters.from_transcripts(transcripts, **rules)
        return cls(CtcConfig(vocabulary=vocabulary, augment=augment, **sizes))

    def gradient_checkpointing_enable(self) -> None:
        self.checkpointing = True

    def log_probabilities(self, prepared: Prepared) -> Tensor:
        # In steps of 40 ms.
        hidden = self._run(self._convolve, self._features(prepared), prepared["frames"])
        for gru, norm in zip(self.grus, self.norms, strict=True):
            hidden = self._run(_recur, gru, norm, self.dropout(hidden), prepared.host["steps"])
        return self.head(self.dropout(hidden)).float().log_softmax(-1)

    def text_of(self, path: Sequence[int]) -> str:
        return self.config.vocabulary.collapse(path)

    def reference(self, transcript: str) -> str:
        # With characters that the vocabulary lacks: never to write them is an error too.
        return normalise(
            transcript, self.config.vocabulary.case_fold, self.config.vocabulary.punctuation
        )

    def save_pretrained(self, folder: str | Path) -> None:
        write_model(folder, {**asdict(self.config), "model_type": MODEL_TYPE}, self.state_dict())

    @classmethod
    def from_pretrained(cls, folder: str | Path, options: Mapping[str, Any]) -> CtcModel:
        saved = read_config(folder)
        try:
            del saved["model_type"]
            vocabulary = Characters(**saved.pop("vocabulary"))
            augment = saved.pop("augment", None)
            augment = SpecAugment(**augment) if augment else None
            model = cls(CtcConfig(vocabulary=vocabulary, augment=augment, **saved))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            problem = f"config.json does not describe this model ({error!r})"
            raise MillraceError(problem, where=str(folder), remedy="Save it again") from error
        read_weights(folder, model)
        return model

    def _features(self, prepared: Prepared) -> Tensor:
        """Log-mel, each bin with mean 0 and variance 1 over the clip; (B, bins, L), zeros behind
        the end."""
        audio = prepared["audio"]
        # Silence behind the longest clip too, so that its last frames are those it has in any other
        # batch.
        features = self.mel(padded_to(audio, audio.shape[1] + N_FFT))
        features = features[..., : mel_frames(audio.shape[1])]

        # Mean and variance of each clip's own frames.
        frames = prepared["frames"]
        inside = (torch.arange(features.shape[-1], device=audio.device) < frames[:, None])[:, None]
        count = frames[:, None, None]
        mean = (features * inside).sum(-1, keepdim=True) / count
        centred = (features - mean) * inside
        features = centred / (centred.square().sum(-1, keepdim=True) / count + 1e-4).sqrt()
        if self.config.augment is not None and "masks" in prepared.tensors:
            features = self.config.augment.apply(features, prepared["masks"])
        return features.to(self.head.weight.dtype)

    def _convolve(self, features: Tensor, frames: Tensor) -> Tensor:
        hidden = F.relu(self.conv1(features[:, None].transpose(2, 3)))
        # The first convolution writes into the frame behind the end, which the second one would
        # read.
        inside = (
            torch.arange(hidden.shape[2], device=hidden.device) < subsampled(frames, 1)[:, None]
        )
        hidden = F.relu(self.conv2(hidden * inside[:, None, :, None]))
        return self.norm(self.project(hidden.transpose(1, 2).flatten(2)))

    def _run(self, function: Callable[..., Tensor], *arguments: object) -> Tensor:
        if self.checkpointing and self.training:
            return checkpoint(function, *arguments, use_reentrant=False)
        return function(*arguments)


def _recur(gru: nn.GRU, norm: nn.LayerNorm, hidden: Tensor, steps: list[int]) -> Tensor:
    packed = pack_padded_sequence(hidden, steps, batch_first=True, enforce_sorted=False)
    return norm(
        pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=hidden.shape[1])[0]
    )


def mel_frames(samples: int) -> int:
    """Mel frames of a clip: those that begin inside it, one at least."""
    return max(-(-samples // HOP), 1)


@overload
def subsampled(frames: int, times: int = 2) -> int: ...
@overload
def subsampled(frames: Tensor, times: int = 2) -> Tensor: ...
def subsampled(frames: int | Tensor, times: int = 2) -> int | Tensor:
    """What `times` convolutions of stride 2, kernel 3 and padding 1 leave of `frames`."""
    for _ in range(times):
        frames = (frames - 1) // 2 + 1
    return frames
