"""Shards of generated recordings: read back by other programs, and built again after changes."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from millrace.speech import columns
from millrace.speech.names import AUDIO_FORMATS, Partition, safe_key
from millrace.speech.shards import build as shards
from millrace.speech.shards import segment_audio
from millrace.speech.shards.index import read_sidecar, write_sidecar
from millrace.speech.shards.plan import (
    FIELD_TYPES,
    Plan,
    ShardOptions,
    audio_bytes,
    plan_partition,
    sample_json,
)
from millrace.speech.shards.tar_writer import member_header
from tests.refusals import refused
from tests.speech.shard_corpus import RATE, corpus, digests, row, tree, write_recording

# Some segments of 1.25 s fit into a shard.
SMALL = ShardOptions(max_shard_size_gb=0.0004)


def build(rows: list[dict], output: Path, options: ShardOptions = SMALL, **how) -> shards.Built:
    return shards.build(plan(rows, options), output, **how)


def plan(rows: list[dict], options: ShardOptions = SMALL) -> Plan:
    return plan_partition(Partition.parse(rows[0]["batch_id"]), rows, options)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[dict]:
    return corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def cuts(monkeypatch) -> list[tuple[str, int]]:
    """Every decoding of a recording: its path and how many spans were asked for."""
    calls: list[tuple[str, int]] = []
    real = segment_audio.audio.cut

    def counted(path, spans, rate):
        calls.append((path, len(spans)))
        return real(path, spans, rate)

    monkeypatch.setattr(segment_audio.audio, "cut", counted)
    return calls


HOSTILE = {
    "testland_a.b.c_0_1": "NA",
    "testland_a": "null",
    "testland_a_0": "",
    "__hidden__": "=SUM(A1)\"'",
    ".dot": "two\nlines\r\nthree\rfour",
    "with space/and/../slash": "‏rtl‏",
    "Ünïcode_漢字_🎧": "a,b;c\td",
    "percent%2Esign": "😀 \\u0000 é",
    "k" * 200: "{}",
    "é" * 200: "nan",
    'quote"and\nnewline\\': " ",
    "~tilde*?": "x" * 5000,
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> tuple[list[dict], Path, shards.Built]:
    folder = tmp_path_factory.mktemp("hostile")
    rows = []
    for number, (key, text) in enumerate(HOSTILE.items()):
        source = write_recording(folder / f"src{number // 3}.wav", 12.0, seed=number // 3)
        start = 2.0 * (number % 3)
        fields = {"key": key, "human_transcript": text, "asr_transcript": text[::-1]}
        fields["wer"] = None if number % 2 else 1.0
        rows.append(row(source, start, start + 1.5, "testland-train-2-00300", **fields))
    rows[3]["original_transcript_start_idx"] = None
    rows[4]["cer"] = 0.0
    return rows, folder / "out", build(rows, folder / "out")


def outcomes(built: shards.Built, rows: list[dict]) -> list[tuple[str, str]]:
    """Status and message of each row; of several with one key the first is the one that is cut."""
    waiting: dict[str, list[tuple[str, str]]] = {}
    for ended in built.rows.to_pylist():
        outcome = (ended["status"], ended["error_message"])
        waiting.setdefault(ended["key"], []).append(outcome)
    assert built.rows.num_rows == len(rows)
    return [waiting[r["key"]].pop(0) for r in rows]


def expected_json(r: dict) -> dict:
    reals = [n for n, kind in FIELD_TYPES.items() if kind == "float64" and n in r]
    numbers = {n: -1.0 if r[n] is None else float(r[n]) for n in reals}
    return {n: r.get(n) for n in FIELD_TYPES} | numbers | {"sampling_rate": float(RATE)}


def members(output: Path, shards: list[str]) -> list[tuple[str, str, int, int]]:
    """Shard, name, offset and size of all members of the shards."""
    seen = []
    for shard in shards:
        with tarfile.open(output / shard) as tar:
            seen += [(shard, each.name, each.offset_data, each.size) for each in tar.getmembers()]
    return seen


def read(output: Path, entry: dict) -> bytes:
    """The audio at the address that the index gives."""
    return (output / entry["shard"]).read_bytes()[entry["offset"] :][: entry["size"]]


def test_every_sample_is_where_the_index_says(hostile):
    rows, output, built = hostile
    index = built.index.to_pylist()
    shards = list(dict.fromkeys(entry["shard"] for entry in index))
    assert [entry["key"] for entry in index] == [r["key"] for r in rows] and len(shards) > 1
    assert set(built.rows["status"].to_pylist()) == {"completed_local_tar"}
    seen = members(output, shards)
    assert seen[::2] == [(e["shard"], e["member"], e["offset"], e["size"]) for e in index]
    for entry, (shard, json_name, _, _) in zip(index, seen[1::2], strict=True):
        assert shard == entry["shard"] and json_name == f"{safe_key(entry['key'])}.json"
        assert entry["member"] == f"{safe_key(entry['key'])}.flac"


def test_the_audio_of_every_sample_is_that_of_its_span(hostile):
    rows, output, built = hostile
    for entry, r in zip(built.index.to_pylist(), rows, strict=True):
        body = read(output, entry)
        assert hashlib.sha256(body).hexdigest() == entry["sha256"]
        heard, rate = soundfile.read(io.BytesIO(body), dtype="int16")
        assert rate == entry["sample_rate"] == RATE
        assert len(heard) == entry["samples"] == entry["duration_seconds"] * RATE
        whole, _ = soundfile.read(r["source_audio_path"], dtype="int16")
        start = round(r["start_seconds"] * RATE)
        np.testing.assert_array_equal(heard, whole[start:][: len(heard)])


def test_the_json_of_every_sample_and_its_row_of_the_index_say_what_the_manifest_says(hostile):
    rows, output, built = hostile
    types = {"string": str, "float64": float}
    copied = [name for name in columns.INDEX_SCHEMA.names if name in rows[0]]
    copied.remove("duration_seconds")
    index = built.index.to_pylist()
    texts = members(output, list(dict.fromkeys(entry["shard"] for entry in index)))[1::2]
    for entry, r, (shard, _, offset, size) in zip(index, rows, texts, strict=True):
        text = (output / shard).read_bytes()[offset : offset + size]
        content = json.loads(text)
        assert content == expected_json(r) and list(content) == list(FIELD_TYPES)
        assert all(type(content[name]) is types[kind] for name, kind in FIELD_TYPES.items())
        assert all(entry[name] == r[name] for name in copied)
        assert str(output.parent) not in text.decode()


def by_webdataset(paths: list[str], cache: Path) -> list[dict]:
    import webdataset

    samples = webdataset.WebDataset(paths, shardshuffle=False)
    return [{**sample, "json": json.loads(sample["json"])} for sample in samples]


def by_datasets(paths: list[str], cache: Path) -> list[dict]:
    import datasets

    # datasets.Audio, even with decode=False, needs torchcodec and a system ffmpeg: the bytes do
    # here.
    features = {name: datasets.Value("string") for name in ("__key__", "__url__")}
    features |= {"flac": datasets.Value("binary")}
    features |= {"json": {name: datasets.Value(kind) for name, kind in FIELD_TYPES.items()}}
    how = {"split": "train", "streaming": True, "features": datasets.Features(features)}
    return list(datasets.load_dataset("webdataset", data_files=paths, cache_dir=str(cache), **how))


@pytest.mark.parametrize("reader", [by_webdataset, by_datasets])
def test_other_readers_read_every_sample(hostile, tmp_path, reader):
    rows, output, built = hostile
    samples = reader(
        [str(output / shard) for shard in built.index["shard"].unique().to_pylist()], tmp_path
    )
    for sample, entry, r in zip(samples, built.index.to_pylist(), rows, strict=True):
        assert unquote(sample["__key__"]) == r["key"] and sample["json"] == expected_json(r)
        assert hashlib.sha256(sample["flac"]).hexdigest() == entry["sha256"]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_safe_key_is_reversible_and_plain(key):
    safe = safe_key(key)
    assert unquote(safe) == key and safe.isascii() and not safe.startswith(("__", "."))
    assert all(letter.isalnum() or letter in "_-%" for letter in safe)


def test_json_has_no_null_and_no_int_whatever_the_row():
    odd = {"cer": float("nan"), "wer": float("inf"), "start_seconds": 5, "subset_id": 3}
    text = sample_json(dict.fromkeys(FIELD_TYPES) | odd, 16_000)
    assert b"null" not in text and b"5.0" in text and b"3.0" in text and b"16000.0" in text
    content = json.loads(text)
    assert content["cer"] == content["wer"] == -1.0 and content["asr_transcript"] == ""


def test_a_second_run_decodes_nothing_and_touches_nothing(sources, tmp_path, cuts):
    first = build(sources, tmp_path)
    assert len(cuts) == 4 and first.rebuilt >= 3 and first.kept == 0
    before = tree(tmp_path)
    cuts.clear()
    assert first.line().startswith("24 segments, 0.01 h; shards: 0 kept, ")
    assert (
        first.line()
        == f"24 segments, 0.01 h; shards: 0 kept, {first.rebuilt} built, 0 stale files removed; no"
        " errors"
    )
    second = build(sources, tmp_path)
    assert second.line() == first.line().replace(
        f"0 kept, {first.rebuilt} built", f"{first.rebuilt} kept, 0 built"
    )
    assert (
        cuts == []
        and (second.kept, second.rebuilt) == (first.rebuilt, 0)
        and tree(tmp_path) == before
    )
    assert second.index.equals(first.index) and second.rows.equals(first.rows)


def test_a_recording_across_shards_is_decoded_once(tmp_path, cuts):
    rows = corpus(tmp_path / "src", recordings=1, segments=30)
    built = build(rows, tmp_path / "out")
    assert cuts == [(rows[0]["source_audio_path"], 30)] and built.rebuilt > 2


def test_transcripts_with_different_files_interleaved_are_decoded_once_each(tmp_path, cuts):
    a, b = (write_recording(tmp_path / name / "v.wav", 12, seed) for seed, name in enumerate("ab"))
    pairs = [(start, source) for start in range(0, 12, 2) for source in (a, b)]
    rows = [
        row(source, start, start + 1, key=f"{source.parent.name}{start}") for start, source in pairs
    ]
    built = build(rows, tmp_path / "out")
    assert sorted(cuts) == [(str(a), 6), (str(b), 6)]
    assert built.index["key"].to_pylist() == [r["key"] for r in rows]


def changed_files(before: dict, folder: Path) -> set[str]:
    return {name for name, file in tree(folder).items() if before[name] != file}


def test_one_changed_text_rebuilds_its_shard_only(sources, tmp_path, cuts):
    first = build(sources, tmp_path)
    before = tree(tmp_path)
    shard = first.index["shard"][10].as_py()
    changed = [dict(r) for r in sources]
    changed[10]["human_transcript"] = "said otherwise"
    cuts.clear()
    second = build(changed, tmp_path)
    assert (second.rebuilt, second.kept) == (1, first.rebuilt - 1)
    assert second.index["human_transcript"][10].as_py() == "said otherwise"
    folder, tar = os.path.split(shard)
    assert changed_files(before, tmp_path) == {shard, f"{folder}/.{tar[:-4]}.index.parquet"}
    recordings = {entry["video_id"] for entry in first.index.to_pylist() if entry["shard"] == shard}
    assert {Path(path).stem for path, _ in cuts} == recordings
    # Built alone, behind kept ones or with all others, a shard has the same bytes.
    for place in (0, -1):
        changed[place]["human_transcript"] = "said otherwise"
    assert build(changed, tmp_path).rebuilt == 2
    before = digests(tmp_path)
    build(changed, tmp_path / "fresh")
    assert digests(tmp_path / "fresh") == before


def digest(rows: list[dict], **options: object) -> str:
    """That of a shard of these rows; of unknown rates, too."""
    planned = plan(rows, ShardOptions(max_cer=1.0, **options))
    return planned.digest(planned.segments)


def test_a_digest_is_of_rates_of_error_of_the_format_and_of_the_recordings(sources):
    first, second = sources[0], sources[-1]
    places = [{"source_audio_path": row["source_audio_path"]} for row in (first, second)]
    digests = {
        digest([first]),
        digest([first], audio_format="wav"),
        digest([first], sampling_rate=8_000),
        *(digest([first | {name: value}]) for name in ("cer", "wer") for value in (None, math.nan)),
        *(digest([first | one, second | other]) for one, other in (places, places[::-1])),
    }
    assert len(digests) == 3 + 4 + 2


def test_shards_that_were_cut_without_fingerprints_are_cut_again(sources, tmp_path):
    """As 0.4.0 cut them where copies were found by bytes, or not at all."""
    first = build(sources, tmp_path)
    tar = tmp_path / first.index["shard"][0].as_py()
    sidecar = read_sidecar(tar)
    rows = [row | {"words": None} for row in sidecar.table.to_pylist()]
    without = pa.Table.from_pylist(rows, schema=columns.SIDECAR_SCHEMA)
    write_sidecar(tar, replace(sidecar, table=without))
    again = build(sources, tmp_path)
    assert (again.rebuilt, again.kept) == (1, first.rebuilt - 1)
    assert again.rows.equals(first.rows) and read_sidecar(tar).has_fingerprints()


def test_a_replaced_recording_rebuilds_the_shards_it_is_in(tmp_path):
    rows = corpus(tmp_path / "src")
    first = build(rows, tmp_path / "out")
    before = tree(tmp_path / "out")
    write_recording(tmp_path / "src" / "video_3.wav", 9.5, seed=77)
    second = build(rows, tmp_path / "out")
    touched = {
        entry["shard"] for entry in first.index.to_pylist() if entry["video_id"] == "video_3"
    }
    changed = {name for name in changed_files(before, tmp_path / "out") if name.endswith(".tar")}
    assert changed == touched and 0 < second.rebuilt == len(touched) < first.rebuilt


DAMAGES = {
    "flip": lambda tar, sidecar, raw: tar.write_bytes(
        raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:]
    ),
    "cut": lambda tar, sidecar, raw: tar.write_bytes(raw[:-10240]),
    "longer": lambda tar, sidecar, raw: tar.write_bytes(raw + bytes(512)),
    "gone": lambda tar, sidecar, raw: tar.unlink(),
    "sidecar": lambda tar, sidecar, raw: sidecar.write_bytes(sidecar.read_bytes()[:-100]),
    "sidecar gone": lambda tar, sidecar, raw: sidecar.unlink(),
    "foreign sidecar": lambda tar, sidecar, raw: shutil.copy(
        str(sidecar).replace("00001", "00000"), sidecar
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_found_and_built_again(sources, tmp_path, damage):
    build(sources, tmp_path)
    before = tree(tmp_path)
    tar = tmp_path / "testland/test/testland-test-00001.tar"
    DAMAGES[damage](tar, tar.with_name(".testland-test-00001.index.parquet"), tar.read_bytes())
    built = build(sources, tmp_path)
    assert built.rebuilt == 1
    assert digests(tmp_path) == {name: sha256 for name, (sha256, _) in before.items()}
    assert all("00001" in name for name in changed_files(before, tmp_path))


def test_stale_shards_of_this_partition_are_removed_and_no_others(sources, tmp_path):
    first = build(sources, tmp_path)
    folder = tmp_path / "testland/test"
    others = {
        "testland-test-00100.tar",
        ".testland-test-00100.index.parquet",
        "testland-test-00001.tar.bak",
    }
    others |= {
        "notes.txt",
        "testland-test-000.tar",
        "xtestland-test-00002.tar",
        "testland-test-1-00002.tar",
    }
    host = os.uname().nodename.replace("-", "_").replace(".", "_")
    dead = f".testland-test-00002.tar.{host}-999999999.partial"
    # The name of a sidecar's temporary begins with two dots.
    dead_sidecar = f".{dead}".replace(".tar.", ".index.parquet.")
    for name in [*others, "testland-test-00099.tar", dead, dead_sidecar]:
        (folder / name).write_bytes(b"x")
    fewer = build(sources[:6], tmp_path)
    left = set(os.listdir(folder))
    assert (
        others <= left and "testland-test-00099.tar" not in left and not left & {dead, dead_sidecar}
    )
    wanted = {f"testland-test-{n:05d}.tar" for n in range(fewer.kept + fewer.rebuilt)}
    assert {name for name in left - others if name.endswith(".tar")} == wanted
    assert len(fewer.removed) == 2 * (first.rebuilt - len(wanted)) + 1


def test_each_error_has_its_status_and_stops_nobody(tmp_path, cuts):
    good, nan = write_recording(tmp_path / "good.wav", 5, 1), float("nan")
    empty, noise, folder = tmp_path / "empty.mp3", tmp_path / "noise.opus", tmp_path / "folder.wav"
    empty.write_bytes(b"")
    noise.write_bytes(np.random.default_rng(0).bytes(9000))
    folder.mkdir()
    cases = [
        (row(good, 0, 1), columns.COMPLETED, ""),
        (row(good, 1, 2, cer=0.31), columns.OVER_CER, "0.31"),
        (row(good, 1.1, 2, cer=nan), columns.OVER_CER, "unknown"),
        (row(good, 1.2, 2, cer=None), columns.OVER_CER, "unknown"),
        (row(good, 1.3, 2, cer=0.3), columns.COMPLETED, ""),
        (row(tmp_path / "gone.wav", 0, 1), columns.MISSING_SOURCE, "gone.wav"),
        (row(empty, 0, 1), columns.AUDIO_LOAD, "empty.mp3"),
        (row(noise, 0, 1), columns.AUDIO_LOAD, "noise.opus"),
        (row(noise, 1, 2), columns.AUDIO_LOAD, "noise.opus"),
        (row(folder, 0, 1), columns.AUDIO_LOAD, "folder.wav"),
        (row(good, 4, 9), columns.PROCESSING, "good.wav"),
        (row(good, 2, 2, key="none"), columns.PROCESSING, "is not the span"),
        (row(good, 3, 2, key="back"), columns.PROCESSING, "is not the span"),
        (row(good, 3, 4) | {"end_seconds": nan, "key": "nan"}, columns.PROCESSING, "is not the"),
        (row(good, 0, 1e12, key="endless"), columns.PROCESSING, "is not the span"),
        (row(good, 3, 4, key=""), columns.PROCESSING, "key"),
        (row(good, 0.5, 1, key=row(good, 0, 1)["key"]), columns.PROCESSING, "more than once"),
        (
            row(good, 3, 4, status=columns.MISSING_SOURCE, error_message="as was"),
            columns.MISSING_SOURCE,
            "as was",
        ),
        (row("", 3, 4, key="nowhere"), columns.MISSING_SOURCE, "nowhere"),
        (row(good, 3, 4, key="last"), columns.COMPLETED, ""),
        (row(good, 0, 1, cer=-0.5, key="negative"), columns.OVER_CER, "unknown"),
        (row(good, 0, 3601, key="an hour"), columns.PROCESSING, "is not the span"),
    ]
    rows = [case[0] for case in cases]
    out, options = tmp_path / "out", ShardOptions()
    built = build(rows, out, options)
    ended = outcomes(built, rows)
    assert [status for status, _ in ended] == [case[1] for case in cases]
    for (status, message), (_, _, words) in zip(ended, cases, strict=True):
        assert words in message and bool(message) == (status != "completed_local_tar")
    assert built.index["key"].to_pylist() == [rows[0]["key"], rows[4]["key"], "last"]
    # What failed is known too: nothing is decoded again, until it changes.
    cuts.clear()
    assert build(rows, out, options).rows.equals(built.rows) and not cuts
    write_recording(noise, 5, 2)  # a WAV named .opus
    mended = build(rows, out, options)
    ended = outcomes(mended, rows)
    assert [ended[n][0] for n in (7, 8)] == ["completed_local_tar"] * 2


def test_unknown_cer_passes_where_everything_does(sources, tmp_path):
    rows = [r | {"cer": None} for r in sources]
    assert build(rows, tmp_path, ShardOptions(max_cer=1.0)).index.num_rows == len(rows)


def test_a_shard_without_any_good_segment_leaves_no_tar(tmp_path, cuts):
    rows, out = corpus(tmp_path / "src", recordings=1, segments=8), tmp_path / "out"
    tar = out / build(rows, out).index["shard"][0].as_py()
    os.unlink(rows[0]["source_audio_path"])
    built = build(rows, out)
    assert not tar.exists() and built.errors == {"error_local_tar_missing_source": 8}
    cuts.clear()
    again = build(rows, out)
    assert not cuts and again.rows.equals(built.rows) and again.rebuilt == 0
    # A tar that comes from elsewhere is not taken for ours.
    tar.write_bytes(b"x")
    assert build(rows, out).rebuilt == 1 and not tar.exists()


def test_a_decoder_that_breaks_or_stops_is_an_error_of_its_recording(
    sources, tmp_path, monkeypatch
):
    real = segment_audio.audio.cut

    def breaking(path, spans, rate):
        stream = real(path, spans, rate)
        yield next(stream)
        if "video_1" in path:
            raise RuntimeError("the codec went away")
        if "video_2" not in path:
            yield from stream

    with monkeypatch.context() as patch:
        patch.setattr(segment_audio.audio, "cut", breaking)
        built = build(sources, tmp_path)
    assert built.errors == {"error_local_tar_audio_load": 10}
    messages = built.rows["error_message"].to_pylist()
    assert sum("codec went away" in m and "video_1.wav" in m for m in messages) == 5
    assert sum("ends before its segments do" in m and "video_2.wav" in m for m in messages) == 5
    # Without their sidecar, shards are built again.
    for sidecar in tmp_path.rglob(".*.index.parquet"):
        sidecar.unlink()
    assert build(sources, tmp_path).errors == {}


DISK_FULL = refused(r"disk is full.*Free some.*raise the limit.*kept")


@pytest.mark.parametrize(
    "fatal, raised",
    [
        (MemoryError(), pytest.raises(MemoryError)),
        (KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),
        (OSError(errno.ENOSPC, "-"), DISK_FULL),
        (OSError(errno.EFBIG, "-"), DISK_FULL),
    ],
)
def test_trouble_of_the_machine_stops_the_step_and_keeps_what_is_finished(
    sources, tmp_path, fatal, raised
):
    real, count = segment_audio.audio.encode, []

    def failing(*args):
        count.append(1)
        if len(count) > 15:
            raise fatal
        return real(*args)

    with raised, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_audio.audio, "encode", failing)
        build(sources, tmp_path)
    before = tree(tmp_path)
    assert before and not any("partial" in name for name in before)
    assert build(sources, tmp_path).kept and tree(tmp_path).items() >= before.items()


@pytest.mark.parametrize("audio_format", ["flac", "wav", "opus", "mp3"])
def test_no_shard_exceeds_the_limit_and_bytes_repeat(tmp_path, audio_format):
    rng = np.random.default_rng(0)
    rows, one = [], tmp_path / "one"
    for number in range(2):  # white noise at full scale: the hardest for every encoder
        source = tmp_path / f"noise{number}.wav"
        soundfile.write(source, rng.integers(-32768, 32767, 20 * RATE).astype(np.int16), RATE)
        rows += [row(source, n, n + 0.9 + 0.05 * (n % 3)) for n in range(19)]
    options = ShardOptions(audio_format=audio_format, max_shard_size_gb=0.00015)
    made = build(rows, one, options)
    assert made.index.num_rows == len(rows) and made.rebuilt > 1
    sizes = [(one / shard).stat().st_size for shard in sorted(set(made.index["shard"].to_pylist()))]
    bounds = [segment.bytes_at_most for segment in plan(rows, options).segments]
    assert max(sizes) <= 150_000 and all(
        size > 150_000 - max(bounds) - 40_960 for size in sizes[:-1]
    )
    assert sum(sizes) <= sum(bounds) + len(sizes) * 20_480
    build(rows, tmp_path / "two", options)
    assert digests(one) == digests(tmp_path / "two")


def test_every_format_has_its_own_bound():
    assert {name: audio_bytes(1, 16_000, name) for name in AUDIO_FORMATS} == {
        "flac": 4096 + 32_500,
        "wav": 4096 + 32_500,
        "opus": 4096 + 8_000,
        "mp3": 4096 + 8_800,
    }
    assert audio_bytes(1, 24_000, "opus") == 4096 + 16_000


@pytest.mark.parametrize(
    "audio_format, letters, is_long",
    [("wav", 95, False), ("wav", 96, True), ("opus", 95, False), ("opus", 96, True)],
)
def test_a_bound_counts_the_extension_that_a_member_gets(tmp_path, audio_format, letters, is_long):
    """A name of over 100 bytes takes two blocks more: with 96 letters `.json` does, and `.wav` does
    not."""
    rows = [row(tmp_path / "a.wav", 0, 1, key="k" * letters)]
    (segment,) = plan(rows, ShardOptions(audio_format=audio_format)).segments
    extra = len(member_header("k" * letters + f".{audio_format}", 1)) - 512
    extra += len(member_header("k" * letters + ".json", 1)) - 512
    plain = [
        -(-size // 512) * 512 + 512
        for size in (audio_bytes(1, 16_000, audio_format), len(segment.text))
    ]
    assert segment.bytes_at_most == sum(plain) + extra and bool(extra) == is_long


def test_a_segment_beyond_the_limit_has_a_shard_of_its_own(tmp_path):
    source = write_recording(tmp_path / "a.wav", 20, 1)
    rows = [row(source, start, end) for start, end in ((0, 1), (1, 2), (2, 18), (18, 19))]
    made = build(rows, tmp_path / "out", ShardOptions(max_shard_size_gb=0.0002))
    shards = [name[-9:-4] for name in made.index["shard"].to_pylist()]
    assert [shards.count(shard) for shard in sorted(set(shards))] == [2, 1, 1]


def test_rows_in_no_order_are_cut_in_order_of_time_by_recording(tmp_path):
    a, b = (
        write_recording(tmp_path / "b_first.wav", 9, 1),
        write_recording(tmp_path / "a_second.wav", 9, 2),
    )
    rows = [row(a, 4, 5), row(b, 3, 4), row(a, 1, 2), row(b, 0, 1), row(a, 2.5, 3)]
    rows += [row(a, 4, 4.5)]
    built = build(rows, tmp_path / "out")
    assert built.index["start_seconds"].to_pylist() == [1, 2.5, 4, 4, 0, 3] and not built.errors
    assert built.index["duration_seconds"].to_pylist()[2:4] == [0.5, 1]
    assert sorted(built.rows["key"].to_pylist()) == sorted(r["key"] for r in rows)


def test_more_shards_than_numbers_is_an_error(sources):
    planned = plan(sources)
    assert planned.shard(99).endswith("testland-test-00099.tar")
    with refused(r"more than 100 shards.*max_shard_size_gb.*partition_hours"):
        planned.shard(100)


def test_shards_are_filled_by_their_real_bytes_and_a_new_segment_opens_the_last_one_again(tmp_path):
    """Quiet speech takes half of its upper bound: by bounds, shards would be half empty."""
    rows = corpus(tmp_path / "src", recordings=4, segments=30)
    for number in range(4):
        source = tmp_path / "src" / f"video_{number}.wav"
        soundfile.write(source, soundfile.read(source)[0] * 0.02, RATE)
    options = ShardOptions(max_shard_size_gb=0.0007)
    first = build(rows[:100], tmp_path / "out", options)
    grown = build(rows, tmp_path / "out", options)
    assert grown.kept == first.rebuilt - 1 and build(rows, tmp_path / "fresh", options).kept == 0
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")
    names = sorted(set(grown.index["shard"].to_pylist()))
    sizes = [(tmp_path / "out" / name).stat().st_size for name in names]
    assert len(sizes) > 3 and min(sizes[:-1]) > 0.85 * 700_000


def test_a_smaller_limit_cuts_shards_again_that_exceed_it(sources, tmp_path):
    size = SMALL.max_shard_size_gb
    for limit in (2 * size, size):
        built = build(sources, tmp_path / "out", replace(SMALL, max_shard_size_gb=limit))
        assert built.kept == 0
    build(sources, tmp_path / "fresh")
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


def test_a_rate_the_codec_lacks_is_one_error_not_many(sources, tmp_path):
    with refused("opus has no sampling rate"):
        build(sources, tmp_path, ShardOptions(audio_format="opus", sampling_rate=44_100))
    assert not list(tmp_path.iterdir())


def test_partition_ids():
    assert Partition.parse("new zealand-train-12-00300") == Partition(
        "new zealand", "train-12", 300
    )
    assert str(Partition.parse("a-test-b-validation-100000")) == "a-test-b-validation-100000"
    bad = [
        "a-test-00050",
        "a-dev-00100",
        "a-test-100",
        "../a-test-00000",
        "a/b-test-00000",
        "",
        "test-00000",
    ]
    assert [Partition.parse(name) for name in bad] == [None] * len(bad)


def test_the_index_is_of_the_audio_that_was_resampled(tmp_path):
    source = write_recording(tmp_path / "a.wav", 5, 1, rate=44_100)
    options = ShardOptions(sampling_rate=8_000, audio_format="wav")
    (entry,) = build([row(source, 0.5, 2.75)], tmp_path / "out", options).index.to_pylist()
    assert entry["sample_rate"] == 8000 and abs(entry["samples"] - 18_000) <= 1
    assert entry["duration_seconds"] == pytest.approx(2.25, abs=1e-3)
    sidecar = tmp_path / "out/testland/test/.testland-test-00000.index.parquet"
    assert b"pandas" not in (pq.read_table(sidecar, partitioning=None).schema.metadata or {})
