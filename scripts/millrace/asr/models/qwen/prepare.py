"""The host's part of Qwen3-ASR: language tags, prompts, labels, lengths and costs of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers.models.qwen3_asr.modeling_qwen3_asr import _get_feat_extract_output_lengths
from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Prepared, meter_counts
from millrace.asr.models.labels import label_places, labelled
from millrace.asr.models.mel import LogMel
from millrace.common.errors import MillraceError

MIN_SAMPLES = 8_000  # shorter clips get silence up to half a second, as in the published code
CHUNK_TOKENS = 13  # audio tokens of a whole chunk
MARKER = "<asr_text>"

# Transformers' code of a language, then its ISO 639-2 and 639-3 codes and other names in use.
_OTHER_NAMES = """
ar ara, yue zh-hk, zh zho chi cmn mandarin, cs ces cze, da dan, nl nld dut, en eng, fil tl tgl tagalog,
fi fin, fr fra fre, de deu ger, el ell gre, hi hin, hu hun, id ind, it ita, ja jpn, ko kor, mk mkd mac,
ms msa may zsm, fa fas per farsi, pl pol, pt por, ro ron rum, ru rus, es spa, sv swe, th tha, tr tur, vi vie
"""
_LANGUAGES = {name.lower(): name for name in LANGUAGE_CODE_TO_NAME.values()} | {
    other: LANGUAGE_CODE_TO_NAME[names.split()[0]]
    for names in _OTHER_NAMES.split(",")
    for other in names.split()
}


def language_name(language: str | None) -> str | None:
    """`English` for en, EN, eng, en-US, en_GB, English; None for what Qwen3-ASR has no name for."""
    name = (language or "").strip().lower().replace("_", "-")
    return _LANGUAGES.get(name) or _LANGUAGES.get(name.split("-")[0])


def tag(language: str | None) -> str:
    """What stands before the transcript in an answer: `language English<asr_text>`."""
    return f"language {language_name(language)}{MARKER}"


def without_tag(text: str) -> str:
    """The transcript in an answer: all of it if there is no marker."""
    return " ".join(text.split(MARKER, 1)[-1].split())


@dataclass(frozen=True)
class QwenOptions:
    """language_tag_mode: `auto` writes the sample's language into its target, `none` never; prompt: the
    system turn."""

    language_tag_mode: str = "auto"
    prompt: str = ""
    padding_side: str = "left"
    tokens_per_second: float = 16.0  # of a transcription at most, with some more for short clips

    def __post_init__(self) -> None:
        if self.language_tag_mode not in ("auto", "none"):
            raise MillraceError(
                f"language_tag_mode is {self.language_tag_mode!r}", remedy="Set it to auto or none"
            )
        if self.padding_side not in ("left", "right"):
            raise MillraceError(f"padding_side is {self.padding_side!r}", remedy="Set it to left or right")


@dataclass
class QwenPreparer:
    """Tokens, masks and lengths; the tokenizer is all it holds of the model.

    sizes: the configurations of the `audio` encoder and the `text` decoder.
    """

    tokenizer: Any
    options: QwenOptions
    audio_token_id: int
    sizes: Mapping[str, Mapping[str, Any]]
    mel: LogMel
    chat_template: str

    def __post_init__(self) -> None:
        audio = self.sizes["audio"]
        self.chunk = 2 * audio["n_window"]  # mel frames that the encoder convolves at once
        self.window = audio["n_window_infer"] // self.chunk * CHUNK_TOKENS  # audio tokens

    def __call__(self, batch: Batch, epoch: int | None = None) -> Prepared:
        lengths = batch.lengths.tolist()
        width = max([MIN_SAMPLES, *lengths])
        frames = [self.mel.valid_frames(max(length, MIN_SAMPLES), width) for length in lengths]
        tokens = [self.audio_tokens(count) for count in frames]

        # What the decoder reads and writes.
        prompts = [self.prompt(count) for count in tokens]
        targets = [self.target(*pair) for pair in zip(batch.transcripts, batch.languages, strict=True)]
        tensors = labelled(prompts, targets, self.tokenizer.pad_token_id, self.options.padding_side)
        tensors["places"], tensors["answers"] = label_places(tensors["labels"])

        # The chunks of the padded batch that hold sound, and where in their outputs the clips' tokens are: so
        # the encoder need not ask the device.
        starts = np.arange(0, self.mel.frames(width), self.chunk)
        chunk_frames = (np.array(frames)[:, None] - starts).clip(0, self.chunk).ravel()
        chunks = np.flatnonzero(chunk_frames)
        chunk_tokens = self.audio_tokens(chunk_frames[chunks])
        heard = np.flatnonzero(np.arange(CHUNK_TOKENS) < chunk_tokens[:, None])
        tensors |= {
            "chunks": torch.from_numpy(chunks),
            "heard": torch.from_numpy(heard),
            "frames": torch.tensor(frames, dtype=torch.int64),
            "window_ends": torch.tensor(window_ends(tokens, self.window), dtype=torch.int32),
        }
        longest_window = min(self.window, max(tokens, default=0))
        host = {"audio_tokens": tokens, "width": width, "longest_window": longest_window}

        # The encoder runs on real tokens, and on chunks that hold any: what padding costs is the decoder's.
        texts = [len(prompt) + len(target) for prompt, target in zip(prompts, targets, strict=True)]
        whole = [-(-count // self.chunk) * self.chunk for count in frames]
        padded = self.flops(whole, tokens, [max(texts, default=0)] * len(texts))
        counts = meter_counts(lengths, width, texts, self.flops(frames, tokens, texts), padded)
        return Prepared(batch, tensors, count=len(tensors["answers"]), counts=counts, host=host)

    def audio_tokens(self, frames: Any) -> Any:
        """Tokens of a clip of `frames` mel frames, an int or an array."""
        return _get_feat_extract_output_lengths(frames, self.chunk // 2)

    def prompt(self, tokens: int) -> list[int]:
        """Ids of the turns before the answer, with `tokens` places for audio."""
        before, after = self._around_audio
        return [*before, *[self.audio_token_id] * tokens, *after]

    def target(self, transcript: str, language: str | None) -> list[int]:
        """Ids of the answer: language tag, transcript, end of turn."""
        if self.options.language_tag_mode == "none":
            language = None
        text = " ".join(transcript.replace(MARKER, " ").split())
        # Control tokens spelled out in a transcript are text: an audio token in it would shift all audio
        # behind it.
        written = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        tagged = self.tokenizer(tag(language), add_special_tokens=False).input_ids
        return [*tagged, *written, self.tokenizer.eos_token_id]

    @cached_property
    def _around_audio(self) -> tuple[list[int], list[int]]:
        """Ids before and after the audio."""
        turns = [
            {"role": "system", "content": [{"type": "text", "text": self.options.prompt}]},
            {"role": "user", "content": [{"type": "audio", "audio": "clip"}]},
        ]
        text = self.tokenizer.apply_chat_template(
            turns, chat_template=self.chat_template, tokenize=False, add_generation_prompt=True
        )
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        if ids.count(self.audio_token_id) != 1:
            raise MillraceError(
                f"the chat template makes {ids.count(self.audio_token_id)} places for audio, not 1",
                remedy="Take the model's own chat_template.jinja, and no control tokens in the prompt",
            )
        place = ids.index(self.audio_token_id)
        return ids[:place], ids[place + 1 :]

    def flops(self, frames: Sequence[int], audio_tokens: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        """float64 (B,): a forward pass over clips of so many mel frames, audio tokens, and decoder tokens,
        audio included.

        Matrix products and convolutions, two operations a multiplication and addition; attention inside its
        window. The head, which runs on the answers only, is left out.
        """
        audio, text = self.sizes["audio"], self.sizes["text"]
        mel, heard, read = (np.asarray(counts, dtype=np.float64) for counts in (frames, audio_tokens, tokens))

        # Three 3x3 convolutions of stride 2 and their projection, a mel frame.
        channels, bins, width = audio["downsample_hidden_size"], audio["num_mel_bins"], audio["d_model"]
        heights = [-(-bins // 2), -(-bins // 4), -(-bins // 8)]
        convolutions = 9 * channels * heights[0] / 2 + 9 * channels**2 * (heights[1] / 4 + heights[2] / 8)
        convolutions += channels * heights[2] * width / 8

        # Encoder layers and projector, an audio token.
        layer = 4 * width**2 + 2 * width * audio["encoder_ffn_dim"]
        attention = 2 * width * heard * np.minimum(heard, self.window)
        encoder = audio["encoder_layers"] * (heard * layer + attention)
        projector = heard * (width**2 + width * audio["output_dim"])

        # Decoder layers; causal attention is half of all pairs.
        hidden, head = text["hidden_size"], text["head_dim"]
        queries, keys = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
        layer = hidden * (2 * queries + 2 * keys) + 3 * hidden * text["intermediate_size"]
        decoder = text["num_hidden_layers"] * (read * layer + queries * read**2)
        return 2 * (mel * convolutions + encoder + projector + decoder)


def window_ends(tokens: Sequence[int], window: int) -> list[int]:
    """Cumulative ends, from 0, of the attention windows of clips of so many audio tokens."""
    ends = [0]
    for count in tokens:
        first = ends[-1]
        ends += [first + end for end in (*range(window, count, window), count)]
    return ends
