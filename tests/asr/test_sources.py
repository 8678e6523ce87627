"""Which partition a tar falls into, and what a change of tars or manifests changes."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.asr import sources
from millrace.asr.manifests import jsonl as jsonl_files
from millrace.asr.manifests import manifest as asr_manifest
from millrace.asr.tars import paths as tars_paths
from millrace.common.workflow import placements
from millrace.common.workflow.sources import Sources, sync
from tests.asr.bucket_corpus import row_of, write_jsonl, write_manifest, write_tar
from tests.refusals import refused


class Tars:
    """A folder of tars with manifests, and the partition files that a sync made of them."""

    def __init__(self, folder: Path, count: int = 12) -> None:
        self.folder, self.partitions = folder, folder / "partitions"
        self.train = folder / "manifests/train.parquet"
        places = [folder / f"shard_{n:02d}/audio_16k.tar" for n in range(count)]
        self.paths = [write_tar(place, [f"a{k}.flac" for k in range(5)]) for place in places]
        template = "audio_{shard_id}.tar"
        self.settings = sources.Settings("manifests", str(folder / "manifests"), "", template, 5e-5)
        self.write("train", self.paths[:-2])
        self.write("dev", self.paths[-2:])

    def write(self, split: str, paths: list[Path]) -> None:
        rows = [row_of(path, f"a{k}.flac") for path in paths for k in range(5)]
        write_manifest(self.folder / f"manifests/{split}.parquet", rows)

    def sync(self) -> Sources:
        synced = sync(sources.collect, self.settings, self.partitions)
        placements.keep_draft(self.partitions)
        return synced

    def files(self) -> dict[str, tuple[int, bytes]]:
        return {
            p.stem: (p.stat().st_mtime_ns, p.read_bytes()) for p in self.partitions.glob("*.json")
        }

    def changed(self) -> set[str]:
        """The partitions that a sync changes, which is `synced` then."""
        before = self.files()
        self.synced = self.sync()
        after = self.files()
        return {
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        }

    def contents(self) -> dict[str, list[dict]]:
        """The tars of every partition."""
        return {name: json.loads(raw)["tars"] for name, (_, raw) in self.files().items()}

    def listed(self) -> list[str]:
        """The paths of the tars in all partitions, sorted."""
        return sorted(tar["path"] for tars in self.contents().values() for tar in tars)

    def home(self, path: Path) -> str:
        contents = self.contents().items()
        return next(name for name, tars in contents if str(path) in [tar["path"] for tar in tars])


@pytest.fixture
def tars(tmp_path):
    made = Tars(tmp_path)
    made.sync()
    return made


def test_every_tar_is_in_one_partition_of_bounded_size(tars):
    partitions = tars.contents().values()
    assert len(partitions) > 2
    assert tars.listed() == sorted(map(str, tars.paths))
    for partition in partitions:
        assert sum(tar["size"] for tar in partition) <= tars.settings.partition_gb * 1e9


def test_a_second_sync_reads_no_manifest_and_writes_nothing(tars, monkeypatch):
    monkeypatch.setattr(
        asr_manifest.Manifest, "facts", lambda *_: pytest.fail("a manifest was read again")
    )
    assert tars.changed() == set()


def test_another_root_is_looked_at_though_the_manifests_are_as_they_were(tars):
    tars.write("train", [path.relative_to(tars.folder) for path in tars.paths])
    tars.settings.tar_root = str(tars.folder / "elsewhere")
    tars.sync()
    tars.settings.tar_root = str(tars.folder)
    tars.sync()
    assert tars.listed() == sorted(map(str, tars.paths))


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


def test_a_tar_that_goes_comes_and_is_replaced_changes_its_partition_alone_and_is_said(tars):
    tar = tars.paths[0]
    raw, home = tar.read_bytes(), tars.home(tar)
    missing = {"path": str(tar), "size": None, "mtime_ns": None}
    for change, words in (
        (tar.unlink, "missing"),
        (lambda: tar.write_bytes(raw), "no longer missing"),
        (lambda: write_tar(tar, ["other.flac"]), "replaced"),
    ):
        build(tars)
        tars.sync()
        change()
        assert tars.changed() == {home}
        assert f"(audio_16k.tar: {words})" in tars.synced.changes
        assert (missing in tars.contents()[home]) == (words == "missing")


def test_another_template_is_looked_at_though_the_manifests_are_as_they_were(tars):
    tars.train.unlink()
    write_jsonl(tars.folder / "manifests/train.jsonl", [{"shard_id": 0}])
    tars.settings.tar_root = str(tars.folder)
    tars.sync()
    tars.settings.tar_template = "shard_0{shard_id}/audio_16k.tar"
    tars.sync()
    assert str(tars.paths[0]) in tars.listed() and len(tars.listed()) == 3


def test_tars_on_storage_that_is_not_mounted_are_said_and_do_not_end_in_one_partition(tmp_path):
    made = Tars(tmp_path, count=3)
    made.write("train", [*made.paths, *(Path(f"/nowhere/{number}.tar") for number in range(300))])
    made.write("dev", made.paths[:1])
    (warning,) = made.sync().notes
    assert warning.startswith(
        "300 of 303 tars are missing, for example /nowhere/0.tar: their rows are rej"
    )
    counts = [len(partition) for partition in made.contents().values()]
    assert sum(counts) == 303 and max(counts) <= 100
    # One that is missing is taken for one like the others, not for a partition.
    assert len(counts) < 100


def test_without_any_tar_the_keys_to_set_are_named_and_partitions_stay(tars):
    before = tars.files()
    (tars.folder / "manifests/dev.parquet").unlink()
    tars.write("train", [Path("/nowhere/0.tar")])
    keys = "Set asr.tar_root, asr.tar_template or asr.path_map"
    missing = "1 of 1 tars are missing, for example /nowhere/0.tar."
    with refused(f"{missing} {keys}"):
        tars.sync()
    tars.settings.path_map = {"/other": "/x"}
    with refused(f"{missing} asr.path_map: none of .*{keys}"):
        tars.sync()
    tars.train.unlink()
    write_jsonl(tars.folder / "manifests/train.json", [{"audio_filepath": "/a.wav"}])
    with refused(r"/manifests: the manifests name no tars.*tar_path, or shard_id as"):
        tars.sync()
    assert tars.files() == before


@pytest.mark.parametrize(
    "text, problem",
    [
        ('[{"shard_id": 0}, {"shard_id": 1}]', r"line 1: this line is no JSON object \(1 broken"),
        ('{\n"a": {"shard_id": 0}}', r"line 1: this line is not JSON: cut off .* \(2 broken"),
        ('{"shard_id": 0},\n', r"line 1: this line is not JSON: .* \(1 broken"),
        ('{"shard_id": "0"}', "shard_id as a whole number"),
    ],
    ids=["array", "several lines", "comma", "number as text"],
)
def test_a_manifest_without_tars_says_which_lines_are_no_rows(tars, text, problem):
    for split in ("train", "dev"):
        (tars.folder / f"manifests/{split}.parquet").unlink()
    (tars.folder / "manifests/train.json").write_text(text)
    with refused(rf"the manifests name no tars.*{problem}"):
        tars.sync()


def test_a_path_map_leads_to_the_tars_and_a_prefix_that_matches_nothing_is_said(tars):
    tars.write(
        "train", [Path("/cluster/tars") / path.relative_to(tars.folder) for path in tars.paths]
    )
    tars.settings.path_map = {"/cluster/tars": str(tars.folder), "/other": "/x"}
    (warning,) = tars.sync().notes
    assert warning.startswith(
        "asr.path_map: none of the tar paths starts with /other/, for example "
    )
    assert tars.listed() == sorted(map(str, tars.paths))


def test_without_manifests_the_lane_names_what_is_not_read_and_keeps_its_partitions(tars):
    known = tars.sync().partitions
    tars.train.rename(tars.folder / "manifests/training.parquet")
    result = tars.sync()
    assert f"manifest_dir: {tars.folder / 'manifests'} holds dev.parquet, training.parquet" in str(
        result.missing
    )
    assert "expected there: train.parquet or train.jsonl" in str(result.missing)
    assert result.partitions == known
    (tars.folder / "manifests/train").mkdir()
    (tars.folder / "manifests/training.parquet").rename(tars.folder / "manifests/train/0.parquet")
    tars.settings.manifest_dir = str(tars.folder / "manifests/train")
    assert f"; set it to {tars.folder / 'manifests'};" in str(tars.sync().missing)


def test_braces_in_the_name_of_a_manifest_are_an_error(tars):
    for name in ("{lang}", "lang}"):
        tars.write(f"test_{name}", tars.paths[:1])
        with refused(rf"test_{re.escape(name)}.parquet.*braces.*Rename"):
            tars.sync()
        (tars.folder / f"manifests/test_{name}.parquet").unlink()


def test_pieces_of_a_split_are_read_as_one_and_each_when_it_changes(tars, monkeypatch):
    before = tars.files()
    for number, start in enumerate(range(0, 10, 4)):
        tars.write(f"train-{number:05d}-of-00003", tars.paths[start : min(start + 4, 10)])
    tars.train.unlink()
    pieces = [
        str(tars.folder / f"manifests/train-{number:05d}-of-00003.parquet") for number in range(3)
    ]
    assert tars.sync().files["train"] == pieces
    assert tars.files() == before
    added = write_tar(tars.folder / "new.tar", ["a0.flac"])
    tars.write("train-00001-of-00003", [*tars.paths[4:8], added])
    facts, seen = asr_manifest.Manifest.facts, []
    spy = lambda self, file: seen.append(str(self.files[file])) or facts(self, file)  # noqa: E731
    monkeypatch.setattr(asr_manifest.Manifest, "facts", spy)
    assert tars.changed() == {tars.home(added)} and seen == pieces[1:2]


def test_a_tar_spelled_in_two_ways_or_reached_through_links_is_one_tar(tars, monkeypatch):
    monkeypatch.chdir(tars.folder)
    tars.write(
        "dev", [*(path.relative_to(tars.folder) for path in tars.paths[:4]), *tars.paths[-2:]]
    )
    assert tars.changed() == set()
    (tars.folder / "folder_link").symlink_to(tars.folder)
    (tars.folder / "tar_link.tar").symlink_to("folder_link/shard_01/audio_16k.tar")
    linked = [tars.folder / "folder_link/shard_00/audio_16k.tar", tars.folder / "tar_link.tar"]
    tars.write("dev", [*linked, *tars.paths[-2:]])
    assert tars.changed() == set()
    # Where nobody names the file itself, its name stays as it is.
    assert tars_paths.one_spelling(list(map(str, linked))) == {
        str(path): str(path) for path in linked
    }
    spelled = ["./folder_link/shard_00/audio_16k.tar", str(linked[0])]
    assert set(tars_paths.one_spelling(spelled).values()) == {spelled[1]}


def test_paths_without_links_are_those_of_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/up").symlink_to("..")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere/x")
    paths = [
        "a/b/x.tar",
        "a/up/a/b/x.tar",
        "loop/x",
        "gone",
        "gone/y",
        "a/../a/up",
        "/",
        "//x/y",
        "x",
    ]
    paths.append(str(tmp_path))
    assert tars_paths.real_paths(paths) == {
        path: os.path.realpath(os.path.abspath(path)) for path in paths
    }
    assert tars_paths.real_paths(["s3://x/../y"]) == {"s3://x/../y": "s3://x/../y"}


def test_a_path_no_file_can_have_does_not_stop_the_parse(tars):
    paths = [Path("a\0b.tar"), Path("x" * 5000), Path("/".join("x" * 2000)), *tars.paths[-2:]]
    tars.write("dev", paths)
    tars.sync()
    listed = [tar for partition in tars.contents().values() for tar in partition]
    assert {"path": "a\0b.tar", "size": None, "mtime_ns": None} in listed


def test_with_the_speech_lane_as_source_there_are_no_partitions(tmp_path):
    settings = sources.Settings("speech", "tars/manifests", "", "", 1.0)
    assert sync(sources.collect, settings, tmp_path / "partitions") == Sources()
    assert not (tmp_path / "partitions").exists()


def build(tars: Tars) -> None:
    """Stand in for the jobs: what they write is there, and newer than the partitions."""
    for folder, names in {
        "tar_index": tars.sync().partitions["tars"],
        "buckets": ["bucket_config"],
    }.items():
        (tars.folder / folder).mkdir(exist_ok=True)
        for name in names:
            suffix = "json" if folder == "buckets" else "parquet"
            (tars.folder / f"{folder}/{name}.{suffix}").write_text("")


def jsonl_manifest(tars: Tars) -> Path:
    """The manifest of train as JSONL; one line is broken."""
    tars.train.unlink()
    rows = [row_of(path, "a0.flac", duration_s=4.0) for path in tars.paths]
    path = write_jsonl(tars.folder / "manifests/train.jsonl", rows)
    path.write_text(path.read_text() + "{broken\n")
    return path


def moved_aside(path: Path) -> Callable[[], object]:
    """Move a file away; what puts it back as it was."""
    kept = path.rename(path.with_name("aside"))
    return lambda: kept.rename(path)


def replace_tar(tars: Tars) -> Callable[[], object]:
    put_back = moved_aside(tars.paths[3])
    write_tar(tars.paths[3], ["other.flac"])
    return put_back


def remove_tar(tars: Tars) -> Callable[[], object]:
    return moved_aside(tars.paths[3])


def edit_manifest(tars: Tars) -> Callable[[], object]:
    tars.write("train", tars.paths[:-3])
    return lambda: tars.write("train", tars.paths[:-2])


def add_manifest(tars: Tars) -> Callable[[], object]:
    tars.write("test", tars.paths[:1])
    return (tars.folder / "manifests/test.parquet").unlink


def mend_line(tars: Tars) -> Callable[[], object]:
    path = tars.folder / "manifests/train.jsonl"
    text = path.read_text()
    path.write_text(text.replace("{broken", ""))
    return lambda: path.write_text(text)


def edit_jsonl(tars: Tars) -> Callable[[], object]:
    path = tars.folder / "manifests/train.jsonl"
    text, put_back = path.read_text(), moved_aside(path)
    path.write_text(text.replace("4.0", "5.0"))
    return put_back


UNDONE = {
    "tar replaced": (replace_tar, False),
    "tar removed": (remove_tar, False),
    "manifest": (edit_manifest, False),
    "manifest added": (add_manifest, False),
    "broken line": (mend_line, True),
    "line of JSONL": (edit_jsonl, True),
}


@pytest.mark.parametrize("dry_runs", [0, 2])
@pytest.mark.parametrize("change, is_jsonl", UNDONE.values(), ids=UNDONE)
def test_an_undone_edit_leads_back_to_what_was_built_whatever_dry_runs_have_seen(
    tars, change, is_jsonl, dry_runs
):
    manifests = [jsonl_manifest(tars)] if is_jsonl else []
    build(tars)

    def inputs() -> dict[str, tuple[int, bytes]]:
        paths = [*tars.partitions.glob("*.json"), tars.partitions / "manifests/all.json"]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    synced, before = tars.sync(), inputs()
    assert synced.changes == "" and synced.unchanged >= {*map(str, manifests)}
    undo = change(tars)
    for _ in range(dry_runs):
        assert sync(sources.collect, tars.settings, tars.partitions).changes != ""
    undo()
    again = sync(sources.collect, tars.settings, tars.partitions)
    assert (again.changes, again.unchanged) == ("", synced.unchanged)
    assert inputs() == before


def test_a_large_manifest_that_is_put_back_with_its_time_says_what_it_said(tars, monkeypatch):
    monkeypatch.setattr(sources, "_COMPARED", 100)
    build(tars)
    manifest = tars.train
    assert str(manifest) in tars.sync().unchanged
    os.replace(shutil.copy2(manifest, tars.folder / "backup"), manifest)
    assert tars.sync().changes == "" and str(manifest) in tars.sync().unchanged
    os.utime(manifest, (5, 5))
    assert str(manifest) not in tars.sync().unchanged
    tars.write("train", tars.paths[:-3])
    assert (
        "train.parquet: replaced" in tars.sync().changes
        and str(manifest) not in tars.sync().unchanged
    )


def test_a_small_manifest_is_known_by_all_its_bytes(tars):
    manifest = tars.train
    row = row_of(tars.paths[0], "a0.flac", transcript="y" * 9000)
    write_manifest(manifest, [row], compression="none")
    build(tars)
    assert str(manifest) in tars.sync().unchanged
    content = manifest.read_bytes()
    middle = len(content) // 2
    assert content[middle : middle + 1] == b"y"
    manifest.write_bytes(content[:middle] + b"z" + content[middle + 1 :])
    assert str(manifest) not in tars.sync().unchanged


def test_a_manifest_that_sounds_like_a_piece_of_train_and_is_none_is_named(tars):
    manifests = tars.folder / "manifests"
    for name in ("train2.parquet", "trainers.txt"):
        (manifests / name).touch()
    (note,) = tars.sync().notes
    assert note == f"{manifests}: train2.parquet is not read: pieces are named like train-2.jsonl"


def test_a_manifest_that_sounds_like_a_missing_split_is_named(tars):
    manifests = tars.folder / "manifests"
    (manifests / "dev.parquet").rename(manifests / "valid.parquet")
    (manifests / "test_0.tar").touch()
    (note,) = tars.sync().notes
    assert "has no manifest of dev and test, and valid.parquet is not read" in note
    (manifests / "dev").mkdir()
    (manifests / "valid.parquet").rename(manifests / "dev/a.parquet")
    assert tars.sync().notes == []
    (manifests / "dev/a.parquet").rename(manifests / "dev.parquet")
    (manifests / "dev").rmdir()
    assert tars.sync().notes == []
    # Nothing is missing beside it.
    for name in ("test.parquet", "valid.parquet"):
        shutil.copy(manifests / "dev.parquet", manifests / name)
    assert tars.sync().notes == []


def test_a_manifest_of_a_shard_that_is_missing_among_others_is_said(tars):
    tars.train.unlink()
    folder = tars.folder / "manifests/train/sharded_manifests"
    folder.mkdir(parents=True)
    for number in (1, 2, 4):
        row = row_of(tars.paths[number], "a0.flac")
        write_jsonl(folder / f"manifest_{number}.json", [row])
    (note,) = tars.sync().notes
    assert note.startswith(f"{folder}/manifest_3.json is missing, the first of 1 manifest between")
    (folder / "manifest_4.json").rename(folder / "manifest_7.json")
    (note,) = tars.sync().notes
    assert note.startswith(f"{folder}/manifest_3.json is missing, the first of 4 manifests between")
    (folder / "manifest_7.json").rename(folder / "manifest_3.json")
    assert tars.sync().notes == []


def test_a_folder_called_like_nemos_may_hold_manifests_of_other_names(tars):
    folder = tars.folder / "sharded_manifests"
    (tars.folder / "manifests").rename(folder)
    tars.settings.manifest_dir = str(folder)
    assert tars.sync().notes == []


def test_a_manifest_without_rows_is_said(tars):
    (tars.folder / "manifests/dev.parquet").unlink()
    dev = tars.folder / "manifests/dev.json"
    dev.write_text("\n")
    (note,) = tars.sync().notes
    assert note == f"{dev} has no rows: write it again, or remove it"
    write_jsonl(dev, [row_of(tars.paths[0], "a0.flac")] * 10)
    assert tars.sync().notes == []


def test_a_manifest_that_is_a_pipe_is_refused(tars):
    pipe = tars.folder / "manifests/test.parquet"
    os.mkfifo(pipe)
    with refused("no regular file"):
        tars.sync()


def test_large_jsonl_is_read_once_with_progress_and_known_by_its_rows(tars, monkeypatch, capsys):
    path = jsonl_manifest(tars)
    monkeypatch.setattr(sources, "_COMPARED", 100)
    monkeypatch.setattr(jsonl_files, "_SAID_EVERY", 0.0)
    (note,) = tars.sync().notes
    assert note.startswith(f"{path}, line 13: ") and note.endswith(" (1 broken line, rejected)")
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"{path}: read once, as it is new: 0 of 0 MB (")
    assert "(100 %), 0:00:00 left" in said[-1]
    assert " rows, " in (tars.partitions / "manifests/all.json").read_text()
    build(tars)
    assert tars.sync().changes == "" and str(path) in tars.sync().unchanged
    assert capsys.readouterr().err == ""


def test_a_broken_line_is_named_at_every_parse_and_a_change_says_how_many_rows(tars):
    path = jsonl_manifest(tars)
    build(tars)
    (note,) = tars.sync().notes
    assert "line 13" in note and "(1 broken line, rejected)" in note
    text = path.read_text()
    path.write_text(f"{{twice\n{text}")
    (note,) = tars.sync().notes
    assert "line 1: " in note and "(2 broken lines, rejected)" in note
    path.write_text(text)
    assert tars.sync().changes == ""
    lines = text.splitlines(keepends=True)
    path.write_text("".join([*lines[2:], *lines[:1], *lines[:1], *lines[:1]]))
    assert "(train.jsonl: 1 rows more)" in tars.sync().changes
    path.write_text("".join([*lines[2:], *lines[:1]]))
    assert "(train.jsonl: 1 rows fewer)" in tars.sync().changes
