"""Qwen3-ASR for fine-tuning: mel and encoder of a padded batch, loss over the answer's tokens,
generation."""

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
from millrace.asr.models.files import OPTIONS
from millrace.asr.models.hf.model import HfModel, quieten, without_weights
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
from millrace.common.errors import MillraceError
from millrace.common.training.meters import part


class QwenModel(HfModel):
    """Qwen3ASRForConditionalGeneration with its processor. The loss sums over the answer's tokens
    and end."""

    model_types = ("qwen3_asr",)
    layouts = layout.LAYOUTS
    hf_classes = ("Qwen3ASRForConditionalGeneration", "Qwen3ASRProcessor")
    marks_parts = True
    option_types: ClassVar = {field.name: str(field.type) for field in fields(QwenOptions)}
    folder_option_types = option_types
    preparer: QwenPreparer

    def __init__(self, hf: Any, processor: Any, **options: Any) -> None:
        super().__init__(hf, processor)
        self.options = QwenOptions(**options)
        self.files: Mapping[
            str, bytes
        ] = {}  # of the folder it was read from, see layout.read_files
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
        if not layout.is_qwen_asr(folder):
            model = super().from_pretrained(folder, options)
        else:
            model = cls(*_from_qwen_asr(folder), **options)
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
        mel = F.pad(mel, (0, -mel.shape[-1] % self.preparer.chunk))
        mask = torch.arange(mel.shape[-1], device=mel.device) < prepared["frames"][:, None]
        return mel.to(self.hf.dtype), mask.long()

    def forward(self, prepared: Prepared) -> tuple[Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        model, ids, mask = self.hf.model, prepared["input_ids"], prepared["attention_mask"]
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
        if text._attn_implementation != "sdpa" or set(text.layer_types) != {"full_attention"}:
            return mask
        if self.options.padding_side == "right":
            return {"full_attention": None}

        # Padding sees itself alone, as attention to nothing is no number.
        length, device = mask.shape[1], mask.device
        before = torch.ones(length, length, dtype=torch.bool, device=device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=device)
        seen = (before & mask.bool()[:, None]) | itself
        return {"full_attention": seen[:, None]}

    def transcribe(self, prepared: Prepared) -> list[str]:
        return [text for _, text in self.recognise(prepared)]

    @torch.no_grad()
    def recognise(self, prepared: Prepared, language: str = "") -> list[tuple[str, str]]:
        if not len(prepared):
            return []
        tokenizer, ends = self.processor.tokenizer, self.hf.config.eos_token_id
        # The answer begins with its language; begun for the model, it goes on in that one.
        begin = (
            tokenizer(known_tag(language), add_special_tokens=False).input_ids if language else []
        )
        prompts = [[*prompt, *begin] for prompt in prepared.host["prompts"]]
        ids = padded_ids(prompts, tokenizer.pad_token_id, "left")
        mask = padded_ids([[1] * len(prompt) for prompt in prompts], 0, "left")
        mel, mel_mask = self.features(prepared)
        seconds = prepared.host["width"] / SAMPLING_RATE
        longest = 24 + int(seconds * self.options.tokens_per_second)
        end_ids = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}

        # generate convolves all chunks of its rows at once, padding too.
        row_chunks = mel.shape[-1] // self.preparer.chunk
        rows = max(chunks_at_once(self.hf.config.audio_config) // row_chunks, 1)
        inputs = (ids.to(mel.device), mask.to(mel.device), mel, mel_mask)
        texts: list[str] = []
        for group in zip(*(tensor.split(rows) for tensor in inputs), strict=True):
            names = ("input_ids", "attention_mask", "input_features", "input_features_mask")
            written = self.hf.generate(
                **dict(zip(names, group, strict=True)),
                max_new_tokens=longest,
                do_sample=False,
                num_beams=1,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=sorted(end_ids),
            )
            answers = written[:, ids.shape[1] :]
            texts += tokenizer.batch_decode(answers, skip_special_tokens=True)
        return [(language or language_of(text), without_tag(text)) for text in texts]


def _from_qwen_asr(folder: str | Path) -> tuple[Any, Any]:
    """The model of a folder of the qwen-asr package, and its processor."""
    import transformers

    quieten()
    arguments, state = layout.read(folder)
    try:
        config = transformers.Qwen3ASRConfig(**arguments)
        with torch.device("meta"):
            expected = transformers.Qwen3ASRForConditionalGeneration(config).state_dict()
        layout.check_weights(state, expected, config.tie_word_embeddings, str(folder))
        kind = transformers.Qwen3ASRForConditionalGeneration
        if without_weights():
            hf = kind(config)
        else:
            hf = kind.from_pretrained(None, config=config, state_dict=state, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        features = orjson.loads(layout.read_files(folder).get("preprocessor_config.json", b"{}"))
        sizes = {
            name: features[name]
            for name in ("feature_size", "n_fft", "hop_length")
            if name in features
        }
        extractor = transformers.Qwen3ASRFeatureExtractor(**sizes)
        # The published template leaves out what the assistant has written; ours gives the same
        # prompts.
        processor = transformers.Qwen3ASRProcessor(
            extractor, tokenizer, chat_template=CHAT_TEMPLATE
        )
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        ImportError,
    ) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        remedy = (
            "Copy the whole model folder again: weights, configuration, tokenizer and preprocessor"
        )
        raise MillraceError(f"Qwen3-ASR cannot be loaded ({first})", str(folder), remedy) from error
    return hf, processor
