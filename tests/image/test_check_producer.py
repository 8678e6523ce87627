"""check_producer: who is where, and how to start who is not there."""

from __future__ import annotations

from millrace.image import check_producer
from millrace.image.producer.sentry import Producer, Times, Trainer
from millrace.image.producer.shuffle import EpochMaker
from tests.image.record_sets import write_set


def test_the_status_names_pointers_signs_of_life_epochs_and_commands(tmp_path, capsys):
    def status() -> list[str]:
        output = tmp_path / "status.txt"
        assert check_producer.main([str(tmp_path), "--seconds=60", f"--output={output}"]) == 0
        text = capsys.readouterr().out
        assert text == output.read_text()
        return text.splitlines()

    command = f"python -m millrace.image.train_active {tmp_path}"
    assert status()[0] == f"trainer: has never started. Start it: {command}"
    EpochMaker(write_set(tmp_path, [4, 4]), tmp_path, 2, seed=7).make(2, str)
    times = Times(beat=0.05)
    with Trainer(tmp_path, times=times) as trainer:
        trainer.want(top=5, start=2)
        with Producer(tmp_path, times=times) as producer:
            producer.announce(2, 1)
            producer.report("makes epoch 3: 5 of 9 files")
            trainer_line, producer_line, epoch = status()
    assert trainer_line.startswith("trainer: slow 2 of top 5; ") and "Start it" not in trainer_line
    assert producer_line.startswith("producer: fast 2; ") and producer_line.endswith(
        ": makes epoch 3: 5 of 9 files"
    )
    assert epoch.startswith(f"{tmp_path}/train_2: whole, 8 records, ") and epoch.endswith(
        "pool 2, seed 7"
    )
    assert f": has ended. Start it: {command}" in status()[0]
