"""Published models: `checkpoint_best.ckpt` as Lightning Fabric writes it, with its
`configuration.yaml`."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from millrace.common.errors import MillraceError, first_line
from millrace.music.models.clews import Clews
from millrace.music.models.config import CONFIGURATION, ClewsConfig, flat, read_yaml

# What a checkpoint pickles beside tensors and plain values: its configuration, as an OmegaConf
# object. It is read from the YAML file instead, so these names stand for nothing.
_OBJECTS = re.compile(
    r"omegaconf\.[\w.]+|typing\.Any|collections\.defaultdict|builtins\.(bool|dict|float|int|list|str)"
)
# Kernels of the constant-Q transform, computed from the configuration: features come with theirs
# applied.
_TRANSFORM = "cqt."


def load_published(checkpoint: str | Path) -> Clews:
    """The model of a checkpoint, on the host and in evaluation mode; nothing from the file is run.

    Raises MillraceError if a parameter is missing, left over or of another shape than the
    configuration says.
    """
    path = Path(checkpoint)
    configuration = path.with_name(CONFIGURATION)
    remedy = f"A published checkpoint needs the {CONFIGURATION} that it was trained with beside it"
    section = {"model": read_yaml(configuration, remedy).get("model")}
    model = Clews(ClewsConfig.from_keys(flat(section), str(configuration)))
    try:
        names = get_unsafe_globals_in_checkpoint(path)
        if refused := [name for name in names if not _OBJECTS.fullmatch(name)]:
            problem = (
                f"the file would run or build {refused[0]}, which no checkpoint of CLEWS needs"
            )
            raise MillraceError(problem, str(path), "Use a checkpoint from a source that you trust")
        with safe_globals([(_Ignored, name) for name in names]):
            # Mapped: the optimiser's state is not read into memory.
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        weights = {
            name: value for name, value in state["model"].items() if not name.startswith(_TRANSFORM)
        }
    except OSError as error:
        remedy = "Give the path of a .ckpt file"
        raise MillraceError(f"cannot be read ({error.strerror})", str(path), remedy) from error
    except (
        RuntimeError,
        ValueError,
        TypeError,
        LookupError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        problem = f"this is no checkpoint of CLEWS ({first_line(error)[:200]})"
        raise MillraceError(problem, str(path), "Download it again") from error
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = (
            f"the weights are not those of {configuration} ({' '.join(str(error).split())[:300]})"
        )
        remedy = "Put the configuration of this checkpoint beside it"
        raise MillraceError(problem, str(path), remedy) from error
    return model.eval()


class _Ignored:
    """Takes the place of an object of the configuration, whatever it is made with."""

    def __new__(cls, *_: Any, **__: Any) -> _Ignored:
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None: ...
