"""Ranks of a run: who we are (torchrun's environment), at which address and port ranks meet, and
what they tell each other, without pickle."""

from __future__ import annotations

import contextlib
import io
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from millrace.common.errors import MillraceError
from millrace.common.processes import die_with_parent

LOOPBACK = "127.0.0.1"


def job_port(job: int, step: int) -> int:
    """The port at which the ranks of a Slurm step meet; another job's is another."""
    return 12000 + (job * 8 + step % 8) % 16000  # below the ports that the system gives away


def listen(address: str, port: int) -> socket.socket:
    """Listen at this address of this machine alone; `port` 0 takes a free one.

    Where the machine's own name means loopback (as Debian's /etc/hosts has it), other nodes could
    not come in by it: then at all addresses. Raises MillraceError if the port is taken.
    """
    resolved = socket.gethostbyname(address)
    is_name_of_loopback = resolved.startswith("127.") and address not in (LOOPBACK, "localhost")
    try:
        return socket.create_server(("" if is_name_of_loopback else resolved, port))
    except OSError as error:
        problem = f"cannot listen ({error.strerror})"
        place = f"{address}:{port}"
        remedy = "Another program may have this port: submit the job again"
        raise MillraceError(problem, place, remedy) from error


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of a run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @classmethod
    def from_environment(cls) -> Ranks:
        """What torchrun has set (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE); one rank without
        it.

        Raises MillraceError where only a part is set, or the numbers do not fit together.
        """
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        texts = {name: os.environ[name] for name in names if os.environ.get(name)}
        if not texts.keys() & {"RANK", "LOCAL_RANK"}:
            return cls()
        with contextlib.suppress(KeyError, ValueError):
            ranks = cls(*(int(texts[name]) for name in names))
            fits = (
                0 <= ranks.rank < ranks.world_size
                and 0 <= ranks.local_rank < ranks.local_world_size
            )
            if fits and ranks.world_size % ranks.local_world_size == 0:
                return ranks
        environment = ", ".join(f"{name}={os.environ.get(name, '(unset)')}" for name in names)
        problem = f"the environment does not say which rank this is ({environment})"
        remedy = (
            "Start ranks with millrace.common.training.launch or torchrun, one launcher a node;"
            " unset these for one rank"
        )
        raise MillraceError(problem, remedy=remedy)

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def end_with_launcher(signal_number: int) -> None:
    """Have this rank get a signal when torchrun dies, 0 for none; does nothing outside of
    torchrun."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(signal_number)


class Exchange:
    """Small values between the ranks, host to host over gloo; every rank makes the same calls in
    order.

    Never waits for a device, and fails at once if a rank has died, because its sockets close.
    """

    def __init__(self, world_size: int, timeout_seconds: float = 600.0) -> None:
        self.world_size = world_size
        self._group = None
        if world_size > 1:
            import torch.distributed as dist

            self._dist = dist
            if dist.get_backend() != "gloo":
                timeout = timedelta(seconds=timeout_seconds)
                self._group = dist.new_group(backend="gloo", timeout=timeout)

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum over ranks of every value, in float64; the same bits on every rank."""
        if self.world_size == 1:
            return [float(value) for value in values]
        import torch

        tensor = torch.tensor(values, dtype=torch.float64)
        self._dist.all_reduce(tensor, group=self._group)
        return tensor.tolist()

    def gathered(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank, on every rank: plain values and tensors, no objects."""
        if self.world_size == 1:
            return [value]
        import torch

        mine = packed(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        self._dist.all_gather(sizes, torch.tensor([len(mine)]), group=self._group)
        longest = max(int(size) for size in sizes)

        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        self._dist.all_gather(parts, padded, group=self._group)
        return [unpacked(part[: int(size)]) for part, size in zip(parts, sizes, strict=True)]

    def from_main(self, value: Any) -> Any:
        """The value of rank 0; the others wait for it. Plain values and tensors, no objects."""
        is_main = self.world_size == 1 or self._dist.get_rank() == 0
        return self.gathered(value if is_main else None)[0]

    def wait(self, seconds: float) -> None:
        """Until all ranks have come here; RuntimeError where one has not after so many seconds."""
        self._dist.monitored_barrier(group=self._group, timeout=timedelta(seconds=seconds))


def packed(value: Any) -> Any:
    """The value as a tensor of bytes. What torch's own collectives of objects receive is unpickled,
    and whoever reaches a rank's socket could run code."""
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpacked(content: Any) -> Any:
    """The value of such a tensor. Raises pickle.UnpicklingError for anything but plain values and
    tensors."""
    import torch

    return torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True)
