"""Memory of this machine: what the kernel and a container say."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from millrace.common.machine import memory
from millrace.common.machine.memory import GB, HostMeter
from tests import forks


@pytest.mark.parametrize(
    "limits, expected",
    [
        ({}, 8 * GB),
        ({"memory.max": "max\n"}, 8 * GB),
        ({"memory.max": f"{2 * GB}\n"}, 2 * GB),
        ({"memory/memory.limit_in_bytes": f"{3 * GB}\n"}, 3 * GB),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 8 * GB),
    ],
)
def test_a_containers_memory_is_its_limit_if_that_is_smaller(monkeypatch, limits, expected):
    read_text = Path.read_text

    def as_the_kernel(path: Path, *args: object, **options: object) -> str:
        if str(path) == "/proc/meminfo":
            return f"MemFree: 1 kB\nMemTotal:  {8 * GB // 1024} kB\n"
        if path.is_relative_to("/sys/fs/cgroup"):
            name = str(path.relative_to("/sys/fs/cgroup"))
            if name in limits:
                return limits[name]
            raise FileNotFoundError(path)
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", as_the_kernel)
    assert memory.host_memory() == expected
    assert (
        memory.kernel_bytes("NoSuchField") == 0
        and memory.kernel_bytes("MemFree", "meminfo") == 1024
    )


def test_the_highest_resident_memory_is_that_since_it_was_forgotten():
    large = np.ones(25_000_000)
    assert memory.highest_resident() >= memory.resident() >= large.nbytes
    with_it = memory.highest_resident()
    del large
    memory.forget_highest_resident()
    if os.access("/proc/self/clear_refs", os.W_OK):
        assert memory.highest_resident() <= with_it - 100_000_000


def test_the_peak_is_that_of_the_setup_too_and_facts_tell_it_from_that_of_the_steps():
    def measured() -> dict[str, float]:
        meter = HostMeter(limit_gb=1000.0)
        large = np.ones(25_000_000)
        del large
        meter.begin()
        most = resource.getrlimit(resource.RLIMIT_DATA)[0]
        return meter.facts() | {"room": most - memory.kernel_bytes("VmData")}

    facts = forks.answered(measured)
    assert 0 < facts["room"] < memory.kernel_bytes("MemTotal", "meminfo")  # of 1000 GB
    assert facts["fixed_gb"] <= facts["step_peak_gb"] <= facts["peak_gb"] - 0.1
