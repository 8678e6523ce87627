"""FLAC frames (RFC 9639) to float32, compiled by numba: equal to dr_flac bit for bit, in 0.6 of its CPU time.

It decodes what encoders make of speech: one or two channels of 8, 12 or 16 bits whose number of samples is
known. Each frame's CRC-8 and CRC-16 are checked. To anything damaged or unusual `decode_frames` says no, and
the caller asks dr_flac, which has the last word and the messages. `python -m tests.bench.bench_flac` measures
both.

Two thoughts make it fast. A Rice code is found by counting the leading zeros of a window of the next 56 bits
or more, two codes for each refill, while the prediction before is still under way. And two samples are
predicted by one multiplication for each weight, in the halves of 64-bit words, which is exact where both sums
fit 32 bits.

Importing this compiles it (seconds), or loads what was compiled before, from __pycache__, NUMBA_CACHE_DIR or
the user's cache. All that is compiled must stay in this file: the date of the file is what numba compares.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import int32, int64, njit, types, uint64
from numba.extending import intrinsic

log = logging.getLogger("millrace")
_MAX_ORDER = 32
_MAX_PARAMETER, _MAX_RAW = 26, 30  # Rice parameters and raw residuals above these could wrap: dr_flac's
# The least bytes dr_flac asks of a metadata block: padding, application, seek table, comment, cue sheet,
# picture.
_METADATA_BYTES = {1: 0, 2: 4, 3: 0, 4: 8, 5: 396, 6: 32}


class StreamInfo(NamedTuple):
    """What the header of a FLAC says; `first_frame` is the byte where sound begins, `max_block` is in
    samples."""

    rate: int
    channels: int
    bits: int
    samples: int
    max_block: int
    first_frame: int


def stream_info(raw: bytes) -> StreamInfo | None:
    """The header of a FLAC, or None where it is damaged or unusual."""
    if bytes(raw[:8]) not in (b"fLaC\0\0\0\x22", b"fLaC\x80\0\0\x22") or len(raw) < 42:
        return None
    facts = int.from_bytes(raw[18:26], "big")
    min_block, max_block = int.from_bytes(raw[8:10], "big"), int.from_bytes(raw[10:12], "big")
    at, last = 42, raw[4] >> 7
    while not last:
        if at + 4 > len(raw):
            return None
        last, kind, size = raw[at] >> 7, raw[at] & 127, int.from_bytes(raw[at + 1 : at + 4], "big")
        at += 4 + size
        if size < _METADATA_BYTES.get(kind, size + 1) or at > len(raw):
            return None
    if not 16 <= min_block <= max_block or not facts >> 44:
        return None
    return StreamInfo(
        facts >> 44, (facts >> 41 & 7) + 1, (facts >> 36 & 31) + 1, facts & (1 << 36) - 1, max_block, at
    )


def decode_frames(raw: bytes, info: StreamInfo, out: np.ndarray) -> bool:
    """Decode a FLAC into `out`, contiguous float32 of `info.samples` x `info.channels` values in [-1, 1).

    False: something is damaged or unusual, and what `out` holds means nothing. Releases the GIL.
    """
    if info.channels > 2 or not 8 <= info.bits <= 16 or out.size != info.samples * info.channels:
        return False
    stream = np.frombuffer(memoryview(raw).toreadonly(), np.uint8)
    blocks = np.zeros(info.channels * (_MAX_ORDER + info.max_block), np.int32)
    weights = np.zeros(_MAX_ORDER + 1, np.int64)
    values = out.reshape(-1)
    return _decode(
        stream, info.first_frame, info.channels, info.bits, info.max_block, values, blocks, weights
    )


def _crc_tables(polynomial: int, width: int, count: int) -> np.ndarray:
    """tables[n, b]: the CRC of byte b and n zero bytes."""
    tables = np.zeros((count, 256), np.uint16)
    mask = (1 << width) - 1
    for byte in range(256):
        crc = byte << width - 8
        for _ in range(8):
            crc = (crc << 1 ^ (polynomial if crc >> width - 1 else 0)) & mask
        tables[0, byte] = crc
    for row in range(1, count):
        tables[row] = (tables[row - 1].astype(np.int64) << 8 & mask) ^ tables[0, tables[row - 1] >> width - 8]
    return tables


_CRC8 = _crc_tables(0x07, 8, 1)[0]
_CRC16 = _crc_tables(0x8005, 16, 16)
_FIXED = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [2, -1, 0, 0], [3, -3, 1, 0], [4, -6, 4, -1]])

_part = njit(nogil=True)  # compiled into `_decode`


@intrinsic
def _leading_zeros(typing, word):
    """Zero bits before the first one of a 64-bit word; 64 for 0."""

    def build(context, builder, signature, args):
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), build


@intrinsic
def _eight_bytes(typing, stream, at):
    """The big-endian number in bytes [at, at + 8) of `stream`; the caller has checked that they are there."""

    def build(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        place = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.bswap(builder.load(place, align=1))

    return types.uint64(stream, types.int64), build


@_part
def _window(stream: np.ndarray, position: int) -> np.uint64:
    """The bits from bit `position` on, at least 57 of them, first one on top; zeros after the end of the
    stream."""
    at, word = position >> 3, uint64(0)
    if at + 8 <= len(stream):
        word = _eight_bytes(stream, at)
    elif at < len(stream):
        for place in range(at, len(stream)):
            word = word << uint64(8) | uint64(stream[np.uintp(place)])
        word <<= uint64(8 * (at + 8 - len(stream)))
    return word << uint64(position & 7)


@_part
def _unsigned(stream: np.ndarray, position: int, count: int) -> int:
    """The number in the `count` bits (1 to 57) from `position` on."""
    return int64(_window(stream, position) >> uint64(64 - count))


@_part
def _signed(stream: np.ndarray, position: int, count: int) -> int:
    return int64(_window(stream, position)) >> int64(64 - count)


@_part
def _zero_run(stream: np.ndarray, position: int) -> int:
    """Zero bits from `position` to the next one; -1 where the stream ends before it."""
    at = position
    while at < 8 * len(stream):
        word = _window(stream, at)
        if word:
            return at + _leading_zeros(word) - position
        at += 64 - (at & 7)
    return -1


@_part
def _rice_code(stream: np.ndarray, position: int, parameter: int) -> tuple[int, int]:
    """(residual, position after it) of any Rice code; position -1: refused."""
    quotient = _zero_run(stream, position)
    if quotient < 0 or quotient >> (31 - parameter):
        return int64(0), int64(-1)
    position += quotient + 1
    code = quotient << parameter
    if parameter:
        code |= _unsigned(stream, position, parameter)
    return code >> 1 ^ -(code & 1), position + parameter


@_part
def _restore(block: np.ndarray, at: int, residual: int, weights: np.ndarray, order: int, shift: int) -> None:
    """Write one sample, from its residual and `order` samples before."""
    total = int64(0)
    for tap in range(order):
        total += int64(int32(weights[tap])) * block[at - 1 - tap]
    block[at] = int32(residual + (total >> shift))


@_part
def _raw_samples(
    stream: np.ndarray,
    position: int,
    block: np.ndarray,
    at: int,
    stop: int,
    weights: np.ndarray,
    order: int,
    shift: int,
) -> int:
    """Decode a partition without Rice codes; the position after it, or -1."""
    size = _unsigned(stream, position, int64(5))
    position += 5
    if size > _MAX_RAW:
        return -1
    for place in range(at, stop):
        _restore(block, place, _signed(stream, position, size) if size else int64(0), weights, order, shift)
        position += size
    return position


def _predictor(taps: int) -> Callable:
    """A function that decodes the residuals of one channel, and restores its samples from up to `taps` before
    each.

    `weights[j]` holds the weight of the sample j + 1 before in its lower half and the next weight in its
    upper half, so that one multiplication serves a sample and the one after it. Without `pairs` (sums that do
    not fit, or more than 12 weights) each sample is summed for itself. It returns the position after the
    residuals, or -1.
    """

    @_part
    def predict(
        stream: np.ndarray,
        position: int,
        block: np.ndarray,
        start: int,
        order: int,
        length: int,
        weights: np.ndarray,
        shift: int,
        pairs: bool,
    ) -> int:
        width = 4 + _unsigned(stream, position, int64(2))
        partitions = _unsigned(stream, position + 2, int64(4))
        position += 6
        if width > 5 or length & ((1 << partitions) - 1) or length >> partitions < order:
            return -1
        first = int64(int32(weights[0]))
        at, last = start + order, len(stream) - 8
        for partition in range(1, (1 << partitions) + 1):
            stop = start + partition * (length >> partitions)
            parameter = _unsigned(stream, position, width)
            position += width
            if parameter == (1 << width) - 1:
                position = _raw_samples(stream, position, block, at, stop, weights, order, shift)
                if position < 0:
                    return -1
                at = stop
            elif parameter > _MAX_PARAMETER:
                return -1
            after = parameter + 1
            # `have` bits of `word` are of use; the rest comes from byte `byte` on.
            word, byte, have = _window(stream, position), (position >> 3) + 7, 56 - (position & 7)
            one, two = int64(block[np.uintp(at - 1)]), int64(block[np.uintp(at - 2)])
            limit = stop - 2 if pairs else int64(-1)
            while at <= limit and byte <= last:
                word |= _eight_bytes(stream, byte) >> uint64(have)
                byte += (63 - have) >> 3
                have |= 56
                zeros = _leading_zeros(word)
                used = zeros + after
                word_2 = word << uint64(used & 63)
                zeros_2 = _leading_zeros(word_2)
                used_2 = zeros_2 + after
                if used + used_2 <= 56:
                    code = ((zeros - 1) << parameter) + int64(word >> uint64(-used & 63))
                    code_2 = ((zeros_2 - 1) << parameter) + int64(word_2 >> uint64(-used_2 & 63))
                    word = word_2 << uint64(used_2)
                    have -= used + used_2
                    residual, residual_2 = code >> 1 ^ -(code & 1), code_2 >> 1 ^ -(code_2 & 1)
                else:
                    residual, position = _rice_code(stream, 8 * byte - have, parameter)
                    if position < 0:
                        return -1
                    residual_2, position = _rice_code(stream, position, parameter)
                    if position < 0:
                        return -1
                    word, byte, have = _window(stream, position), (position >> 3) + 7, 56 - (position & 7)
                total = int64(0)
                for tap in range(2, taps):
                    total += weights[np.uintp(tap)] * block[np.uintp(at - 1 - tap)]
                total += weights[np.uintp(1)] * two
                total += weights[np.uintp(0)] * one
                low = int64(int32(total))
                two = residual + (low >> shift)
                one = residual_2 + (((total - low) >> 32) + first * two >> shift)
                block[np.uintp(at)] = int32(two)
                block[np.uintp(at + 1)] = int32(one)
                at += 2
            position = 8 * byte - have
            while at < stop:  # an odd one, the end of the stream, or sums that do not fit
                residual, position = _rice_code(stream, position, parameter)
                if position < 0:
                    return -1
                _restore(block, at, residual, weights, order, shift)
                at += 1
            if position > 8 * len(stream):
                return -1
        return position

    return predict


_predict_8, _predict_12 = _predictor(8), _predictor(12)


@_part
def _subframe(
    stream: np.ndarray,
    position: int,
    bits: int,
    block: np.ndarray,
    start: int,
    length: int,
    weights: np.ndarray,
) -> int:
    """Decode one channel of a frame to block[start : start + length]; the position after it, or -1."""
    kind = _unsigned(stream, position, int64(8))
    position += 8
    wasted = 0
    if kind & 1:
        wasted = _zero_run(stream, position) + 1
        if not 0 < wasted < bits:
            return -1
        position += wasted
        bits -= wasted
    kind >>= 1
    if kind == 0:
        value = int32(_signed(stream, position, bits))
        for at in range(start, start + length):
            block[at] = value
        position += bits
    elif kind == 1:
        if position + length * bits > 8 * len(stream):
            return -1
        for at in range(start, start + length):
            block[at] = int32(_signed(stream, position, bits))
            position += bits
    elif 8 <= kind <= 12 or 32 <= kind < 64:
        order = kind - 8 if kind < 32 else kind - 31
        if order > length:
            return -1
        for at in range(start, start + order):
            block[at] = int32(_signed(stream, position, bits))
            position += bits
        for tap in range(_MAX_ORDER + 1):
            weights[tap] = 0
        shift = int64(0)
        if kind < 32:
            for tap in range(order):
                weights[tap] = _FIXED[order, tap]
        else:
            precision, shift = (
                _unsigned(stream, position, int64(4)) + 1,
                _signed(stream, position + 4, int64(5)),
            )
            position += 9
            if precision == 16 or shift < 0:
                return -1
            for tap in range(order):
                weights[tap] = _signed(stream, position, precision)
                position += precision
        largest = int64(0)
        for tap in range(order):
            largest += abs(weights[tap])
        pairs = order <= 12 and largest << (bits - 1) < 1 << 31
        for tap in range(12):
            weights[tap] = int64(int32(weights[tap])) + (weights[tap + 1] << 32)
        if order <= 8 and pairs:
            position = _predict_8(stream, position, block, start, order, length, weights, shift, pairs)
        else:
            position = _predict_12(stream, position, block, start, order, length, weights, shift, pairs)
        if position < 0:
            return -1
    else:
        return -1
    # Sums are exact as long as no sample leaves its range: where one does, dr_flac is asked what that means.
    if not _fits(block, start, length, bits):
        return -1
    if wasted:
        for at in range(start, start + length):
            block[at] <<= wasted
    return position


@_part
def _fits(block: np.ndarray, start: int, length: int, bits: int) -> bool:
    """Whether the samples are signed numbers of so many bits."""
    seen, half = int64(0), int64(1) << (bits - 1)
    for at in range(start, start + length):
        seen |= block[np.uintp(at)] + half
    return seen >> bits == 0


@_part
def _crc_16(stream: np.ndarray, at: int, stop: int) -> int:
    crc, byte = uint64(0), uint64(255)
    while at + 16 <= stop:
        left = _eight_bytes(stream, at) ^ crc << uint64(48)
        right = _eight_bytes(stream, at + 8)
        crc = uint64(0)
        for row in range(8):
            bits = uint64(8 * row)
            crc ^= uint64(_CRC16[row + 8, left >> bits & byte] ^ _CRC16[row, right >> bits & byte])
        at += 16
    while at < stop:
        crc = (crc << uint64(8) & uint64(0xFFFF)) ^ uint64(
            _CRC16[0, crc >> uint64(8) ^ uint64(stream[np.uintp(at)])]
        )
        at += 1
    return int64(crc)


@_part
def _frame_header(stream: np.ndarray, at: int, channels: int, bits: int) -> tuple[int, int, int]:
    """(samples, coding of the channels, first byte after the header) of the frame at byte `at`; 0 samples:
    refused."""
    refused = (0, 0, 0)
    head = _unsigned(stream, at << 3, int64(32))
    block_code, rate_code, coding, size_code = head >> 12 & 15, head >> 8 & 15, head >> 4 & 15, head >> 1 & 7
    # A sync code of 14 bits and 0, the reserved last bit.
    if at + 10 > len(stream) or head >> 17 != 0x7FFC or head & 1 or not block_code or rate_code == 15:
        return refused
    if not (coding == 0 if channels == 1 else coding == 1 or 8 <= coding <= 10):
        return refused
    if size_code and bits != (0, 8, 12, 0, 16, 0, 0, 0)[size_code]:
        return refused
    # The number of the frame or sample, in UTF-8's way: nothing here needs it.
    ones = _leading_zeros(~_window(stream, 8 * (at + 4)))
    more = max(ones - 1, 0)
    end = at + 5 + more
    if ones == 1 or ones > 7 or end + 5 > len(stream):
        return refused
    for place in range(at + 5, end):
        if stream[place] >> 6 != 2:
            return refused
    length = 192 if block_code == 1 else 576 << block_code - 2 if block_code < 6 else 1 << block_code
    if block_code == 6 or block_code == 7:
        length = _unsigned(stream, 8 * end, 8 * (block_code - 5)) + 1
        end += block_code - 5
    end += 0 if rate_code < 12 else 1 if rate_code == 12 else 2
    crc = int64(0)
    for place in range(at, end):
        crc = int64(_CRC8[crc ^ int64(stream[place])])
    return (length, coding, end + 1) if crc == stream[end] else refused


def _kept(signature: types.Type) -> Callable:
    """Compile now, or load what was compiled before; where nothing can be kept, every process compiles for
    itself."""

    def compiled(function: Callable) -> Callable:
        try:
            return njit(signature, nogil=True, cache=True)(function)
        except (
            Exception
        ) as error:  # no folder to write to, a full disk, a broken file: numba has no common type
            log.debug("compiled code cannot be kept: %s", error)
            return njit(signature, nogil=True)(function)

    return compiled


_STREAM, _OUT = types.Array(types.uint8, 1, "C", readonly=True), types.float32[::1]


@_kept(types.boolean(_STREAM, *(types.int64,) * 4, _OUT, types.int32[::1], types.int64[::1]))
def _decode(
    stream: np.ndarray,
    at: int,
    channels: int,
    bits: int,
    max_block: int,
    out: np.ndarray,
    blocks: np.ndarray,
    weights: np.ndarray,
) -> bool:
    """Decode frames from byte `at` on until `out` is full; False where any of them is not whole and usual."""
    done, samples = 0, len(out) // channels
    left, right = int64(_MAX_ORDER), 2 * _MAX_ORDER + max_block
    scale = np.float32(1 / (1 << (bits - 1)))
    while done < samples:
        length, coding, start = _frame_header(stream, at, channels, bits)
        if not 0 < length <= min(max_block, samples - done):
            return False
        position = 8 * start
        for channel in range(channels):
            side = coding == 9 if channel == 0 else coding == 8 or coding == 10
            begin = right if channel else left
            position = _subframe(stream, position, bits + side, blocks, begin, length, weights)
            if position < 0:
                return False
        end = position + 7 >> 3
        if end + 2 > len(stream) or _crc_16(stream, at, end) != _unsigned(stream, 8 * end, int64(16)):
            return False
        at = end + 2
        if channels == 1:
            for n in range(length):
                out[np.uintp(done + n)] = np.float32(blocks[np.uintp(left + n)]) * scale
            done += length
            continue
        for n in range(length):
            one, two = int64(blocks[np.uintp(left + n)]), int64(blocks[np.uintp(right + n)])
            if coding == 8:  # left, side
                two = one - two
            elif coding == 9:  # side, right
                one += two
            elif coding == 10:  # middle, side
                one = (2 * one | two & 1) + two >> 1
                two = one - two
            blocks[np.uintp(left + n)], blocks[np.uintp(right + n)] = int32(one), int32(two)
            out[np.uintp(2 * (done + n))] = np.float32(one) * scale
            out[np.uintp(2 * (done + n) + 1)] = np.float32(two) * scale
        if not (_fits(blocks, left, length, bits) and _fits(blocks, right, length, bits)):
            return False
        done += length
    return True
