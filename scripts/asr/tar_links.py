"""Links in a tar: the bytes of their targets, found as tarfile.extractfile finds them."""

from __future__ import annotations

import os

import numpy as np

from scripts.asr.tar_header import BROKEN_LINK, FILE, HARD_LINK, SYMLINK


def resolve_links(
    names: list[bytes], offsets: np.ndarray, sizes: np.ndarray, kinds: np.ndarray, odd: dict[int, tuple[int, bytes]]
) -> None:
    """Fill in, in place, the rows in `odd` (row -> (kind, link)): links get their target's bytes, the others none."""
    for row, (kind, _link) in odd.items():
        kinds[row], offsets[row], sizes[row] = kind, -1, 0
    links = {row: entry for row, entry in odd.items() if entry[0] in (HARD_LINK, SYMLINK)}
    if not links:
        return
    rows_of: dict[bytes, list[int]] = {}
    for row, name in enumerate(names):
        rows_of.setdefault(os.path.normpath(name), []).append(row)

    def target(row: int) -> int | None:
        kind, link = links[row]
        if kind == SYMLINK:
            path = b"/".join(filter(None, (os.path.dirname(names[row]), link)))
            return next(reversed(rows_of.get(os.path.normpath(path), [])), None)
        # A hard link points back: the last member of that name before the link itself.
        return next((at for at in reversed(rows_of.get(os.path.normpath(link), [])) if at < row), None)

    for row in links:
        at, seen = row, set()
        while at is not None and at in links and at not in seen:
            seen.add(at)
            at = target(at)
        if at is None or at in links or kinds[at] != FILE:
            kinds[row] = BROKEN_LINK
        else:
            offsets[row], sizes[row] = offsets[at], sizes[at]
