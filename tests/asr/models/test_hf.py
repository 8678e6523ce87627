"""Models of transformers with CTC or a decoder, small and random."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from millrace.asr.models.base import AsrModel
from millrace.asr.models.hf.ctc import HfCtcPreparer
from millrace.asr.models.labels import IGNORE
from millrace.asr.models.registry import load
from millrace.common import jsonl
from tests.asr.clips import TEXTS, batch, sounds
from tests.asr.models import tiny
from tests.refusals import refused

FORM = {"sampling_rate": 16_000, "return_tensors": "pt"}


def make(model_type: str, folder: Path) -> AsrModel:
    torch.manual_seed(1)
    return load(tiny.write(folder, model_type, TEXTS)).eval()


@pytest.mark.parametrize("is_normalised", [True, False])
def test_waveforms_are_normalised_as_the_extractor_does(tmp_path, is_normalised):
    model, clips = make("wav2vec2", tmp_path), batch([2.0, 1.5, 0.3])
    extractor = model.processor.feature_extractor
    extractor.do_normalize = is_normalised
    inputs = model.features.on_device(model.prepare(clips), torch.float32)
    theirs = extractor(sounds(clips), padding=True, **FORM)
    torch.testing.assert_close(inputs["input_values"], theirs.input_values, atol=1e-4, rtol=1e-4)
    assert torch.equal(inputs["attention_mask"], theirs.attention_mask.long())
    # As wav2vec 2.0 base was trained.
    extractor.return_attention_mask = False
    assert model.features.on_device(model.prepare(clips), torch.float32).keys() == {"input_values"}


def test_whisper_hears_what_its_extractor_makes(tmp_path):
    model, clips = make("whisper", tmp_path), batch([2.0, 1.503])
    inputs = model.features.on_device(model.prepare(clips), torch.float32)["input_features"]
    theirs = model.processor.feature_extractor(sounds(clips), **FORM)
    torch.testing.assert_close(inputs, theirs.input_features, atol=1e-4, rtol=0)


def test_a_clip_shorter_than_a_frame_is_masked_as_one_frame(tmp_path):
    model = make("wav2vec2", tmp_path)
    inputs = model.features.on_device(model.prepare(batch([0.5, 0.01])), torch.float32)
    assert inputs["attention_mask"].sum(1).tolist() == [8_000, 400]
    assert model.prepare(batch([0.5, 0.01])).host["steps"] == [24, 1]


def test_steps_are_those_of_the_model(tmp_path):
    model = make("wav2vec2", tmp_path)
    for samples in (400, 719, 720, 16_000, 33_333):
        prepared = model.prepare(batch([samples / 16_000]))
        steps = model.log_probabilities(prepared).shape[1]
        assert model.features.steps(samples) == prepared.host["steps"][0] == steps


def test_too_short_clips_are_left_out_and_augmentation_survives_short_batches(tmp_path):
    model = make("wav2vec2", tmp_path)
    prepared = model.prepare(batch([1.5, 0.01, 1.0], ["hello", "privet", "?"]))
    assert prepared.dropped == ((1, "text_too_long"), (2, "no_text"))
    loss, count = model(prepared)
    assert torch.isfinite(loss) and count == 5 and len(model.transcribe(prepared)) == 3
    model.hf.config.mask_time_prob, model.augmented = 0.5, True
    assert torch.isfinite(model.train()(model.prepare(batch([0.15], ["a"])))[0])


@pytest.mark.parametrize("is_augmented", [True, False])
def test_augmentation_is_what_the_folder_says_also_after_a_short_batch(
    tmp_path, monkeypatch, is_augmented
):
    """And every parameter has a gradient, for which other ranks wait; no layer is left out."""
    config = {"apply_spec_augment": is_augmented, "mask_time_prob": 0.5, "layerdrop": 1.0}
    for name, value in config.items():
        monkeypatch.setitem(tiny.CTC_SIZES, name, value)
    model = make("wav2vec2", tmp_path)
    seen = []
    for seconds in (1.0, 0.15):
        model.zero_grad()
        model.train()(model.prepare(batch([seconds], ["a"])))[0].backward()
        gradients = {name: part.grad for name, part in model.named_parameters()}
        assert all(gradient is not None for gradient in gradients.values())
        assert gradients["hf.wav2vec2.encoder.layers.0.attention.k_proj.weight"].any()
        seen.append(model.hf.config.apply_spec_augment)
    assert seen == [is_augmented, False]
    model.save_pretrained(tmp_path / "saved")
    saved = jsonl.read(tmp_path / "saved/config.json")
    assert saved.get("apply_spec_augment", True) == is_augmented


def test_the_blank_is_the_tokenizers_pad_token(tmp_path):
    model = make("wav2vec2", tmp_path)
    ids = model.processor.tokenizer.get_vocab()
    assert ids["<pad>"] != 0
    path = ["h", "h", "<pad>", "h", "|", "<pad>", "|", "a", "a"]
    assert model.text_of([ids[token] for token in path]) == "hh a"
    prepared = model.prepare(batch([2.0], ["hello"]))
    scores = model.log_probabilities(prepared).transpose(0, 1)
    labels = torch.tensor([[ids[letter] for letter in "hello"]])
    expected = F.ctc_loss(scores, labels, (len(scores),), (5,), ids["<pad>"], reduction="sum")
    torch.testing.assert_close(model(prepared)[0], expected)


@pytest.mark.parametrize("pad", ["<|endoftext|>", None])  # the first as the published one has it
def test_decoder_labels_and_inputs(tmp_path, pad):
    model = make("whisper", tmp_path)
    tokenizer = model.processor.tokenizer
    tokenizer.pad_token = pad
    prepared = model.prepare(batch([2.0, 9.0, 8.0], TEXTS))
    assert prepared.dropped == ((1, "audio_too_long"),)  # this Whisper hears 8 s
    answers = [[token for token in row if token != IGNORE] for row in prepared["labels"].tolist()]
    end = tokenizer.eos_token
    assert tokenizer.batch_decode(answers) == [TEXTS[0] + end, "", TEXTS[2] + end]
    for row in (0, 2):
        inputs = prepared["decoder_input_ids"][row].tolist()
        assert inputs[: len(answers[row])] == [
            model.hf.config.decoder_start_token_id,
            *answers[row][:-1],
        ]
    assert prepared.count == sum(map(len, answers))
    inputs = model.features.on_device(prepared, torch.float32)
    names = ("decoder_input_ids", "labels")
    theirs = model.hf(**inputs, **{name: prepared[name] for name in names}).loss
    torch.testing.assert_close(model(prepared)[0], theirs * prepared.count)
    assert "flops" not in prepared.counts
    assert prepared.counts["tokens"] == prepared.count + 1  # one of the clip without a label

    # Left out at random, a layer has a gradient all the same, for which other ranks wait.
    model.hf.model.encoder.layerdrop = 1.0
    model.train()(prepared)[0].backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in trained)


def test_texts_of_more_tokens_than_the_decoder_has_places_are_left_out(tmp_path):
    model = make("whisper", tmp_path)
    text = "a b " * 60
    model.preparer.max_target = len(model.preparer.label(text, "en"))
    assert model.prepare(batch([1.0], [text])).dropped == ()
    model.preparer.max_target -= 1
    assert model.prepare(batch([1.0], [text])).dropped == ((0, "text_too_long"),)


@pytest.mark.parametrize(
    "characters, reference",
    [("ABCD|", "BAD CAB"), ("abcd|", "bad cab"), ("aBcd|", "ad caB")],
)
def test_a_transcript_takes_the_case_of_a_tokenizer_that_has_only_one(characters, reference):
    class Tokenizer:
        def get_vocab(self) -> dict:
            return {token: number for number, token in enumerate(["<pad>", *characters])}

    assert HfCtcPreparer(Tokenizer(), None).reference("bad ? caB") == reference


def test_whispers_control_tokens_stand_before_the_text(tmp_path):
    model = make("whisper", tmp_path)
    tokenizer = model.processor.tokenizer
    tokenizer.add_tokens(
        ["<|en|>", "<|ru|>", "<|transcribe|>", "<|notimestamps|>"], special_tokens=True
    )
    english = "<|en|><|transcribe|>"
    controls = {"Russian": "<|ru|><|transcribe|>", "en-GB": english, "EN_us": english, "tlh": ""}
    labels = [tokenizer.decode(model.preparer.label(" h  i", name)) for name in controls]
    assert labels == [f"{control}<|notimestamps|>h i<|endoftext|>" for control in controls.values()]
    assert model.reference(" h  i") == "h i"
    # Those of a transcript are text.
    (end,) = tokenizer("<|endoftext|>", add_special_tokens=False).input_ids
    label = model.preparer.label("a <|endoftext|> b", "en")
    assert label.index(end) == len(label) - 1


def test_whisper_is_told_the_language_the_task_and_how_long_to_write(tmp_path, monkeypatch):
    model = make("whisper", tmp_path)
    told = []
    written = model.processor.tokenizer(" h  i<|endoftext|>", return_tensors="pt").input_ids

    def generate(**settings: object) -> torch.Tensor:
        told.append([settings.get(name) for name in ("language", "task", "max_new_tokens")])
        return written

    monkeypatch.setattr(model.hf, "generate", generate)
    prepared = model.prepare(batch([2.0]))
    model.hf.generation_config.max_length = 448
    assert model.recognise(prepared, "German") == [("German", "h i")]  # a model of one language
    model.hf.generation_config.lang_to_id = {"<|de|>": 1}
    model.recognise(prepared, "German")
    model.preparer.max_target = 50
    model.recognise(prepared)
    assert told == [[None, None, 48], ["de", "transcribe", 48], [None, "transcribe", 42]]
    with refused(r"no language 'xx'. It knows de"):
        model.recognise(prepared, "xx")
    assert model.max_seconds == 8.0
    # What is saved with the model: without it others' transformers writes 20 tokens at most.
    assert model.hf.generation_config.max_length == 448


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"feature_extractor_type": "SeamlessM4TFeatureExtractor"}, "not of Wav2Vec2Feature"),
        ({"sampling_rate": 8000}, "hears 8000 Hz, the buckets hold 16000 Hz"),
        ({"sampling_rate": 24_000}, "hears 24000 Hz, the buckets hold 16000 Hz"),
    ],
)
def test_features_that_are_not_computed_here_are_refused(tmp_path, change, problem):
    tiny.write(tmp_path, "wav2vec2", TEXTS)
    for name in ("processor_config.json", "preprocessor_config.json"):
        path = tmp_path / name
        if path.exists():
            config = jsonl.read(path)
            config.get("feature_extractor", config).update(change)
            path.write_text(json.dumps(config))
    with refused(problem):
        load(tmp_path)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "preprocessor_config.json"]
)
def test_a_model_folder_that_brings_code_is_refused(tmp_path, name):
    tiny.write(tmp_path, "wav2vec2", TEXTS)
    (tmp_path / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = jsonl.read(tmp_path / name) if (tmp_path / name).exists() else {}
    (tmp_path / name).write_text(
        json.dumps({**config, "auto_map": {"AutoModelForCTC": "theirs.Model"}})
    )
    with refused("asks to run Python code") as error:
        load(tmp_path)
    assert error.value.where == str(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_weights_whose_reading_could_run_code_are_refused(tmp_path):
    tiny.write(tmp_path, "wav2vec2", TEXTS)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"weight": Evil(tmp_path / "ran")}, tmp_path / "pytorch_model.bin")
    with refused("safetensors"):
        load(tmp_path)
    assert not (tmp_path / "ran").exists()


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)
