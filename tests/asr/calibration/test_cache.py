"""When the calibration of a bucket is made anew."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path

from millrace.asr.calibration.cache import calibration_key, reusable
from millrace.asr.calibration.options import Choices
from millrace.asr.training.options import TrainOptions
from millrace.common.training.settings import LoopSettings
from tests.refusals import refused

DEVICE = {"kind": "cuda", "name": "NVIDIA H200", "memory_gb": 139.8}
OPTIONS = TrainOptions("buckets", model="ctc", model_options={"hidden": 64})
SETTINGS = LoopSettings(precision="bf16-mixed", gradient_checkpointing=1)
CHOICES = Choices(Path("bucket_config.json"), OPTIONS, SETTINGS, max_memory_gb=70.0, world_size=8)


def key(device: dict = DEVICE, **changes: object) -> dict:
    return calibration_key(device, replace(CHOICES, **changes))


def test_the_key_changes_with_all_that_decides_on_memory(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_asr", "layers": 28}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    of_folder = {"options": TrainOptions("buckets", model=str(tmp_path))}
    before = key(**of_folder)
    keys = [
        key(),
        before,
        key({**DEVICE, "name": "NVIDIA H100"}),
        key({**DEVICE, "memory_gb": 79.1}),
        key(options=replace(OPTIONS, model_options={"hidden": 65})),
        key(settings=replace(SETTINGS, precision="32-true")),
        key(settings=replace(SETTINGS, grad_acc=2)),
        key(settings=replace(SETTINGS, gradient_checkpointing=0)),
        key(max_memory_gb=60.0),
        key(world_size=16),
        key(soak_steps=400),
    ]
    assert all(before[package][:1].isdigit() for package in ("torch", "transformers"))
    assert key()["transformers"] == "", "our own model needs none"
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert key(**of_folder) == before, "weights do not change what a step costs"
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_asr", "layers": 29}')
    keys.append(key(**of_folder))
    (tmp_path / "millrace_options.json").write_text("{}")
    keys.append(key(**of_folder))
    monkeypatch.setattr(platform, "machine", lambda: "another")
    keys.append(key())
    monkeypatch.setattr("millrace.asr.calibration.cache.VERSION", 1)
    keys.append(key())
    assert len({json.dumps(one, sort_keys=True) for one in keys}) == len(keys)


def test_a_limit_is_at_most_what_the_device_has_and_the_smallest_batch_the_largest():
    assert replace(CHOICES, max_memory_gb=139.8).limit_gb(DEVICE) == 139.8
    assert replace(CHOICES, max_memory_gb=0.0).limit_gb(DEVICE) == 139.8 * 0.9
    assert replace(CHOICES, min_bs=8, max_bs=8).max_bs == 8
    with refused(r"139.9 GB is more than NVIDIA H200 has: 139.8 GB"):
        replace(CHOICES, max_memory_gb=139.9).limit_gb(DEVICE)


def test_only_what_holds_is_kept(tmp_path):
    path = tmp_path / "b.json"

    def reused(rows: int = 100, max_bs: int = 64) -> bool:
        return reusable(path, rows, max_bs) is not None

    assert not reused()
    earlier = {"search": {"rows": 100, "max_bs": 64}}
    for limit in ("memory", "soak"):
        path.write_text(json.dumps({**earlier, "limited_by": limit}))
        assert reused() and reused(rows=200, max_bs=32), "more rows, none of them longer"
    for limit, others in (("rows", (99, 101)), ("max_bs", (63, 65))):
        path.write_text(json.dumps({**earlier, "limited_by": limit}))
        assert reused() and not any(reused(**{limit: other}) for other in others)
    for damaged in ("", '{"key": ', "[]", "{}", '{"limited_by": "rows", "search": 4}', "null"):
        path.write_text(damaged)
        assert not reused()
