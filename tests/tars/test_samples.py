"""Samples of tars: grouped as webdataset groups, with the bytes of tarfile; what is refused, and
where."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.asr.tars.index import write_index
from millrace.tars.__main__ import main
from millrace.tars.index import FOLDER, open_indices, tar_paths
from millrace.tars.samples import NO_FILE, OTHER_NAME, TarSamples
from tests.asr.tars.test_scan import END, SPARSES, body_of, file, header, padded, tar_of
from tests.refusals import refused
from tests.tars.tars import write_samples, write_tar

PARTS = ["a", "b", ".", ".", "A", "/", "_", "__", "jpg", "./", "é", "\n", " "]
NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=7).map("".join)


LINKS = [(b"a.hard", b"1"), (b"a.sym", b"2")]


def opened(*paths: Path, ids: str = "key") -> TarSamples:
    return TarSamples.of(open_indices(tar_paths(paths)), ids)


def contents(samples: TarSamples) -> list[tuple[str, dict[str, bytes]]]:
    return [(key, samples[at]) for at, key in enumerate(samples.ids.to_pylist())]


def webdataset_of(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    """The samples of a tar as webdataset gives them."""
    import webdataset.tariterators as tariterators

    with open(path, "rb") as stream:
        source = [{"url": str(path), "stream": stream}]
        samples = list(tariterators.group_by_keys(tariterators.tar_file_expander(source)))
    for sample in samples:
        del sample["__url__"]
    return [(sample.pop("__key__"), sample) for sample in samples]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(names=st.lists(NAMES, min_size=1, max_size=9))
def test_members_are_grouped_as_webdataset_groups_them(tmp_path, names):
    written = [name.strip("/") or "n" for name in names]
    path = write_tar(tmp_path / "a.tar", [(name, name.encode()) for name in written])
    # Of hidden files webdataset makes samples that are called as their folder.
    shown = [name for name in written if not name.rpartition("/")[2].startswith(".")]
    others = write_tar(tmp_path / "others", [(name, name.encode()) for name in shown])
    try:
        expected = webdataset_of(others)
    except ValueError as error:
        assert "duplicate file name" in str(error)
        with refused(r"its field (?s:.*) lies at byte \d+ and at byte \d+"):
            opened(path)
        return
    if len(dict(expected)) < len(expected):
        with refused("the same id as"):
            opened(path)
        return
    samples = opened(path)
    assert contents(samples) == expected
    in_samples = sum(len(part) for _, part in expected)
    assert in_samples + samples.skipped.total() == len(written)


# The members of tars, by their names, and what is said of them.
TWICE = {
    "field": ({"0.tar": "a.txt a.TXT"}, "key", "its field txt lies at byte 512 and at byte"),
    "key apart": ({"0.tar": "a.x b.x a.y"}, "key", r"the same id as a in .*sort the tar"),
    "id apart": ({"0.tar": "a.x b.x a.y"}, "tar", r"the same id as 0/a in .*sort the tar"),
    "key in two tars": (
        {"0.tar": "a.txt", "1.tar": "a.txt"},
        "key",
        r'the same id as a in .*1\.tar .*ids="tar"',
    ),
    "name of two tars": (
        {"0.tar": "7.txt", "other/0.tar": "7.txt"},
        "tar",
        r"the same id as 0/7 in .*Rename one of the tars",
    ),
}


@pytest.mark.parametrize("tars, ids, words", TWICE.values(), ids=TWICE)
def test_what_stands_twice_is_refused_with_both_places(tmp_path, tars, ids, words):
    paths = [
        write_tar(tmp_path / tar, [(name, b"1") for name in names.split()])
        for tar, names in tars.items()
    ]
    with refused(words) as error:
        opened(*paths, ids=ids)
    assert str(paths[0]) in str(error.value) and " at byte " in str(error.value)


def test_ids_of_tar_and_key_tell_keys_apart_that_repeat_across_tars(tmp_path):
    contents_of = [[("7.txt", b"one")], [("7.txt", b"two"), ("s/8.txt", b"three")]]
    paths = [write_tar(tmp_path / f"{at}.tar", members) for at, members in enumerate(contents_of)]
    dotted = write_tar(tmp_path / "v1.2.tar", contents_of[0])
    assert opened(dotted, ids="tar").ids.to_pylist() == ["v1.2/7"]
    samples = opened(*paths, ids="tar")
    texts = {key: sample["txt"] for key, sample in contents(samples)}
    assert texts == {"0/7": b"one", "1/7": b"two", "1/s/8": b"three"}
    assert samples["1/7"] == {"txt": b"two"}
    alone = opened(*paths[1:], ids="tar")
    assert alone.ids.to_pylist() == ["1/7", "1/s/8"]
    with refused("ids cannot be 'path'"):
        opened(dotted, ids="path")


BROKEN = {
    "cut": lambda content: content[:700],
    "damaged": lambda content: content[:1024] + b"x" * 512 + content[1536:],
    "empty": lambda content: b"",
    "compressed": lambda content: b"\x1f\x8b" + content,
    "no tar": lambda content: b"x" * 2000,
    "sparse": lambda content: SPARSES["pax-0.1"] + padded(body_of(600)) + content,
    "in volumes": lambda content: file(b"part", b"1", b"M") + content,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_tar_that_is_not_whole_is_refused_by_name_and_the_others_are_indexed(tmp_path, kind):
    write_samples(tmp_path, tars=2)
    broken = tmp_path / "a.tar"
    content = tar_of(("a.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3"))
    broken.write_bytes(BROKEN[kind](content))
    with refused(r"Make the tar again, or leave it out") as error:
        opened(tmp_path / "*.tar")
    assert str(error.value).startswith(str(broken))
    indexed = {path.name for path in (tmp_path / FOLDER).glob("*.parquet")}
    assert indexed == {"part-0.tar.parquet", "part-1.tar.parquet"}


def test_a_sample_is_not_taken_for_a_batch_that_was_announced(tmp_path):
    samples = opened(write_samples(tmp_path))
    alone = samples[5]
    # As int32 they have the bytes of 5 as int64.
    samples.will_need(np.array([5, 0], np.int32))
    assert samples[5] == alone
    assert samples.read(np.array([5, 0])) == [alone, samples[0]]
    # Of those that are never read only the last ones are kept.
    for rows in itertools.permutations(range(6), 2):
        samples.will_need(np.array(rows))
    assert len(samples._announced) == 16


def test_members_of_no_sample_are_counted_by_reason(tmp_path):
    names = ["README", "__index__", "__meta__/a.txt", "b/._1.txt", "b/1.txt", "b/.x", "b/1.cls"]
    lost = header(b"b.txt", 0, b"2", at_157=b"nowhere") + header(b"pipe.txt", 0, b"6")
    (tmp_path / "a.tar").write_bytes(lost + tar_of(*[(name, b"1") for name in names]) + END)
    samples = opened(tmp_path / "a.tar")
    assert samples.ids.to_pylist() == ["b/1"] and samples.fields == ["txt", "cls"]
    reasons = {OTHER_NAME: 5, NO_FILE: 1}
    assert samples.skipped == reasons
    assert samples.with_keys(["b/1"]).with_fields(["txt"]).skipped == reasons


def test_links_have_the_bytes_that_they_lead_to(tmp_path):
    links = [header(name, 0, kind, at_157=b"a.txt") for name, kind in LINKS]
    (tmp_path / "a.tar").write_bytes(tar_of(("a.txt", b"12")) + b"".join(links) + END)
    fields = {"txt": b"12", "hard": b"12", "sym": b"12"}
    assert contents(opened(tmp_path / "a.tar")) == [("a", fields)]


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    write_samples(tmp_path, tars=1)
    (tmp_path / "z.tar").write_bytes(header(b"\xff.txt", 0) + END)
    with refused(r"z\.tar: the member b'\\xff.txt' has"):
        opened(tmp_path / "*.tar")


def test_samples_are_read_by_number_and_by_key(tmp_path):
    samples = opened(write_samples(tmp_path))
    assert samples["1-002"] == samples[42] == samples[42 - len(samples)]
    assert samples["1-002"] == {"txt": b"1-002" * 3, "cls": b"2"}
    assert samples.ids_of(np.array([42, 0, 119])) == ["1-002", "0-000", "2-039"]
    assert pickle.loads(pickle.dumps(samples))["2-039"]["cls"] == b"9"
    for wrong in ("1-2", "", "1-002 "):
        with pytest.raises(KeyError, match=repr(wrong)):
            samples[wrong]
    # Wherever their hashes lie between those of the keys that there are.
    alone = samples.with_keys(["1-002"])
    for wrong in "abcdefgh":
        with pytest.raises(KeyError, match=repr(wrong)):
            alone[wrong]
    with pytest.raises(IndexError):
        samples[len(samples)]
    assert [key in samples for key in ("1-002", "1-2", 42)] == [True, False, False]
    for wrong in (slice(2), 1.0, samples.ids[0]):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            samples[wrong]


def test_a_subset_by_key_and_field_has_what_was_asked_for(tmp_path):
    samples = opened(write_samples(tmp_path))
    chosen = samples.with_keys(["2-001", "0-039"]).with_fields(["cls"])
    assert contents(chosen) == [("0-039", {"cls": b"9"}), ("2-001", {"cls": b"1"})]
    assert chosen.bytes().tolist() == [1, 1] and chosen.fields == ["cls"]
    ends = samples.with_keys(lambda key: key.endswith("-000"))
    assert ends.ids.to_pylist() == ["0-000", "1-000", "2-000"]
    sizes = [ends.bytes(field).tolist() for field in (None, "txt", "cls")]
    assert sizes == [[6, 6, 6], [5, 5, 5], [1, 1, 1]]
    turned = samples.with_fields(["cls", "txt"])
    assert turned.fields == ["cls", "txt"] and turned["1-002"] == samples["1-002"]


def test_a_key_or_field_that_is_not_there_is_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("a.cls", b"2"), ("b.txt", b"3")])
    samples = opened(path)
    with refused("no sample has the key c"):
        samples.with_keys(["a", "c"])
    with refused(r"no list of keys: .*Give texts"):
        samples.with_keys([17])
    with refused("no sample has a field jpg; there are txt, cls"):
        samples.with_fields(["jpg"])
    with refused("no fields are named"):
        samples.with_fields([])
    # `b` begins with the third member: a header and a block of bytes for each before it.
    with refused(r"b in .* byte 2560: 1 sample of 2 have no field cls"):
        samples.with_fields(["txt", "cls"])


def test_a_tar_that_changed_is_indexed_again_and_a_moved_one_is_not(tmp_path):
    write_samples(tmp_path / "here", tars=1)
    opened(tmp_path / "here/*.tar")
    shutil.move(tmp_path / "here", tmp_path / "there")
    index = tmp_path / "there" / FOLDER / "part-0.tar.parquet"
    before = index.stat().st_mtime_ns
    assert opened(tmp_path / "there/*.tar")["0-001"]["cls"] == b"1"
    assert index.stat().st_mtime_ns == before

    # One of the same size too.
    for key in ("new", "another"):
        write_tar(tmp_path / "there/part-0.tar", [(f"{key}.cls", b"7")])
        assert contents(opened(tmp_path / "there/*.tar")) == [(key, {"cls": b"7"})]


@pytest.mark.parametrize("part", ["page", "column"])
def test_an_index_with_damaged_pages_or_columns_is_made_anew(tmp_path, part):
    path = write_tar(tmp_path / "a.tar", [(f"{n}.cls", b"%d" % n) for n in range(9)])
    samples = contents(opened(path))
    index = tmp_path / FOLDER / "a.tar.parquet"
    content = bytearray(index.read_bytes())
    # A page of names, or the name of a column in the footer.
    start = 4 if part == "page" else content.index(b"kind")
    content[start] ^= 1
    index.write_bytes(content)
    assert contents(opened(path)) == samples


def test_a_tar_that_changes_while_it_is_indexed_is_refused(tmp_path, monkeypatch):
    def write(place, scans):
        write_index(place, scans)
        os.utime(scans[0].path, ns=(1, 1))

    pattern = write_samples(tmp_path, tars=1)
    monkeypatch.setattr("millrace.tars.index.write_index", write)
    with refused(r"the tar changes while it is read\. Wait until"):
        open_indices(tar_paths(pattern))


def test_an_index_is_kept_where_it_can_be_written(tmp_path):
    pattern = write_samples(tmp_path / "a")
    write_samples(tmp_path / "b")
    for folder in "ab":
        open_indices(tar_paths(tmp_path / folder / "*.tar"), tmp_path / "cache")
    assert len([*(tmp_path / "cache").glob("*.parquet")]) == 6
    assert not (tmp_path / "a" / FOLDER).exists()
    (tmp_path / "file").touch()
    with refused(r"cannot be written .*Give a cache_dir"):
        open_indices(tar_paths(pattern), tmp_path / "file")


@pytest.mark.parametrize(
    "paths, words",
    [
        ("none*.tar", "no tar has such a path"),
        ([], "no tars"),
        (["a.tar", "./a.tar"], "named twice"),
        (["a.tar", "link"], "named twice"),
        (["a.tar", "hard link"], "named twice"),
        (["none.tar", "none.tar"], "named twice"),
        # A file of that name, and no pattern.
        (["a[1].tar", "a[1].tar"], "named twice"),
        (b"a.tar", r"paths is b'a.tar'\. Give a list"),
        (None, r"paths is None\. Give a list"),
        ([5], r"one of paths is 5\. Give a path"),
        (frozenset(["a.tar"]), "paths is a set"),
        ({"a.tar"}, r"paths is a set, whose order is another one in each rank\. Give a list"),
        ("{000..003}.tar", "braces, URLs and pipes are not read"),
    ],
)
def test_paths_that_name_nothing_or_a_tar_twice_are_refused(tmp_path, monkeypatch, paths, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tar").touch()
    (tmp_path / "a[1].tar").touch()
    (tmp_path / "link").symlink_to("a.tar")
    (tmp_path / "hard link").hardlink_to("a.tar")
    with refused(words):
        tar_paths(paths)


PROGRAM = """
import logging, sys
from millrace.tars.index import open_indices, tar_paths
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
print(sum(len(tar.members) for tar in open_indices(tar_paths(sys.argv[1]))))
"""


def test_ranks_that_start_at_once_index_once(tmp_path):
    pattern = write_samples(tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(pattern)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [rank.communicate()[0].splitlines() for rank in ranks]
    assert [lines[-1] for lines in said] == ["240"] * 4
    assert sum("indexing 3 tars" in lines for lines in said) == 1
    left = {path.suffix for path in (tmp_path / FOLDER).iterdir()}
    assert left == {".parquet", ""}


def test_the_command_indexes_and_says_what_is_there(tmp_path, capfd):
    pattern = write_samples(tmp_path)
    assert main(["index", str(pattern)]) == 0
    assert "3 tars, 120 samples, fields: ['txt', 'cls']" in capfd.readouterr().err
    assert len([*(tmp_path / FOLDER).glob("*.parquet")]) == 3
    os.truncate(tmp_path / "part-1.tar", 1000)
    assert main(["index", str(pattern)]) == 1
    assert "part-1.tar: truncated" in capfd.readouterr().err
