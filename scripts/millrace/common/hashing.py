"""Fast 64-bit hashes of strings and numbers: the same everywhere, for any number of processes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_GOLDEN = 0x9E3779B97F4A7C15
_BLOCK = 1 << 14  # rows at a time, so that the words stay in the processor's cache
_MULTIPLIER = np.uint64(0xFF51AFD7ED558CCD)


def mix(values: np.ndarray | int) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of uint64."""
    numbers = np.atleast_1d(np.asarray(values, np.uint64))
    x = numbers + np.uint64(_GOLDEN)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def key(*numbers: int) -> np.uint64:
    """One 64-bit key out of whole numbers (seed, epoch, ...) in their order, to be mixed into
    hashes."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        word = int(number) & 0xFFFFFFFFFFFFFFFF
        state = mix(state ^ np.uint64(word))
    return state[0]


def hash_strings(strings: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """uint64 hash of every string's UTF-8 (or raw) bytes, 8 at a time; none is null."""
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    array = strings.cast(pa.large_binary())
    result = np.zeros(len(array), np.uint64)
    for start in range(0, len(array), _BLOCK):
        block = array.slice(start, _BLOCK)
        result[start : start + len(block)] = _hash_block(block)
    return result


def _hash_block(array: pa.LargeBinaryArray) -> np.ndarray:
    _, offsets_buffer, text_buffer = array.buffers()
    all_offsets = np.frombuffer(offsets_buffer, np.int64)
    end = array.offset + len(array)
    offsets = all_offsets[array.offset : end + 1]
    words = _words(text_buffer, offsets[0], offsets[-1])

    start = offsets[:-1] - offsets[0]
    length = np.diff(offsets)
    state = mix(length.astype(np.uint64))
    shortest = length.min()
    for at in range(0, int(length.max()), 8):
        rows: slice | np.ndarray = slice(None)
        if at >= shortest:
            rows = np.flatnonzero(length > at)
        word = words[start[rows] + at]
        if at + 8 > shortest:
            word = _without_spare(word, length[rows] - at)
        mixed = (state[rows] ^ word) * _MULTIPLIER
        state[rows] = mixed ^ (mixed >> np.uint64(32))
    return mix(state)


def _words(buffer: pa.Buffer | None, first: int, end: int) -> np.ndarray:
    """The eight bytes from each place of a text on, as one number."""
    held = np.frombuffer(buffer or b"", np.uint8)
    # Eight bytes more, so that the last word of the last string can be read whole and then masked.
    spare = np.zeros(8, np.uint8)
    text = np.concatenate([held[first:end], spare])
    return np.ndarray((len(text) - 7,), dtype="<u8", buffer=text, strides=(1,))


def _without_spare(words: np.ndarray, left: np.ndarray) -> np.ndarray:
    """The words without the bytes that are not of their strings, of which `left` bytes are left."""
    spare_bytes = np.clip(8 - left, 0, 7)
    bits = spare_bytes.astype(np.uint64) * np.uint64(8)
    return (words << bits) >> bits
