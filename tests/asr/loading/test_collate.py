"""collate: members become one zero-padded tensor, the bad are listed, no slot is used again too
early."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
import torch

from millrace.asr.loading.collate import collate
from millrace.asr.loading.reader import ReadError
from millrace.asr.loading.row_table import Row
from millrace.common.loading.decode import decode
from millrace.common.loading.slots import BatchSlots
from tests.asr.audio_tars import RATE, encoded, noise, silence_as


def rows_of(raws: list) -> list[Row]:
    return [
        Row(100 + at, 0, 0, 0, (1 << 63) + at, 1.0, f"text {at}", "English")
        for at in range(len(raws))
    ]


RAWS = [encoded(noise(4000, 0)), encoded(noise(9000, 1), "WAV"), encoded(noise(2500, 2, 2))]
RAWS += [encoded(noise(3000, 3), rate=8000), encoded(noise(100, 4)), encoded(noise(9001, 5))]
BAD = {
    "tar_missing": ReadError("tar_missing", "gone.tar: no such file"),
    "damaged": RAWS[0][:-50],
    "not_audio": b"not audio at all",
    "longer_than_manifest": encoded(noise(4 * RATE, 6)),
}


def check(batch, raws):
    waves = [decode(raw) for raw in raws]
    assert batch.audio.shape == (len(waves), max(map(len, waves), default=0))
    assert batch.lengths.dtype == torch.int64 and batch.lengths.tolist() == list(map(len, waves))
    for line, wave in zip(batch.audio.numpy(), waves, strict=True):
        assert np.array_equal(line[: len(wave)], wave) and not line[len(wave) :].any()


@pytest.mark.parametrize("worker", [None, 0])
def test_members_of_all_kinds_are_padded_with_zeros(worker):
    slots = BatchSlots(workers=1, slots=1, samples=6 * 9001)
    slots.buffers[0].fill_(float("nan"))  # as after another batch
    batch = collate(7, rows_of(RAWS), RAWS, slots=slots, worker=worker)
    assert (batch.audio.data_ptr() == slots.buffers[0].data_ptr()) == (worker is not None)
    check(batch, RAWS)
    assert (
        batch.step == 7
        and batch["audio"] is batch.audio
        and len(batch) == batch.planned == len(RAWS)
    )
    assert (
        batch.transcripts == [f"text {at}" for at in range(6)]
        and batch.languages == ["English"] * 6
    )
    assert batch.rows.tolist() == list(range(100, 106)) and batch.sample_ids[2] == (1 << 63) + 2


def test_bad_members_are_left_out_wherever_they_are():
    reasons, rng = list(BAD), np.random.default_rng(0)
    for count in range(12):  # a step without any good sample is a batch, too
        picked = rng.choice(["good", *reasons], count, p=[0.5, 0.125, 0.125, 0.125, 0.125]).tolist()
        raws = [RAWS[at % 6] if kind == "good" else BAD[kind] for at, kind in enumerate(picked)]
        good = [raw for raw, kind in zip(raws, picked, strict=True) if kind == "good"]
        bad = [(kind, 100 + at) for at, kind in enumerate(picked) if kind != "good"]
        slots = BatchSlots(1, 2, 100_000)
        slots.buffers[0].fill_(float("nan"))
        for worker in (None, 0):
            batch = collate(0, rows_of(raws), raws, slots=slots, worker=worker)
            check(pickle.loads(pickle.dumps(batch)), good)
            assert [(sample.reason, sample.row) for sample in batch.bad] == bad
            assert batch.planned == count and len(batch) == len(good) and batch.empty == (not good)
            assert batch.transcripts == [
                f"text {at}" for at, kind in enumerate(picked) if kind == "good"
            ]
        assert not slots.busy.any() or slots.busy.sum() == bool(batch.slot)
    longest_fails = [BAD["damaged"], RAWS[2], RAWS[4]]
    assert collate(0, rows_of(longest_fails), longest_fails).audio.is_contiguous()


@pytest.mark.parametrize(
    "said, lengths, reason, own",
    [
        (1.0, (3 * RATE, 3 * RATE + 1), "longer_than_manifest", 2),
        # A decoder that leaves out silence is the user's choice.
        (3.0, (RATE, RATE - 16), "shorter_than_manifest", 4),
    ],
)
def test_a_clip_may_last_twice_or_half_as_long_as_its_manifest_says(said, lengths, reason, own):
    """And a second more, or half a second less."""
    raws = [encoded(noise(count, 6), form) for form in ("FLAC", "WAV") for count in lengths]
    rows = [row._replace(duration_s=said) for row in rows_of(raws)]
    batch = collate(0, rows, raws)
    assert batch.rows.tolist() == [100, 102]
    assert [sample.reason for sample in batch.bad] == [reason] * 2
    assert len(collate(0, rows, raws, own_decode=decode)) == own


def test_a_small_member_that_holds_minutes_is_refused_before_it_fills_memory():
    raws = [RAWS[0], silence_as("OGG", 400), silence_as("WAV", 400)]
    tracemalloc.start()
    batch = collate(0, rows_of(raws), raws)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(sample.row, sample.reason) for sample in batch.bad] == [
        (101, "longer_than_manifest"),
        (102, "longer_than_manifest"),
    ]
    assert peak < 12e6, peak  # 400 s are 26 MB


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_batches():
    batch = collate(0, rows_of(RAWS), RAWS).pin_memory()
    assert batch.audio.is_pinned() and batch.lengths.is_pinned()
    check(batch.to("cuda").to("cpu"), RAWS)


def test_what_a_model_has_prepared_stays_beside_its_pinned_tensors(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)  # which needs a GPU
    batch = collate(0, rows_of(RAWS), RAWS)
    batch.prepared = {"tensors": {"mel": torch.zeros(1)}, "count": 3}
    assert batch.pin_memory().prepared == {"tensors": {"mel": torch.zeros(1)}, "count": 3}
