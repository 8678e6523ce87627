"""What all models of transformers share: loading without code, which missing weights and sampling
rates are refused, saving, checkpointing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from millrace.asr.models.base import AsrModel
from millrace.asr.models.folder import CONFIG
from millrace.asr.models.mel import SAMPLING_RATE
from millrace.common import atomic
from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted

LOCAL = {"local_files_only": True, "trust_remote_code": False}
COPY_AGAIN = "Copy the whole model folder again: weights, configuration, tokenizer and preprocessor"


class HfModel(AsrModel):
    """`hf`, a model of transformers, with its processor: tokenizer and feature extractor.

    `hf_classes` are transformers' classes of both, by name.
    """

    hf_classes: ClassVar[tuple[str, str]]
    extractor: ClassVar[str] = ""  # the only class of feature extractor, if there is only one
    head: ClassVar[tuple[str, ...]] = ()  # beginnings of names of weights that a folder may lack

    def __init__(self, hf: Any, processor: Any) -> None:
        super().__init__()
        self.hf = hf
        self.processor = processor

    @classmethod
    def from_pretrained(cls, folder: str | Path, options: Mapping[str, Any]) -> HfModel:
        import transformers

        quieten()
        model_class = getattr(transformers, cls.hf_classes[0])
        processor_class = getattr(transformers, cls.hf_classes[1])
        with loading(folder, cls.hf_classes[0]):
            if without_weights():
                config = transformers.AutoConfig.from_pretrained(str(folder), **LOCAL)
                hf = getattr(model_class, "from_config", model_class)(config)
            else:
                hf = cls.with_weights(model_class, folder, str(folder), **LOCAL)
        with loading(folder, cls.hf_classes[1]):
            processor = processor_class.from_pretrained(str(folder), **LOCAL)
        cls._check_extractor(processor.feature_extractor, str(folder))
        return cls(hf, processor, **options)

    @classmethod
    def _check_extractor(cls, extractor: Any, folder: str) -> None:
        kind = type(extractor).__name__
        if cls.extractor not in ("", kind):
            problem = f"its features are those of {kind}, not of {cls.extractor}"
            raise MillraceError(problem, folder, "Take Qwen3-ASR, Whisper or wav2vec 2.0")
        if extractor.sampling_rate != SAMPLING_RATE:
            problem = (
                f"the model hears {extractor.sampling_rate} Hz, the buckets hold {SAMPLING_RATE} Hz"
            )
            raise MillraceError(problem, folder, "Choose a model for 16 kHz")

    @classmethod
    def with_weights(cls, kind: Any, folder: str | Path, source: str | None, **how: Any) -> Any:
        """A model of transformers' class `kind` by its `from_pretrained(source, **how)`.

        Raises MillraceError for what transformers would draw at random, if it is no new head.
        """
        hf, weights = kind.from_pretrained(
            source,
            **how,
            use_safetensors=True,  # reading .bin could run code
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        missing = sorted(weights["missing_keys"])
        lost = [f"{name} is of another shape" for name, *_ in weights["mismatched_keys"]]
        lost += [f"{name} is missing" for name in missing if not name.startswith(cls.head)]
        if lost:
            problem = f"{counted(len(lost), 'weight')} cannot be loaded: {lost[0]}"
            raise MillraceError(problem, str(folder), COPY_AGAIN)
        if missing:
            count = counted(len(missing), "weight")
            log.warning("%s: %s missing, drawn at random: %s", folder, count, missing[0])
        return hf

    def save_pretrained(self, folder: str | Path) -> None:
        quieten()
        folder = Path(folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)

        # Write beside the folder, then replace its files, config.json last: a folder with a config
        # is whole. What a killed process left beside it is as large as the model.
        atomic.sweep_partials(folder)
        partial = atomic.partial_of(folder)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            self.save_parts(partial)
            written = partial.rglob("*")
            for path in sorted(written, key=lambda path: (path.name == CONFIG, path)):
                if path.is_file():
                    target = folder / path.relative_to(partial)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def save_parts(self, folder: Path) -> None:
        """Write all files; a subclass adds its own."""
        self.hf.save_pretrained(folder)
        self.processor.save_pretrained(folder)

    def gradient_checkpointing_enable(self) -> None:
        self.hf.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )


@contextlib.contextmanager
def loading(folder: str | Path, what: str) -> Iterator[None]:
    """Raise MillraceError for what transformers raises when a folder holds no whole model."""
    try:
        yield
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
        raise MillraceError(
            f"{what} cannot be loaded ({first})", str(folder), COPY_AGAIN
        ) from error


def without_weights() -> bool:
    """Whether the caller is on torch's meta device, as the audit is: from_pretrained does not load
    there."""
    return torch.get_default_device().type == "meta"


def quieten() -> None:
    """No progress bars and notes of transformers in our logs; errors stay."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
