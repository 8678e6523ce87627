"""The evaluation step: whole tracks, shingles of its own for queries and candidates, shared by ranks."""

from __future__ import annotations

import json

import pytest
import torch

from millrace.music import evaluate_model
from millrace.music.models.clews import Clews
from millrace.music.training import conf, evaluation, run
from millrace.music.training.features import Features
from tests.music.versions import corpus, overrides


class OneOf:
    """The Exchange of one of two ranks, seen alone: `parts` keeps what it would send to the other."""

    def __init__(self) -> None:
        self.world_size, self.parts = 2, []

    def gathered(self, value: object) -> list[object]:
        self.parts.append(value)
        return [value]


def test_a_checkpoint_is_evaluated_on_whole_tracks(tmp_path):
    corpus(tmp_path)
    chosen = conf.read(overrides(tmp_path))
    torch.manual_seed(0)
    run.write_configuration(chosen, tmp_path)
    torch.save({"model": Clews(chosen.model).state_dict()}, tmp_path / "a.ckpt")

    def evaluated(*options: str) -> dict:
        arguments = [f"checkpoint={tmp_path}/a.ckpt", *options, "--output", f"{tmp_path}/out.json"]
        assert evaluate_model.main(arguments) == 0
        return json.loads((tmp_path / "out.json").read_text())

    plain = evaluated("partition=test", "qslen=", "qshop=2", "cslen=", "cshop=2")
    assert (plain["queries"], plain["candidates"], plain["redux"]) == (6, 6, "bpwr-5")
    assert set(plain["intervals"]) == set(plain["figures"]) == {"m_MAP", "m_MR1", "m_ARP", "m_COMP"}
    shingles = ("maxlen=300", "qslen=0", "qshop=0", "cshop=2", "limit_num=4")
    whole = evaluated("partition=valid", "redux=min", *shingles)
    assert (whole["partition"], whole["queries"], whole["redux"]) == ("valid", 4, "min")


def test_ranks_share_tracks_and_queries_and_count_none_twice(tmp_path):
    corpus(tmp_path)
    chosen = conf.read(overrides(tmp_path))
    features, model = Features(chosen, ["test"]), Clews(chosen.model).eval()
    cliques, geometry = features.cliques["test"], evaluation.Geometry(100, 40, 20)

    @torch.inference_mode()
    def embedded(exchange: object, rank: int) -> tuple:
        share = evaluation.Share(exchange, rank, torch.device("cpu"))
        return share, evaluation.embed(model, cliques, features.reader, lambda frames: geometry, share)

    alone, tracks = embedded(evaluation.Exchange(1), 0)
    parts = [embedded(OneOf(), rank)[1] for rank in (0, 1)]
    assert sorted(torch.cat([part.ids for part in parts]).tolist()) == tracks.ids.tolist()
    assert torch.equal(parts[1].embeddings, tracks.embeddings[1::2])
    figures = evaluation.scored(tracks, tracks, "bpwr-5", alone)
    shares = [evaluation.Share(OneOf(), rank, torch.device("cpu")) for rank in (0, 1)]
    halves = [evaluation.scored(tracks, tracks, "bpwr-5", share) for share in shares]
    together = torch.cat([half["ARP"] for half in halves])
    assert len(together) == len(tracks) and float(together.mean()) == pytest.approx(
        float(figures["ARP"].mean())
    )
