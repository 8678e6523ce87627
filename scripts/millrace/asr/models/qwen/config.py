"""Qwen3-ASR without a hub: configurations from tiny to real size, the chat template, and a
tokenizer learned from texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millrace.asr.models.qwen.prepare import MARKER

# What differs from the published 1.7B model, which transformers' defaults describe: sizes of the
# encoder and of the decoder, fewest tokens of the vocabulary.
_TINY_AUDIO = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
}
_TINY_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_SMALL_AUDIO = {
    "d_model": 896,
    "encoder_layers": 18,
    "encoder_attention_heads": 14,
    "encoder_ffn_dim": 3584,
}
SIZES: dict[str, tuple[dict[str, int], dict[str, int], int]] = {
    "tiny": (
        {**_TINY_AUDIO, "downsample_hidden_size": 8},
        {**_TINY_TEXT, "num_key_value_heads": 2, "head_dim": 16},
        0,
    ),
    "0.6b": (_SMALL_AUDIO, {"hidden_size": 1024, "intermediate_size": 3072}, 151_936),
    "1.7b": ({}, {}, 151_936),
}
EOS = "<|im_end|>"
PAD = "<|endoftext|>"
START_TURN = "<|im_start|>"
PLACE = "<|audio_pad|>"
# The published template in short: system prompt (may be empty), the audio, what the assistant has
# written.
CHAT_TEMPLATE = (
    "{%- set ns = namespace(system='') -%}"
    "{%- for m in messages if m.role == 'system' -%}"
    "{%- if m.content is string -%}{%- set ns.system = ns.system + m.content -%}"
    "{%- else -%}{%- for c in m.content if c.type == 'text' -%}"
    "{%- set ns.system = ns.system + c.text -%}"
    "{%- endfor -%}{%- endif -%}{%- endfor -%}"
    "{{- '<|im_start|>system\n' + ns.system + '<|im_end|>\n<|im_start|>user\n' -}}"
    "{%- for m in messages if m.role == 'user' -%}{%- for c in m.content if c.type == 'audio' -%}"
    "{{- '<|audio_start|><|audio_pad|><|audio_end|>' -}}{%- endfor -%}{%- endfor -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- for m in messages if m.role == 'assistant' -%}{{- '<|im_start|>assistant\n' -}}"
    "{%- if m.content is string -%}{{- m.content -}}{%- else -%}"
    "{%- for c in m.content if c.type == 'text' -%}{{- c.text -}}{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def random_processor(texts: Iterable[str]) -> Any:
    """A Qwen3ASRProcessor whose byte-level BPE is learned from `texts`: any text can be written."""
    from tokenizers import AddedToken
    from transformers import Qwen3ASRFeatureExtractor, Qwen3ASRProcessor

    audio = {
        "audio_token": PLACE,
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    }
    tokenizer = byte_level_tokenizer(texts, EOS, PAD, START_TURN, **audio)
    # Stays when special tokens are left out of what is decoded.
    tokenizer.add_tokens([AddedToken(MARKER, special=False, normalized=False)])
    return Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(), tokenizer, chat_template=CHAT_TEMPLATE)


def byte_level_tokenizer(texts: Iterable[str], eos: str, pad: str, start: str, **named: str) -> Any:
    """A PreTrainedTokenizerFast of 512 tokens learned from `texts`, in any order, and of these."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=512, initial_alphabet=alphabet, show_progress=False)
    learned.train_from_iterator(sorted(texts), trainer)
    special = {
        "eos_token": eos,
        "pad_token": pad,
        "extra_special_tokens": named,
    }
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=learned, **special)
    tokenizer.add_tokens([AddedToken(start, special=True, normalized=False)], special_tokens=True)
    return tokenizer


def random_config(size: str, tokenizer: Any) -> Any:
    """The Qwen3ASRConfig of a size of SIZES for this tokenizer."""
    from transformers import Qwen3ASRConfig

    published = Qwen3ASRConfig()
    audio, text, tokens = SIZES[size]
    text = published.text_config.to_dict() | text
    text["vocab_size"] = max(tokens, len(tokenizer))
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1_000_000.0}
    text["layer_types"] = None  # follow from the number of layers
    audio = published.audio_config.to_dict() | audio | {"output_dim": text["hidden_size"]}
    place, pad, eos = tokenizer.convert_tokens_to_ids([PLACE, PAD, EOS])
    ids = {
        "audio_token_id": place,
        "pad_token_id": pad,
        "eos_token_id": [pad, eos],
    }
    return Qwen3ASRConfig(audio_config=audio, text_config=text, **ids)
