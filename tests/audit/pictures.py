"""Loaders of images, token rows and tables, as a user's file has them; `kind` names the bug or the
twin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

from tests.audit.mutants.vision import MEAN, STD, Compose, Normalize, ToTensor

here = str(Path(__file__))


class PILToTensor(ToTensor):
    def __call__(self, image):
        return super().__call__(image).mul(255).round()


class ColorJitter:
    def __call__(self, image):
        return (image * (0.8 + 0.4 * torch.rand(()))).clamp(0, 1)


class Folder(Dataset):
    """Red and blue change places as often as `swaps` says."""

    def __init__(self, root: str, transform, swaps: int) -> None:
        self.root, self.transform, self.swaps = root, transform, swaps
        self.samples = [(name, 0) for name in sorted(os.listdir(root))]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int):
        name, label = self.samples[index]
        image = self.transform(Image.open(os.path.join(self.root, name)))
        for _ in range(self.swaps):
            image = image.flip(0)
        return image, label


def grey(image):
    return image.mean(0, keepdim=True)


def scale(image):
    return image / 255


def dim(image):
    return (image * 3).floor() / 255


BGR = Normalize(MEAN[::-1], STD[::-1])
CHAINS = {
    "plain": [ToTensor()],
    "good": [ToTensor(), Normalize()],
    "dark": [ToTensor(), dim],
    "jitter first": [ToTensor(), ColorJitter(), Normalize()],
    "half": [ToTensor(), Normalize([0.5], [0.5])],
    "bgr mean": [ToTensor(), BGR],
    "unscaled": [PILToTensor()],
    "unscaled, normalised": [PILToTensor(), Normalize()],
    "pixel constants": [
        PILToTensor(),
        Normalize([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]),
    ],
    "twice": [ToTensor(), scale],
    "twice, normalised": [ToTensor(), scale, Normalize()],
    "too early": [Normalize(), ToTensor()],
    "tensor twice": [ToTensor(), ToTensor()],
    "jitter last": [ToTensor(), Normalize(), ColorJitter()],
    "lengths": [ToTensor(), grey, Normalize()],
    "own constants": [ToTensor(), Normalize([0.14, 0.28, 0.43], [0.1, 0.2, 0.3])],
    "one for three": [ToTensor(), Normalize([0.449], [0.226])],
}


def as_dicts(samples: list) -> list:
    return [{"image": image, "label": label} for image, label in samples]


def pictures(kind: str, root: str, as_list: bool = False) -> DataLoader:
    """`as_list`: as detectors take their batches."""
    swaps = int(kind.startswith("turned "))
    data = Folder(root, Compose(*CHAINS[kind.removeprefix("turned ")]), swaps)
    return DataLoader(data, batch_size=4, shuffle=True, collate_fn=as_dicts if as_list else None)


def in_memory() -> DataLoader:
    images = torch.rand(8, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(images), batch_size=4)


class Tokenizer:
    eos_token_id, audio_token_id = 2, 9

    def __init__(self, pad: int) -> None:
        self.pad_token_id = pad


class Texts(Dataset):
    """A prompt with places for audio, or a short one, and an answer that ends."""

    def __init__(self, short: bool) -> None:
        self.short = short

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[list[int], list[int]]:
        answer = torch.randint(
            20, 90, (3 + index % 4,), generator=torch.Generator().manual_seed(index)
        )
        prompt = [7, 10, 11, 12, *[9] * (5 + index % 3), 13, 14]
        return prompt[:3] if self.short else prompt, [*answer.tolist(), 2]


class Collate:
    def __init__(self, kind: str, left: bool, pad: int) -> None:
        self.kind, self.left, self.tokenizer = kind, left, Tokenizer(pad)

    def __call__(self, samples: list) -> dict[str, torch.Tensor]:
        longest = max(len(prompt) + len(answer) for prompt, answer in samples)
        ids = torch.full((len(samples), longest), self.tokenizer.pad_token_id)
        mask, masked = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        for row, (prompt, answer) in enumerate(samples):
            size = len(prompt) + len(answer)
            start = longest - size if self.left else 0
            ids[row, start : start + size] = torch.tensor(prompt + answer)
            mask[row, start : start + size] = 1
            start = 0 if self.kind == "from column 0" else start
            masked[row, start : start + len(prompt)] = self.kind != "whole text"
        if self.kind == "prompt":
            masked = ids == 9
        masked |= (mask == 0) & (self.kind != "padding")
        masked |= (ids == 2) & (self.kind == "end")
        masked |= torch.tensor(self.kind == "everything")
        return {"input_ids": ids, "labels": ids.masked_fill(masked, -100), "attention_mask": mask}


def tokens(kind: str, left: bool = False, pad: int = 0, short: bool = False) -> DataLoader:
    collate = Collate(kind, left, pad)
    return DataLoader(Texts(short), batch_size=4, shuffle=True, collate_fn=collate)


class Table(Dataset):
    def __init__(self, rows: torch.Tensor, fitted: torch.Tensor) -> None:
        self.rows, self.mean, self.std = rows, fitted.mean(0), fitted.std(0)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.rows[index] - self.mean) / self.std


ROWS = torch.randn(300, 8, generator=torch.Generator().manual_seed(1)) * 3 + 5
ROWS[240:] += 2
FITTED = {"train": ROWS[:240], "all": ROWS, "val": ROWS[240:]}


class Both:
    """The loaders of training and validation in one class, as Lightning's users have them."""

    def __init__(self, train: object, val: object) -> None:
        self.train, self.val = train, val

    def train_dataloader(self) -> object:
        return self.train

    def val_dataloader(self) -> object:
        return self.val


