"""Random damage to a file's bytes, from a seed: the same seed damages it the same way."""

from __future__ import annotations

import random

_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF, ord('"'), ord("-"), ord("9"), ord("{"), ord("\n"))
_NUMBERS = (0, 1, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_WORDS = (
    b"null",
    b"-1",
    b"1e308",
    b"NaN",
    b"[" * 500,
    b'"../../x"',
    b"true",
    b"0" * 40,
    b"\xed\xa0\xbd",
    b"{}",
)


def damaged(content: bytes, seed: int) -> bytes:
    """The content with one to four changes: bytes, numbers, words, pieces cut out, doubled or
    moved."""
    draw = random.Random(seed)
    result = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        change = draw.choice(
            (_set_byte, _flip_bit, _set_number, _insert_word, _cut, _double, _truncate)
        )
        change(result, draw)
    return bytes(result)


def _place(content: bytearray, draw: random.Random) -> int:
    """Anywhere, but half of the time near the beginning, where headers are."""
    end = len(content) if draw.random() < 0.5 else min(len(content), 600)
    return draw.randrange(max(end, 1))


def _set_byte(content: bytearray, draw: random.Random) -> None:
    at = _place(content, draw)
    content[at : at + 1] = bytes([draw.choice(_BYTES)])


def _flip_bit(content: bytearray, draw: random.Random) -> None:
    if content:
        content[_place(content, draw)] ^= 1 << draw.randrange(8)


def _set_number(content: bytearray, draw: random.Random) -> None:
    at, size = _place(content, draw), draw.choice((2, 4, 8))
    number = draw.choice(_NUMBERS) & ((1 << 8 * size) - 1)
    content[at : at + size] = number.to_bytes(size, draw.choice(("little", "big")))


def _insert_word(content: bytearray, draw: random.Random) -> None:
    at = _place(content, draw)
    content[at : at + draw.randrange(8)] = draw.choice(_WORDS)


def _piece(content: bytearray, draw: random.Random) -> slice:
    at = _place(content, draw)
    return slice(at, at + draw.choice((1, 8, 64, 512)))


def _cut(content: bytearray, draw: random.Random) -> None:
    del content[_piece(content, draw)]


def _double(content: bytearray, draw: random.Random) -> None:
    piece = _piece(content, draw)
    content[piece.start : piece.start] = content[piece]


def _truncate(content: bytearray, draw: random.Random) -> None:
    del content[_place(content, draw) :]
