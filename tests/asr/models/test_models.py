"""What all models do, and the registry: names, folders, refusals."""

from __future__ import annotations

import errno
import importlib
import json
import os
import pickle
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from millrace.asr import models
from millrace.asr.loading.collate import Batch
from millrace.asr.models import known
from millrace.asr.models.base import AsrModel, Prepared, PrepareInWorker
from millrace.asr.models.folder import model_digest
from millrace.asr.models.registry import NAMES, build, load
from millrace.audit.probes.contract import pin
from millrace.common import atomic, jsonl
from tests.asr.clips import TEXTS, batch, train
from tests.asr.models import tiny
from tests.refusals import refused

SMALL = {
    "ctc": {"channels": 8, "hidden": 64, "dropout": 0.1},
    "qwen3-asr-tiny": {"prompt": "Names: Ada"},
}
ALL = ["ctc", "qwen3-asr-tiny", "wav2vec2", "hubert", "whisper"]


def make(name: str, folder: Path, texts: list[str] = TEXTS) -> AsrModel:
    """The small model of a name, or of a type of transformers, in evaluation mode."""
    torch.manual_seed(5)
    name_or_folder = name if name in NAMES else tiny.write(folder / "tiny", name, texts)
    return build(name_or_folder, SMALL.get(name), texts).eval()


def test_the_file_where_docs_tell_to_add_a_model_has_a_line_for_each():
    page = (Path(__file__).parents[3] / "docs/architecture.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| a recogniser |"))
    (path,) = re.findall(r"`(asr/models/\w+\.py)` \|$", row)
    named = importlib.import_module("millrace." + path.removesuffix(".py").replace("/", "."))
    assert Path(path).name in models.__doc__
    schema = (Path(__file__).parents[3] / "rules/schemas/asr.schema.yaml").read_text()
    assert all(name in schema for name in NAMES)
    modules = {kind: f"{models.__name__}.{of}" for of, kind, _ in named.MODELS}
    assert all(hasattr(importlib.import_module(module), kind) for kind, module in modules.items())
    assert "MODELS = (" in (Path(models.__file__).parent / Path(path).name).read_text(), (
        "and not imported"
    )


@pytest.mark.parametrize("name", ["ctc", "qwen3-asr-tiny"])
def test_the_same_seed_gives_the_same_model_for_any_order_of_transcripts(tmp_path, name):
    models = make(name, tmp_path), make(name, tmp_path, TEXTS[::-1])
    states = [
        {**model.state_dict(), **model.prepare(batch([2.0, 1.0])).tensors} for model in models
    ]
    torch.testing.assert_close(*states, rtol=0, atol=0)


@pytest.mark.parametrize(
    "name, steps, lr, share",
    [("ctc", 120, 1e-2, 0.1), ("qwen3-asr-tiny", 40, 5e-3, 0.3)]
    + [(name, 15, 3e-3, 0.8) for name in ALL[2:]],
)
def test_it_learns_and_is_the_same_after_saving(tmp_path, name, steps, lr, share):
    model = make(name, tmp_path)
    prepared = model.prepare(batch([2.0, 1.5]))
    losses = train(model, prepared, steps, lr)
    assert losses[-1] < share * losses[0]
    transcriptions = model.transcribe(prepared)
    assert len(transcriptions) == 2
    if name in NAMES:
        assert transcriptions == [model.reference(text) for text in TEXTS[:2]]
    model.save_pretrained(tmp_path / "saved" / "model")
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["model"]
    loaded = load(tmp_path / "saved" / "model").eval()
    again = loaded.prepare(batch([2.0, 1.5]))
    assert all(torch.equal(again[key], prepared[key]) for key in prepared.tensors)
    assert torch.equal(loaded(again)[0], model(prepared)[0])
    assert loaded.transcribe(again) == transcriptions


@pytest.mark.parametrize(
    "name, seconds, filler",
    [(name, seconds, filler) for name in ALL for seconds, filler in (([], False), ([1.0], True))]
    + [("ctc", [0.1], False), ("ctc", [0.001], False)],
)
def test_batches_of_nothing_usable_have_zero_gradients(tmp_path, name, seconds, filler):
    model, clips = make(name, tmp_path), batch(seconds)
    clips.filler = filler
    prepared = model.prepare(clips)
    loss, count = model(prepared)
    loss.backward()
    assert (float(loss.detach()), count) == (0.0, 0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in trained)
    assert len(model.transcribe(prepared)) == len(seconds)