def tables(kind: str) -> Both:
    """`kind`: what its constants are fitted on."""
    fitted = FITTED[kind]
    train = DataLoader(Table(ROWS[:240], fitted), batch_size=32, shuffle=True, drop_last=True)
    return Both(train, DataLoader(Table(ROWS[240:], fitted), batch_size=32))


def unnamed() -> Both:
    """Rows of which nothing says what recording they are of."""
    parts = (DataLoader(TensorDataset(torch.rand(8, 8)), batch_size=4) for _ in range(2))
    return Both(*parts)


class Noisy(TensorDataset):
    is_train = False

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index)[0] + torch.randn(8)


def part(kind: str, data: Dataset, rows: range) -> DataLoader:
    if kind in ("loaded twice", "two kinds"):
        data = Noisy(ROWS.clone())
        data.is_train = kind == "two kinds" and not rows.start
    if kind == "sampler":
        return DataLoader(data, batch_size=16, sampler=SubsetRandomSampler(rows))
    return DataLoader(Subset(data, rows), batch_size=16, shuffle=True)


def parts(kind: str, first: int = 200) -> Both:
    """Splits of one data set; `first`: where validation begins, training ends at 200."""
    data = Noisy(ROWS) if kind == "noise" else TensorDataset(ROWS)
    return Both(part(kind, data, range(200)), part(kind, data, range(first, 300)))


def segments(*recordings: str) -> DataLoader:
    rows = [{"recording_id": recording, "features": torch.rand(8)} for recording in recordings]
    return DataLoader(rows, batch_size=2)


def recordings(shared: bool) -> Both:
    train = segments("recording a", "recording a", "recording b")
    return Both(train, segments("recording b" if shared else "recording c"))


class Spoken:
    """Batches that say nothing of their recordings, and a loader that does."""

    def __init__(self, numbers: range) -> None:
        self.recordings = lambda: (f"speaker {number}" for number in numbers)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(2, 2)])


def speakers(first: int) -> Both:
    """`first`: the first speaker of validation, of eight; training has 0 to 3."""
    return Both(Spoken(range(4)), Spoken(range(first, 8)))
