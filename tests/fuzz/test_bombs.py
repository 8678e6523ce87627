"""What unpacks to much takes little memory, and is refused in words that say why."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.fuzz import bombs
from tests.fuzz.kinds import ROOT

# Bytes that any file may take: pieces that are read at once, and ten minutes of music.
FREE = 128 << 20


def test_a_bomb_takes_hardly_more_memory_than_its_size_and_is_refused_by_name():
    command = [sys.executable, "-m", "tests.fuzz.bombs"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == sum(len(bomb.steps) for bomb in bombs.BOMBS)
    for name, expected, bomb, size in lines:
        peak, outcome = bombs.Peak(*bomb)
        assert expected in outcome, name
        assert peak <= 2 * size + FREE, (name, bomb, size)


def test_a_reader_that_takes_memory_is_seen(tmp_path):
    size = 2 * FREE
    (tmp_path / "file").write_bytes(b"x")
    peak = bombs.peak(lambda path: len(path.read_bytes() * size), tmp_path / "file")
    assert peak.bytes > 0.9 * size and peak.outcome == f"read {size}"
