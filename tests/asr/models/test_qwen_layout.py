"""Qwen3-ASR as the qwen-asr package keeps it: read, written, and refused if a name or a key does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from millrace.asr import export_model
from millrace.asr.models.registry import build, load
from millrace.common.errors import MillraceError
from tests.asr.clips import TEXTS, batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny model in that layout, in two files, with vocabulary and merges as published."""
    folder = tmp_path_factory.mktemp("qwen") / "model"
    torch.manual_seed(5)
    model = build("qwen3-asr-tiny", {}, TEXTS)
    model.layout = "qwen-asr"
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    assert {name.split(".")[0] for name in state} == {"thinker"}
    half = len(state) // 2
    for number, names in enumerate((list(state)[:half], list(state)[half:]), 1):
        save_file({name: state[name] for name in names}, folder / f"model-{number:05d}-of-00002.safetensors")
    (folder / "model.safetensors").unlink()
    learned = json.loads((folder / "tokenizer.json").read_bytes())["model"]
    (folder / "vocab.json").write_text(json.dumps(learned["vocab"]))
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in learned["merges"]))
    return folder


def test_both_layouts_hold_the_same_model_and_its_tokenizer_files(folder, tmp_path):
    model = load(folder).eval()
    assert export_model.main(["--model", str(folder), "--output", str(tmp_path / "hf")]) == 0
    back = ["--layout", "qwen-asr", "--model"]
    assert export_model.main([*back, str(tmp_path / "hf"), "--output", str(tmp_path / "one")]) == 0
    assert export_model.main([*back, str(folder), "--output", str(tmp_path / "two/config.json")]) == 0
    prepared = model.prepare(batch([3.3, 1.0]))
    for name in ("hf", "one", "two"):
        other = load(tmp_path / name).eval()
        assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
        assert torch.equal(other(other.prepare(batch([3.3, 1.0])))[0], model(prepared)[0])
        assert (tmp_path / name / "merges.txt").read_bytes() == (folder / "merges.txt").read_bytes()
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "two" / name).read_bytes() == (folder / name).read_bytes(), name


def test_a_model_from_random_weights_answers_a_transcription_request(tmp_path):
    build("qwen3-asr-tiny", {}, TEXTS).save_pretrained(tmp_path)
    processor = load(tmp_path).processor
    clips = [np.zeros(16_000, np.float32)] * 2
    forced, free = (
        processor.apply_transcription_request(clips, language=language, prompt=["a b", ""], tokenize=False)
        for language in ("en", None)
    )
    assert forced[0].startswith("<|im_start|>system\na b<|im_end|>")
    assert forced[1].endswith("<|im_start|>assistant\nlanguage English<asr_text>")
    assert free[1].endswith("<|im_start|>assistant\n")
    asked = processor.apply_transcription_request(clips, language="en")
    assert asked["input_ids"].shape[0] == asked["input_features"].shape[0] == 2


def _config(change):
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_bytes())
        change(config["thinker_config"])
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def _weights(change):
    def damage(folder: Path) -> None:
        path = next(folder.glob("model-00001*"))
        state = load_file(path)
        change(state)
        save_file(state, path)

    return damage


_BIAS = "thinker.audio_tower.conv2d1.bias"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_config(lambda thinker: thinker.update(classify_num=5)), "a forced aligner"),
        (_config(lambda thinker: thinker["text_config"].update(moe=1)), "text_config holds moe, which mean"),
        (_config(lambda thinker: thinker["text_config"].pop("hidden_size")), "is of another shape"),
        (_config(lambda thinker: thinker["text_config"].update(rope_scaling={"type": "yarn"})), "type yarn"),
        (_weights(lambda state: state.pop(_BIAS)), f"{_BIAS} is missing"),
        (_weights(lambda state: state.update({_BIAS: torch.zeros(3)})), f"{_BIAS} is of another shape"),
        (_weights(lambda state: state.update({"thinker.model.x": torch.zeros(3)})), "model.x is unknown"),
        (_weights(lambda state: state.update({"talker.x": torch.zeros(3)})), "talker.x is none of Qwen3-ASR"),
        (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), "is missing"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(folder, tmp_path, damage, message):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    damage(copy)
    with pytest.raises(MillraceError, match=message):
        load(copy)