@pytest.mark.parametrize("name", ALL)
def test_checkpointing_changes_no_gradient(tmp_path, monkeypatch, name):
    # The reentrant kind, which DDP does not take.
    monkeypatch.delattr(torch.utils.checkpoint, "CheckpointFunction")
    model = make(name, tmp_path).train()
    prepared = model.prepare(batch([2.0, 1.0]))
    gradients = []
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(1)  # the dropout's
        model(prepared)[0].backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        model.gradient_checkpointing_enable()
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("whole", [False, True])
def test_half_precision(tmp_path, name, whole):
    model = make(name, tmp_path)
    prepared = model.prepare(batch([2.0, 1.0]))
    expected = model(prepared)[0]
    model = model.bfloat16() if whole else model
    with torch.autocast("cpu", torch.bfloat16, enabled=not whole):
        loss, _ = model(prepared)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0.02, atol=0)
    loss.backward()


@pytest.mark.parametrize("name", ALL)
def test_the_host_part_travels_to_workers(tmp_path, name):
    model = make(name, tmp_path)
    travelled = pickle.dumps(model.preparer)
    assert len(travelled) < 500_000
    prepared = pickle.loads(pickle.dumps(pickle.loads(travelled)(batch([1.0, 0.7]))))
    mine = model.prepare(batch([1.0, 0.7]))
    assert all(torch.equal(prepared[key], mine[key]) for key in mine.tensors)
    assert torch.equal(model(prepared)[0], model(mine)[0])
    assert list(prepared.sample_ids) == [0, 1]
    # What has been made for a device stays here.
    assert len(pickle.dumps(model.preparer)) < len(travelled) + 10_000


@pytest.mark.parametrize(
    "write, problem",
    [
        ({}, "no model here"),
        ({"config.json": b"{"}, "not JSON"),
        ({"config.json": b"[]"}, "model_type"),
        ({"config.json": b'{"model_type": "bert"}'}, "no speech recogniser"),
        ({"config.json": b'{"model_type": "moonshine"}'}, "'moonshine' is no speech recogniser"),
        (
            {"config.json": b'{"model_type": "qwen3_asr", "thinker_config": {}}'},
            r"there is no model\*\.safetensors",
        ),
        ({"config.json": b'{"model_type": "qwen3_asr"}'}, "cannot be loaded"),
        ({"config.json": b'{"model_type": "wav2vec2"}'}, "cannot be loaded"),
        ({"config.json": b'{"model_type": "millrace_ctc"}'}, "does not describe"),
    ],
)
def test_folders_without_a_whole_model_are_refused(tmp_path, write, problem):
    for name, content in write.items():
        (tmp_path / name).write_bytes(content)
    with refused(problem):
        load(tmp_path)


@pytest.mark.parametrize(
    "name, weight, shape, problem",
    [
        ("qwen3-asr-tiny", "audio_tower.conv2d1.bias", None, r"conv2d1\.bias is missing"),
        (
            "whisper",
            "encoder.layers.0.fc1.weight",
            None,
            r"1 weight cannot .*fc1\.weight is missing",
        ),
        ("whisper", "encoder.layers.0.fc1.weight", 3, r"fc1\.weight is of another shape"),
        ("wav2vec2", "lm_head.weight", 3, r"lm_head\.weight is of another shape"),
        ("wav2vec2", "lm_head.weight", None, ""),  # a head that is to be learned
        ("ctc", "head.weight", None, r'weights cannot be loaded .*Missing.*"head\.weight"'),
    ],
)
def test_weights_that_would_be_drawn_at_random_are_refused(
    tmp_path, caplog, name, weight, shape, problem
):
    make(name, tmp_path).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    (weight,) = (each for each in state if each.endswith(weight))
    old = state.pop(weight)
    state |= {} if shape is None else {weight: old.new_zeros(shape)}
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    if not problem:
        load(tmp_path)
        assert f"1 weight missing, drawn at random: {weight}" in caplog.text
        return
    with refused(problem):
        load(tmp_path)


