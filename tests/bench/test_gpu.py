"""`make gpu` says at once if there is no GPU; what it measures is run by hand, not here."""

from __future__ import annotations

import pytest
import torch

from tests.bench import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_device_nothing_is_made(tmp_path, capsys):
    assert gpu.main(["--folder", str(tmp_path / "gpu"), "--page", str(tmp_path / "page.md")]) == 1
    assert "needs one CUDA device" in capsys.readouterr().err and not list(tmp_path.iterdir())
