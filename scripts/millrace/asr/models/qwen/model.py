"""Qwen3-ASR for fine-tuning: prompts, labels and mel of a padded batch, loss over the answer's tokens,
generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import AsrModel, Prepared, audio_counts
from millrace.asr.models.files import load_local, read_config, read_options, saving, write_options
from millrace.asr.models.labels import label_places, labelled, padded_ids
from millrace.asr.models.mel import HOP, SAMPLING_RATE, LogMel, padded_to
from millrace.asr.models.qwen import languages
from millrace.asr.models.qwen.attention import batch_windows, encode, layout
from millrace.asr.models.qwen.flops import qwen_flops
from millrace.common.errors import MillraceError

MODEL_TYPE = "qwen3_asr"
CHUNK_TOKENS = 13
SHORTEST = 8_000  # shorter clips get silence up to half a second, as in the published code


@dataclass(frozen=True)
class QwenOptions:
    """language_tag_mode: `auto` writes the sample's language into its target, `none` never; prompt: the
    system turn."""

    language_tag_mode: str = "auto"
    prompt: str = ""
    padding_side: str = "left"
    tokens_per_second: float = 16.0  # the most that is generated: this, and some more for short clips

    def __post_init__(self) -> None:
        if self.language_tag_mode not in ("auto", "none"):
            raise MillraceError(
                f"language_tag_mode is {self.language_tag_mode!r}", remedy="Set it to auto or none"
            )
        if self.padding_side not in ("left", "right"):
            raise MillraceError(f"padding_side is {self.padding_side!r}", remedy="Set it to left or right")


def audio_tokens(frames: int, chunk: int = 100) -> int:
    """Tokens of a clip of `frames` mel frames: 13 a whole chunk, and what three strided convolutions leave of
    the rest."""
    rest = frames % chunk
    for _ in range(3):
        rest = (rest + 1) // 2
    return rest + frames // chunk * CHUNK_TOKENS


@dataclass
class QwenPreparer:
    """Tokens, masks and lengths; the tokenizer is all it holds of the model."""

    tokenizer: Any
    options: QwenOptions
    audio_token_id: int
    chunk: int
    window: int
    sizes: dict
    mel: LogMel
    chat_template: str
    _around: tuple[list[int], list[int]] | None = field(default=None, repr=False)

    def __call__(self, batch: Batch, epoch: int | None = None) -> Prepared:
        lengths = batch.lengths.tolist()
        width = max([SHORTEST, *lengths])
        frames = [self.mel.valid_frames(max(length, SHORTEST), width) for length in lengths]
        tokens = [audio_tokens(count, self.chunk) for count in frames]
        prompts = [self.prompt(count) for count in tokens]
        targets = [self.target(*pair) for pair in zip(batch.transcripts, batch.languages, strict=True)]
        tensors = labelled(prompts, targets, self.tokenizer.pad_token_id, self.options.padding_side)
        places, answers = label_places(tensors["labels"])
        windows = window_ends(tokens, self.window)
        longest_mel = -(-self.mel.frames(width) // self.chunk) * self.chunk
        chunks, heard = layout(frames, tokens, self.chunk, longest_mel, CHUNK_TOKENS)
        tensors |= {
            "chunks": torch.tensor(chunks, dtype=torch.int64),
            "heard": torch.tensor(heard, dtype=torch.int64),
        }
        tensors |= {"places": places, "answers": answers, "frames": torch.tensor(frames, dtype=torch.int64)}
        tensors["window_ends"] = torch.tensor(windows, dtype=torch.int32)
        texts = [len(prompt) + len(target) for prompt, target in zip(prompts, targets, strict=True)]
        longest_text = max(texts, default=0)
        counts = audio_counts(lengths, width)
        counts |= {"tokens": sum(texts), "padded_tokens": len(texts) * longest_text}
        alone = qwen_flops(self.sizes, frames, tokens, texts)
        # The encoder runs on real tokens, and on chunks that hold any: what padding costs is the decoder's.
        whole = [-(-count // self.chunk) * self.chunk for count in frames]
        padded = qwen_flops(self.sizes, whole, tokens, [longest_text] * len(texts))
        counts |= {"flops": float(alone.sum()), "padded_flops": float(padded.sum())}
        longest = max(np.diff(windows).tolist(), default=0)
        host = {"audio_tokens": tokens, "width": width, "longest_window": longest}
        return Prepared(batch, tensors, count=len(answers), counts=counts, host=host)

    def prompt(self, tokens: int) -> list[int]:
        """Ids of the turns before the answer, with `tokens` places for audio."""
        if self._around is None:
            self._around = self._prompt_around()
        before, after = self._around
        return [*before, *[self.audio_token_id] * tokens, *after]

    def target(self, transcript: str, language: str | None) -> list[int]:
        """Ids of the answer: language tag, transcript, end of turn."""
        known = language if self.options.language_tag_mode == "auto" else None
        text = " ".join(transcript.replace(languages.MARKER, " ").split())
        # Control tokens spelled out in a transcript are text: an audio token in it would shift all audio
        # behind it.
        written = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        tagged = self.tokenizer(languages.tag(known), add_special_tokens=False).input_ids
        return [*tagged, *written, self.tokenizer.eos_token_id]

    def _prompt_around(self) -> tuple[list[int], list[int]]:
        turns = [{"role": "user", "content": [{"type": "audio", "audio": "clip"}]}]
        system = {"role": "system", "content": [{"type": "text", "text": self.options.prompt}]}
        text = self.tokenizer.apply_chat_template(
            [system, *turns], chat_template=self.chat_template, tokenize=False, add_generation_prompt=True
        )
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        if ids.count(self.audio_token_id) != 1:
            raise MillraceError(
                f"the chat template makes {ids.count(self.audio_token_id)} places for audio, not 1",
                remedy="Take the model's own chat_template.jinja, and no control tokens in the prompt",
            )
        place = ids.index(self.audio_token_id)
        return ids[:place], ids[place + 1 :]


class QwenModel(AsrModel):
    """Qwen3ASRForConditionalGeneration with its processor. The loss is a sum over the answer's tokens, end
    included."""

    def __init__(self, hf: Any, processor: Any, options: QwenOptions = QwenOptions()) -> None:
        super().__init__()
        self.hf, self.processor, self.options = hf, processor, options
        config, extractor = hf.config, processor.feature_extractor
        self.mel = LogMel(extractor.feature_size, SAMPLING_RATE, extractor.n_fft, extractor.hop_length)
        audio, text = config.audio_config, config.text_config
        self.chunk = 2 * audio.n_window
        self.preparer = QwenPreparer(
            processor.tokenizer,
            options,
            config.audio_token_id,
            self.chunk,
            audio.n_window_infer // self.chunk * CHUNK_TOKENS,
            {"audio": audio.to_dict(), "text": text.to_dict()},
            self.mel,
            processor.chat_template or processor.tokenizer.chat_template,
        )
        batch_windows(hf.model.audio_tower)

    @classmethod
    def random(cls, size: str, texts: Iterable[str], options: QwenOptions = QwenOptions()) -> QwenModel:
        """Random weights in a size of qwen_config.SIZES, the tokenizer learned from `texts`."""
        from transformers import Qwen3ASRForConditionalGeneration

        from millrace.asr.models.qwen.config import random_config, random_processor

        processor = random_processor(texts)
        return cls(
            Qwen3ASRForConditionalGeneration(random_config(size, processor.tokenizer)), processor, options
        )

    @classmethod
    def from_pretrained(cls, folder: str | Path, options: QwenOptions | None = None) -> QwenModel:
        """Raises MillraceError for a folder without a whole model; options are the saved ones unless
        given."""
        from transformers import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

        read_config(folder, MODEL_TYPE)
        hf = load_local(Qwen3ASRForConditionalGeneration, folder, dtype=torch.float32)
        processor = load_local(Qwen3ASRProcessor, folder)
        return cls(hf, processor, options or QwenOptions(**read_options(folder)))

    def save_pretrained(self, folder: str | Path) -> None:
        with saving(folder) as partial:
            self.hf.save_pretrained(partial)
            self.processor.save_pretrained(partial)
            write_options(partial, asdict(self.options))

    def gradient_checkpointing_enable(self) -> None:
        self.hf.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def features(self, prepared: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        """Mel (B, bins, L) with L a multiple of the encoder's chunk, and its mask (B, L); once for the whole
        batch."""
        audio = padded_to(prepared["audio"], prepared.host["width"])
        mel = self.mel(audio[:, : prepared.host["width"]])
        mel = F.pad(mel, (0, -mel.shape[-1] % self.chunk))
        mask = torch.arange(mel.shape[-1], device=mel.device) < prepared["frames"][:, None]
        return mel.to(self.hf.dtype), mask.long()

    def forward(self, prepared: Prepared) -> tuple[torch.Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        hidden = self._hidden(prepared).flatten(0, 1).index_select(0, prepared["places"])
        # Only where there is an answer: the vocabulary is far wider than the model.
        logits = self.hf.lm_head(hidden).float()
        return F.cross_entropy(logits, prepared["answers"], reduction="sum"), prepared.count

    @torch.no_grad()
    def transcribe(self, prepared: Prepared) -> list[str]:
        if not len(prepared):
            return []
        preparer, tokenizer = self.preparer, self.processor.tokenizer
        prompts = [preparer.prompt(count) for count in prepared.host["audio_tokens"]]
        device = prepared["audio"].device
        ids = padded_ids(prompts, tokenizer.pad_token_id, "left").to(device)
        mask = padded_ids([[1] * len(prompt) for prompt in prompts], 0, "left").to(device)
        mel, mel_mask = self.features(prepared)
        seconds = prepared.host["width"] / SAMPLING_RATE
        written = self.hf.generate(
            input_ids=ids,
            attention_mask=mask,
            input_features=mel,
            input_features_mask=mel_mask,
            max_new_tokens=24 + int(seconds * self.options.tokens_per_second),
            do_sample=False,
            num_beams=1,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=sorted({tokenizer.eos_token_id, *_listed(self.hf.config.eos_token_id)}),
        )
        texts = tokenizer.batch_decode(written[:, ids.shape[1] :], skip_special_tokens=True)
        return [languages.without_tag(text) for text in texts]

    def flops(self, samples: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        frames = [max(length, SHORTEST) // HOP for length in samples]
        heard = [audio_tokens(count, self.chunk) for count in frames]
        around = len(self.preparer.prompt(0))
        texts = [around + a + b for a, b in zip(heard, tokens, strict=True)]
        return qwen_flops(self.preparer.sizes, frames, heard, texts)

    def _hidden(self, prepared: Prepared) -> torch.Tensor:
        """The decoder's last hidden states (B, L, H)."""
        model = self.hf.model
        mel = self.features(prepared)[0]
        heard, longest = prepared["heard"], prepared.host["longest_window"]
        encoded = encode(model.audio_tower, mel, prepared["chunks"], heard, prepared["window_ends"], longest)
        audio = model.multi_modal_projector(encoded)
        ids = prepared["input_ids"]
        embedded = self.hf.get_input_embeddings()(ids)
        here = (ids == self.hf.config.audio_token_id)[..., None]
        embedded = embedded.masked_scatter(here, audio.to(embedded.dtype))
        out = model.language_model(
            inputs_embeds=embedded,
            attention_mask=prepared["attention_mask"],
            use_cache=False,
            return_dict=True,
        )
        return out.last_hidden_state


def window_ends(tokens: Sequence[int], window: int) -> list[int]:
    """Cumulative ends, from 0, of the attention windows of clips of so many audio tokens."""
    ends = [0]
    for count in tokens:
        first = ends[-1]
        ends += [first + end for end in (*range(window, count, window), count)]
    return ends


def _listed(ids: int | Sequence[int]) -> list[int]:
    return [ids] if isinstance(ids, int) else list(ids)
