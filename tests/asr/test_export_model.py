"""Any checkpoint of a run becomes a model's folder; layouts are tested with the models that have
them."""

from __future__ import annotations

from millrace.asr import export_model, train_model
from millrace.common import jsonl
from tests.asr import audio_tars
from tests.asr.training.test_task import write_splits


def test_any_checkpoint_becomes_a_model_and_the_best_by_dev_error_is_kept(tmp_path, capfd):
    data = audio_tars.corpus(tmp_path, tars=2, members=90)
    write_splits(data, dev="train/b_0_3.parquet")
    run = tmp_path / "run"
    flags = [f"--bucket-dir={data}", f"--output-dir={run}", f"--metrics={tmp_path}/metrics.json"]
    flags += ["--model-options", '{"hidden": 16, "channels": 4}']
    flags += [
        "--batch-seconds=3",
        "--num_workers=0",
        "--lr=1e-3",
        "--tensorboard=0",
        "--max-steps=8",
    ]
    flags += ["--eval-steps=2", "--save_total_limit=1", "--save-steps=0"]
    assert train_model.main(flags) == 0
    assert (tmp_path / "metrics.json").exists()
    rows = jsonl.whole_lines(run / "metrics.jsonl")
    rates = {
        row["step"]: row["metrics"]["cer"] for row in rows if row["event"] == "eval" and row["step"]
    }
    best = jsonl.read(run / "checkpoints/best/checkpoint.json")["step"]
    assert best == min(rates, key=rates.get) and len(rates) == 4
    export = [f"--bucket-dir={data}", f"--metrics={run}/metrics.json", "--output"]
    for name, more in (("best", []), ("last/config.json", ["--checkpoint=last"])):
        assert export_model.main([*export, str(tmp_path / name), *more]) == 0
    assert "checkpoints/best, in the layout of transformers" in capfd.readouterr().err
    weights = [
        (folder / "model.safetensors").read_bytes() for folder in (tmp_path / "last", run / "model")
    ]
    assert weights[0] == weights[1] and (tmp_path / "best/config.json").exists()
    assert export_model.main([*export, str(tmp_path / "x"), "--checkpoint=step-00000002"]) == 1
    assert "There are: last, step-00000008, best" in capfd.readouterr().err
    assert export_model.main([*export, str(tmp_path / "x"), "--layout=qwen-asr"]) == 1
