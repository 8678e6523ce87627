"""FLAC streams written bit by bit, with right checksums: what no encoder writes, and what only some do."""

from __future__ import annotations

import random

import numpy as np
from miniaudio import ffi, lib


class Bits:
    """A number of any length, written from its first bit on."""

    def __init__(self) -> None:
        self.digits: list[str] = []
        self.count = 0

    def put(self, value: int, width: int) -> None:
        if width:
            self.digits.append(format(value & ((1 << width) - 1), f"0{width}b"))
            self.count += width

    def unary(self, zeros: int) -> None:
        self.digits.append("0" * zeros + "1")
        self.count += zeros + 1

    def bytes(self) -> bytes:
        self.put(0, -self.count % 8)
        return int("1" + "".join(self.digits), 2).to_bytes(self.count // 8 + 1, "big")[1:]


def crc(raw: bytes, polynomial: int, width: int) -> int:
    found = 0
    for byte in raw:
        found ^= byte << width - 8
        for _ in range(8):
            found = (found << 1 ^ (polynomial if found >> width - 1 else 0)) & ((1 << width) - 1)
    return found


def header(
    samples: int,
    channels: int = 1,
    bits: int = 16,
    max_block: int = 4096,
    rate: int = 16_000,
    metadata: bytes = b"",
) -> bytes:
    facts = rate << 44 | channels - 1 << 41 | bits - 1 << 36 | samples
    sizes = (16).to_bytes(2, "big") + max_block.to_bytes(2, "big") + bytes(6)
    return (
        b"fLaC"
        + bytes([0 if metadata else 128, 0, 0, 34])
        + sizes
        + facts.to_bytes(8, "big")
        + bytes(16)
        + metadata
    )


def frame_header(rng: random.Random, length: int, coding: int, bits: int, odd: float = 0.0) -> bytes:
    """Any of the ways to write it; with the chance `odd` for each field, something reserved or untrue."""
    codes = [7] + [6] * (length <= 256)
    codes += [code for code in range(1, 16) if length == (192 if code == 1 else 0)]
    codes += [code for code in range(2, 6) if length == 576 << code - 2]
    codes += [code for code in range(8, 16) if length == 1 << code]
    block, rate = rng.choice(codes), rng.choice([0, 5, *range(1, 15)])
    size = rng.choice([0, {8: 1, 12: 2, 16: 4, 20: 5, 24: 6}.get(bits, 0)])
    head = Bits()
    head.put(0x3FFE, 14)
    head.put(rng.random() < odd, 1)
    head.put(rng.randrange(2), 1)
    head.put(rng.randrange(16) if rng.random() < odd else block, 4)
    head.put(rng.randrange(16) if rng.random() < odd else rate, 4)
    head.put(rng.randrange(16) if rng.random() < odd else coding, 4)
    head.put(rng.randrange(8) if rng.random() < odd else size, 3)
    head.put(rng.random() < odd, 1)
    number = rng.choice(
        [rng.randrange(1 << 7), rng.randrange(1 << 11), rng.randrange(1 << 16), rng.randrange(1 << 31)]
    )
    raw = head.bytes() + (
        chr(number).encode() if number < 0xD800 else bytes([0xFE, *[0x80 | number & 63] * 6])
    )
    if rng.random() < odd:
        raw = raw[:4] + rng.randbytes(2)
    raw += (length - 1).to_bytes(block - 5, "big") if block in (6, 7) else b""
    raw += rng.randbytes(0 if rate < 12 else 1 if rate == 12 else 2)
    return raw + bytes([crc(raw, 0x07, 8)])


def residuals(rng: random.Random, out: Bits, length: int, order: int, scale: int, odd: float) -> None:
    method = rng.randrange(4) if rng.random() < odd else rng.randrange(2)
    partitions = rng.choice([p for p in range(9) if length % (1 << p) == 0 and length >> p >= order] or [0])
    if rng.random() < odd:
        partitions = rng.randrange(16)
    out.put(method, 2)
    out.put(partitions, 4)
    width = 4 + (method & 1)
    for partition in range(1 << partitions):
        count = (length >> partitions) - (order if partition == 0 else 0)
        parameter = max(0, min((1 << width) - 2, scale + rng.randrange(-2, 3)))
        if rng.random() < odd:
            parameter = rng.randrange(1 << width)
        if rng.random() < 0.1:
            parameter = (1 << width) - 1
        out.put(parameter, width)
        if parameter == (1 << width) - 1:
            size = rng.randrange(32) if rng.random() < odd else min(scale, 31)
            out.put(size, 5)
            for _ in range(max(count, 0)):
                out.put(rng.getrandbits(32), size)
            continue
        for _ in range(max(count, 0)):
            out.unary(min(int(rng.expovariate(1)) if rng.random() < 0.99 else rng.randrange(80), 200))
            out.put(rng.getrandbits(32), parameter)


def subframe(rng: random.Random, out: Bits, length: int, bits: int, odd: float = 0.0) -> None:
    """One channel of `length` samples, of any kind; long streams of LPC stay in range where the residuals are
    small."""
    wasted = rng.choice([0] * 5 + [1, 2, bits - 1 if rng.random() < odd else 3])
    kind = rng.choice([0, 1, 8, 9, 10, 11, 12, *range(32, 48), rng.randrange(32, 64)])
    if rng.random() < odd:
        kind = rng.randrange(64)
    out.put(rng.random() < odd, 1)
    out.put(kind, 6)
    out.put(wasted > 0, 1)
    if wasted:
        out.unary(wasted - 1)
    bits -= wasted
    if kind == 0:
        out.put(rng.getrandbits(32), bits)
    elif kind == 1:
        for _ in range(length):
            out.put(rng.getrandbits(32), bits)
    elif kind < 32:
        order = kind & 7
        for _ in range(order):
            out.put(rng.randrange(-8, 8) if rng.random() > odd else rng.getrandbits(32), bits)
        residuals(rng, out, length, order, 0, odd)
    else:
        order = kind - 31
        for _ in range(order):
            out.put(rng.getrandbits(32) >> 32 - max(bits - 3, 1), bits)
        precision = rng.randrange(2, 16)
        shift = rng.randrange(16) if rng.random() < odd else min(15, precision + rng.randrange(-1, 3))
        out.put(15 if rng.random() < odd else precision - 1, 4)
        out.put(-1 if rng.random() < odd else shift, 5)
        for _ in range(order):
            # Small weights keep a random filter stable; the odd ones overflow.
            most = 1 << precision - 1 if rng.random() < odd else max(1, (1 << precision - 1) // order)
            out.put(rng.randrange(-most, most), precision)
        residuals(rng, out, length, order, rng.randrange(max(1, bits - 8)), odd)


def frame(rng: random.Random, length: int, channels: int, bits: int, odd: float = 0.0) -> bytes:
    coding = 0 if channels == 1 else rng.choice([1, 8, 9, 10])
    out = Bits()
    for channel in range(channels):
        side = coding == 9 if channel == 0 else coding in (8, 10)
        subframe(rng, out, length, bits + side, odd)
    raw = bytearray(frame_header(rng, length, coding, bits, odd) + out.bytes())
    if rng.random() < odd:
        raw[rng.randrange(5, len(raw))] ^= 1 << rng.randrange(8)
    raw += crc(raw, 0x8005, 16).to_bytes(2, "big")
    if rng.random() < odd / 8:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def stream(seed: int, odd: float = 0.0) -> bytes:
    """Some frames of any length, one or two channels, any sample size that fits; the same for the same
    seed."""
    rng = random.Random(seed)
    channels, bits = rng.choice([1, 1, 2]), rng.choice([8, 12, 16, 16, 16, 10])
    lengths = [
        rng.choice([16, 64, 192, 256, 257, 576, rng.randrange(32, 700)]) for _ in range(rng.randrange(1, 4))
    ]
    lengths.append(rng.randrange(32, 300))
    frames = b"".join(frame(rng, length, channels, bits, odd) for length in lengths)
    total = sum(lengths) + (rng.randrange(-3, 3) if rng.random() < odd / 4 else 0)
    largest = max(lengths) - (rng.random() < odd / 4)
    return header(total, channels, bits, max(largest, 16)) + frames


def by_dr_flac(raw: bytes) -> np.ndarray | None:
    """float32 (samples, channels), or None where dr_flac does not find all samples that the header
    promises."""
    handle = lib.ma_dr_flac_open_memory(ffi.from_buffer(raw), len(raw), ffi.NULL)
    if handle == ffi.NULL:
        return None
    try:
        frames = np.empty((min(handle.totalPCMFrameCount, 1 << 20), handle.channels), np.float32)
        got = lib.ma_dr_flac_read_pcm_frames_f32(handle, len(frames), ffi.from_buffer("float[]", frames))
    finally:
        lib.ma_dr_flac_close(handle)
    return frames if got == len(frames) else None
