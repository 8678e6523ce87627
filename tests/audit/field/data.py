"""Tiny data for the loaders of this folder."""

from __future__ import annotations

import os
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import torch
from torch.utils.data import Dataset

SAMPLES = 64


class Rows(Dataset):
    """64 rows of an id and 4 numbers."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, row):
        if row >= SAMPLES:
            raise IndexError(row)
        return {"id": row, "x": torch.arange(4.0) + 4 * row}


FOLDER = "FIELD_FOLDER"  # of the environment: a folder of one audit


def folder():
    """Return a new folder."""
    return Path(tempfile.mkdtemp())


def made_once(name, make):
    """Return a folder that each start of a loader finds; `make` fills it before the first."""
    place = Path(os.environ[FOLDER], name)
    if not place.exists():
        make(str(place))
    return str(place)


def tars(folder):
    """Return the names of 8 tars of 8 samples each."""
    for shard in range(8):
        with tarfile.open(folder / f"shard-{shard:06d}.tar", "w") as tar:
            for row in range(8 * shard, 8 * shard + 8):
                content = str(row).encode()
                member = tarfile.TarInfo(f"{row:05d}.txt")
                member.size = len(content)
                tar.addfile(member, BytesIO(content))
    return str(folder / "shard-{000000..000007}.tar")


def tokenizer(**special):
    """Return a tokenizer of the words w0 to w99, without a download."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[EOS]", "[UNK]", *(f"w{number}" for number in range(100))]
    vocabulary = {word: number for number, word in enumerate(words)}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=model, unk_token="[UNK]", **special)


def texts():
    """Return 32 texts of 3 to 9 words that differ from the first word on, each with its end."""
    return [
        " ".join(f"w{(7 * row + place) % 100}" for place in range(3 + row % 7)) + " [EOS]"
        for row in range(32)
    ]


def item(number):
    """Return a sample of litdata's."""
    return {"id": number, "x": torch.arange(4.0) + number}
