"""The evaluation step: whole tracks, shared by ranks."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from millrace.music import evaluate_model
from millrace.music.models.clews import Clews
from millrace.music.models.config import CONFIGS
from millrace.music.sampling.cliques import Cliques
from millrace.music.training import conf, evaluation, run
from millrace.music.training.metrics import track_distances
from tests.music.seeded import set_weights
from tests.music.versions import corpus, overrides
from tests.refusals import refused


class OneOf:
    """The Exchange of one of two ranks, seen alone: `parts` keeps what it would send to the
    other."""

    def __init__(self) -> None:
        self.world_size, self.parts = 2, []

    def gathered(self, value: object) -> list[object]:
        self.parts.append(value)
        return [value]


def test_a_checkpoint_is_evaluated_on_whole_tracks(tmp_path, monkeypatch):
    corpus(tmp_path)
    chosen = conf.read(overrides(tmp_path))
    torch.manual_seed(0)
    # A model that two ranks have trained is evaluated by one.
    run.write_configuration(conf.Conf({**chosen, "fabric.ngpus": 2}), tmp_path)
    torch.save({"model": Clews(chosen.model).state_dict()}, tmp_path / "a.ckpt")

    def evaluated(*options: str) -> dict:
        arguments = [f"checkpoint={tmp_path}/a.ckpt", *options, "--output", f"{tmp_path}/out.json"]
        assert evaluate_model.main(arguments) == 0
        return json.loads((tmp_path / "out.json").read_text())

    plain = evaluated("partition=test", "hop=2")
    assert (plain["queries"], plain["candidates"], plain["redux"]) == (6, 6, "bpwr-5")
    assert set(plain["figures"]) == {"m_MAP", "m_MR1", "m_ARP", "m_COMP"}
    whole = evaluated("partition=valid", "redux=min", "maxlen=300")
    assert (whole["partition"], whole["queries"], whole["redux"]) == ("valid", 6, "min")
    # Each option has its part in the distances of tracks.
    options = [(), ("maxlen=6",), ("hop=1",), ("redux=min",)]
    seen = set()
    scored = run.scored

    def noted(tracks, strategy, share):
        distances = track_distances(tracks, tracks, strategy)
        seen.add(json.dumps(distances.tolist()))
        return scored(tracks, strategy, share)

    monkeypatch.setattr(run, "scored", noted)
    for each in options:
        evaluated(*each)
    assert len(seen) == len(options)
    # Frames are those of the checkpoint's model, also if another configuration is named.
    assert evaluated("model.cqt.pool=10", "data.audiolen=20")["figures"] == evaluated()["figures"]

    embed = run.embed
    fractions = []
    lengths = []

    def without_one(*arguments) -> evaluation.Tracks:
        fractions.append(arguments[-1])
        lengths.append([arguments[3](frames).length for frames in (40, 100)])
        tracks = embed(*arguments)
        # A clique has two: the other one is a candidate, and no query.
        return tracks[1:]

    monkeypatch.setattr(run, "embed", without_one)
    facts = evaluated("data.max_missing_fraction=0.25", "maxlen=6")
    assert (facts["candidates"], facts["queries"], facts["left_out"]) == (5, 4, 1)
    assert (fractions, lengths) == ([0.25], [[40, 60]])


def share(exchange: object, rank: int = 0) -> evaluation.Share:
    return evaluation.Share(exchange, rank, torch.device("cpu"))


def test_tracks_that_cannot_be_read_are_counted_and_above_the_fraction_they_end_it(
    tmp_path, caplog
):
    index = corpus(tmp_path, chunks=5)
    features = evaluation.Features(conf.read(overrides(tmp_path)), ["test"])
    cliques, model = features.cliques["test"], Clews(CONFIGS["clews-tiny"])
    alone = share(evaluation.Exchange(1))
    Path(index.track(int(cliques.tracks[2])).file).unlink()

    def embedded(fraction: float, of: evaluation.Share = alone) -> evaluation.Tracks:
        geometry = evaluation.Geometry(200, 200, 200)
        return evaluation.embed(
            model.eval(), cliques, features.reader, lambda frames: geometry, of, fraction
        )

    with torch.inference_mode():
        with refused(r"of 6 tracks cannot be read, the first: .*No such"):
            embedded(0.01)
        assert cliques.ids[2] not in embedded(0.5).ids.tolist()
        assert len(embedded(1 / 6)) == 5  # as many as may be missing
        # It also ends on a rank all of whose own tracks can be read.
        first = OneOf()
        embedded(0.5, share(first))
        both = SimpleNamespace(world_size=2, gathered=lambda value: [*first.parts, value])
        with refused("1 of 6 tracks cannot be read"):
            embedded(0.01, share(both, 1))
        # Of any number of ranks the tracks have one order.
        ids = embedded(0.5, share(both, 1)).ids.tolist()
        assert ids == embedded(0.5).ids.tolist()
        assert "tracks cannot be read" in caplog.text
        model.proj[1].weight[0] = math.inf  # one value of each embedding
        with refused(rf"{index.id(int(cliques.tracks[0]))}: .*not finite"):
            embedded(0.5)
        # Without any track it ends whatever may be missing.
        features.reader.windows.close()
        for number in cliques.tracks.tolist():
            Path(index.track(number).file).unlink(missing_ok=True)
        with refused("6 of 6 tracks cannot be read"):
            embedded(1.0)


@pytest.mark.long
def test_two_ranks_come_to_the_figures_of_one(tmp_path):
    corpus(tmp_path)
    chosen = conf.read(overrides(tmp_path))
    run.write_configuration(chosen, tmp_path)
    model = Clews(chosen.model)
    set_weights(model)
    torch.save({"model": model.state_dict()}, tmp_path / "a.ckpt")
    arguments = [f"checkpoint={tmp_path}/a.ckpt", "partition=test"]
    assert evaluate_model.main([*arguments, "--output", f"{tmp_path}/one.json"]) == 0
    launcher = ["-m", "millrace.common.training.launch", "--standalone", "--nproc-per-node", "2"]
    step = [
        "-m",
        "millrace.music.evaluate_model",
        *arguments,
        "ngpus=2",
        "--output",
        f"{tmp_path}/two.json",
    ]
    subprocess.run([sys.executable, *launcher, *step], check=True, timeout=300)
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    assert two.pop("figures") == pytest.approx(one.pop("figures"), rel=1e-6)
    assert one == two and one["queries"] == 6


def test_ranks_share_tracks_and_queries_and_count_none_twice(tmp_path):
    corpus(tmp_path)
    chosen = conf.read(overrides(tmp_path))
    features, model = evaluation.Features(chosen, ["test"]), Clews(chosen.model).eval()
    cliques, geometry = features.cliques["test"], evaluation.Geometry(100, 40, 20)

    @torch.inference_mode()
    def embedded(of: evaluation.Share) -> evaluation.Tracks:
        return evaluation.embed(model, cliques, features.reader, lambda frames: geometry, of)

    alone = share(evaluation.Exchange(1))
    tracks = embedded(alone)
    parts = [embedded(share(OneOf(), rank)) for rank in (0, 1)]
    assert sorted(torch.cat([part.ids for part in parts]).tolist()) == tracks.ids.tolist()
    assert torch.equal(parts[1].embeddings, tracks.embeddings[1::2])
    # The noise is a recording's own, whichever others have features.
    cliques = Cliques(*(column[1:] for column in vars(cliques).values()))
    assert torch.equal(embedded(alone).embeddings, tracks.embeddings[1:])
    figures = evaluation.scored(tracks, "bpwr-5", alone)
    halves = [evaluation.scored(tracks, "bpwr-5", share(OneOf(), rank)) for rank in (0, 1)]
    together = torch.cat([half["ARP"] for half in halves])
    assert len(together) == len(tracks) and float(together.mean()) == pytest.approx(
        float(figures["ARP"].mean())
    )
