"""What all models of transformers share: loading, saving, checkpointing."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from millrace.asr.models.base import AsrModel
from millrace.asr.models.files import CONFIG
from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted


class HfModel(AsrModel):
    """`hf`, a model of transformers, with its processor: tokenizer and feature extractor.

    `hf_classes` are transformers' classes of both, by name.
    """

    hf_classes: ClassVar[tuple[str, str]]
    head: ClassVar[
        tuple[str, ...]
    ] = ()  # beginnings of the names of weights that a folder may lack

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__()
        self.hf, self.processor = hf, processor

    @classmethod
    def from_pretrained(cls, folder: str | Path, options: Mapping[str, Any]) -> HfModel:
        import transformers

        quieten()
        parts = []
        remedy = (
            "Copy the whole model folder again: weights, configuration, tokenizer and preprocessor"
        )
        report = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        local = {"local_files_only": True, "trust_remote_code": False}
        for name, settings in zip(
            cls.hf_classes, ({"dtype": torch.float32} | report, {}), strict=True
        ):
            kind = getattr(transformers, name)
            try:
                if settings and without_weights():
                    config = transformers.AutoConfig.from_pretrained(str(folder), **local)
                    parts.append(getattr(kind, "from_config", kind)(config))
                elif settings:
                    model, weights = kind.from_pretrained(str(folder), **local, **settings)
                    parts.append(model)
                    cls._check_weights(weights, str(folder), remedy)
                else:
                    parts.append(kind.from_pretrained(str(folder), **local))
            except pickle.UnpicklingError as error:
                problem = (
                    "the weights in .bin hold more than tensors, and reading them could run code"
                )
                raise MillraceError(problem, str(folder), "Get them as safetensors") from error
            except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
                first = (str(error) or type(error).__name__).splitlines()[0]
                problem = f"{kind.__name__} cannot be loaded ({first})"
                raise MillraceError(problem, where=str(folder), remedy=remedy) from error
        return cls(*parts, **options)

    @classmethod
    def _check_weights(cls, weights: Mapping[str, Any], folder: str, remedy: str) -> None:
        """Raise MillraceError for what transformers would draw at random, if it is no new head."""
        missing, extra = sorted(weights["missing_keys"]), sorted(weights["unexpected_keys"])
        lost = [f"{name} is of another shape" for name, *_ in weights["mismatched_keys"]]
        lost += [f"{name} is missing" for name in missing if not name.startswith(cls.head)]
        if lost:
            raise MillraceError(
                f"{counted(len(lost), 'weight')} cannot be loaded: {lost[0]}", folder, remedy
            )
        for names, what in (
            (missing, "missing, drawn at random"),
            (extra, "of no use to this model"),
        ):
            if names:
                log.warning("%s: %s %s: %s", folder, counted(len(names), "weight"), what, names[0])

    def save_pretrained(self, folder: str | Path) -> None:
        quieten()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)

        # Write beside the folder, then replace its files, config.json last: a folder with a config
        # is whole.
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}.",
            suffix=".partial",
            dir=folder.resolve().parent,
            ignore_cleanup_errors=True,
        ) as partial:
            self.save_parts(Path(partial))
            for path in sorted(
                Path(partial).rglob("*"), key=lambda path: (path.name == CONFIG, path)
            ):
                if path.is_file():
                    target = folder / path.relative_to(partial)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, target)

    def save_parts(self, folder: Path) -> None:
        """Write all files; a subclass adds its own."""
        self.hf.save_pretrained(folder)
        self.processor.save_pretrained(folder)

    def gradient_checkpointing_enable(self) -> None:
        self.hf.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )


def without_weights() -> bool:
    """Whether the caller is on torch's meta device, as the audit is: from_pretrained does not load
    there."""
    return torch.get_default_device().type == "meta"


def quieten() -> None:
    """No progress bars and notes of transformers in our logs; errors stay."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
