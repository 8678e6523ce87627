"""The host's part of Qwen3-ASR: language tags and which languages it has, prompts, labels, the
shortest clip, lengths and costs of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.models.qwen3_asr.configuration_qwen3_asr import Qwen3ASRConfig
from transformers.models.qwen3_asr.modeling_qwen3_asr import (
    _get_feat_extract_output_lengths as token_count,
)
from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import Flops, Prepared, meter_counts
from millrace.asr.models.labels import labelled
from millrace.asr.models.mel import LogMel
from millrace.common.errors import MillraceError
from millrace.common.settings import check, setting

MIN_SAMPLES = 8_000  # shorter clips get silence up to half a second, as in the published code
CHUNK_TOKENS = 13  # audio tokens of a whole chunk
MARKER = "<asr_text>"
_KNOWN_TURNS = 10_000  # system turns whose ids are kept

# Transformers' code of a language, then its ISO 639-2 and 639-3 codes and other names in use.
_OTHER_NAMES = """
    ar ara
    yue zh-hk
    zh zho chi cmn mandarin
    cs ces cze
    da dan
    nl nld dut
    en eng
    fil tl tgl tagalog
    fi fin
    fr fra fre
    de deu ger
    el ell gre
    hi hin
    hu hun
    id ind
    it ita
    ja jpn
    ko kor
    mk mkd mac
    ms msa may zsm
    fa fas per farsi
    pl pol
    pt por
    ro ron rum
    ru rus
    es spa
    sv swe
    th tha
    tr tur
    vi vie
"""


def _languages() -> dict[str, str]:
    """Qwen3-ASR's name of a language by all names and codes in use."""
    by_name = {name.lower(): name for name in LANGUAGE_CODE_TO_NAME.values()}
    for line in _OTHER_NAMES.strip().splitlines():
        codes = line.split()
        by_name |= dict.fromkeys(codes, LANGUAGE_CODE_TO_NAME[codes[0]])
    return by_name


_LANGUAGES = _languages()


def tag(language: str | None) -> str:
    """What stands before the transcript in an answer: `language English<asr_text>`.

    English for en, EN, eng, en-US, en_GB, English; None for what Qwen3-ASR has no name for.
    """
    name = (language or "").strip().lower().replace("_", "-")
    return f"language {_LANGUAGES.get(name) or _LANGUAGES.get(name.split('-')[0])}{MARKER}"


def known_tag(language: str) -> str:
    """`tag` of a language that Qwen3-ASR has a name for; raises MillraceError for others."""
    text = tag(language)
    if text == tag(None):
        names = ", ".join(sorted(set(_LANGUAGES.values())))
        raise MillraceError(
            f"Qwen3-ASR has no language {language!r}", "--language", f"It knows {names}"
        )
    return text


def language_of(text: str) -> str:
    """The language that an answer names; "" if none."""
    head, marker, _ = text.partition(MARKER)
    name = head.strip().removeprefix("language").strip()
    return name if marker and name != "None" else ""


def without_tag(text: str) -> str:
    """The transcript in an answer: all of it if there is no marker."""
    return " ".join(text.split(MARKER, 1)[-1].split())


@dataclass(frozen=True)
class QwenOptions:
    """The choices of Qwen3-ASR: `model_options` of a run."""

    # `auto` writes the sample's language into its target.
    language_tag_mode: str = setting("auto", "language in the target", among=("auto", "none"))
    prompt: str = ""  # the system turn
    tokens_per_second: float = 16.0  # of a transcription at most, with some more for short clips

    def __post_init__(self) -> None:
        check(self, "model_options")


