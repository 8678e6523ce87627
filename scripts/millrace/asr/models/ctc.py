"""Our own small recogniser and its sizes: two strided convolutions, bidirectional GRUs, CTC over
characters; log-mel normalised clip by clip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Flops, Prepared
from millrace.asr.models.ctc_base import CtcBase, prepared_labels
from millrace.asr.models.folder import read_config, read_weights, write_model
from millrace.asr.models.labels import BLANK, Characters, normalise
from millrace.asr.models.mel import HOP, N_FFT, LogMel, padded_to, standardised
from millrace.common.errors import MillraceError
from millrace.common.settings import check, setting

MODEL_TYPE = "millrace_ctc"
Frames = TypeVar("Frames", int, Tensor)


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

    def __post_init__(self) -> None:
        check(self, "model_options")

    def flops(self) -> tuple[int, int]:
        """Operations of a forward pass over a step of 40 ms: convolutions, and the rest."""
        channels = self.channels
        hidden = self.hidden

        # Kernels of 3x3; a step is two outputs of the first convolution and one of the second.
        once = subsampled(self.bins, 1)
        bins = subsampled(self.bins)
        convolutions = 2 * 9 * channels * 2 * once + 2 * 9 * channels**2 * bins

        # Three gates of two directions, each with products of the input and the state.
        inputs_and_states = 2 * hidden + (self.layers - 1) * 3 * hidden
        gates = 2 * 2 * 3 * hidden * inputs_and_states
        projection = 2 * channels * bins * hidden
        head = 2 * 2 * hidden * len(self.vocabulary)
        return convolutions, projection + head + gates


@dataclass
class CtcPreparer:
    """Characters, feasible clips."""

    config: CtcConfig

    def __call__(self, batch: Batch) -> Prepared:
        frames = [mel_frames(length) for length in batch.lengths.tolist()]
        steps = [subsampled(count) for count in frames]
        labels = [self.config.vocabulary.encode(text) for text in batch.transcripts]

        # The GRUs run on packed sequences: padding costs convolutions only.
        convolutions, rest = self.config.flops()
        count = np.array(steps, np.float64)
        longest = count.max(initial=0)
        flops = Flops(
            used=count * convolutions + count * rest,
            padded=longest * convolutions + count * rest,
        )
        tensors = {"frames": torch.tensor(frames, dtype=torch.int64)}
        return prepared_labels(batch, labels, BLANK, steps, flops, tensors)


class CtcModel(CtcBase):
    """log-mel -> two 3x3 convolutions of stride 2 -> BiGRUs -> characters, the same in any
    batch."""

    blank = BLANK
    model_types = (MODEL_TYPE,)
    option_types: ClassVar = {
        **{item.name: str(item.type) for item in fields(CtcConfig) if item.name != "vocabulary"},
        "case_fold": "bool",
        "punctuation": "bool",
    }

    def __init__(self, config: CtcConfig) -> None:
        super().__init__()
        self.config = config
        self.mel = LogMel(config.bins)
        self.preparer = CtcPreparer(config)
        channels = config.channels
        hidden = config.hidden
        width = 2 * hidden
        self.conv1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.project = nn.Linear(channels * subsampled(config.bins), hidden)
        self.norm = nn.LayerNorm(hidden)
        inputs = [hidden] + [width] * (config.layers - 1)
        self.grus = nn.ModuleList(
            nn.GRU(size, hidden, batch_first=True, bidirectional=True) for size in inputs
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(width, len(config.vocabulary))
        nn.init.zeros_(self.head.bias)
        self.checkpointing = False

    @classmethod
    def create(
        cls,
        name: str,
        options: Mapping[str, Any],
        transcripts: Iterable[str],
    ) -> CtcModel:
        sizes = dict(options)
        rules = {key: sizes.pop(key) for key in ("case_fold", "punctuation") if key in sizes}
        vocabulary = Characters.from_transcripts(transcripts, **rules)
        return cls(CtcConfig(vocabulary, **sizes))

    def gradient_checkpointing_enable(self) -> None:
        self.checkpointing = True

    def log_probabilities(self, prepared: Prepared) -> Tensor:
        # In steps of 40 ms.
        features = self._features(prepared)
        hidden = self._run(self._convolve, features, prepared["frames"])
        steps = prepared.host["steps"]
        for gru, norm in zip(self.grus, self.norms, strict=True):
            hidden = self._run(_recur, gru, norm, self.dropout(hidden), steps)
        scores = self.head(self.dropout(hidden)).float()
        return scores.log_softmax(-1)

    def text_of(self, path: Sequence[int]) -> str:
        return self.config.vocabulary.collapse(path)

    def reference(self, transcript: str) -> str:
        # With characters that the vocabulary lacks: never to write them is an error too.
        return normalise(
            transcript, self.config.vocabulary.case_fold, self.config.vocabulary.punctuation
        )

    def save_pretrained(self, folder: str | Path) -> None:
        config = {**asdict(self.config), "model_type": MODEL_TYPE}
        write_model(folder, config, self.state_dict())

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        options: Mapping[str, Any],
    ) -> CtcModel:
        saved = read_config(folder)
        try:
            del saved["model_type"]
            vocabulary = Characters(**saved.pop("vocabulary"))
            # Folders of version 0.4.0 say how training masked its clips.
            sizes = {name: saved[name] for name in saved.keys() - {"augment", "seed"}}
            model = cls(CtcConfig(vocabulary, **sizes))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            problem = f"config.json does not describe this model ({error!r})"
            raise MillraceError(problem, str(folder), "Save it again") from error
        read_weights(folder, model)
        return model

    def _features(self, prepared: Prepared) -> Tensor:
        """Log-mel, each bin with mean 0 and variance 1 over the clip; (B, bins, L), zeros behind
        the end."""
        audio = prepared["audio"]
        samples = audio.shape[1]
        # Silence behind the longest clip too, so that its last frames are those it has in any other
        # batch.
        features = self.mel(padded_to(audio, samples + N_FFT))
        features = features[..., : mel_frames(samples)]

        # Mean and variance of each clip's own frames.
        places = torch.arange(features.shape[-1], device=audio.device)
        inside = (places < prepared["frames"][:, None])[:, None]
        return standardised(features, inside, 1e-4).to(self.head.weight.dtype)

    def _convolve(self, features: Tensor, frames: Tensor) -> Tensor:
        image = features[:, None].transpose(2, 3)
        hidden = F.relu(self.conv1(image))
        # The first convolution writes into the frame behind the end, which the second one would
        # read.
        places = torch.arange(hidden.shape[2], device=hidden.device)
        inside = places < subsampled(frames, 1)[:, None]
        hidden = hidden * inside[:, None, :, None]
        hidden = F.relu(self.conv2(hidden))
        flat = hidden.transpose(1, 2).flatten(2)
        return self.norm(self.project(flat))

    def _run(
        self,
        function: Callable[..., Tensor],
        *arguments: object,
    ) -> Tensor:
        if self.checkpointing and self.training:
            return checkpoint(function, *arguments, use_reentrant=False)
        return function(*arguments)


def _recur(
    gru: nn.GRU,
    norm: nn.LayerNorm,
    hidden: Tensor,
    steps: list[int],
) -> Tensor:
    packed = pack_padded_sequence(hidden, steps, batch_first=True, enforce_sorted=False)
    output, _ = gru(packed)
    padded, _ = pad_packed_sequence(output, batch_first=True)
    return norm(padded)


def mel_frames(samples: int) -> int:
    """Mel frames of a clip: those that begin inside it, one at least."""
    return max(-(-samples // HOP), 1)


def subsampled(frames: Frames, times: int = 2) -> Frames:
    """What `times` convolutions of stride 2, kernel 3 and padding 1 leave of `frames`."""
    for _ in range(times):
        frames = (frames - 1) // 2 + 1
    return frames
