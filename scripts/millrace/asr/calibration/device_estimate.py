"""The memory of a training step on a device that is not here: the step is run on shapes alone, storages are
counted.

Floating-point tensors are torch's fake ones, which hold no memory; integers and masks are real, so that what
depends on them (which rows are padding) takes its true shape. This is theory: kernels' workspaces are not in
it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from millrace.common.machine.memory import GB, is_out_of_memory

_GRAIN = 512  # bytes, of torch's CUDA allocator
_BESIDE = 0.6 * GB  # CUDA context and libraries' workspaces
_FRAGMENTED = 1.03


class ShapesOnly(TorchDispatchMode):
    """While active, floating-point tensors are fake. `live` and `peak` are the bytes of all storages made
    inside."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.live = self.peak = 0
        self._known: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        if func is torch.ops.aten.index.Tensor:
            args = (args[0], [place for mask in args[1] for place in _places(mask)], *args[2:])
        if func is torch.ops.aten._pack_padded_sequence.default and isinstance(args[0], FakeTensor):
            return self._packed(*args)
        if func.overloadpacket is torch.ops.aten._ctc_loss:
            return self._ctc_loss(*args)
        if any(isinstance(value, FakeTensor) for value in given) or (
            not given and _makes_floats(func, kwargs)
        ):
            with self.fake:
                found = func(*args, **kwargs)
        else:
            found = func(*args, **kwargs)
        tree_map_only(torch.Tensor, self.track, found)
        return found

    def as_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """A floating-point tensor's shape; others as they are. Counted."""
        found = self.fake.from_tensor(tensor) if tensor.is_floating_point() else tensor
        self.track(found)
        return found

    def track(self, tensor: torch.Tensor) -> None:
        """Count the tensor's storage, once, until it is freed."""
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        size = -(-storage.nbytes() // _GRAIN) * _GRAIN
        self._known[storage] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, size)

    def _freed(self, size: int) -> None:
        self.live -= size

    def _packed(
        self, data: torch.Tensor, lengths: torch.Tensor, batch_first: bool
    ) -> tuple[Any, torch.Tensor]:
        """torch has no shapes for this operator, whose output is as long as the sum of `lengths`."""
        data = data if not batch_first else data.transpose(0, 1)
        steps = torch.arange(int(lengths.max()))
        sizes = (lengths[:, None] > steps).sum(0)
        rows = torch.zeros(int(sizes.sum()), dtype=torch.int64)
        with self.fake:
            flat = data.reshape(-1, *data.shape[2:]).index_select(0, rows)
        self.track(flat)
        return flat, sizes

    def _ctc_loss(
        self, log_probabilities: torch.Tensor, targets: torch.Tensor, *lengths: Any
    ) -> tuple[Any, Any]:
        """Nor for this one: losses (B), and for its backward pass (B, T, 2 L + 1) of the longest target."""
        steps, count, _ = log_probabilities.shape
        longest = int(max(torch.as_tensor(lengths[1]).tolist(), default=0))
        with self.fake:
            found = (
                log_probabilities.new_empty(count),
                log_probabilities.new_empty(count, steps, 2 * longest + 1),
            )
        tree_map_only(torch.Tensor, self.track, found)
        return found


def _places(mask: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Indices instead of a mask whose values are known."""
    if mask is None or isinstance(mask, FakeTensor) or mask.dtype not in (torch.bool, torch.uint8):
        return [mask]
    return list(mask.nonzero(as_tuple=True))


def _makes_floats(func: Any, kwargs: Mapping[str, Any]) -> bool:
    dtype = kwargs.get("dtype")
    if dtype is None:
        return "arange" not in func.name() and "scalar_tensor" not in func.name()
    return dtype.is_floating_point or dtype.is_complex


def estimate(request: Mapping[str, Any]) -> dict[str, Any]:
    """The peak of two steps of the worst batch of `request["rows"]` rows, as a trial answers: the second has
    the optimiser's state."""
    from millrace.asr.calibration.steps import shape, worst_batch
    from millrace.asr.training.options import TrainOptions
    from millrace.asr.training.task import AsrTask
    from millrace.common.training import devices
    from millrace.common.training.settings import LoopSettings
    from millrace.common.training.task import enable_gradient_checkpointing, parameter_groups

    task, settings = AsrTask(TrainOptions(**request["options"])), LoopSettings(**request["settings"])
    mode = ShapesOnly()
    with mode:
        model = task.build_model()
        model = model.bfloat16() if settings.precision == "bf16-true" else model
        if settings.gradient_checkpointing:
            enable_gradient_checkpointing(task, model)
        model.train()
        optimizer = torch.optim.AdamW(parameter_groups(task, model, settings.weight_decay), foreach=False)
    batch = worst_batch(task, model, request["audio_rows"], request["text_rows"], request["rows"])
    try:
        for _ in range(2):
            prepared = model.prepare(batch, 0)
            prepared.tensors = {name: mode.as_fake(tensor) for name, tensor in prepared.tensors.items()}
            with mode, devices.autocast("cpu", settings.precision):
                # Under DDP, and while batches are accumulated, gradients stay where they are.
                optimizer.zero_grad(set_to_none=request["world_size"] == 1 and settings.grad_acc == 1)
                loss, *_ = task.training_step(model, prepared)
            with mode:
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm or 1.0)
                optimizer.step()
            del loss, prepared
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            return {
                "oom": True,
                "steps": 0,
                "heaviest": shape(batch),
                "message": "here, while estimating",
            }
        raise
    peak, fixed = mode.peak * _FRAGMENTED + _BESIDE, mode.live + _BESIDE
    facts = {
        "peak_gb": peak / GB,
        "step_peak_gb": peak / GB,
        "fixed_gb": fixed / GB,
        "allocated_gb": mode.peak / GB,
    }
    return {"oom": False, "steps": 2, "heaviest": {"step": 2, **shape(batch)}, **facts}
