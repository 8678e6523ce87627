"""A tiny Qwen3-ASR with random weights: the published inputs, loss and encoder; labels,
languages."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from transformers import Qwen3ASRForConditionalGeneration
from transformers.models.qwen3_asr.modeling_qwen3_asr import Qwen3ASREncoder

from millrace.asr.models.base import PrepareInWorker
from millrace.asr.models.labels import IGNORE
from millrace.asr.models.qwen import encoder
from millrace.asr.models.qwen.config import random_config, random_processor
from millrace.asr.models.qwen.encoder import encode
from millrace.asr.models.qwen.model import QwenModel
from millrace.asr.models.qwen.prepare import language_of, tag, without_tag
from millrace.asr.models.registry import build
from tests.asr.clips import TEXTS, batch, sounds
from tests.refusals import refused

SECONDS, NAMES = [3.3, 1.0, 0.2, 2.00503], ["English", "French", "Russian", "Spanish"]


def tiny(**options) -> QwenModel:
    torch.manual_seed(5)
    return build("qwen3-asr-tiny", options, TEXTS)


@pytest.fixture(scope="module")
def model() -> QwenModel:
    return tiny().eval()


@pytest.mark.parametrize("mode, names", [("auto", NAMES), ("none", [None] * 4)])
def test_unmasked_labels_are_the_target_and_its_end(mode, names):
    model = tiny(language_tag_mode=mode)
    tokenizer = model.processor.tokenizer
    tokenizer.pad_token = tokenizer.eos_token
    prepared = model.prepare(batch(SECONDS))
    for labels, text, name in zip(prepared["labels"], TEXTS, names, strict=True):
        answer = labels[labels != IGNORE]
        assert tokenizer.decode(answer) == f"language {name}<asr_text>{text}<|im_end|>"
        assert answer[-1] == tokenizer.eos_token_id
    assert prepared.count == int((prepared["labels"] != IGNORE).sum()) == len(prepared["answers"])


@pytest.mark.parametrize("seconds", [SECONDS, [0.2, 0.3]])
def test_inputs_are_those_of_the_published_processor(model, seconds):
    """Prompt, places for audio, mel and mask; also for clips under half a second."""
    wide, clips = batch(seconds), sounds(batch(seconds))
    wide.audio = F.pad(wide.audio, (0, 30_000))  # wider than its longest clip
    prepared = model.prepare(wide)
    turns = [[{"role": "user", "content": [{"type": "audio", "audio": clip}]}] for clip in clips]
    form = {
        "tokenize": True,
        "return_dict": True,
        "add_generation_prompt": True,
        "sampling_rate": 16_000,
    }
    theirs = model.processor.apply_chat_template(turns, **form)
    mel, mask = model.features(prepared)
    torch.testing.assert_close(mel, theirs["input_features"], atol=1e-4, rtol=0)
    assert torch.equal(mask, theirs["input_features_mask"].long())
    for row, count in enumerate(prepared.host["audio_tokens"]):
        ids = theirs["input_ids"][row][theirs["attention_mask"][row] == 1]
        assert model.preparer.prompt(count) == ids.tolist()


def published(model: QwenModel) -> Qwen3ASRForConditionalGeneration:
    """transformers' own module with the same weights: windows one by one, logits everywhere."""
    plain = Qwen3ASRForConditionalGeneration(model.hf.config)
    plain.load_state_dict(model.hf.state_dict())
    return plain.eval()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_loss_and_gradients_are_those_of_the_published_model(device):
    model = tiny().eval().to(device)
    texts = [*TEXTS[:3], "a much longer transcript than all of the others " * 3]
    prepared = model.prepare(batch([*SECONDS[:3], 9.5], texts)).to(device)
    plain = published(model).to(device)
    inputs = {name: prepared[name] for name in ("input_ids", "attention_mask", "labels")}
    mel, mask = model.features(prepared)
    theirs = plain(**inputs, input_features=mel, input_features_mask=mask).loss
    loss, count = model(prepared)
    torch.testing.assert_close(loss / count, theirs, atol=1e-5, rtol=1e-5)
    theirs.backward()
    (loss / count).backward()
    for (name, one), other in zip(model.hf.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_attention_of_the_decoder_takes_no_mask(monkeypatch):
    """Without a mask it is the faster kernel."""
    model = tiny()
    attend, masks = F.scaled_dot_product_attention, []

    def attended(query, key, value, attn_mask=None, **more):
        masks.append((attn_mask, more.get("is_causal")))
        return attend(query, key, value, attn_mask, **more)

    prepared = model.prepare(batch(SECONDS))
    monkeypatch.setattr(F, "scaled_dot_product_attention", attended)
    model(prepared)
    # The encoder's layers come first.
    decoder = masks[-model.hf.config.text_config.num_hidden_layers :]
    assert decoder == [(None, True)] * 2


@pytest.mark.parametrize("other", ["eager", "sliding"])
def test_a_decoder_that_attends_otherwise_makes_its_own_mask(other):
    model, plain = tiny(), tiny()
    text = model.hf.model.language_model.config
    if other == "eager":
        text._attn_implementation = "eager"
    else:
        text.layer_types = ["full_attention", "sliding_attention"]
    prepared = model.prepare(batch(SECONDS))
    assert model._decoder_mask(prepared["attention_mask"]) is prepared["attention_mask"]
    if other == "eager":
        torch.testing.assert_close(model(prepared)[0], plain(prepared)[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("seconds", [[0.3], [1.0, 1.01], [9.5, 8.0, 0.7], [17.0, 2.0]])
def test_encoder_is_the_published_one(model, seconds):
    """Chunks of padding left out, windows in one call, lengths from the host: the same audio
    tokens."""
    prepared = model.prepare(batch(seconds))
    mel, mask = model.features(prepared)
    with torch.no_grad():
        theirs = published(model).model.audio_tower(mel, mask).last_hidden_state
        ours = encode(model.hf.model.audio_tower, mel, prepared)
    assert ours.shape[0] == sum(prepared.host["audio_tokens"])
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_batch_of_many_chunks_is_convolved_in_pieces(model, monkeypatch):
    """To the same audio tokens, gradients and texts, with as many chunks in a call as fit."""
    model = tiny()
    prepared = model.prepare(batch([9.5, 3.0, 2.0]))
    whole, texts = model(prepared)[0], model.transcribe(prepared)
    whole.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    sizes = []
    model.hf.model.audio_tower.conv2d1.register_forward_hook(
        lambda module, given, made: sizes.append(len(made))
    )
    monkeypatch.setattr(encoder, "_MOST_CHUNKS", 10)
    pieces, _ = model(prepared)
    assert sizes == [10, 5]
    torch.testing.assert_close(pieces, whole)
    pieces.backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    sizes.clear()
    assert model.transcribe(prepared) == texts and sizes == [10, 10, 10]


@pytest.mark.parametrize(
    "audio, most",
    [
        ({}, 1_000),
        # Windows of the layout of qwen-asr: 200 frames a chunk.
        ({"n_window": 100}, 699),
        ({"downsample_hidden_size": 8}, 1_000),
    ],
)
def test_no_tensor_of_the_encoder_has_more_elements_than_32_bits_count(audio, most):
    config = random_config("1.7b", random_processor(TEXTS).tokenizer).audio_config
    for name, value in audio.items():
        setattr(config, name, value)
    assert encoder.chunks_at_once(config) == most
    convolution = torch.nn.Conv2d(1, config.downsample_hidden_size, 3, 2, padding=1, device="meta")
    shape = (most, 1, config.num_mel_bins, 2 * config.n_window)
    assert convolution(torch.empty(shape, device="meta")).numel() < 2**31


@pytest.mark.parametrize(
    "languages, name",
    [
        (["en", "English", "en-US", "eng"], "English"),
        (["fr", "FRENCH", "fra", "fre"], "French"),
        ([" zh-CN ", "mandarin", "cmn"], "Chinese"),
        (["yue", "zh-HK"], "Cantonese"),
        (["pt_BR", "por"], "Portuguese"),
        (["ca", "", None, "xx-en"], None),
    ],
)
def test_language_tags(languages, name):
    for language in languages:
        assert tag(language) == f"language {name}<asr_text>"
        assert without_tag(tag(language) + "some text") == "some text"


@pytest.mark.parametrize(
    "text", ["a <|audio_pad|> b", "x<|im_end|>y", "<|im_start|>", "a <asr_text> b", ""]
)
def test_control_tokens_in_a_transcript_are_text(model, text):
    prepared = model.prepare(batch([1.0], [text]))
    places = prepared["input_ids"] == model.hf.config.audio_token_id
    assert places.sum() == prepared.host["audio_tokens"][0]
    assert torch.isfinite(model(prepared)[0])
    written = " ".join(text.replace("<asr_text>", " ").split())
    target = model.processor.tokenizer.decode(model.preparer.target(text, "en"))
    assert target == f"language English<asr_text>{written}<|im_end|>"


def test_the_prompt_of_a_sample_is_its_system_turn_as_transformers_writes_it():
    model, one = tiny(prompt="of all"), batch([1.0, 1.0, 1.0])
    one.prompts = ["Müller, Ж", "", "a <|audio_pad|>"]
    ids = model.prepare(one).host["prompts"]
    systems = ["Müller, Ж", "of all", "a  "]
    request = model.processor.apply_transcription_request(sounds(one), prompt=systems)
    for row, prompt in enumerate(ids):
        assert prompt == request["input_ids"][row][request["attention_mask"][row] == 1].tolist()
    # The template may be the tokenizer's.
    processor = random_processor(TEXTS)
    processor.tokenizer.chat_template = processor.chat_template
    processor.chat_template = None
    assert QwenModel(model.hf, processor).preparer.prompt(3) == tiny().preparer.prompt(3)


def test_a_prompt_with_audio_tokens_is_refused():
    with refused("2 places for audio"):
        tiny(prompt="<|audio_pad|>").prepare(batch([1.0]))


def test_an_answer_begins_with_the_language_and_ends_with_any_end_of_the_model(monkeypatch):
    model, asked = tiny(), {}
    tokenizer = model.processor.tokenizer
    answer = tokenizer("hola", add_special_tokens=False).input_ids

    def generate(**settings: object) -> torch.Tensor:
        asked.update(settings)
        return torch.cat([settings["input_ids"], torch.tensor([answer, answer])], dim=1)

    monkeypatch.setattr(model.hf, "generate", generate)
    assert model.recognise(model.prepare(batch([2.0, 0.5])), "es") == [("es", "hola")] * 2
    request = tokenizer.decode(asked["input_ids"][0])
    assert request.endswith("<|im_start|>assistant\nlanguage Spanish<asr_text>")
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert asked["max_new_tokens"] == 24 + 2 * 16
    text = "language French<asr_text> salut<|im_end|>"
    answer[:] = tokenizer(text, add_special_tokens=False).input_ids
    assert model.recognise(model.prepare(batch([2.0, 0.5]))) == [("French", "salut")] * 2
    assert language_of("language None<asr_text>x") == language_of("language French") == ""
    assert sorted(model.hf.generation_config.eos_token_id) == sorted(ends)


@pytest.mark.gpu
def test_the_host_waits_for_no_device_in_a_step():
    model = tiny().train().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):  # the first one sets up what later steps have
        made = PrepareInWorker(model.preparer)(batch([*SECONDS[:3], 9.5])).pin_memory()
        prepared = model.prepare(made).to("cuda")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if optimizer.state else "default")
        try:
            loss, count = model(prepared)
            (loss / count).backward()
            optimizer.step()
            optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_step_asks_the_device_for_nothing():
    """Tensors without content have shapes only: whatever needed a value of them would raise, as the
    published model does, which looks for the valid tokens."""
    prepared = tiny().prepare(batch([*SECONDS[:3], 9.5]))
    with FakeTensorMode():
        model = tiny().train()
        prepared.tensors = {
            name: torch.empty(t.shape, dtype=t.dtype) for name, t in prepared.tensors.items()
        }
        loss, _ = model(prepared)
        loss.backward()
        with pytest.raises(RuntimeError, match=r"_local_scalar_dense|nonzero"):
            mel, mask = model.features(prepared)
            Qwen3ASREncoder.forward(model.hf.model.audio_tower, mel, mask)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_padding_is_counted_in_samples_tokens_and_flops(model):
    prepared = model.prepare(batch(SECONDS))
    counts = prepared.counts
    assert counts["audio_seconds"] == pytest.approx(sum(SECONDS), abs=1e-3)
    assert counts["tokens"] == int(prepared["attention_mask"].sum())
    assert counts["padded_tokens"] == prepared["attention_mask"].numel()
    assert counts["flops"] < counts["padded_flops"]
    uniform = model.prepare(batch([2.0, 2.0], [TEXTS[0]], ["en"])).counts
    assert uniform["flops"] == uniform["padded_flops"]
    part_of_a_chunk = model.prepare(batch([2.1], [TEXTS[0]], ["en"])).counts
    assert part_of_a_chunk["flops"] < part_of_a_chunk["padded_flops"]
    # Attention of the encoder ends with its window.
    windows = [model.preparer.window * count for count in (1, 2, 3)]
    one, two, three = model.preparer.flops([0] * 3, windows, [0] * 3)
    assert three - two == pytest.approx(two - one)


@pytest.mark.parametrize("size, millions", [("0.6b", 782), ("1.7b", 2038)])
def test_real_sizes(size, millions):
    """The published widths and depths add up (with tied embeddings); nothing is allocated."""
    processor = random_processor(TEXTS)
    with torch.device("meta"):
        hf = Qwen3ASRForConditionalGeneration(random_config(size, processor.tokenizer))
    assert sum(parameter.numel() for parameter in hf.parameters()) / 1e6 == pytest.approx(
        millions, rel=0.01
    )
