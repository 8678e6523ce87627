"""The small CTC model: learns, ignores padding, leaves out what it cannot fit, is saved and
loaded."""

from __future__ import annotations

import json
import math
import os

import torch

from millrace.asr.models.base import meter_counts
from millrace.asr.models.ctc_base import prepared_labels
from millrace.asr.models.registry import build, load
from millrace.common import jsonl
from tests.asr.clips import TEXTS, batch
from tests.refusals import refused

SMALL = {"channels": 8, "hidden": 64, "layers": 1, "dropout": 0}


def small(**options) -> torch.nn.Module:
    torch.manual_seed(3)
    return build("ctc", {**SMALL, **options}, TEXTS)


def test_a_clip_gives_the_same_in_any_batch():
    model = small().eval()
    together = batch([0.9, 2.0, 0.33])
    # A batch may be wider than its longest clip.
    together.audio = torch.nn.functional.pad(together.audio, (0, 8_000))
    model.head.bias.data[3] = 1.0  # what is behind a clip would be this letter
    many = model.log_probabilities(model.prepare(together))
    texts = model.transcribe(model.prepare(together))
    for row, length in enumerate(together.lengths.tolist()):
        alone = model.prepare(batch([length / 16_000], first=row))
        assert model.transcribe(alone) == [texts[row]]
        one = model.log_probabilities(alone)[0]
        torch.testing.assert_close(many[row, : len(one)], one, atol=1e-4, rtol=1e-4)


def test_loss_is_the_sum_over_characters_of_the_clips():
    model = small().eval()
    clips = batch([2.0]), batch([1.5], TEXTS[1:], first=1)
    losses, counts = zip(*(model(model.prepare(clip)) for clip in clips), strict=True)
    loss, count = model(model.prepare(batch([2.0, 1.5])))
    assert count == sum(counts) == sum(len(model.reference(text)) for text in TEXTS[:2])
    torch.testing.assert_close(loss, sum(losses), atol=1e-2, rtol=1e-4)


def test_labels_that_ctc_cannot_emit_are_dropped_with_their_reason():
    labels = [[1, 2, 3, 3], [1, 2, 3, 3], []]
    prepared = prepared_labels(batch([1.0] * 3), labels, 0, [5, 4, 9])
    assert prepared.dropped == ((1, "text_too_long"), (2, "no_text"))
    assert prepared.host["label_lengths"] == [4, 0, 0]


def test_clips_that_cannot_be_learned_are_left_out_with_their_reason():
    model = small()
    prepared = model.prepare(batch([2.0, 0.1, 1.0, 1.0], [TEXTS[0], TEXTS[1], "?!", ""]))
    assert prepared.dropped == ((1, "text_too_long"), (2, "no_text"), (3, "no_text"))
    assert prepared.counts["unlearned_no_text"] == 2
    loss, count = model(prepared)
    assert count == len(model.reference(TEXTS[0]))
    torch.testing.assert_close(loss, model(model.prepare(batch([2.0])))[0], atol=1e-2, rtol=1e-4)
    assert len(model.transcribe(prepared)) == 4


def test_a_folder_is_read_without_asking_a_hub(tmp_path, monkeypatch):
    small().save_pretrained(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    load(tmp_path)
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_folder_keeps_model_and_text_rules(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    # A number is taken for a switch.
    small(case_fold=False, punctuation=1).save_pretrained(first)
    loaded = load(first)
    loaded.save_pretrained(second)
    for name in ("config.json", "model.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    # As version 0.4.0 wrote it.
    config = jsonl.read(first / "config.json")
    (second / "config.json").write_text(json.dumps({**config, "augment": None, "seed": 42}))
    assert load(second).config == loaded.config
    # The texts have no J: a model that cannot write it is wrong about it.
    assert (
        loaded.reference("Désolé, Je") == "Désolé, Je"
        and loaded.config.vocabulary.normalise("Je") == "e"
    )
    with open(first / "model.safetensors", "r+b") as weights:
        weights.truncate(1000)
    with refused("cannot be loaded"):
        load(first)


def test_counts_for_the_meters():
    model = small()
    counts = model.prepare(batch([2.0, 1.0])).counts
    assert (counts["audio_seconds"], counts["padded_audio_seconds"]) == (3.0, 4.0)
    assert (counts["tokens"], counts["padded_tokens"]) == (75, 100)
    alone = [model.prepare(batch([seconds])).counts["flops"] for seconds in (2.0, 1.0)]
    assert counts["flops"] == sum(alone)
    assert counts["flops"] < counts["padded_flops"] < 1.4 * counts["flops"]
    # A batch may be wider than its longest clip.
    assert meter_counts([16_000], 32_000, [1])["padded_audio_seconds"] == 2.0


def test_a_model_may_have_several_layers():
    deep = small(layers=3)
    loss, _ = deep(deep.prepare(batch([2.0])))
    assert math.isfinite(loss.detach()) and deep.parameter_count > small().parameter_count


def test_the_loss_of_no_clip_is_0_whatever_the_weights_are():
    model = small()
    for weights in model.parameters():
        weights.data.fill_(math.nan)
    assert model.zero_loss() == 0