def test_unknown_options_of_a_folder_and_a_missing_tokenizer_are_refused(tmp_path):
    tiny.write(tmp_path, "whisper", TEXTS)
    with refused("has no option layers"):
        load(tmp_path, {"layers": 3})
    (tmp_path / "tokenizer.json").unlink()
    with refused(r"cannot be loaded .*tokenizer"):
        load(tmp_path)


@pytest.mark.parametrize(
    "name, options, problem",
    [
        ("Qwen/Qwen3-ASR-0.6B", {}, "neither a model named"),
        ("ctcx", {}, "neither a model named"),
        ("ctc", {"hiden": 3}, "ctc has no option hiden"),
        ("ctc", {"hidden": "x"}, "hidden"),
        ("ctc", {"hidden": 0}, "hidden"),
        ("ctc", {"layers": True}, "layers"),
        ("ctc", {"dropout": 1.0}, "dropout"),
        ("ctc", {"case_fold": "no"}, "case_fold"),
        ("qwen3-asr-tiny", {"language_tag_mode": "force"}, "language_tag_mode"),
        ("ctc", {"spec_augment": True}, "has no option spec_augment"),
        ("qwen3-asr-tiny", {"padding_side": "left"}, "has no option padding_side"),
        ("qwen3-asr-tiny", {"colour": 1}, "has no option colour"),
    ],
)
def test_unknown_names_and_wrong_options_are_refused(name, options, problem):
    with refused(problem):
        build(name, options, TEXTS)


def test_options_that_version_0_4_0_has_saved_with_a_model_are_read(tmp_path):
    build("qwen3-asr-tiny", {"prompt": "Names: Ada"}, TEXTS).save_pretrained(tmp_path)
    path = tmp_path / "millrace_options.json"
    saved = jsonl.read(path)
    path.write_text(json.dumps({**saved, "padding_side": "left"}))
    assert load(tmp_path).options.prompt == "Names: Ada"
    assert load(tmp_path, {"prompt": "of the run"}).options.prompt == "of the run"


@pytest.mark.parametrize("name", ["ctc", "whisper", "qwen3-asr-tiny"])
def test_a_folder_with_a_config_is_whole(tmp_path, monkeypatch, name):
    model, replace = make(name, tmp_path), os.replace

    def full(source: str, target: str) -> None:
        if Path(target).name != "config.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved/config.json").exists()

    # What a killed process left, a copy of the model, goes when it is saved again; ctc has no copy.
    monkeypatch.setattr(os, "replace", replace)
    # It lies on the disk of the folder, and its process may have had the id of this one.
    (tmp_path / "link").symlink_to("saved/whole")
    (tmp_path / "saved/whole").mkdir()
    pids = (99999999, os.getpid())
    litter = [tmp_path / f"saved/.whole.{atomic._HOST}-{pid}.partial" for pid in pids]
    for folder in litter:
        folder.mkdir()
    make(name, tmp_path).save_pretrained(tmp_path / "link")
    assert name == "ctc" or not any(folder.exists() for folder in litter)


@pytest.mark.parametrize("name", ["ctc", "whisper", "qwen3-asr-tiny", "qwen-asr"])
def test_weights_are_trained_in_float32_whatever_a_folder_holds(tmp_path, name):
    model = make(name.replace("qwen-asr", "qwen3-asr-tiny"), tmp_path)
    model.layout = "qwen-asr" if name == "qwen-asr" else model.layout
    model.bfloat16().save_pretrained(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "file, counts",
    {
        "preprocessor_config.json": True,
        "millrace_options.json": True,
        "tokenizer.json": True,
        "vocab.json": True,
        "chat_template.jinja": True,
        "spm.model": True,
        "model.safetensors": False,
    }.items(),
)
def test_the_digest_of_a_model_is_that_of_what_decides_its_costs(tmp_path, file, counts):
    folder, moved = tmp_path / "model", tmp_path / "there/model"
    for path, content in ((folder, "1"), (moved, "1"), (tmp_path / "other/model", "2")):
        path.mkdir(parents=True)
        (path / file).write_text(content)
    digest = model_digest(str(folder), {})
    assert model_digest(str(moved), {}) == digest
    assert (model_digest(str(tmp_path / "other/model"), {}) != digest) == counts
    (folder / file).rename(folder / "config.json")
    assert model_digest(str(folder), {}) != digest


def test_models_of_other_names_or_options_have_other_digests():
    chosen = [("ctc", {}), ("qwen3-asr-tiny", {}), ("ctc", {"layers": 2})]
    assert len({model_digest(*model) for model in chosen}) == 3


