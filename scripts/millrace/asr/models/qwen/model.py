"""Qwen3-ASR for fine-tuning: mel and encoder of a padded batch, loss over the answer's tokens, and
generation: how much it may write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar

import orjson
import torch
from torch import Tensor
from torch.nn import functional as F

from millrace.asr.models.base import Prepared
from millrace.asr.models.folder import OPTIONS
from millrace.asr.models.hf.model import LOCAL, HfModel, loading, quieten, without_weights
from millrace.asr.models.labels import padded_ids
from millrace.asr.models.mel import SAMPLING_RATE, LogMel, padded_to
from millrace.asr.models.qwen import layout
from millrace.asr.models.qwen.config import CHAT_TEMPLATE, random_config, random_processor
from millrace.asr.models.qwen.encoder import WindowedAttention, chunks_at_once, encode
from millrace.asr.models.qwen.prepare import (
    QwenOptions,
    QwenPreparer,
    known_tag,
    language_of,
    without_tag,
)
from millrace.common import atomic
from millrace.common.training.meters import part


class QwenModel(HfModel):
    """Qwen3ASRForConditionalGeneration with its processor. The loss sums over the answer's tokens
    and end."""

    model_types = ("qwen3_asr",)
    layouts = layout.LAYOUTS
    hf_classes = ("Qwen3ASRForConditionalGeneration", "Qwen3ASRProcessor")
    option_types: ClassVar = {field.name: str(field.type) for field in fields(QwenOptions)}
    folder_option_types = option_types
    preparer: QwenPreparer

    def __init__(
        self,
        hf: Any,
        processor: Any,
        **options: Any,
    ) -> None:
        super().__init__(hf, processor)
        self.options = QwenOptions(**options)
        # Of the folder that it was read from, see layout.read_files.
        self.files: Mapping[str, bytes] = {}
        extractor = processor.feature_extractor
        tokenizer = processor.tokenizer
        self.mel = LogMel(extractor.feature_size, extractor.n_fft, extractor.hop_length)
        self.preparer = QwenPreparer(
            tokenizer, processor.chat_template, hf.config, self.options, self.mel
        )
        for layer in hf.model.audio_tower.layers:
            layer.self_attn.__class__ = WindowedAttention

    @classmethod
    def create(
        cls,
        name: str,
        options: Mapping[str, Any],
        transcripts: Iterable[str],
    ) -> QwenModel:
        from transformers import Qwen3ASRForConditionalGeneration

        quieten()
        processor = random_processor(transcripts)
        config = random_config(name.removeprefix("qwen3-asr-"), processor.tokenizer)
        return cls(Qwen3ASRForConditionalGeneration(config), processor, **options)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        options: Mapping[str, Any],
    ) -> QwenModel:
        if layout.is_qwen_asr(folder):
            model = cls(*_from_qwen_asr(folder), **options)
        else:
            model = super().from_pretrained(folder, options)
        model.files = layout.read_files(folder)
        return model

    def save_parts(self, folder: Path) -> None:
        if self.layout == "qwen-asr":
            layout.write(folder, self.hf, self.processor, self.files)
        else:
            super().save_parts(folder)
            for name in self.files.keys() & {"vocab.json", "merges.txt"}:
                atomic.write_bytes(folder / name, self.files[name])
        atomic.write_json(folder / OPTIONS, asdict(self.options))

    def features(self, prepared: Prepared) -> tuple[Tensor, Tensor]:
        """Mel (B, bins, L) with L a multiple of the encoder's chunk, and its mask (B, L)."""
        audio = padded_to(prepared["audio"], prepared.host["width"])
        mel = self.mel(audio[:, : prepared.host["width"]])
        missing = -mel.shape[-1] % self.preparer.chunk
        mel = F.pad(mel, (0, missing))
        places = torch.arange(mel.shape[-1], device=mel.device)
        mask = places < prepared["frames"][:, None]
        return mel.to(self.hf.dtype), mask.long()

    def forward(self, prepared: Prepared) -> tuple[Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        model = self.hf.model
        ids = prepared["input_ids"]
        mask = prepared["attention_mask"]
        with part("mel"):
            mel, _ = self.features(prepared)
        with part("audio encoder"):
            audio = model.multi_modal_projector(encode(model.audio_tower, mel, prepared))

        # Embedded text, with the encoder's output at the places for audio.
        with part("text decoder"):
            embedded = self.hf.get_input_embeddings()(ids)
            tokens = embedded.flatten(0, 1)
            tokens = tokens.index_copy(0, prepared["audio_places"], audio.to(embedded.dtype))
            hidden = model.language_model(
                inputs_embeds=tokens.view_as(embedded),
                attention_mask=self._decoder_mask(mask),
                use_cache=False,
            )[0]

        # The head runs only where there is an answer: the vocabulary is far wider than the model.
        with part("head"):
            logits = self.hf.lm_head(
                hidden.flatten(0, 1).index_select(0, prepared["places"])
            ).float()
            return F.cross_entropy(logits, prepared["answers"], reduction="sum"), prepared.count

    def _decoder_mask(self, mask: Tensor) -> Tensor | dict[str, Tensor | None]:
        """What each token of the decoder attends to, as its layers take it: made ready here.

        transformers makes one from `mask` (B, L) too, but reads it from the device to learn whether
        anything is padded, and without a mask it reads the positions: the host would wait in every
        step. Padded on the right, no answer sees padding behind it, and attention needs no mask: so
        it is the faster kernel that takes none.
        """
        text = self.hf.model.language_model.config
        if text._attn_implementation == "sdpa" and set(text.layer_types) == {"full_attention"}:
            return {"full_attention": None}
        return mask

    @torch.no_grad()
    def recognise(
        self,
        prepared: Prepared,
        language: str = "",
    ) -> list[tuple[str, str]]:
        if not len(prepared):
            return []
        prompts = self._begun(prepared, language)
        pad = self.processor.tokenizer.pad_token_id
        ids = padded_ids(prompts, pad, "left")
        mask = padded_ids([[1] * len(prompt) for prompt in prompts], 0, "left")
        mel, mel_mask = self.features(prepared)

        # generate convolves all chunks of its rows at once, padding too.
        row_chunks = mel.shape[-1] // self.preparer.chunk
        rows = max(chunks_at_once(self.hf.config.audio_config) // row_chunks, 1)
        inputs = (ids.to(mel.device), mask.to(mel.device), mel, mel_mask)
        names = ("input_ids", "attention_mask", "input_features", "input_features_mask")
        seconds = prepared.host["width"] / SAMPLING_RATE
        longest = 24 + int(seconds * self.options.tokens_per_second)
        texts: list[str] = []
        for group in zip(*(tensor.split(rows) for tensor in inputs), strict=True):
            written = self.hf.generate(
                **dict(zip(names, group, strict=True)),
                max_new_tokens=longest,
                do_sample=False,
                num_beams=1,
                pad_token_id=pad,
            )
            answers = written[:, ids.shape[1] :]
            texts += self.processor.tokenizer.batch_decode(answers, skip_special_tokens=True)
        return [(language or language_of(text), without_tag(text)) for text in texts]

    def _begun(self, prepared: Prepared, language: str) -> list[list[int]]:
        """The prompts, each with the beginning of an answer: one in a language begins with that."""
        prompts = prepared.host["prompts"]
        if not language:
            return prompts
        tokenizer = self.processor.tokenizer
        begin = tokenizer(known_tag(language), add_special_tokens=False).input_ids
        return [[*prompt, *begin] for prompt in prompts]


def _from_qwen_asr(folder: str | Path) -> tuple[Any, Any]:
    """The model of a folder of the qwen-asr package, and its processor."""
    import transformers

    quieten()
    arguments, state = layout.read(folder)
    kind = transformers.Qwen3ASRForConditionalGeneration
    with loading(folder, "Qwen3-ASR"):
        config = transformers.Qwen3ASRConfig(**arguments)
        if without_weights():
            hf = kind(config)
        else:
            hf = QwenModel.with_weights(kind, folder, None, config=config, state_dict=state)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **LOCAL)
        features = orjson.loads(layout.read_files(folder).get("preprocessor_config.json", b"{}"))
        names = features.keys() & {"feature_size", "n_fft", "hop_length"}
        extractor = transformers.Qwen3ASRFeatureExtractor(
            **{name: features[name] for name in names}
        )
        # The published template leaves out what the assistant has written; ours gives the same
        # prompts.
        processor = transformers.Qwen3ASRProcessor(
            extractor, tokenizer, chat_template=CHAT_TEMPLATE
        )
    return hf, processor
