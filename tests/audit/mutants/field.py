"""labels, splits and stale: what is trained on, what is in two splits, an index older than its
files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Subset

from tests.audit.mutants import bug, twin
from tests.audit.mutants.rows import Rows, load, numbers, train

PAD, EOS, IGNORED, PROMPT = 0, 2, -100, 3


def text(index: int) -> dict:
    """Token ids: three of a prompt, three to eight of an answer, the end."""
    answer = [10 + (index * 7 + place) % 80 for place in range(3 + index % 6)]
    return {"ids": torch.tensor([5, 6, 7, *answer, EOS])}


class Labelled:
    """Pads to the longest and masks labels, as the settings say."""

    def __init__(self, side: str = "right", mask: str = "padding prompt", pad: int = PAD) -> None:
        self.side, self.mask, self.pad_token_id, self.eos_token_id = side, mask, pad, EOS

    def __call__(self, samples: list) -> dict:
        longest = max(len(sample["ids"]) for sample in samples)
        ids = torch.full((len(samples), longest), self.pad_token_id)
        attention, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
        for number, sample in enumerate(samples):
            first = longest - len(sample["ids"]) if self.side == "left" else 0
            real = slice(first, first + len(sample["ids"]))
            ids[number, real], attention[number, real] = sample["ids"], 1
            labels[number, real] = sample["ids"]
            if "prompt" in self.mask:
                labels[number, first : first + PROMPT] = IGNORED
            if "other side" in self.mask:
                labels[number] = ids[number]
                labels[number, len(sample["ids"]) :] = IGNORED
        if "padding" not in self.mask:
            labels[attention == 0] = self.pad_token_id
        if "every end" in self.mask:
            labels[labels == EOS] = IGNORED
        return {"input_ids": ids, "attention_mask": attention, "labels": labels}


def texts(**settings: object) -> DataLoader:
    return train(Rows(make=text), collate_fn=Labelled(**settings))


def recording(index: int, first: int, shift: float = 0.0) -> dict:
    """A window of one of twelve recordings; `first` is the first recording of the split."""
    name = f"recording-{first + index % 12:03d}"
    return {"x": numbers(index) + shift, "recording": name, "window": index // 12}


def wide(index: int) -> dict:
    return {"x": numbers(index, 16)}


def silence(index: int) -> dict:
    return {"x": torch.zeros(4)}


last_rows = partial(load, Subset(Rows(48, wide), range(32, 48)))
later_windows = partial(load, Rows(make=partial(recording, first=8, shift=0.5)))
other_recordings = partial(load, Rows(make=partial(recording, first=12, shift=0.5)))
recordings = partial(train, Rows(make=partial(recording, first=0)))
silent = partial(train, Rows(make=silence))


class Indexed(Rows):
    """Files by an index: a list of paths, or of paths with their sizes."""

    def __init__(self, folder: str, name: str, sizes: bool = False) -> None:
        super().__init__(12)
        self.index_path = Path(folder) / name / "index.json"
        entries = json.loads(self.index_path.read_text())
        places = [str(self.index_path.parent / entry["path"]) for entry in entries]
        self.paths = (
            [(path, entry["size"]) for path, entry in zip(places, entries, strict=True)]
            if sizes
            else places
        )

    def __getitem__(self, index: int) -> dict:
        path = self.paths[index] if isinstance(self.paths[index], str) else self.paths[index][0]
        return {"x": torch.tensor(list(Path(path).read_bytes()[:4])), "id": index}


CASES = [
    bug("labels", "padding is trained on", lambda: texts(mask="prompt")),
    bug(
        "labels",
        "the end is never trained on",
        lambda: texts(mask="padding prompt every end", pad=EOS),
    ),
    bug(
        "labels", "masked at the other side", lambda: texts(side="left", mask="padding other side")
    ),
    twin("labels", "answers only", texts),
    twin("labels", "answers only, padded left", lambda: texts(side="left")),
    twin("labels", "padded with the end", lambda: texts(pad=EOS)),
    twin("labels", "prompts trained on on purpose", lambda: texts(mask="padding")),
    bug("splits", "rows of both", lambda: train(Subset(Rows(48, wide), range(40))), val=last_rows),
    bug("splits", "recordings of both", recordings, val=later_windows),
    twin("splits", "rows of one", lambda: train(Subset(Rows(48, wide), range(32))), val=last_rows),
    twin("splits", "recordings of one", recordings, val=other_recordings),
    twin("splits", "silence in both", silent, val=silent),
    bug("stale", "an index of files that are gone", lambda folder: load(Indexed(folder, "gone"))),
    bug("stale", "the same with sizes", lambda folder: load(Indexed(folder, "gone", sizes=True))),
    twin("stale", "an index older than its files", lambda folder: load(Indexed(folder, "older"))),
    twin("stale", "an index newer than its files", lambda folder: load(Indexed(folder, "newer"))),
    twin("stale", "an index older than a log", lambda folder: load(Indexed(folder, "log"))),
]
