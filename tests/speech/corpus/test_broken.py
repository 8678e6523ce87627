"""What leaves the shards with alignment files that cannot be read any more."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.speech import sources
from millrace.speech.corpus import broken
from millrace.speech.corpus.country_folder import Country


@pytest.fixture
def results(tmp_path):
    """Two recordings in the shards of Malta, one of them with two transcripts."""

    def transcript(name: str, transcript_id: str) -> dict:
        return {"path": f"/x/{name}_aligned.json", "transcript_id": transcript_id}

    of_a = [transcript("a_1_t1", "t1"), transcript("a_1_ü", "ü")]
    # The name of the second one does not say whose it is.
    of_b = [transcript("b_t1", "t1"), transcript("bad", "bad")]
    recordings = [{"video_id": "a_1", "transcripts": of_a}, {"video_id": "b", "transcripts": of_b}]
    content = {"country": "malta", "recordings": recordings}
    built = tmp_path / "partitions/built"
    built.mkdir(parents=True)
    (built / "malta-train-1-00000.json").write_text(json.dumps(content, ensure_ascii=False))
    rows = [("a_1", "t1"), ("a_1", "t1"), ("a_1", "ü"), ("b", "t1"), ("b", "bad")]
    rows += [("a_1", "t1")]  # left out, as a copy
    table = pa.table(
        {
            "video_id": [row[0] for row in rows],
            "transcript_id": [row[1] for row in rows],
            "offset": [512, 1024, 2048, 512, 512, None],
        }
    )
    shards = tmp_path / "shards/partitions/malta-train-1-00000"
    shards.mkdir(parents=True)
    pq.write_table(table, shards / "index.parquet")
    return tmp_path


@pytest.mark.parametrize(
    "files, segments",
    [
        ({("malta", "a_1_t1_aligned.json")}, 2),
        ({("malta", "a_1_ü_aligned.json")}, 1),
        ({("malta", "bad_aligned.json")}, 1),
        ({("malta", "a_1_t1_aligned.json"), ("malta", "b_t1_aligned.json")}, 3),
        ({("italy", "a_1_t1_aligned.json")}, 0),
        ({("malta", "new_t1_aligned.json")}, 0),
    ],
)
def test_the_segments_of_a_broken_alignment_are_counted_in_the_shards(results, files, segments):
    assert broken.segments_in_shards(files, results) == segments


def test_before_anything_is_built_nothing_leaves(tmp_path):
    assert broken.segments_in_shards({("malta", "a_t1_aligned.json")}, tmp_path) == 0


def test_a_damaged_index_ends_no_parse(results):
    (index,) = results.glob("shards/partitions/*/index.parquet")
    index.write_bytes(b"")
    assert broken.segments_in_shards({("malta", "b_t1_aligned.json")}, results) == 0


@pytest.mark.parametrize("reason", ["json_damaged", "no_segments", "name_not_utf8"])
def test_the_parse_says_how_many_segments_leave_the_shards(results, reason):
    reject = {"file": "a_1_t1_aligned.json", "reason": reason, "detail": "not valid JSON"}
    other = {"file": "notes.json", "reason": "not_an_alignment_name", "detail": "another name"}
    malta = Country("malta", "mt", rejected=[other, reject])
    line = "1 alignment file is left out: malta: a_1_t1_aligned.json: not valid JSON"
    assert sources._notes_on([malta], results)[-1] == f"{line}; 2 segments will leave the shards"
