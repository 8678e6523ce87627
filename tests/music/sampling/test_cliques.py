"""Cliques of the splits as arrays, and the plan of an epoch."""

from __future__ import annotations

import json

import numpy as np
import pytest

from millrace.common.training.task import Spans
from millrace.music.sampling.cliques import Cliques, read_cliques
from millrace.music.sampling.plan import AnchorPlan, Blocks, plan_anchors
from tests.music.versions import corpus
from tests.refusals import refused


def of(labels: list[int]) -> Cliques:
    rows = np.arange(len(labels))
    return Cliques(rows, np.array(labels), rows, np.full(len(rows), 700), np.full(len(rows), 0.02))


def plan(
    cliques: Cliques, world_size: int, epoch: int = 0, limit: int = 0, spans: Spans = ()
) -> AnchorPlan:
    """The plan of blocks of four anchors."""
    return plan_anchors(cliques, Blocks(4, 43, limit), epoch, world_size, spans)


def test_ids_are_ordinals_over_all_splits_and_coverage_is_said(tmp_path, caplog):
    caplog.set_level("INFO")
    index = corpus(tmp_path, {"train": (2, 2), "valid": (2, 2)})
    paths = {name: f"{tmp_path}/{name}.json" for name in ("train", "valid")}
    train = json.loads((tmp_path / "train.json").read_text())
    first, second = train["C-1"][0]["youtube_id"], train["C-2"][0]["youtube_id"]
    # Versions that share a video are one recording, with one id; a clique of one recording is no
    # clique.
    train["C-1"].append({"version_id": "V-900", "youtube_id": first})
    train["C-9"] = [{"version_id": "V-901", "youtube_id": "absent-____"}, {"youtube_id": second}]
    (tmp_path / "train.json").write_text(json.dumps(train))
    cliques = read_cliques(paths, index)
    assert cliques["train"].ids.tolist() == [0, 1, 2, 3] and cliques["train"].cliques.tolist() == [
        0,
        0,
        1,
        1,
    ]
    assert cliques["valid"].ids.tolist() == [5, 6, 7, 8] and cliques["valid"].cliques.tolist() == [
        3,
        3,
        4,
        4,
    ]
    line = "train: 2 cliques of at least 2 (66.7 %) and 5 versions (71.4 %) remain, 6 of 7 found"
    assert any(message.startswith(line) for message in caplog.messages)

    # A recording of train that valid has too is an error, leaves train, or stays.
    valid = json.loads((tmp_path / "valid.json").read_text())
    valid["C-3"].append({"youtube_id": first})
    (tmp_path / "valid.json").write_text(json.dumps(valid))
    words = f"1 recording of train that is also in valid, the first: recording {first}"
    with refused(words):
        read_cliques(paths, index)
    rejected = read_cliques(paths, index, "reject")
    assert "1 recording of train that is also in valid: rejected" in caplog.messages
    assert rejected["train"].ids.tolist() == [1, 2] and len(rejected["train"]) == 2
    assert len(rejected["valid"]) == 5
    kept = read_cliques(paths, index, "keep")
    assert "1 recording of train that is also in valid: kept" in caplog.messages
    assert len(kept["train"]) == 4
    assert len(kept["valid"]) == 5 and kept["train"].ids[0] in kept["valid"].ids

    # A clique that leaves train is found in valid, wherever it stands there.
    train = {"C-4": train["C-1"], "C-2": train["C-2"]}
    (tmp_path / "train.json").write_text(json.dumps(train))
    for on_leak in ("reject", "keep"):
        valid = read_cliques(paths, index, on_leak)["valid"]
        assert [list(valid.members(row)) for row in range(5)] == [[0, 1, 2]] * 3 + [[3, 4]] * 2


def test_a_recording_is_an_anchor_once_and_every_batch_has_two_cliques():
    cliques = of([0] * 20 + [1] * 10 + [2, 2, 3, 3])
    lost = 0
    for epoch in range(20):
        drawn = plan(cliques, 2, epoch)
        batches = [drawn.batch(step, rank) for step in range(len(drawn)) for rank in (0, 1)]
        anchors = np.concatenate(batches).tolist()
        assert len(set(anchors)) == len(anchors) == 34 - drawn.left_out
        lost += 8 - len(batches)
        assert all(len(set(cliques.cliques[batch].tolist())) > 1 for batch in batches)
    assert lost > 0  # blocks of one clique
    assert not np.array_equal(drawn.rows, plan(cliques, 2, 0).rows)
    assert np.array_equal(drawn.rows, plan(cliques, 2, 19).rows)


def test_other_ranks_go_on_with_the_blocks_that_are_left_and_the_rest_is_counted():
    cliques = of([at // 3 for at in range(63)])
    # 15 blocks of 4: 14 for two ranks; after 3 steps of two ranks 9 are left for one, 8 for two
    # more.
    every = plan(cliques, 1).rows.tolist()
    whole = plan(cliques, 2)
    assert (whole.rows.tolist(), whole.left_out) == (every[: 14 * 4], 63 - 14 * 4)
    rest = plan(cliques, 1, spans=[(2, 3)])
    assert (rest.rows.tolist(), rest.left_out) == (every[6 * 4 :], 63 - 15 * 4)
    last = plan(cliques, 4, spans=[(2, 3), (1, 1)])
    assert (last.rows.tolist(), last.left_out) == (every[7 * 4 :], 63 - (7 + 8) * 4)
    assert len(last) == 2
    # A limit counts steps of the ranks that the epoch began with.
    assert len(plan(cliques, 2, limit=3)) == 3
    assert len(plan(cliques, 1, limit=3, spans=[(2, 1)])) == 4
    assert len(plan(cliques, 1, limit=3, spans=[(2, 1), (1, 1)])) == 3


@pytest.mark.parametrize("labels", [[0, 0, 1], [0] * 12])
def test_too_few_recordings_or_cliques_are_an_error(labels):
    with refused(r"make no batch of 4 anchors of two cliques for 1 rank"):
        plan(of(labels), 1)
