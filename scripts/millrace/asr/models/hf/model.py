"""What all models of transformers share: loading, saving, checkpointing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from millrace.asr.models.base import AsrModel
from millrace.asr.models.files import load_local, saving


class HfModel(AsrModel):
    """`hf`, a model of transformers, with its processor: tokenizer and feature extractor.

    `hf_classes` are transformers' classes of both, by name.
    """

    hf_classes: ClassVar[tuple[str, str]]

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__()
        self.hf, self.processor = hf, processor

    @classmethod
    def from_pretrained(cls, folder: str | Path, options: Mapping[str, Any]) -> HfModel:
        import transformers

        model, processor = (getattr(transformers, name) for name in cls.hf_classes)
        return cls(load_local(model, folder, dtype=torch.float32), load_local(processor, folder), **options)

    def save_pretrained(self, folder: str | Path) -> None:
        with saving(folder) as partial:
            self.save_parts(partial)

    def save_parts(self, folder: Path) -> None:
        """Write all files; a subclass adds its own."""
        self.hf.save_pretrained(folder)
        self.processor.save_pretrained(folder)

    def gradient_checkpointing_enable(self) -> None:
        self.hf.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
