"""The registry: names, folders, refusals; what all models share."""

from __future__ import annotations

import pickle

import orjson
import pytest
import torch

from millrace.asr.models.ctc import CtcModel
from millrace.asr.models.registry import NAMES, build, load
from millrace.common.errors import MillraceError
from tests.asr.clips import TEXTS, batch
from tests.asr.models import tiny


@pytest.mark.parametrize("name", ["ctc", "qwen3-asr-tiny"])
def test_the_same_seed_gives_the_same_model_for_any_order_of_transcripts(name):
    states = []
    for texts in (TEXTS, TEXTS[::-1]):
        torch.manual_seed(1)
        model = build(name, {}, texts)
        states.append((model.state_dict(), model.prepare(batch([2.0, 1.0])).tensors))
    for one, two in zip(*states, strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("name", ["ctc", "qwen3-asr-tiny", "whisper", "wav2vec2"])
def test_the_host_part_travels_to_workers(name, tmp_path):
    model = build(name if name in NAMES else tiny.write(tmp_path, name, TEXTS), {}, TEXTS)
    travelled = pickle.dumps(model.preparer)
    assert len(travelled) < 500_000
    prepared = pickle.loads(pickle.dumps(pickle.loads(travelled)(batch([1.0, 0.7]))))
    mine = model.prepare(batch([1.0, 0.7]))
    assert all(torch.equal(prepared[key], mine[key]) for key in mine.tensors)
    assert torch.equal(model.eval()(prepared)[0], model(mine)[0])
    assert list(prepared.sample_ids) == [0, 1]


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        ({}, "no model here"),
        ({"config.json": b"{"}, "not JSON"),
        ({"config.json": b"[]"}, "model_type"),
        ({"config.json": b'{"model_type": "bert"}'}, "no speech recogniser"),
        ({"config.json": b'{"model_type": "qwen3_asr", "thinker_config": {}}'}, "layout of the qwen-asr"),
        *(
            ({"config.json": b'{"model_type": "%s"}' % kind}, "cannot be loaded")
            for kind in (b"qwen3_asr", b"whisper", b"wav2vec2")
        ),
        ({"config.json": b'{"model_type": "millrace_ctc"}'}, "does not describe"),
    ],
)
def test_folders_without_a_whole_model_are_refused(tmp_path, write, problem):
    for name, content in write.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(MillraceError, match=problem):
        build(tmp_path)


def test_a_folder_without_its_tokenizer_is_refused(tmp_path):
    tiny.write(tmp_path, "whisper", TEXTS)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(MillraceError, match="cannot be loaded") as refusal:
        load(tmp_path)
    assert "tokenizer" in str(refusal.value)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-ASR-0.6B", "no/such/folder", "ctcx", "whisper-tiny-random"])
def test_names_that_are_no_folder_are_refused(name):
    with pytest.raises(MillraceError, match="neither a model named"):
        build(name, {}, TEXTS)


def test_unknown_options_are_refused_with_the_known_ones(tmp_path):
    with pytest.raises(MillraceError, match="ctc has no option hiden"):
        build("ctc", {"hiden": 3}, TEXTS)
    with pytest.raises(MillraceError, match="has no option layers"):
        build(tiny.write(tmp_path, "whisper", TEXTS), {"layers": 3})
    for options in ({"hidden": "x"}, {"hidden": 0}, {"layers": True}, {"dropout": 1.0}, {"case_fold": "no"}):
        with pytest.raises(MillraceError, match=next(iter(options))):
            build("ctc", options, TEXTS)
    assert build("ctc", {"hidden": 8, "dropout": 0, "spec_augment": True}, TEXTS).config.hidden == 8


def test_a_folder_keeps_its_text_rules(tmp_path):
    model = build("ctc", {"case_fold": False, "hidden": 16}, TEXTS)
    model.save_pretrained(tmp_path)
    assert orjson.loads((tmp_path / "config.json").read_bytes())["model_type"] == "millrace_ctc"
    loaded = load(tmp_path)
    assert isinstance(loaded, CtcModel)
    # The texts have no J: a model that cannot write it is wrong about it.
    assert loaded.reference("Désolé, Je") == "Désolé Je" and loaded.config.vocabulary.normalise("Je") == "e"
    assert model.reference("Désolé, Je") == loaded.reference("Désolé, Je")


def test_flops_are_what_torch_counts():
    """Convolutions and products of a batch without padding, less what the mel filters take."""
    from torch.utils.flop_counter import FlopCounterMode

    for name in ("ctc", "qwen3-asr-tiny"):
        model = build(name, {}, TEXTS).eval()
        prepared = model.prepare(batch([3.0, 3.0], TEXTS[:1], ["en"]))
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(prepared)
        counted = {str(kind): flops for kind, flops in counter.get_flop_counts()["Global"].items()}
        counted.pop("aten.bmm")  # the mel filters
        total = sum(counted.values())
        assert prepared.counts["flops"] == prepared.counts["padded_flops"]
        if name == "ctc":
            assert prepared.counts["flops"] == total
        else:
            # The head runs on answers only and is not in ours; attention on the CPU is not in torch's.
            text, audio = model.hf.config.text_config, model.hf.config.audio_config
            head = 2 * prepared.count * text.hidden_size * text.vocab_size
            read, heard = prepared["input_ids"].shape[1], prepared.host["audio_tokens"][0]
            attention = 2 * 2 * text.num_hidden_layers * text.num_attention_heads * text.head_dim * read**2
            attention += 2 * 4 * audio.encoder_layers * audio.d_model * heard**2
            assert prepared.counts["flops"] == pytest.approx(total - head + attention, rel=0.01)
