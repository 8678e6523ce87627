"""Models of transformers with CTC or a decoder, small and random."""

from __future__ import annotations

import pytest
import torch
from transformers import Wav2Vec2FeatureExtractor

from millrace.asr.models.base import AsrModel
from millrace.asr.models.labels import IGNORE
from millrace.asr.models.registry import load
from tests.asr.clips import TEXTS, batch, sounds
from tests.asr.models import tiny


@pytest.fixture
def make(tmp_path):
    def make(model_type: str) -> AsrModel:
        torch.manual_seed(1)
        return load(tiny.write(tmp_path / "tiny", model_type, TEXTS)).eval()

    return make


def test_waveforms_are_normalised_as_the_extractor_does(make):
    model, clips = make("wav2vec2"), batch([2.0, 1.5, 0.3])
    inputs = model.features.on_device(model.prepare(clips), torch.float32)
    theirs = Wav2Vec2FeatureExtractor(return_attention_mask=True)(
        sounds(clips), sampling_rate=16_000, padding=True, return_tensors="pt"
    )
    torch.testing.assert_close(inputs["input_values"], theirs.input_values, atol=1e-4, rtol=1e-4)
    assert torch.equal(inputs["attention_mask"], theirs.attention_mask.long())


def test_whisper_hears_what_its_extractor_makes(make):
    model, clips = make("whisper"), batch([2.0, 1.503])
    inputs = model.features.on_device(model.prepare(clips), torch.float32)["input_features"]
    theirs = model.processor.feature_extractor(
        sounds(clips), sampling_rate=16_000, return_tensors="pt"
    ).input_features
    torch.testing.assert_close(inputs, theirs, atol=1e-4, rtol=0)


def test_steps_are_those_of_the_model(make):
    model = make("wav2vec2")
    for samples in (400, 719, 720, 16_000, 33_333):
        prepared = model.prepare(batch([samples / 16_000]))
        steps = model.log_probabilities(prepared).shape[1]
        assert model.features.steps(samples) == prepared.host["steps"][0] == steps


def test_clips_too_short_for_their_text_are_left_out(make):
    model = make("wav2vec2")
    prepared = model.prepare(batch([1.5, 0.01, 1.0], ["hello", "privet", "?"]))
    assert [reason for _, reason in prepared.dropped] == ["text_too_long", "no_text"]
    loss, count = model(prepared)
    assert count == 5
    assert torch.isfinite(loss)
    assert len(model.transcribe(prepared)) == 3


def test_augmentation_survives_short_batches(make):
    model = make("wav2vec2")
    model.hf.config.mask_time_prob, model.augmented = 0.5, True
    model.train()
    assert torch.isfinite(model(model.prepare(batch([0.15], ["a"])))[0])


def test_decoder_labels_and_inputs(make):
    model = make("whisper")
    tokenizer = model.processor.tokenizer
    tokenizer.pad_token = tokenizer.eos_token  # as the published Whisper has it
    prepared = model.prepare(batch([2.0, 9.0, 1.0], TEXTS))
    assert prepared.dropped == ((1, "audio_too_long"),)  # this Whisper hears 8 s
    for row in (0, 2):
        labels = prepared["labels"][row]
        answer = labels[labels != IGNORE].tolist()
        assert tokenizer.decode(answer) == TEXTS[row] + tokenizer.eos_token
        inputs = prepared["decoder_input_ids"][row].tolist()
        assert inputs[: len(answer)] == [model.hf.config.decoder_start_token_id, *answer[:-1]]
    assert not (prepared["labels"][1] != IGNORE).any()
    assert prepared.count == int((prepared["labels"] != IGNORE).sum())
    assert torch.isfinite(model(prepared)[0])
    # The encoder always runs on its whole window.
    longer = model.prepare(batch([8.0, 9.0, 1.0], TEXTS)).counts
    assert prepared.counts["padded_flops"] == longer["padded_flops"]


def test_whispers_control_tokens_stand_before_the_text(make):
    model = make("whisper")
    tokenizer = model.processor.tokenizer
    for code in ("<|en|>", "<|ru|>", "<|transcribe|>", "<|notimestamps|>"):
        tokenizer.add_tokens([code], special_tokens=True)
    for language, control in (
        ("Russian", "<|ru|><|transcribe|>"),
        ("en-GB", "<|en|><|transcribe|>"),
        ("tlh", ""),
    ):
        label = model.preparer.label("hi", language)
        assert tokenizer.decode(label) == f"{control}<|notimestamps|>hi<|endoftext|>"
