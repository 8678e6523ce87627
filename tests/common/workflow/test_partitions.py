"""Partitions: placements that never move, files that change only with their content, caches that
cost only time."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.common.errors import MillraceError
from millrace.common.workflow import partitions
from tests.refusals import refused

ITEMS = st.dictionaries(
    st.text(min_size=1, max_size=12),
    st.tuples(st.sampled_from(["a", "b"]), st.floats(0, 3, allow_nan=False)),
    max_size=12,
)


def table(path: Path, limit: float = 2.0) -> partitions.Assignment:
    return partitions.Assignment(path, limit, labels=("split",))


def save(assignment: partitions.Assignment) -> None:
    assignment.path.write_bytes(assignment.content())


@settings(max_examples=50)
@given(batches=st.lists(ITEMS, min_size=1, max_size=4), seed=st.integers())
def test_placements_never_move_and_the_file_only_grows(tmp_path_factory, batches, seed):
    path = tmp_path_factory.mktemp("assignment") / "assignment.jsonl"
    known: dict[str, partitions.Placement] = {}
    content = b""
    for batch in batches:
        # Known items come along with the new ones, in another order each time.
        everything = dict.fromkeys(known, ("b", 9.9)) | {
            n: v for n, v in batch.items() if n not in known
        }
        names = list(everything)
        random.Random(seed).shuffle(names)
        assignment = table(path)
        for name in names:
            group, cost = everything[name]
            assignment.place(name, group, cost, {"split": "train"})
        save(assignment)
        assert {name: assignment.get(name) for name in known} == known
        assert path.read_bytes().startswith(content)
        content = path.read_bytes()
        again = table(path)
        assert again.placements == assignment.placements
        known = dict(again.placements)


@given(items=ITEMS)
def test_partitions_are_bounded_and_numbered_without_gaps(tmp_path_factory, items):
    assignment = table(tmp_path_factory.mktemp("assignment") / "a.jsonl")
    for name, (group, cost) in items.items():
        assignment.place(name, group, cost, {"split": "train"})
    found: dict[tuple[str, int], list[float]] = {}
    for placement in assignment.placements.values():
        found.setdefault((placement.group, placement.number), []).append(placement.cost)
    for group in {group for group, _ in found}:
        assert sorted(number for name, number in found if name == group) == list(
            range(len([1 for name, _ in found if name == group]))
        )
    for costs in found.values():
        costly = [cost for cost in costs if cost > 0]
        assert sum(costs) <= 2.0 + 1e-5 or len(costly) == 1


def test_placing_in_two_runs_is_placing_in_one(tmp_path: Path):
    names = [f"r{number}" for number in range(50)]
    one, two = table(tmp_path / "one"), table(tmp_path / "two")
    for name in names:
        one.place(name, "a", 0.3, {"split": "train"})
    for start in range(0, 50, 10):
        for name in names[start : start + 10]:
            two.place(name, "a", 0.3, {"split": "train"})
        save(two)
        two = table(tmp_path / "two")
    assert two.placements == one.placements
    assert max(placement.number for placement in one.placements.values()) == 8


@pytest.mark.parametrize(
    "costs, expected",
    [
        ([1.0, 1.0, 0.1], [0, 0, 1]),
        ([0.0078125] * 300, [0] * 256 + [1] * 44),
    ],
)
def test_a_partition_is_filled_up_to_its_limit(tmp_path: Path, costs, expected):
    of = table(tmp_path / "a.jsonl", limit=2.0)
    numbers = [
        of.place(f"{item}", "g", cost, {"split": "x"}).number for item, cost in enumerate(costs)
    ]
    assert numbers == expected


def test_the_last_partition_is_the_highest_whatever_the_order_of_the_lines(tmp_path: Path):
    """A merge in version control may have put them in another one."""
    path = tmp_path / "a.jsonl"
    rows = [{**GOOD, "number": 1, "cost": 0.5}, {**GOOD, "item": "w", "cost": 2.0}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert table(path, limit=2.0).place("y", "a", 1.0, {"split": "x"}).number == 1


def test_a_known_item_stays_where_it_is(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    assignment = table(path)
    assignment.place("x", "a", 1.0, {"split": "test"})
    save(assignment)
    again = table(path)
    again.place("x", "b", 5.0, {"split": "train"})
    assert again.content() == path.read_bytes() and not again.added
    assert again.get("x").labels == {"split": "test"} and again.get("y") is None


GOOD = {"item": "x", "group": "a", "number": 0, "cost": 1.0, "split": "train"}
LINE = json.dumps(GOOD)


@pytest.mark.parametrize(
    "line",
    [
        '{"item": "x", "gro',
        "[1, 2]",
        '"x"',
        "<<<<<<< HEAD",
        "\0\0\0",
        LINE.replace(": 0", ': "first"'),
        LINE.replace(": 0", ": -1"),
        LINE.replace(": 0", ": null"),
        LINE.replace("1.0", "NaN"),
        LINE.replace("1.0", "-1"),
        LINE.replace("1.0", "Infinity"),
        LINE.replace(', "split": "train"', ""),
        LINE.replace('"group": "a", ', ""),
    ],
)
def test_a_damaged_line_is_an_error_with_file_and_line(tmp_path: Path, line):
    path = tmp_path / "assignment.jsonl"
    content = f"{LINE.replace('x', 'w')}\n\n{line}\n"
    path.write_text(content)
    with pytest.raises(MillraceError) as caught:
        table(path)
    assert f"{path}, line 3" in str(caught.value) and "version control" in str(caught.value)
    assert path.read_text() == content


def test_an_item_in_two_places_is_an_error_but_a_line_twice_is_not(tmp_path: Path):
    """Both come out of merges in version control."""
    path = tmp_path / "assignment.jsonl"
    path.write_text(f"{LINE}\n" * 2)
    assert len(table(path).placements) == 1
    path.write_text(f"{LINE}\n{LINE.replace('train', 'test')}\n")
    with refused("line 2: x is placed twice"):
        table(path)


def test_fields_that_are_not_known_survive(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**GOOD, "note": "by hand"}) + "\n")
    assignment = table(path)
    assignment.place("y", "a", 1.0, {"split": "train"})
    save(assignment)
    assert json.loads(path.read_text().splitlines()[0]) == {**GOOD, "note": "by hand"}


def cache(path: Path, **options) -> partitions.DigestCache:
    return partitions.DigestCache(path / "cache.json", **options)


def text_of(found: partitions.DigestCache, path: Path) -> str:
    """The text of a file, by the cache."""
    return found.get(partitions.Stat.of(path), lambda name: Path(name).read_text())


def test_an_unchanged_file_is_read_once(tmp_path: Path):
    files = [tmp_path / f"f{number}" for number in range(5)]
    for path in files:
        path.write_text(path.name)
    read = iter(range(5))

    def facts(found: partitions.DigestCache) -> list[int]:
        return [found.get(partitions.Stat.of(path), lambda _: next(read)) for path in files]

    first = cache(tmp_path)
    assert facts(first) == facts(first) == [0, 1, 2, 3, 4]
    first.save()
    second = cache(tmp_path)
    assert facts(second) == [0, 1, 2, 3, 4]
    os.utime(tmp_path / "cache.json", ns=(1, 1))
    second.save()
    assert (tmp_path / "cache.json").stat().st_mtime_ns == 1


@pytest.mark.parametrize("change", ["content", "time", "inode"])
def test_a_changed_file_is_read_again(tmp_path: Path, change):
    path = tmp_path / "file"
    path.write_text("one")
    status = path.stat()
    first = cache(tmp_path)
    text_of(first, path)
    first.save()
    if change == "content":
        path.write_text("three")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "time":
        path.write_text("two")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    else:
        (tmp_path / "other").write_text("two")
        os.replace(tmp_path / "other", path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = cache(tmp_path)
    assert text_of(second, path) == path.read_text()
    second.save()
    third = cache(tmp_path)
    assert third.get(partitions.Stat.of(path), lambda _: "read again") == path.read_text()


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 2, "entries": {}}', b"\xff\xfe"]
)
def test_a_damaged_or_older_cache_costs_a_read_and_no_truth(tmp_path: Path, damage):
    (tmp_path / "file").write_text("one")
    (tmp_path / "cache.json").write_bytes(damage)
    found = cache(tmp_path)
    assert text_of(found, tmp_path / "file") == "one"


def test_facts_that_another_version_read_are_read_again(tmp_path: Path):
    (tmp_path / "file").write_text("one")
    stat = partitions.Stat.of(tmp_path / "file")
    first = cache(tmp_path, version=1)
    first.get(stat, lambda _: "old")
    first.save()
    assert cache(tmp_path, version=2).get(stat, lambda _: "new") == "new"


def test_what_is_no_longer_asked_for_leaves_the_cache(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    first = cache(tmp_path)
    for name in ("a", "b"):
        text_of(first, tmp_path / name)
    first.save()
    second = cache(tmp_path)
    text_of(second, tmp_path / "a")
    second.save()
    assert list(json.loads((tmp_path / "cache.json").read_text())["entries"]) == [
        str(tmp_path / "a")
    ]


CONTENTS = st.dictionaries(
    st.sampled_from("abcdef"), st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=2)
)


@settings(max_examples=40)
@given(before=CONTENTS, after=CONTENTS)
def test_files_follow_their_contents_and_nothing_else_is_touched(tmp_path_factory, before, after):
    folder = tmp_path_factory.mktemp("sync")
    (folder / "note.txt").write_text("mine")
    (folder / ".hidden.json").write_text("mine")
    partitions.sync_files(folder, before)
    for path in folder.iterdir():
        os.utime(path, ns=(1, 1))
    partitions.sync_files(folder, after)
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("[!.]*.json")}
    assert found == after
    kept = {path.name for path in folder.iterdir() if path.stat().st_mtime_ns == 1}
    assert kept == {"note.txt", ".hidden.json"} | {
        f"{n}.json" for n in after if before.get(n) == after[n]
    }
