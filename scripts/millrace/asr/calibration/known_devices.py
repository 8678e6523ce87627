"""The memory of devices that a calibration can be estimated for."""

from __future__ import annotations

from millrace.common.errors import MillraceError

# GiB that torch finds on them, a little less than what they are sold with.
MEMORY_GB = {
    "b200": 178.3,
    "h200": 139.8,
    "h100": 79.1,
    "a100": 79.1,
    "a100-80gb": 79.1,
    "a100-40gb": 39.4,
    "l40s": 44.4,
    "rtx6000ada": 47.4,
    "a6000": 47.4,
    "a10": 22.0,
    "l4": 22.0,
    "rtx4090": 23.6,
    "v100-32gb": 31.7,
    "v100-16gb": 15.8,
    "t4": 14.6,
}
HERE = ("auto", "cpu", "cuda")


def facts(name: str) -> dict:
    """As the trial `device` answers, for a device that is not here. Raises MillraceError for an unknown
    name."""
    known = MEMORY_GB.get(name.lower())
    if known is None:
        remedy = f"Choose one of {', '.join((*HERE, *MEMORY_GB))}"
        raise MillraceError(f"the memory of a device {name!r} is not known", where="--device", remedy=remedy)
    return {"kind": "estimate", "name": name.lower(), "memory_gb": known, "estimated": True}
