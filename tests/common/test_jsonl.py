"""JSON as people write it is read, repaired and counted, or refused with a reason; it never ends in
a traceback."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.common import jsonl
from tests.common.test_atomic import JSON


@given(value=JSON)
def test_clean_json_needs_no_repair(value):
    assert jsonl.loads(json.dumps(value).encode()) == (value, [])


def refused(raw: bytes) -> jsonl.BadJson:
    with pytest.raises(jsonl.BadJson) as caught:
        jsonl.loads(raw)
    return caught.value


@given(value=JSON)
def test_a_bom_is_cut_off_and_counted(value):
    assert jsonl.loads(b"\xef\xbb\xbf" + json.dumps(value).encode()) == (value, ["json_bom"])


@given(raw=st.binary(max_size=200))
def test_random_bytes_are_a_value_or_a_reason(raw):
    try:
        value, repairs = jsonl.loads(raw)
    except jsonl.BadJson as bad:
        assert bad.reason in ("json_empty", "json_damaged", "json_encoding") and str(bad)
    else:
        orjson.dumps(value)
        assert set(repairs) <= {
            "json_bom",
            "json_control",
            "json_nan",
        }


@given(value=st.dictionaries(st.text(max_size=5), JSON, min_size=1), data=st.data())
def test_a_cut_document_is_refused(value, data):
    raw = json.dumps(value).encode()
    end = data.draw(st.integers(0, len(raw) - 1))
    assert refused(raw[:end]).reason == ("json_damaged" if end else "json_empty")


EMPTY, DAMAGED, ENCODING = "json_empty", "json_damaged", "json_encoding"
PLACE = r"line 1|column"
NOTHING = (b"", b" \n\t", b"\0" * 4096, b"\xef\xbb\xbf", b"\xef\xbb\xbf \r\n")


@pytest.mark.parametrize(
    "raw, reason, words",
    [
        *((raw, EMPTY, "") for raw in NOTHING),
        (b'{\n "a": 1,\n "text', DAMAGED, "cut off at line 3, column 7: what follows is missing"),
        ('{"a": "größ"}'.encode()[:-3], DAMAGED, ""),
        (b'{"a": 1} trailing', DAMAGED, PLACE),
        (b'{"a": 1}\0\0\0', DAMAGED, PLACE),
        (b"{'a': 1}", DAMAGED, PLACE),
        (b'{"a": 1,}', DAMAGED, PLACE),
        (b'"\xff\xfe latin \xe9"', DAMAGED, PLACE),
        (b"[" * 100_000, DAMAGED, PLACE),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, DAMAGED, "deep"),
        (b'{"a":' * 255 + b"1" + b"}" * 255, DAMAGED, "more than 254 deep"),
        (b'{"b": NaN, "a":' + b"[" * 254 + b"]" * 254 + b"}", DAMAGED, "more than 254 deep"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), DAMAGED, PLACE),
        (b"version https://git-lfs.github.com/spec/v1\n", DAMAGED, PLACE),
        (b"<<<<<<< HEAD\n", DAMAGED, PLACE),
        (rb'{"text": "a\ud83db"}', DAMAGED, r"\\ud83d stands alone in a text"),
        (rb'{"\udc00": 1}', DAMAGED, r"\\udc00 stands alone in a text"),
        (rb'[["\ud83d"]]', DAMAGED, r"\\ud83d stands alone in a text"),
        ('{"a": "größer"}'.encode("latin-1"), ENCODING, "UTF-8"),
        ('{"a": "ä"}'.encode("utf-16"), ENCODING, "not in UTF-8.*convert the file to UTF-8"),
        (b"[" + b"[]," * 2_000_000 + b"1]", DAMAGED, "5 MiB that hold 2,000,001 lists and objects"),
        (b"[" + b"{}," * 2_000_000 + b"1]", DAMAGED, "5 MiB that hold 2,000,001 lists and objects"),
    ],
)
def test_what_cannot_be_read_has_a_reason_and_its_place_is_told(raw, reason, words):
    bad = refused(raw)
    assert bad.reason == reason and re.search(words, str(bad))


def test_pairs_of_halves_and_documents_of_some_lists_are_read():
    assert jsonl.loads(rb'["\ud83d\ude00", NaN]')[0][0] == "\U0001f600"
    assert jsonl.loads(b"[" + b"[]," * 1000 + b"1]")[0]


def test_line_breaks_typed_into_texts_are_read():
    assert jsonl.loads(b'{"a": "x\ty\r\nz"}') == ({"a": "x\ty\r\nz"}, ["json_control"])


def test_nan_and_infinity_are_read_and_counted():
    value, repairs = jsonl.loads(
        b'{"a": NaN, "b": Infinity, "c": -Infinity, "d": 1e999, "e": -1e999}'
    )
    assert math.isnan(value["a"])
    assert (value["b"], value["c"], value["d"], value["e"]) == (
        math.inf,
        -math.inf,
        math.inf,
        -math.inf,
    )
    assert repairs == ["json_nan"]


@pytest.mark.parametrize(
    "number, kind",
    [
        ("123456789012345678901234567890", float),
        ("-9223372036854775809", float),
        ("18446744073709551616", float),
        ("-9223372036854775808", int),
        ("18446744073709551615", int),
    ],
)
def test_numbers_are_whole_within_64_bits_and_floats_beyond_in_both_readers(number, kind):
    strict, _ = jsonl.loads(b"[" + number.encode() + b"]")
    lenient, _ = jsonl.loads(b"[" + number.encode() + b", NaN]")
    assert strict[0] == lenient[0] == kind(number)
    assert type(strict[0]) is type(lenient[0]) is kind


def test_lines_have_their_numbers_and_bad_ones_do_not_stop_the_rest(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"a": 1}\r\n\r\n   \n{"a": 2\n{"a": NaN}\n\0\0\n\xff\xfe\n[3]\n{"a": 4}'
    )
    sizes: list[int] = []
    rows = list(jsonl.lines(path, sizes.append))
    assert sum(sizes) == path.stat().st_size
    assert [number for number, _, _ in rows] == [1, 4, 5, 6, 7, 8, 9]
    assert rows[0][1:] == ({"a": 1}, ["json_bom"])
    assert isinstance(rows[1][1], jsonl.BadJson) and rows[1][1].reason == "json_damaged"
    assert rows[2][2] == ["json_nan"]
    assert isinstance(rows[3][1], jsonl.BadJson) and rows[3][1].reason == "json_empty"
    assert [rows[5][1], rows[6][1]] == [[3], {"a": 4}]  # after bytes that begin a UTF-16 file


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_utf_16_file_of_lines_is_named_as_such(tmp_path: Path, encoding):
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b"\xfe\xff" * (encoding == "utf-16-be") + '{"a": 1}\n{"a": 2}\n'.encode(encoding)
    )
    ((number, bad, _),) = jsonl.lines(path)
    assert number == 1 and bad.reason == "json_encoding" and "UTF-16" in str(bad)


@pytest.mark.parametrize("content", [None, "{", "[1"])
def test_a_file_that_can_be_made_anew_may_be_missing_or_damaged(tmp_path: Path, content):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    assert jsonl.read_or("default", path) == "default"
    path.write_text("[1]")
    assert jsonl.read_or("default", path) == [1]


@pytest.mark.parametrize("size", [1, 4, 5, 7, 8, 9, 20])
def test_the_digest_of_head_and_tail_is_of_both_and_reads_no_more(tmp_path: Path, size):
    def digest(content: bytes) -> str:
        (tmp_path / "x").write_bytes(content)
        return jsonl.head_tail_digest(str(tmp_path / "x"), block=4)

    for place in range(size):
        is_covered = place < 4 or place >= size - 4
        changed = bytearray(size)
        changed[place] = 1
        assert (digest(changed) != digest(bytes(size))) == is_covered, place


@given(rows=st.lists(JSON, max_size=8))
def test_written_lines_are_read_again(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    jsonl.write_lines(path, iter(rows))
    assert [value for _, value, _ in jsonl.lines(path)] == rows
    assert path.read_bytes().count(b"\n") == len(rows)


@given(value=st.dictionaries(st.text(), JSON), other=st.dictionaries(st.text(), JSON))
def test_canonical_is_equal_for_equal_values_only(value, other):
    spaced = json.loads(json.dumps(dict(reversed(value.items())), indent=3))
    assert jsonl.canonical(spaced) == jsonl.canonical(value)
    same = json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (jsonl.canonical(value) == jsonl.canonical(other)) == same


def test_a_line_that_is_too_long_is_a_reject_and_the_rest_is_read(tmp_path, monkeypatch):
    """tests/fuzz/test_bombs.py has one of 100 MB, and looks at the memory."""
    longest = 1000
    monkeypatch.setattr(jsonl, "LONGEST_LINE", longest)
    just_as_long = b'"' + b"x" * (longest - 2) + b'"'
    too_long = b'"' + b"x" * 64 * longest + b'"'
    path = tmp_path / "rows.jsonl"
    # With its line end, the fourth line is one byte too long.
    lines = [b'{"a": 1}', too_long, b'{"a": 2}', just_as_long, b'{"a": 3}', just_as_long]
    path.write_bytes(b"\n".join(lines))
    rows = list(jsonl.lines(path))
    assert [number for number, _, _ in rows] == [1, 2, 3, 4, 5, 6]
    assert [rows[at][1] for at in (0, 2, 4)] == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert [rows[at][1].reason for at in (1, 3)] == ["json_damaged"] * 2
    assert len(rows[5][1]) == longest - 2
