"""Qwen3-ASR as the qwen-asr package keeps it: read, written, and refused if a name or a key does
not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3ASRFeatureExtractor, Qwen3ASRForConditionalGeneration

from millrace.asr.models.qwen import layout
from millrace.asr.models.qwen.config import random_config, random_processor
from millrace.asr.models.qwen.model import QwenModel
from millrace.asr.models.registry import build, load
from millrace.common import jsonl
from tests.asr.clips import TEXTS, batch
from tests.refusals import refused


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
        save_file(
            {name: state[name] for name in names},
            folder / f"model-{number:05d}-of-00002.safetensors",
        )
    (folder / "model.safetensors").unlink()
    learned = jsonl.read(folder / "tokenizer.json")["model"]
    (folder / "vocab.json").write_text(json.dumps(learned["vocab"]))
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in learned["merges"]))
    return folder


def write(source: Path, layout: str, folder: Path) -> None:
    """Write the model of a folder again, in a layout."""
    model = load(source)
    model.layout = layout
    model.save_pretrained(folder)


def test_both_layouts_hold_the_same_model_and_its_tokenizer_files(folder, tmp_path):
    model = load(folder).eval()
    write(folder, "transformers", tmp_path / "hf")
    write(tmp_path / "hf", "qwen-asr", tmp_path / "one")
    write(folder, "qwen-asr", tmp_path / "two")
    prepared = model.prepare(batch([3.3, 1.0]))
    for name in ("hf", "one", "two"):
        other = load(tmp_path / name).eval()
        assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
        assert torch.equal(other(other.prepare(batch([3.3, 1.0])))[0], model(prepared)[0])
        ends = other.processor.tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
        assert other.hf.config.eos_token_id == ends
        assert (tmp_path / name / "merges.txt").read_bytes() == (folder / "merges.txt").read_bytes()
    for name in (
        "config.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "generation_config.json",
    ):
        assert (tmp_path / "two" / name).read_bytes() == (folder / name).read_bytes(), name


def with_rope(**rope: object) -> QwenModel:
    """A tiny model of other numbers than any default, with these rotary positions, to be
    exported."""
    processor = random_processor(TEXTS)
    config = random_config("tiny", processor.tokenizer)
    config.text_config.rope_parameters = {"rope_type": "default", "rope_theta": 12_345.0, **rope}
    config.text_config.rms_norm_eps, config.audio_config.n_window_infer = 1e-4, 300
    config.tie_word_embeddings = False
    config.initializer_range = 0.03
    config.audio_config.num_mel_bins = 80
    processor.feature_extractor = Qwen3ASRFeatureExtractor(feature_size=80)
    model = QwenModel(Qwen3ASRForConditionalGeneration(config), processor)
    model.layout = "qwen-asr"
    return model


def test_the_export_says_what_the_model_in_memory_computes(tmp_path):
    model = with_rope()
    model.save_pretrained(tmp_path)
    thinker = jsonl.read(tmp_path / "config.json")["thinker_config"]
    for name, least in (("audio_config", 15), ("text_config", 14)):
        in_memory = model.hf.config.to_dict()[name]
        shared = (thinker[name].keys() & in_memory) - {"model_type"}
        assert len(shared) >= least
        shared -= {"tie_word_embeddings"}
        assert {key: thinker[name][key] for key in shared} == {
            key: in_memory[key] for key in shared
        }

    assert thinker["text_config"]["tie_word_embeddings"] is False
    ids = [thinker["audio_start_token_id"], thinker["audio_end_token_id"]]
    tokens = model.processor.tokenizer.convert_ids_to_tokens(ids)
    assert tokens == ["<|audio_start|>", "<|audio_end|>"]
    assert thinker["initializer_range"] == 0.03

    # What the qwen-asr package reads, and no file of transformers beside it.
    for name, key, value in (
        ("preprocessor_config.json", "feature_extractor_type", "WhisperFeatureExtractor"),
        ("tokenizer_config.json", "tokenizer_class", "Qwen2TokenizerFast"),
    ):
        assert jsonl.read(tmp_path / name)[key] == value
    assert "English" in jsonl.read(tmp_path / "config.json")["support_languages"]
    names = {path.name for path in tmp_path.iterdir()}
    assert not names & {"processor_config.json", "chat_template.jinja"}

    # Rotary positions have another form there; those of text turn all three sections alike.
    text = thinker["text_config"]
    assert text["rope_theta"] == 12_345.0 and text["rope_scaling"]["rope_type"] == "default"
    assert sum(text["rope_scaling"]["mrope_section"]) == text["head_dim"] // 2
    _config("text_config", rope_scaling={"type": "mrope"})(tmp_path)  # in older words
    loaded = load(tmp_path)
    before, after = (of.hf.model.language_model.rotary_emb.inv_freq for of in (model, loaded))
    assert loaded.mel.bins == 80
    assert torch.equal(before, after)

    # Keys that are missing have their defaults.
    _config("audio_config", dropout=None)(tmp_path)
    _config("text_config", rope_scaling=None)(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"pad_token_id": null}')
    assert load(tmp_path).hf.config.audio_config.n_window_infer == 300


def test_the_sections_of_the_exported_positions_are_those_of_the_published_model():
    text = {"head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    assert layout.rope(text)["rope_scaling"]["mrope_section"] == [24, 20, 20]


def test_scaled_positions_are_not_exported_as_plain_ones(tmp_path):
    with refused("of type linear have no place in the layout of qwen-asr"):
        with_rope(rope_type="linear", factor=4.0).save_pretrained(tmp_path / "model")
    assert not list(tmp_path.glob("model/*"))


def test_a_model_from_random_weights_answers_a_transcription_request(tmp_path):
    build("qwen3-asr-tiny", {}, TEXTS).save_pretrained(tmp_path)
    processor = load(tmp_path).processor
    clips = [np.zeros(16_000, np.float32)] * 2
    forced, free = (
        processor.apply_transcription_request(
            clips, language=language, prompt=["a b", ""], tokenize=False
        )
        for language in ("en", None)
    )
    assert forced[0].startswith("<|im_start|>system\na b<|im_end|>")
    assert forced[1].endswith("<|im_start|>assistant\nlanguage English<asr_text>")
    assert free[1].endswith("<|im_start|>assistant\n")
    asked = processor.apply_transcription_request(clips, language="en")
    assert asked["input_ids"].shape[0] == asked["input_features"].shape[0] == 2


def _config(part: str, **change: object):
    def damage(folder: Path) -> None:
        config = jsonl.read(folder / "config.json")
        thinker = config["thinker_config"]
        of_part = thinker[part] if part else thinker
        of_part |= change
        for name in [name for name, value in change.items() if value is None]:
            del of_part[name]
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def _weight(name: str, value: torch.Tensor | None):
    def damage(folder: Path) -> None:
        path = next(folder.glob("model-00001*"))
        state = load_file(path)
        state.pop(name, None)
        save_file(state | ({} if value is None else {name: value}), path)

    return damage


_BIAS, _OTHER = "thinker.audio_tower.conv2d1.bias", torch.zeros(3)


@pytest.mark.parametrize(
    "damage, message",
    [
        (_config("text_config", hidden_size=None), "cannot be loaded"),
        (_config("text_config", rope_scaling={"type": "yarn"}), "type yarn"),
        (_weight(_BIAS, None), r"conv2d1.bias is missing"),
        (_weight(_BIAS, _OTHER), r"conv2d1.bias is of another shape"),
        (_weight("talker.x", _OTHER), "talker.x is none of Qwen3-ASR"),
        (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), "is missing"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(folder, tmp_path, damage, message):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    damage(copy)
    with refused(message) as error:
        load(copy)
    assert error.value.where.startswith(str(copy))
