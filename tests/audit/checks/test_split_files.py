"""Files of two splits that are copies of each other under other names are noticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import soundfile
import torch
from torch.utils.data import DataLoader, Dataset

from millrace.audit.checks.findings import Finding
from millrace.audit.probes.splits import splits
from millrace.audit.runner.target import Options, Target
from tests.audit.running import judged, probed
from tests.corpora import RATE, noise


class Crops(Dataset):
    """Random crops of recordings, no two of which are equal."""

    def __init__(self, folder: Path) -> None:
        self.files = [str(path) for path in sorted(folder.iterdir())]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        start = int(torch.randint(0, RATE, ()))
        samples, _ = soundfile.read(self.files[index], RATE, start, dtype="float32")
        return torch.from_numpy(samples)


class Recordings:
    """`train_dataloader()` and `val_dataloader()` of one class, as Lightning's users have them."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Crops(self.root / "train"), batch_size=2, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Crops(self.root / "val"), batch_size=2)


def write(root: Path, copied: int) -> None:
    """Four recordings of train; of three of validation, the second one is a copy, cut and encoded
    anew, of the one of train with this number."""
    for split, numbers in (("train", range(4)), ("val", (20, copied, 21))):
        (root / split).mkdir()
        for place, number in enumerate(numbers):
            if split == "train":
                soundfile.write(root / f"train/a{place}.wav", noise(5, number), RATE)
            else:
                soundfile.write(root / f"val/x{place}.flac", noise(5, number)[RATE // 2 :], RATE)


def found(root: Path) -> list[Finding]:
    name = f"{__file__}:Recordings"
    options = Options(name, {"root": str(root)}, val_loader=name)
    return judged("splits", splits=probed(splits, Target(options), root))


def test_a_cut_copy_in_validation_fails_and_is_named(tmp_path):
    write(tmp_path, copied=3)
    (finding,) = found(tmp_path)
    assert finding.verdict == "fail"
    said = "1 of validation are in training, by content of the files: sample 1 is 3 there"
    assert finding.cause == said
    assert finding.evidence["examples"] == [{"mark": "sound", "train": 3, "val": 1}]


def test_recordings_of_one_split_only_pass(tmp_path):
    write(tmp_path, copied=30)
    (finding,) = found(tmp_path)
    assert finding.verdict == "pass" and "content of the files" in finding.cause


@pytest.mark.parametrize("error", [ImportError("imagehash"), OSError("no libsndfile")])
def test_without_what_decodes_files_are_compared_by_name(tmp_path, monkeypatch, error):
    def missing(*_: object) -> None:
        raise error

    write(tmp_path, copied=3)
    monkeypatch.setattr("millrace.audit.splits.content.read", missing)
    (finding,) = found(tmp_path)
    assert finding.verdict == "pass" and "content of the files" not in finding.cause


def test_without_the_packages_of_the_comparison_files_are_compared_by_name(tmp_path, monkeypatch):
    write(tmp_path, copied=3)
    monkeypatch.setitem(sys.modules, "millrace.audit.splits.compare", None)
    (finding,) = found(tmp_path)
    assert finding.verdict == "pass" and "content of the files" not in finding.cause


@pytest.mark.parametrize("reads", [1, 4])
def test_what_there_was_no_time_for_is_not_said_to_be_compared(tmp_path, monkeypatch, reads):
    write(tmp_path, copied=3)
    left = iter([60.0] * (reads - 1))
    monkeypatch.setattr("millrace.audit.probes.splits._has_time", lambda *_: next(left, None))
    (finding,) = found(tmp_path)
    assert finding.verdict == "pass" and "content of the files" not in finding.cause


@pytest.mark.parametrize("train, val", [(True, True), (True, False), (False, True)])
def test_splits_of_which_one_was_read_in_part_do_not_pass(train, val):
    read = {"train": {"read": 9, "complete": train}, "val": {"read": 9, "complete": val}}
    seen = {"shared": {"index": {"count": 0, "examples": []}}, **read}
    (finding,) = judged("splits", splits=[seen])
    assert finding.verdict == ("pass" if train and val else "not decidable")
