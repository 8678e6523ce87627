"""Qwen3-ASR for fine-tuning: mel and encoder of a padded batch, loss over the answer's tokens, generation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from millrace.asr.models.base import Prepared
from millrace.asr.models.files import OPTIONS, read_config
from millrace.asr.models.hf.model import HfModel, quieten
from millrace.asr.models.labels import padded_ids
from millrace.asr.models.mel import SAMPLING_RATE, LogMel, padded_to
from millrace.asr.models.qwen.config import random_config, random_processor
from millrace.asr.models.qwen.encoder import WindowedAttention, encode
from millrace.asr.models.qwen.prepare import QwenOptions, QwenPreparer, without_tag
from millrace.common import atomic
from millrace.common.errors import MillraceError


class QwenModel(HfModel):
    """Qwen3ASRForConditionalGeneration with its processor. The loss sums over the answer's tokens and end."""

    model_types = ("qwen3_asr",)
    hf_classes = ("Qwen3ASRForConditionalGeneration", "Qwen3ASRProcessor")
    option_types: ClassVar = {field.name: field.type for field in fields(QwenOptions)}
    folder_option_types = option_types

    def __init__(self, hf: Any, processor: Any, **options: Any) -> None:
        super().__init__(hf, processor)
        self.options = QwenOptions(**options)
        extractor, tokenizer = processor.feature_extractor, processor.tokenizer
        self.mel = LogMel(extractor.feature_size, extractor.n_fft, extractor.hop_length)
        template = processor.chat_template or tokenizer.chat_template
        self.preparer = QwenPreparer(tokenizer, template, hf.config, self.options, self.mel)
        for layer in hf.model.audio_tower.layers:
            layer.self_attn.__class__ = WindowedAttention

    @classmethod
    def create(cls, name: str, options: Mapping[str, Any], transcripts: Iterable[str]) -> QwenModel:
        from transformers import Qwen3ASRForConditionalGeneration

        quieten()
        processor = random_processor(transcripts)
        config = random_config(name.removeprefix("qwen3-asr-"), processor.tokenizer)
        return cls(Qwen3ASRForConditionalGeneration(config), processor, **options)

    @classmethod
    def from_pretrained(cls, folder: str | Path, options: Mapping[str, Any]) -> QwenModel:
        if "thinker_config" in read_config(folder):
            problem = "this is Qwen3-ASR in the layout of the qwen-asr package"
            remedy = "Take the folder that transformers reads (its name ends in -hf)"
            raise MillraceError(problem, where=str(folder), remedy=remedy)
        return super().from_pretrained(folder, options)

    def save_parts(self, folder: Path) -> None:
        super().save_parts(folder)
        atomic.write_json(folder / OPTIONS, asdict(self.options))

    def features(self, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """Mel (B, bins, L) with L a multiple of the encoder's chunk, and its mask (B, L)."""
        audio = padded_to(prepared["audio"], prepared.host["width"])
        mel = self.mel(audio[:, : prepared.host["width"]])
        mel = F.pad(mel, (0, -mel.shape[-1] % self.preparer.chunk))
        mask = torch.arange(mel.shape[-1], device=mel.device) < prepared["frames"][:, None]
        return mel.to(self.hf.dtype), mask.long()

    def forward(self, prepared: Prepared) -> tuple[Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        model, ids, mask = self.hf.model, prepared["input_ids"], prepared["attention_mask"]
        mel, _ = self.features(prepared)
        audio = model.multi_modal_projector(encode(model.audio_tower, mel, prepared))

        # Embedded text, with the encoder's output at the places for audio.
        embedded = self.hf.get_input_embeddings()(ids)
        is_audio = (ids == self.hf.config.audio_token_id)[..., None]
        embedded = embedded.masked_scatter(is_audio, audio.to(embedded.dtype))
        hidden = model.language_model(inputs_embeds=embedded, attention_mask=mask, use_cache=False)[0]

        # The head runs only where there is an answer: the vocabulary is far wider than the model.
        logits = self.hf.lm_head(hidden.flatten(0, 1).index_select(0, prepared["places"])).float()
        return F.cross_entropy(logits, prepared["answers"], reduction="sum"), prepared.count

    @torch.no_grad()
    def transcribe(self, prepared: Prepared) -> list[str]:
        if not len(prepared):
            return []
        tokenizer, ends = self.processor.tokenizer, self.hf.config.eos_token_id
        prompts = [self.preparer.prompt(count) for count in prepared.host["audio_tokens"]]
        ids = padded_ids(prompts, tokenizer.pad_token_id, "left")
        mask = padded_ids([[1] * len(prompt) for prompt in prompts], 0, "left")
        mel, mel_mask = self.features(prepared)
        seconds = prepared.host["width"] / SAMPLING_RATE
        written = self.hf.generate(
            input_ids=ids.to(mel.device),
            attention_mask=mask.to(mel.device),
            input_features=mel,
            input_features_mask=mel_mask,
            max_new_tokens=24 + int(seconds * self.options.tokens_per_second),
            do_sample=False,
            num_beams=1,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=sorted({tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}),
        )
        texts = tokenizer.batch_decode(written[:, ids.shape[1] :], skip_special_tokens=True)
        return [without_tag(text) for text in texts]
