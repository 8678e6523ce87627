"""Padded batches of made-up speech for the tests of models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from millrace.asr.loading.collate import Batch
from millrace.asr.loading.row_table import Row

# Threads that wait for each other on a shared machine take far longer than the sums of these small
# models.
torch.set_num_threads(1)

TEXTS = ["hello world, this is it", "Désolé, je n'ai pas compris", "Всем привет", "uno dos tres"]
LANGUAGES = ["en", "fr", "ru", "es"]


def clip(seconds: float, seed: int = 0) -> np.ndarray:
    """float32 mono at 16 kHz: a tone that changes every 50 ms, and some noise."""
    draws = np.random.default_rng(seed)
    count = int(seconds * 16_000)
    pitches = np.repeat(draws.uniform(150, 3000, count // 800 + 1), 800)[:count]
    sound = 0.3 * np.sin(2 * np.pi * np.cumsum(pitches) / 16_000)
    sound += 0.01 * draws.standard_normal(count)
    return sound.astype(np.float32)


def batch(
    seconds: Sequence[float],
    texts: Sequence[str] = TEXTS,
    languages: Sequence[str] = LANGUAGES,
    first: int = 0,
) -> Batch:
    """A batch of clips `first`, `first` + 1, ... of these lengths; texts and languages in turn."""
    clips = []
    rows = []
    for number, length in enumerate(seconds):
        text = texts[number % len(texts)]
        language = languages[number % len(languages)]
        clips.append(torch.from_numpy(clip(length, first + number)))
        rows.append(Row(number, 0, 0, 0, first + number, length, text, language))
    audio = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True) if clips else torch.zeros(0, 0)
    return Batch.of(rows, list(map(len, clips)), step=0, audio=audio, planned=len(clips))


def sounds(clips: Batch) -> list[np.ndarray]:
    """The clips of a batch without padding, as feature extractors take them."""
    return [
        sound[:length].numpy()
        for sound, length in zip(clips.audio, clips.lengths.tolist(), strict=True)
    ]


def train(model: torch.nn.Module, prepared: object, steps: int, lr: float) -> list[float]:
    """Losses per unit of `steps` AdamW steps on one batch."""
    optimiser, losses = torch.optim.AdamW(model.parameters(), lr), []
    model.train()
    for _ in range(steps):
        loss, count = model(prepared)
        optimiser.zero_grad()
        (loss / count).backward()
        optimiser.step()
        losses.append(float(loss.detach()) / count)
    model.eval()
    return losses
