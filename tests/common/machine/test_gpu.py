"""Which GPU of the machine a device number of CUDA means."""

from __future__ import annotations

import pytest

from millrace.common.machine.gpu import nvml_number
from tests.common.machine.nvml import UUIDS


@pytest.mark.parametrize(
    ("visible", "device", "expected"),
    [
        (None, 3, 3),
        ("2", 0, 2),
        ("5, 1", 1, 1),
        (UUIDS[4], 0, 4),
        (f"{UUIDS[4]},GPU-e2", 1, 2),  # as much of the name as is needed to tell
        ("3,-1,2", 0, 3),
    ],
)
def test_a_device_is_the_entry_of_the_visible_ones(
    visible: str | None, device: int, expected: int
) -> None:
    assert nvml_number(device, visible, UUIDS) == expected


@pytest.mark.parametrize(
    ("visible", "device"),
    [
        (None, 6),
        ("", 0),
        ("1", 1),
        ("3,-1,2", 1),  # CUDA sees nothing behind an entry that it does not know
        ("6", 0),
        ("GPU-e", 0),  # the beginning of several names
        ("GPU-f", 0),
        ("MIG-e0000000-0000-0000-0000-000000000000", 0),
    ],
)
def test_a_device_that_cuda_does_not_see_has_no_counters(visible: str | None, device: int) -> None:
    with pytest.raises(LookupError, match=f"no GPU number {device}"):
        nvml_number(device, visible, UUIDS)
