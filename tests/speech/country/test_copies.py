"""Copies across splits: which rows leave an index, and which stay."""

import pyarrow as pa

from millrace.speech.country import copies

SPLITS = {"t": "train", "v": "validation", "x": "test"}


def digest(name: str) -> str:
    """Digests of names that begin alike have the same first 8 bytes."""
    return name[0].encode().hex() * 8 + name.encode().hex().ljust(48, "0")


def found(rows: str, pieces: int = 1) -> tuple[list[int], list[dict], pa.Table]:
    """Of an index given as "split:digest ...", in pieces: the rows that leave, the pairs, and what
    stays."""
    pairs = [row.split(":") for row in rows.split()]
    table = pa.table(
        {
            "country": ["land"] * len(pairs),
            "video_id": [f"video_{split}" for split, _ in pairs],
            "key": [f"key_{number}" for number in range(len(pairs))],
            "split": [SPLITS[split] for split, _ in pairs],
            "sha256": [digest(name) for _, name in pairs],
        }
    )
    size = -(-len(pairs) // pieces) or 1
    rows = copies.find(
        lambda names: (table.select(names).slice(at, size) for at in range(0, table.num_rows, size))
    )
    return list(rows["row"]), copies.pairs(rows), copies.without(table, rows)


def test_train_loses_what_lies_in_validation_or_test_and_validation_what_lies_in_test():
    rows = "t:a t:b v:b x:a t:c v:d x:d t:d t:e t:e v:f v:f x:b"
    for pieces in (1, 3, 13):
        left, pairs, rest = found(rows, pieces)
        assert left == [0, 1, 2, 5, 7]
        assert rest["key"].to_pylist() == [
            f"key_{number}" for number in (3, 4, 6, 8, 9, 10, 11, 12)
        ]
        assert pairs == [
            {
                "recording": f"land/video_{a}",
                "split": SPLITS[a],
                "of_recording": "land/video_x",
                "of_split": "test",
                "segments": count,
            }
            for a, count in (("t", 3), ("v", 2))
        ]
    assert copies.line(pairs[0]) == (
        "land/video_t (train) repeats 3 segments of land/video_x (test): they are left out of train"
    )


def test_digests_that_only_begin_alike_are_no_copies():
    assert found("t:a1 v:a2 x:a3 t:b1 x:b2")[0] == [] and found("t:a1 v:a2 x:a1")[0] == [0]
    assert found("t:a t:a")[:2] == ([], []) and found("")[:2] == ([], [])