def test_the_parameters_of_a_folder_are_at_most_half_its_bytes(tmp_path):
    for number, size in enumerate((3_000_000, 1_000_000)):
        (tmp_path / f"model-{number}.safetensors").write_bytes(bytes(size))
    assert known.millions(str(tmp_path)) == 2.0


@pytest.mark.parametrize(
    "model, path, said",
    [
        ("ctc", "", ""),
        ("ctcx", "", "model: there is no model 'ctcx'"),
        ("ctc", "nowhere", "model_path: nowhere is no folder"),
        ("ctc", ".", "model_path: . is a folder without config.json"),
        (".", "", "model_path: . is a folder without config.json"),
    ],
)
def test_a_model_of_the_config_that_is_not_there_is_a_problem(
    tmp_path, monkeypatch, model, path, said
):
    monkeypatch.chdir(tmp_path)
    problems = list(known.problems({"model": model, "model_path": path}))
    assert len(problems) == bool(said) and all(said in problem for problem in problems)


class PinsTheAudio(Batch):
    """Leaves what the model has prepared as it is."""

    def pin_memory(self) -> Batch:
        self.audio, self.lengths = self.audio.pin_memory(), self.lengths.pin_memory()
        return self


@pytest.mark.parametrize("name", ["ctc", "qwen3-asr-tiny"])
def test_all_that_is_moved_to_the_device_is_pinned_and_the_audit_sees_what_is_not(name):
    preparer = build(name, {}, TEXTS).preparer
    made = PrepareInWorker(preparer)(batch([3.0, 2.0], TEXTS[:2], ["en", "en"]))
    sent = pickle.loads(pickle.dumps(made))  # as from a worker to the thread that pins

    received = Prepared.of(sent)
    moved = received.tensors
    alone = preparer(batch([3.0, 2.0], TEXTS[:2], ["en", "en"]))
    assert received.counts == alone.counts and moved.keys() == alone.tensors.keys()
    assert all(torch.equal(tensor, alone[part]) for part, tensor in moved.items())

    pinned = pin(sent)
    assert (pinned["pinned"], pinned["missed"], pinned["lost"]) == (len(moved), [], [])
    left = pin(PinsTheAudio(**vars(sent)))["missed"]
    assert left and all(path.startswith("prepared.tensors.") for path in left)


def test_flops_are_what_torch_counts():
    """Convolutions and products of a batch without padding, less what the mel filters take."""
    from torch.utils.flop_counter import FlopCounterMode

    for name, options in (("ctc", {"layers": 2}), ("qwen3-asr-tiny", {})):
        model = build(name, options, TEXTS).eval()
        prepared = model.prepare(batch([3.0, 3.0], TEXTS[:1], ["en"]))
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(prepared)
        counted = counter.get_flop_counts()["Global"]
        total = counter.get_total_flops() - counted[torch.ops.aten.bmm]  # the mel filters
        assert prepared.counts["flops"] == prepared.counts["padded_flops"]
        if name == "ctc":
            assert prepared.counts["flops"] == total
        else:
            # The head runs on answers only and is not in ours; attention on the CPU is not in
            # torch's.
            text, audio = model.hf.config.text_config, model.hf.config.audio_config
            head = 2 * prepared.count * text.hidden_size * text.vocab_size
            read, heard = prepared["input_ids"].shape[1], prepared.host["audio_tokens"][0]
            heads = text.num_attention_heads * text.head_dim
            attention = 2 * 2 * text.num_hidden_layers * heads * read**2
            attention += 2 * 4 * audio.encoder_layers * audio.d_model * heard**2
            assert prepared.counts["flops"] == pytest.approx(total - head + attention, rel=0.01)


@pytest.mark.parametrize("name", ["whisper", "wav2vec2", "qwen3-asr-tiny"])
def test_a_folder_is_a_model_without_weights_on_the_meta_device(tmp_path, name):
    if name == "qwen3-asr-tiny":
        build(name, {}, TEXTS).save_pretrained(tmp_path / "model")
    else:
        tiny.write(tmp_path / "model", name, TEXTS)
    with torch.device("meta"):
        model = build(str(tmp_path / "model"), {}, TEXTS)
    assert {each.device.type for each in model.parameters()} == {"meta"}