@dataclass
class QwenPreparer:
    """Tokens, masks and lengths; tokenizer and configuration are all it holds of the model."""

    tokenizer: Any
    chat_template: str | None  # None: the tokenizer's own
    config: Qwen3ASRConfig
    options: QwenOptions
    mel: LogMel

    def __post_init__(self) -> None:
        audio = self.config.audio_config
        self.half_chunk = audio.n_window
        self.chunk = 2 * self.half_chunk  # mel frames that the encoder convolves at once
        self.window = audio.n_window_infer // self.chunk * CHUNK_TOKENS  # audio tokens
        self._known_turns: dict[str, tuple[list[int], list[int]]] = {}

    def __call__(self, batch: Batch) -> Prepared:
        lengths = batch.lengths.tolist()
        width = max([MIN_SAMPLES, *lengths])
        frames = [self.mel.valid_frames(max(length, MIN_SAMPLES), width) for length in lengths]
        tokens = [token_count(count, self.half_chunk) for count in frames]

        # What the decoder reads and writes.
        systems = list(batch.prompts) or [""] * len(tokens)
        prompts = [self.prompt(*pair) for pair in zip(tokens, systems, strict=True)]
        answers = zip(batch.transcripts, batch.languages, strict=True)
        targets = [self.target(*answer) for answer in answers]
        tensors = labelled(prompts, targets, self.tokenizer.pad_token_id)
        is_audio = tensors["input_ids"].flatten() == self.config.audio_token_id
        tensors["audio_places"] = is_audio.nonzero().squeeze(1)
        tensors["frames"] = torch.tensor(frames, dtype=torch.int64)
        tensors |= self._places(frames, tokens, width)

        # The encoder runs on real tokens, and on chunks that hold any: what padding costs is the
        # decoder's.
        texts = [len(prompt) + len(target) for prompt, target in zip(prompts, targets, strict=True)]
        whole = [-(-count // self.chunk) * self.chunk for count in frames]
        longest = [max(texts, default=0)] * len(texts)
        used = self.flops(frames, tokens, texts)
        padded = self.flops(whole, tokens, longest)
        return Prepared(
            batch,
            tensors,
            count=len(tensors["answers"]),
            counts=meter_counts(lengths, width, texts, Flops(used, padded)),
            host={
                "audio_tokens": tokens,
                "width": width,
                "longest_window": min(self.window, max(tokens, default=0)),
                "prompts": prompts,
            },
        )

    def _places(
        self, frames: Sequence[int], tokens: Sequence[int], width: int
    ) -> dict[str, torch.Tensor]:
        """The chunks of the batch that hold sound, where in their outputs the clips' tokens are,
        and the ends of the attention windows: so the encoder need not ask the device."""
        starts = np.arange(0, self.mel.frames(width), self.chunk)
        left = np.array(frames)[:, None] - starts
        chunk_frames = left.clip(0, self.chunk).ravel()
        chunks = np.flatnonzero(chunk_frames)
        chunk_tokens = token_count(chunk_frames[chunks], self.half_chunk)
        heard = np.flatnonzero(np.arange(CHUNK_TOKENS) < chunk_tokens[:, None])

        ends = [0]
        for count in tokens:
            first = ends[-1]
            ends += [first + end for end in range(self.window, count, self.window)]
            ends.append(first + count)
        return {
            "chunks": torch.from_numpy(chunks),
            "heard": torch.from_numpy(heard),
            "window_ends": torch.tensor(ends, dtype=torch.int32),
        }

    def prompt(self, tokens: int, system: str = "") -> list[int]:
        """Ids of the turns before the answer, with `tokens` places for audio.

        `system` is a sample's own system turn, in which control tokens are left out; "": that of
        the options.
        """
        for token in self.tokenizer.all_special_tokens if "<|" in system else ():
            system = system.replace(token, " ")
        before, after = self._around_audio(system or self.options.prompt)
        return [*before, *[self.config.audio_token_id] * tokens, *after]

    def target(self, transcript: str, language: str | None) -> list[int]:
        """Ids of the answer: language tag, transcript, end of turn."""
        if self.options.language_tag_mode == "none":
            language = None
        text = " ".join(transcript.replace(MARKER, " ").split())
        # Control tokens spelled out in a transcript are text: an audio token would shift all audio
        # behind it.
        written = self.tokenizer(
            text, add_special_tokens=False, split_special_tokens=True
        ).input_ids
        tagged = self.tokenizer(tag(language), add_special_tokens=False).input_ids
        return [*tagged, *written, self.tokenizer.eos_token_id]

    def _around_audio(self, system: str) -> tuple[list[int], list[int]]:
        """Ids before and after the audio."""
        if system in self._known_turns:
            return self._known_turns[system]
        turns = [
            {"role": "system", "content": [{"type": "text", "text": system}]},
            {"role": "user", "content": [{"type": "audio", "audio": "clip"}]},
        ]
        text = self.tokenizer.apply_chat_template(
            turns, chat_template=self.chat_template, tokenize=False, add_generation_prompt=True
        )
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        places = [place for place, token in enumerate(ids) if token == self.config.audio_token_id]
        if len(places) != 1:
            problem = f"the chat template makes {len(places)} places for audio, not 1"
            remedy = "Take the model's own chat_template.jinja, and no control tokens in the prompt"
            raise MillraceError(problem, remedy=remedy)
        if len(self._known_turns) >= _KNOWN_TURNS:
            self._known_turns.clear()
        (place,) = places
        self._known_turns[system] = ids[:place], ids[place + 1 :]
        return self._known_turns[system]

    def flops(
        self, frames: Sequence[int], audio_tokens: Sequence[int], tokens: Sequence[int]
    ) -> np.ndarray:
        """float64 (B,): a forward pass over so many mel frames, audio tokens, and decoder tokens
        with audio.

        Matrix products and convolutions, two operations a multiplication and addition; attention
        inside its window. The head, which runs on the answers only, is left out.
        """
        mel = np.asarray(frames, np.float64)
        heard = np.asarray(audio_tokens, np.float64)
        read = np.asarray(tokens, np.float64)
        encoder = mel * self._convolution_flops() + self._encoder_flops(heard)
        return 2 * (encoder + self._decoder_flops(read))

    def _convolution_flops(self) -> float:
        """Three 3x3 convolutions of stride 2 and their projection, a mel frame."""
        audio = self.config.audio_config
        channels = audio.downsample_hidden_size
        bins = audio.num_mel_bins
        second_bins = -(-bins // 4)
        third_bins = -(-bins // 8)
        first = 9 * channels * -(-bins // 2) / 2
        others = 9 * channels**2 * (second_bins / 4 + third_bins / 8)
        projection = channels * third_bins * audio.d_model / 8
        return first + others + projection

    def _encoder_flops(self, heard: np.ndarray) -> np.ndarray:
        """Layers and projector, of audio tokens."""
        audio = self.config.audio_config
        width = audio.d_model
        layer = 4 * width**2 + 2 * width * audio.encoder_ffn_dim
        attention = 2 * width * heard * np.minimum(heard, self.window)
        layers = audio.encoder_layers * (heard * layer + attention)
        return layers + heard * (width**2 + width * audio.output_dim)

    def _decoder_flops(self, read: np.ndarray) -> np.ndarray:
        """Layers, of tokens; causal attention is half of all pairs."""
        text = self.config.text_config
        hidden = text.hidden_size
        queries = text.num_attention_heads * text.head_dim
        keys = text.num_key_value_heads * text.head_dim
        layer = hidden * (2 * queries + 2 * keys) + 3 * hidden * text.intermediate_size
        return text.num_hidden_layers * (read * layer + queries * read**2)
