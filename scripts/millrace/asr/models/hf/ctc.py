"""Any CTC model of transformers (wav2vec 2.0, HuBERT, WavLM, ...): from a folder, or a small random one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from torch.nn import functional as F

from millrace.asr.loading.collate import Batch
from millrace.asr.models.base import AsrModel, Prepared, audio_counts
from millrace.asr.models.files import load_local, read_config, saving
from millrace.asr.models.hf.features import HfFeatures
from millrace.asr.models.labels import Characters, drop_unfit, padded_ids
from millrace.common.errors import MillraceError

# Sizes of a model that trains in seconds; the convolutions keep their strides, 20 ms a frame.
_TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": [16] * 7,
    "num_feat_extract_layers": 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "codevector_dim": 16,
    "proj_codevector_dim": 16,
    "classifier_proj_size": 16,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}
RAW = (
    "wav2vec2",
    "wav2vec2-conformer",
    "hubert",
    "wavlm",
    "data2vec-audio",
    "sew",
    "sew-d",
    "unispeech",
    "unispeech-sat",
)
HOST = ("wav2vec2-bert",)  # features of their own, computed by their extractor
FAMILIES = RAW + HOST


@dataclass
class HfCtcPreparer:
    """Label ids and lengths; whatever features the host must compute."""

    tokenizer: Any
    features: HfFeatures

    def __call__(self, batch: Batch, epoch: int | None = None) -> Prepared:
        lengths = batch.lengths.tolist()
        tensors = self.features.on_host(batch)
        steps = self.features.batch_steps(lengths, tensors)
        labels = [
            self.tokenizer(text).input_ids if text else [] for text in map(self.reference, batch.transcripts)
        ]
        dropped = drop_unfit(labels, steps, batch.sample_ids)
        blank = self.tokenizer.pad_token_id
        tensors["targets"] = padded_ids(labels, 1 if blank != 1 else 0)
        counts = audio_counts(lengths, batch.audio.shape[1])
        counts |= {"tokens": sum(steps), "padded_tokens": len(steps) * max(steps, default=0)}
        width = batch.audio.shape[1]
        counts |= {"flops": float(self.features.flops(lengths).sum())}
        counts |= {
            "padded_flops": float(self.features.flops([self.features.width(width)] * len(lengths)).sum())
        }
        host = {"steps": steps, "label_lengths": [len(label) for label in labels]}
        return Prepared(
            batch, tensors, count=sum(map(len, labels)), counts=counts, host=host, dropped=dropped
        )

    def reference(self, transcript: str) -> str:
        """The transcript in the tokenizer's alphabet: upper case where it has no lower case, known characters
        only."""
        known = self.tokenizer.get_vocab()
        text = " ".join(transcript.split())
        lower, upper = (
            any(c.islower() for c in known if len(c) == 1),
            any(c.isupper() for c in known if len(c) == 1),
        )
        text = text.upper() if upper and not lower else text.lower() if lower and not upper else text
        return " ".join("".join(c for c in text if c == " " or c in known).split())


class HfCtcModel(AsrModel):
    """A transformers CTC head model. The loss is a sum over characters; clips it cannot fit take no part."""

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__()
        # Layers left out at random leave parameters without gradients, for which other ranks would wait.
        hf.config.layerdrop = 0.0
        self.hf, self.processor = hf, processor
        self.features = HfFeatures(processor.feature_extractor, hf.config)
        self.augmented = bool(getattr(hf.config, "apply_spec_augment", False))
        self.preparer = HfCtcPreparer(processor.tokenizer, self.features)

    @classmethod
    def random(cls, model_type: str, texts: Iterable[str], folder: str | Path) -> HfCtcModel:
        """A small model of one of RAW with random weights; its tokenizer's files are made in `folder`."""
        import transformers as hf

        if model_type not in FAMILIES:
            raise MillraceError(
                f"there is no small random {model_type}", remedy=f"Choose one of {', '.join(FAMILIES)}"
            )
        characters = Characters.from_transcripts(texts).characters.replace(" ", "")
        tokens = ["<pad>", "<unk>", "|", *(c for c in characters if c != "|")]
        vocabulary = Path(folder) / "vocab.json"
        vocabulary.write_bytes(orjson.dumps({token: number for number, token in enumerate(tokens)}))
        tokenizer = hf.Wav2Vec2CTCTokenizer(str(vocabulary), bos_token=None, eos_token=None)
        raw, sizes = model_type in RAW, dict(_TINY)
        extractor = (
            hf.Wav2Vec2FeatureExtractor(return_attention_mask=True)
            if raw
            else hf.SeamlessM4TFeatureExtractor()
        )
        if model_type == "data2vec-audio":
            sizes["num_conv_pos_embeddings"] = 2  # as many layers of them
        elif model_type in ("sew", "sew-d"):
            sizes["conv_dim"], sizes["num_feat_extract_layers"] = [16] * 13, 13
        config = hf.AutoConfig.for_model(model_type, **sizes, vocab_size=len(tokens), pad_token_id=0)
        return cls(
            hf.AutoModelForCTC.from_config(config),
            (hf.Wav2Vec2Processor if raw else hf.Wav2Vec2BertProcessor)(extractor, tokenizer),
        )

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> HfCtcModel:
        """Raises MillraceError for a folder without a whole model."""
        from transformers import AutoModelForCTC, AutoProcessor

        read_config(folder)
        return cls(
            load_local(AutoModelForCTC, folder, dtype=torch.float32), load_local(AutoProcessor, folder)
        )

    def save_pretrained(self, folder: str | Path) -> None:
        with saving(folder) as partial:
            self.hf.config.apply_spec_augment = self.augmented
            self.hf.save_pretrained(partial)
            self.processor.save_pretrained(partial)

    def gradient_checkpointing_enable(self) -> None:
        self.hf.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def log_probabilities(self, prepared: Prepared) -> torch.Tensor:
        """float32 (B, steps, tokens)."""
        config = self.hf.config
        # transformers' own SpecAugment refuses batches that are shorter than a span.
        config.apply_spec_augment = self.augmented and max(prepared.host["steps"]) > config.mask_time_length
        return self.hf(**self.features.on_device(prepared, self.hf.dtype)).logits.float().log_softmax(-1)

    def forward(self, prepared: Prepared) -> tuple[torch.Tensor, int]:
        if not prepared.count:
            return self.zero_loss(), 0
        host = prepared.host
        losses = F.ctc_loss(
            self.log_probabilities(prepared).transpose(0, 1),
            prepared["targets"],
            tuple(host["steps"]),
            tuple(host["label_lengths"]),
            blank=self.processor.tokenizer.pad_token_id,
            reduction="none",
            zero_infinity=True,
        )
        taught = torch.tensor([length > 0 for length in host["label_lengths"]]).to(
            losses.device, non_blocking=True
        )
        return losses.where(taught, 0.0).sum() + self.zero_loss(), prepared.count

    @torch.no_grad()
    def transcribe(self, prepared: Prepared) -> list[str]:
        if not len(prepared):
            return []
        paths = self.log_probabilities(prepared).argmax(-1).cpu().tolist()
        decode, steps = self.processor.tokenizer.decode, prepared.host["steps"]
        return [" ".join(decode(path[:count]).split()) for path, count in zip(paths, steps, strict=True)]

    def reference(self, transcript: str) -> str:
        return self.preparer.reference(transcript)

    def flops(self, samples: Sequence[int], tokens: Sequence[int] = ()) -> np.ndarray:
        return self.features.flops(samples)
