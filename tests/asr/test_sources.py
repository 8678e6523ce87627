"""Which partition a tar falls into, and what a change of tars or manifests changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scripts.asr import asr_manifest, sources
from scripts.common.errors import MillraceError
from tests.asr.bucket_corpus import write_manifest, write_tar


class Tars:
    """A folder of tars with manifests, and the partition files that a sync made of them."""

    def __init__(self, folder: Path, count: int = 12) -> None:
        self.folder, self.partitions = folder, folder / "partitions"
        self.paths = [
            write_tar(folder / f"shard_{n:02d}/audio_16k.tar", [f"a{k}.flac" for k in range(5)]) for n in range(count)
        ]
        self.settings = sources.Settings("manifests", str(folder / "manifests"), "", "audio_{shard_id}.tar", 5e-5)
        self.write("train", self.paths[:-2])
        self.write("dev", self.paths[-2:])

    def write(self, split: str, paths: list[Path]) -> None:
        rows = [
            {
                "tar_path": str(path),
                "tar_member_name": f"a{k}.flac",
                "transcript": "x",
                "language": "en",
                "duration_s": 4.0,
            }
            for path in paths
            for k in range(5)
        ]
        target = self.folder / f"manifests/{split}.parquet"
        target.parent.mkdir(exist_ok=True)
        write_manifest(target, rows)

    def sync(self) -> sources.Sources:
        return sources.sync(self.settings, self.partitions)

    def files(self) -> dict[str, tuple[int, bytes]]:
        return {p.stem: (p.stat().st_mtime_ns, p.read_bytes()) for p in self.partitions.glob("*.json")}

    def changed(self) -> set[str]:
        before = self.files()
        self.sync()
        after = self.files()
        return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

    def home(self, path: Path) -> str:
        return next(
            name for name, (_, raw) in self.files().items() if str(path) in [t["path"] for t in json.loads(raw)["tars"]]
        )


@pytest.fixture
def tars(tmp_path):
    made = Tars(tmp_path)
    made.sync()
    return made


def test_every_tar_is_in_one_partition_of_bounded_size(tars):
    contents = [json.loads(raw) for _, raw in tars.files().values()]
    assert len(contents) > 2
    assert sorted(tar["path"] for content in contents for tar in content["tars"]) == sorted(map(str, tars.paths))
    for content in contents:
        assert sum(tar["size"] for tar in content["tars"]) <= tars.settings.partition_gb * 1e9


def test_a_second_sync_reads_no_manifest_and_writes_nothing(tars, monkeypatch):
    monkeypatch.setattr(asr_manifest.Manifest, "scan", lambda self: pytest.fail("a manifest was read again"))
    assert tars.changed() == set()


def test_a_replaced_tar_changes_its_partition_only(tars):
    write_tar(tars.paths[3], ["other.flac"])
    assert tars.changed() == {tars.home(tars.paths[3])}


def test_another_root_is_looked_at_though_the_manifests_are_as_they_were(tars):
    tars.write("train", [path.relative_to(tars.folder) for path in tars.paths])
    tars.settings.tar_root = str(tars.folder / "elsewhere")
    tars.sync()
    tars.settings.tar_root = str(tars.folder)
    tars.sync()
    listed = [tar["path"] for _, raw in tars.files().values() for tar in json.loads(raw)["tars"]]
    assert sorted(listed) == sorted(map(str, tars.paths))


def test_a_rewritten_manifest_of_the_same_tars_changes_nothing(tars):
    tars.write("train", tars.paths[:-2][::-1])
    assert tars.changed() == set()


def test_new_tars_move_none(tars):
    before = {path: tars.home(path) for path in tars.paths}
    added = [write_tar(tars.folder / f"aaa_{n}/audio_16k.tar", ["a0.flac"]) for n in range(5)]
    tars.write("train", added + tars.paths[:-2])
    tars.sync()
    assert {path: tars.home(path) for path in tars.paths} == before
    assert all(tars.home(path) for path in added)


def test_a_tar_that_is_not_there_is_kept_without_size_and_found_when_it_comes(tars):
    raw, home = tars.paths[0].read_bytes(), tars.home(tars.paths[0])
    os.unlink(tars.paths[0])
    assert tars.changed() == {home}
    assert {"path": str(tars.paths[0]), "size": None, "mtime_ns": None} in json.loads(tars.files()[home][1])["tars"]
    tars.paths[0].write_bytes(raw)
    assert tars.changed() == {home}


@pytest.mark.parametrize("there", [0, 3])
def test_tars_on_storage_that_is_not_mounted_do_not_end_in_one_partition(tmp_path, there):
    made = Tars(tmp_path, count=there or 2)
    made.write("train", [*made.paths[:there], *(Path(f"/nowhere/{number}.tar") for number in range(300))])
    made.write("dev", made.paths[: min(there, 1)] or [Path("/nowhere/0.tar")])
    made.sync()
    counts = [len(json.loads(raw)["tars"]) for _, raw in made.files().values()]
    assert sum(counts) == 300 + there and max(counts) <= 100


def test_without_manifests_the_lane_says_so_and_keeps_its_partitions(tars):
    known = tars.sync().partitions
    (tars.folder / "manifests/train.parquet").unlink()
    found = tars.sync()
    assert "train.parquet" in found.message and found.partitions == known


def test_two_manifests_of_a_split_are_an_error(tars):
    (tars.folder / "manifests/train.jsonl").write_text("{}\n")
    with pytest.raises(MillraceError, match="two manifests of train"):
        tars.sync()


def test_a_jsonl_manifest_may_be_called_json_but_goes_behind_the_others(tars):
    (tars.folder / "manifests/train.json").write_text('{"steps": 3}')
    assert sources.find_manifests(tars.settings.manifest_dir)["train"].endswith("train.parquet")
    (tars.folder / "manifests/train.parquet").unlink()
    assert sources.find_manifests(tars.settings.manifest_dir)["train"].endswith("train.json")


def test_what_was_taken_for_no_manifest_is_named(tars):
    (tars.folder / "manifests/train.parquet").rename(tars.folder / "manifests/train-00000-of-00001.parquet")
    assert "not train-00000-of-00001.parquet" in tars.sync().message


def test_a_tar_spelled_in_two_ways_is_one_tar(tars, monkeypatch):
    monkeypatch.chdir(tars.folder)
    before = tars.files()
    tars.write("dev", [*(path.relative_to(tars.folder) for path in tars.paths[:4]), *tars.paths[-2:]])
    tars.sync()
    assert tars.files() == before


def test_a_path_no_file_can_have_does_not_stop_the_parse(tars):
    paths = [Path("a\0b.tar"), Path("x" * 5000), *tars.paths[-2:]]
    tars.write("dev", paths)
    tars.sync()
    assert {"path": "a\0b.tar", "size": None, "mtime_ns": None} in [
        tar for _, raw in tars.files().values() for tar in json.loads(raw)["tars"]
    ]


def test_with_the_speech_lane_as_source_there_are_no_partitions(tmp_path):
    settings = sources.Settings("speech", "", "", "", 1.0)
    assert sources.sync(settings, tmp_path / "partitions") == sources.Sources()
    assert not (tmp_path / "partitions").exists()
