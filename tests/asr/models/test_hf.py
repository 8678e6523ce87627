"""Models of transformers with CTC or a decoder, small and random."""

from __future__ import annotations

import pytest
import torch
from transformers import Wav2Vec2FeatureExtractor

from millrace.asr.models.labels import IGNORE
from millrace.asr.models.registry import build, load
from tests.asr.clips import TEXTS, batch, train

CTC = ["wav2vec2-tiny-random", "hubert-tiny-random", "wav2vec2-bert-tiny-random"]
SECONDS = [2.0, 1.5]


def made(name: str) -> torch.nn.Module:
    torch.manual_seed(1)
    return build(name, {}, TEXTS)


@pytest.mark.parametrize("name", [*CTC, "whisper-tiny-random"])
def test_trains_saves_loads_and_transcribes(name, tmp_path):
    model = made(name)
    prepared = model.prepare(batch(SECONDS))
    losses = train(model, prepared, 15, 3e-3)
    assert losses[-1] < 0.8 * losses[0]
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path).eval()
    again = loaded.prepare(batch(SECONDS))
    torch.testing.assert_close(loaded(again), model(prepared))
    written = model.transcribe(prepared)
    assert len(written) == 2
    assert loaded.transcribe(again) == written


@pytest.mark.parametrize("name", [*CTC[:1], "whisper-tiny-random"])
def test_empty_batches_and_checkpointing(name):
    model = made(name)
    model.gradient_checkpointing_enable()
    loss, count = model(model.prepare(batch([])))
    loss.backward()
    assert (float(loss.detach()), count) == (0.0, 0)
    assert model.transcribe(model.prepare(batch([]))) == []
    model.train()(model.prepare(batch([1.0])))[0].backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def test_waveforms_are_normalised_as_the_extractor_does():
    model = made(CTC[0])
    clips = batch([2.0, 1.5, 0.3])
    found = model.features.on_device(model.prepare(clips), torch.float32)
    theirs = Wav2Vec2FeatureExtractor(return_attention_mask=True)(
        [sound[:length].numpy() for sound, length in zip(clips.audio, clips.lengths.tolist(), strict=True)],
        sampling_rate=16_000,
        padding=True,
        return_tensors="pt",
    )
    torch.testing.assert_close(found["input_values"], theirs.input_values, atol=1e-4, rtol=1e-4)
    assert torch.equal(found["attention_mask"], theirs.attention_mask.long())


def test_whisper_hears_what_its_extractor_makes():
    model = made("whisper-tiny-random")
    clips = batch([2.0, 1.503])
    found = model.features.on_device(model.prepare(clips), torch.float32)["input_features"]
    sounds = [
        sound[:length].numpy() for sound, length in zip(clips.audio, clips.lengths.tolist(), strict=True)
    ]
    theirs = model.processor.feature_extractor(
        sounds, sampling_rate=16_000, return_tensors="pt"
    ).input_features
    torch.testing.assert_close(found, theirs, atol=1e-4, rtol=0)


def test_steps_are_those_of_the_model():
    model = made(CTC[0])
    for samples in (400, 719, 720, 16_000, 33_333):
        assert model.features.steps(samples) == int(model.hf._get_feat_extract_output_lengths(samples))
        prepared = model.prepare(batch([samples / 16_000]))
        assert model.log_probabilities(prepared).shape[1] == prepared.host["steps"][0]


@pytest.mark.parametrize("name", CTC[:1])
def test_clips_too_short_for_their_text_are_left_out(name):
    model = made(name)
    prepared = model.prepare(batch([1.5, 0.01, 1.0], ["hello", "privet", "?"]))
    assert [reason for _, reason in prepared.dropped] == ["text_too_long", "no_text"]
    loss, count = model(prepared)
    assert count == 5
    assert torch.isfinite(loss)
    assert len(model.transcribe(prepared)) == 3


def test_augmentation_survives_short_batches():
    model = made(CTC[0])
    model.hf.config.mask_time_prob, model.augmented = 0.5, True
    model.train()
    assert torch.isfinite(model(model.prepare(batch([0.15], ["a"])))[0])


def test_decoder_labels_and_inputs():
    model = made("whisper-tiny-random")
    tokenizer = model.processor.tokenizer
    tokenizer.pad_token = tokenizer.eos_token  # as the published Whisper has it
    prepared = model.prepare(batch([2.0, 9.0, 1.0], TEXTS))
    assert prepared.dropped == ((1, "audio_too_long"),)  # this Whisper hears 8 s
    for row in (0, 2):
        labels = prepared["labels"][row]
        answer = labels[labels != IGNORE].tolist()
        assert tokenizer.decode(answer) == TEXTS[row] + tokenizer.eos_token
        given = prepared["decoder_input_ids"][row].tolist()
        assert given[: len(answer)] == [model.hf.config.decoder_start_token_id, *answer[:-1]]
    assert not (prepared["labels"][1] != IGNORE).any()
    assert prepared.count == int((prepared["labels"] != IGNORE).sum())
    assert torch.isfinite(model(prepared)[0])


def test_whispers_control_tokens_stand_before_the_text():
    model = made("whisper-tiny-random")
    tokenizer = model.processor.tokenizer
    for code in ("<|en|>", "<|ru|>", "<|transcribe|>", "<|notimestamps|>"):
        tokenizer.add_tokens([code], special_tokens=True)
    preparer = model.preparer
    assert (
        tokenizer.decode(preparer.label("hi", "Russian"))
        == "<|ru|><|transcribe|><|notimestamps|>hi<|endoftext|>"
    )
    assert (
        tokenizer.decode(preparer.label("hi", "en-GB"))
        == "<|en|><|transcribe|><|notimestamps|>hi<|endoftext|>"
    )
    assert tokenizer.decode(preparer.label("hi", "tlh")) == "<|notimestamps|>hi<|endoftext|>"
