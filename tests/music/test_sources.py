"""Which partitions of features a change of files or records makes pending."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from millrace.common import jsonl
from millrace.common.workflow import placements
from millrace.common.workflow.sources import Sources, sync
from millrace.music import sources
from millrace.music.features.track import Track
from tests.refusals import refused

CHUNKS, FOLDER = [f"chunk_{n:05d}.h5" for n in range(4)], "ab"


class Tree:
    """Empty files in the layout of features, a JSONL that points to them, splits."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.partitions = folder, folder / "results/music/partitions"
        for name in CHUNKS:
            (folder / "h5").mkdir(exist_ok=True)
            (folder / "h5" / name).touch()
        (folder / "mm" / FOLDER).mkdir(parents=True)
        self.rows = [{"youtube_id": f"id{n}", "h5_chunk": CHUNKS[n % 4]} for n in range(40)]
        self.write(self.rows)
        (folder / "splits").mkdir()
        (folder / "splits/train.json").write_text(json.dumps({"C-1": [{"youtube_id": "id1"}]}))
        self.settings = sources.Settings(
            *(str(folder / name) for name in ("h5", "mm", "a.jsonl", "splits")),
        )

    def chunk(self, number: int) -> Path:
        return self.folder / "h5" / CHUNKS[number]

    def write(self, rows: list[dict]) -> None:
        (self.folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def sync(self) -> Sources:
        synced = sync(sources.collect, self.settings, self.partitions)
        placements.keep_draft(self.partitions)
        return synced

    def build(self) -> None:
        """As if the jobs had run."""
        names = self.sync().partitions["features"]
        for path in [*(f"features/{name}.parquet" for name in names), "index/features.index"]:
            (self.partitions.parent / path).parent.mkdir(exist_ok=True)
            (self.partitions.parent / path).touch()

    def changed(self, change: Callable[[], None]) -> set[str]:
        self.build()
        before = self.contents()
        change()
        self.sync()
        return {name for name, content in self.contents().items() if before.get(name) != content}

    def contents(self) -> dict[str, bytes]:
        """What the partition files and what the merge reads hold, by name."""
        paths = [*self.partitions.glob("*.json"), self.partitions / "merge/all.json"]
        return {path.stem: path.read_bytes() for path in paths}


@pytest.fixture
def tree(tmp_path) -> Tree:
    return Tree(tmp_path)


def written_with_its_time(path: Path) -> None:
    before = path.stat()
    path.write_text("x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def change_last(tree: Tree, **fields: object) -> None:
    """Let the last record say something else."""
    tree.write([*tree.rows[:-1], {**tree.rows[-1], **fields}])


CHANGES = {
    "append": (
        lambda t: t.write([*t.rows, *({**t.rows[n], "youtube_id": f"x{n}"} for n in (0, 1, 2))]),
        {"h5-chunk_00000.h5", "h5-chunk_00001.h5", "h5-chunk_00002.h5"},
        "0 records changed, 3 new (x0, x1, x2), 0 gone; "
        "1 list changed (a.jsonl: 40 ids -> 43 ids), 0 new, 0 gone -> 3 of 5 partitions",
    ),
    "hop without a pointer": (
        lambda t: t.write([*t.rows, {"youtube_id": "id_", "hop_s": 0.1}]),
        set(),
        "1 list changed (a.jsonl: 40 ids -> 41 ids), 0 new, 0 gone -> the index",
    ),
    "hop of a pointer": (
        lambda t: change_last(t, hop_s=0.1),
        {"h5-chunk_00003.h5"},
        "1 record changed (id39: hop)",
    ),
    "chunk of another size with its time": (
        lambda t: written_with_its_time(t.chunk(2)),
        {"h5-chunk_00002.h5"},
        "1 chunk changed (chunk_00002.h5: touched or replaced), 0 new, 0 gone",
    ),
    "delete": (
        lambda t: t.write(t.rows[:-1]),
        {"h5-chunk_00003.h5"},
        "0 records changed, 0 new, 1 gone (id39)",
    ),
    "a key added later": (
        lambda t: change_last(t, h5_key="/a"),
        {"h5-chunk_00003.h5"},
        "1 record changed (id39: key), 0 new, 0 gone -> 1 of 5 partitions",
    ),
    "a pointer to another chunk": (
        lambda t: change_last(t, h5_chunk=CHUNKS[0]),
        {"h5-chunk_00000.h5", "h5-chunk_00003.h5"},
        "1 record changed (id39: file), 0 new, 0 gone -> 2 of 5 partitions",
    ),
    "re-order": (lambda t: t.write(t.rows[::-1]), set(), ""),
    "touch": (lambda t: os.utime(t.folder / "a.jsonl", (1, 1)), set(), ""),
    "chunk": (
        lambda t: t.chunk(2).write_text("x"),
        {"h5-chunk_00002.h5"},
        "1 chunk changed (chunk_00002.h5: touched or replaced), 0 new, 0 gone -> 1 of 5 partitions",
    ),
    "chunk put back with its time": (
        lambda t: shutil.copy2(t.chunk(2), t.folder / "copy").replace(t.chunk(2)),
        set(),
        "",
    ),
    "chunk renamed": (
        lambda t: t.chunk(3).rename(t.folder / "h5/renamed.h5"),
        {"h5-renamed.h5"},
        "0 chunks changed, 1 new, 1 gone; 0 records changed, 0 new, 10 gone",
    ),
    "mm": (
        lambda t: (t.folder / "mm/ab/abcdefghijk.mm").touch(),
        {"mm-ab"},
        "1 mm folder changed (ab:",
    ),
    "new chunk": (lambda t: (t.folder / "h5/new.h5").touch(), {"h5-new.h5"}, "1 new (new.h5)"),
    "split": (
        lambda t: (t.folder / "splits/train.json").write_text('{"C-1": [], "C-2": [{}, {}]}'),
        set(),
        "1 list changed (train.json: 1 versions -> 2 versions), 0 new, 0 gone -> the index",
    ),
    "fewer of a split": (
        lambda t: (t.folder / "splits/train.json").write_text('{"C-1": []}'),
        set(),
        "1 list changed (train.json: 1 versions -> 0 versions), 0 new, 0 gone -> the index",
    ),
    "new ids": (
        lambda t: t.write([*t.rows, *({"youtube_id": f"new{n}"} for n in range(20))]),
        set(),
        "1 list changed (a.jsonl: 40 ids -> 60 ids), 0 new, 0 gone -> the index",
    ),
}


@pytest.mark.parametrize("change, pending, line", CHANGES.values(), ids=CHANGES)
def test_a_change_makes_its_partitions_pending_and_says_so(tree, change, pending, line):
    assert tree.changed(lambda: change(tree)) - {"all"} == pending
    assert line in tree.sync().changes if line else tree.sync().changes == ""


def test_tables_of_an_earlier_version_are_made_again(tree, monkeypatch):
    later = sources._VERSION + 1
    changed = tree.changed(lambda: monkeypatch.setattr(sources, "_VERSION", later))
    assert changed == set(tree.sync().partitions["features"])
    assert "4 chunks changed (chunk_00000.h5: its table is of an earlier" in tree.sync().changes


def test_tables_with_other_columns_have_another_version():
    columns = [field.name for field in fields(Track)]
    assert (sources._VERSION, jsonl.digest(columns)) == (8, "d26f3dcb64ceef1deb76e916ffbba88d")


@pytest.mark.parametrize("pointer", [{}, {"h5_chunk": CHUNKS[0]}])
def test_a_hop_that_changes_is_merged_anew_with_and_without_a_pointer(tree, pointer):
    row = {"youtube_id": "id_", **pointer}
    tree.write([*tree.rows, {**row, "hop_s": 0.02}])
    changed = tree.changed(lambda: tree.write([*tree.rows, {**row, "hop_s": 0.1}]))
    assert "all" in changed


@pytest.mark.parametrize(
    "count, is_named, is_listed", [(4, True, False), (5, True, True), (6, False, True)]
)
def test_five_records_are_named_and_more_than_five_differences_are_listed(
    tree, count, is_named, is_listed
):
    # The lists are no files of their own: they are not said before there is an index.
    assert tree.sync().changes == "5 files new -> 5 of 5 partitions and the index"
    tree.build()
    # The list of ids differs, too.
    tree.write(
        [*tree.rows, *({**tree.rows[0], "youtube_id": f"x{number}"} for number in range(count))]
    )
    line, listing = tree.sync().changes, tree.partitions / "changes.txt"
    assert ("x0, x1" in line) == is_named
    assert line.endswith(f"(listed in {listing})") == listing.exists() == is_listed
    assert not is_listed or len(listing.read_text().splitlines()) == count + 1


def test_what_is_wrong_with_the_jsonl_is_said_and_handed_to_the_merge(tree):
    tree.write([*tree.rows, {"youtube_id": "lost", "h5_chunk": "none.h5"}, {"artist": "?"}])
    notes = tree.sync().notes
    assert "a.jsonl: 2 problems, the first (42): no_id: neither versions nor one of" in notes[0]
    assert tree.sync().notes == notes
    merge = json.loads((tree.partitions / "merge/all.json").read_text())
    assert [row["reason"] for row in merge["problems"]] == ["no_id", "wrong_pointer"]

    tree.build()
    tree.write([*tree.rows, {"artist": "?"}])
    assert "problems of the JSONL: 2 -> 1)" in tree.sync().changes
    tree.write([{"artist": "?"}])
    assert "a.jsonl: no video ids" in tree.sync().notes[0]


def test_a_pointer_leads_to_a_file_that_comes_later(tree):
    row = {"youtube_id": "zz", "mm_path": "ab/later.mm", "hop_s": 0.1}
    tree.write([*tree.rows, row])
    (tree.folder / "h5/dead.h5").symlink_to("gone")  # nor does a link to nothing end the parse
    assert "1 problem, the first (zz): wrong_pointer: mm_path" in tree.sync().notes[0]
    (tree.folder / "mm/ab/later.mm").touch()
    assert tree.sync().notes == []
    partition = json.loads((tree.partitions / "mm-ab.json").read_text())
    assert partition["records"] == [{"id": "zz", "mm": "ab/later.mm", "hop": 0.1}]


def test_places_without_features_are_named(tree, tmp_path):
    for key, value, words in [
        ("h5_root", str(tmp_path / "none"), f"music.h5_root: {tmp_path}/none does not exist"),
        ("mm_root", str(tmp_path / "h5"), "music.mm_root: "),
        ("jsonl", str(tmp_path / "b.jsonl"), "music.jsonl: "),
        ("splits", str(tmp_path / "h5"), "music.splits: "),
        ("splits", {"train": "none.json"}, "music.splits: none.json does not exist"),
    ]:
        before = getattr(tree.settings, key)
        setattr(tree.settings, key, value)
        missing = tree.sync().missing
        assert missing and not missing.pristine and words in missing.text
        setattr(tree.settings, key, before)
    (tmp_path / "splits/verify.json").write_text('{"C-1": ["an id"]}')
    with refused(r"verify\.json: not a split"):
        tree.sync()


@pytest.mark.parametrize("key, name", [("h5_root", "h5-chunk_00000.h5"), ("mm_root", "mm-ab")])
def test_features_that_were_moved_are_read_where_the_config_says(tree, tmp_path, key, name):
    """Though each file is as it was."""
    tree.sync()
    place = Path(getattr(tree.settings, key)).rename(tmp_path / "elsewhere")
    setattr(tree.settings, key, str(place))
    tree.sync()
    contents = tree.contents()
    assert json.loads(contents[name])["root"] == str(place)
    assert json.loads(contents["all"])["roots"][key[:2]] == str(place)


def test_the_demo_is_a_hint_until_it_is_fetched_and_no_features_at_all_are_an_error(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def found(h5_root: str, others: str = "") -> Sources:
        settings = sources.Settings(h5_root, others, others, others)
        return sync(sources.collect, settings, tmp_path / "partitions")

    demo = f"{sources.DEMO}/h5"
    # Whatever lies at the other places of the config.
    assert found(demo, others=str(tmp_path)).missing.pristine
    (tmp_path / demo / "below").mkdir(parents=True)
    (tmp_path / demo / "below/chunk.h5").touch()
    # A partition's name is that of a file, also of what lies one folder below.
    fetched = found(demo)
    assert fetched.partitions == {"features": ["h5-below%2Fchunk.h5"]}
    assert fetched.notes == []  # of a JSONL, as none is set
    assert "neither music.h5_root nor music.mm_root is set" in str(found("").missing)
