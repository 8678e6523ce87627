"""Samples of train that lie in test too are found in what people keep them in, and nothing else."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image, ImageDraw

from millrace.audit import check_splits
from millrace.audit.splits import compare, content, sources, table
from millrace.audit.splits.content import Content
from millrace.audit.splits.pairs import Comparison, Held, Pair, _measured
from millrace.audit.splits.samples import Sample
from millrace.audit.splits.table import Compared
from millrace.common.fingerprints.matches import Match
from millrace.common.fingerprints.scale import SEARCHED_STEPS, STEP_SECONDS
from tests.corpora import RATE, noise
from tests.refusals import refused
from tests.tars.tars import write_tar
from tests.workflow.workflow import ROOT

Clips = dict[str, np.ndarray]
TEXTS = ("the house is in order", "it is the vote of the member", "no question about the law now")


def encoded(samples: np.ndarray, form: str) -> bytes:
    target = io.BytesIO()
    soundfile.write(target, samples, RATE, format=form)
    return target.getvalue()


def folder(root: Path, clips: Clips, form: str = "FLAC") -> Path:
    root.mkdir(parents=True)
    for name, samples in clips.items():
        (root / f"{name}.{form.lower()}").write_bytes(encoded(samples, form))
    return root


def tar(root: Path, clips: Clips) -> Path:
    members = []
    for name, samples in clips.items():
        members.append((f"part/{name}.txt", b"a text"))
        members.append((f"part/{name}.flac", encoded(samples, "FLAC")))
    return write_tar(root / "a-000.tar", members)


def parquet(root: Path, clips: Clips) -> Path:
    """As the datasets library writes audio."""
    root.mkdir(parents=True)
    audio = [
        {"bytes": encoded(each, "FLAC"), "path": f"{name}.flac"} for name, each in clips.items()
    ]
    pq.write_table(pa.table({"audio": audio, "text": ["a text"] * len(audio)}), root / "a.parquet")
    return root


def manifest(root: Path, clips: Clips) -> Path:
    """As NeMo names files, and segments of them."""
    folder(root / "sound", {"all": np.concatenate([*clips.values()])})
    rows, offset = [], 0.0
    for samples in clips.values():
        seconds = len(samples) / RATE
        row = {"audio_filepath": "sound/all.flac", "offset": offset, "duration": seconds}
        rows.append(row | {"text": "a text"})
        offset += seconds
    return lines(root / "train.jsonl", rows)


def lines(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# What the copy, the second of three clips, is called in each.
KINDS: dict[Callable[[Path, Clips], Path], str] = {
    folder: "b.flac",
    tar: "a-000.tar:part/b",
    parquet: "a.parquet:2",
    manifest: "train.jsonl:2",
}


class Result:
    """What the step has found, with its exit code and what it printed."""

    def __init__(self, place: Path, code: int, printed: str) -> None:
        report = json.loads((place / "pairs.json").read_text())
        self.code, self.printed = code, printed
        self.pairs, self.samples = report["pairs"], report["samples"]
        self.not_read = report["not_read"]

    def names(self) -> list[tuple[str, str, str]]:
        return [(pair["sample"], pair["held_out"], pair["how"]) for pair in self.pairs]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def run(train: Path | Clips, test: Path | Clips, *more: str) -> Result:
        """The step on two splits: those of clips are made in tmp_path, as folders."""
        argv = ["--workers", "1", *more]
        for name, split in (("train", train), ("test", test)):
            place = folder(tmp_path / name, split) if isinstance(split, dict) else split
            argv += [f"--{name}", str(place)]
        code = check_splits.main([*argv, "--json", str(tmp_path / "pairs.json")])
        return Result(tmp_path, code, capsys.readouterr().out)

    return run


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_cut_copy_is_found_whatever_the_splits_are_kept_in(kind, check, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_ROWS_AT_ONCE", 1)
    clips = {name: noise(6, number) for number, name in enumerate("abc")}
    train = kind(tmp_path / "train", clips)
    test = kind(tmp_path / "test", {"other": noise(5, 9), "b": clips["b"][RATE:]})
    found = check(train, test)
    assert found.code == 1 and found.samples == {"train": 3, "test": 2} and not found.not_read
    (pair,) = found.pairs
    assert pair["how"] == "sound" and pair["sample"] == KINDS[kind]
    assert pair["offset"] == pytest.approx(-1.0, abs=0.02)
    assert 4 <= pair["seconds"] <= 5.1 and 0.8 <= pair["confidence"] < 1
    assert "by sound, -1.0" in found.printed and "1 pair: 1 by sound" in found.printed


def test_files_behind_a_link_to_a_folder_and_of_long_names_are_compared(check, tmp_path):
    long = "n" * 250
    elsewhere = folder(tmp_path / "elsewhere", {long: noise(6, 1)})
    train = folder(tmp_path / "train", {"a": noise(6, 2)})
    (train / "class").symlink_to(elsewhere)
    found = check(train, {"x": noise(6, 1)})
    assert found.names() == [(f"class/{long}.flac", "x.flac", "bytes")]


def test_equal_bytes_under_another_name_are_found_by_them(check):
    train = {"a": noise(6, 1), "b": noise(6, 2), "c": noise(6, 2)}
    found = check(train, {"x": noise(6, 2), "y": noise(6, 2)})
    # Each sample of train is named once by its bytes, and with each that sounds alike.
    by_bytes = [names for names in found.names() if names[2] == "bytes"]
    assert by_bytes == [("b.flac", "x.flac", "bytes"), ("c.flac", "x.flac", "bytes")]
    assert {names[:2] for names in found.names()} == {
        (name, other) for name in ("b.flac", "c.flac") for other in ("x.flac", "y.flac")
    }
    assert [pair["confidence"] for pair in found.pairs if pair["how"] == "bytes"] == [1.0, 1.0]


@pytest.mark.parametrize("seconds", [5, 12])
def test_what_long_recordings_share_is_found_with_its_offset(seconds, check):
    """A segment of a long recording; and twelve seconds that two of them share."""
    shared = noise(seconds, 1)
    train = np.concatenate([noise(33, 2), shared, noise(20, 3)])
    lead = 0 if seconds == 5 else 47
    test = np.concatenate([noise(lead, 4), shared, noise(lead, 5)])
    found = check({"a": train}, {"x": test})
    assert found.names() == [("a.flac", "x.flac", "sound")]
    assert found.pairs[0]["offset"] == pytest.approx(lead - 33, abs=0.02)


def test_validation_is_compared_with_train_and_with_test(check, tmp_path):
    clips = {name: noise(5, number) for number, name in enumerate("abc")}
    validation = folder(tmp_path / "validation", {"v": clips["a"], "w": clips["b"]})
    test = {"x": clips["b"][1600:], "y": clips["c"]}
    found = check({"a": clips["a"]}, test, "--validation", str(validation))
    rows = [
        (pair["sample"], pair["split"], pair["held_out"], pair["of_split"]) for pair in found.pairs
    ]
    assert rows == [
        ("w.flac", "validation", "x.flac", "test"),
        ("a.flac", "train", "v.flac", "validation"),
    ]


def picture(seed: int) -> Image.Image:
    """Coloured clouds."""
    coarse = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), np.uint8)
    return Image.fromarray(coarse).resize((160, 120), Image.Resampling.BICUBIC)


def test_the_same_picture_is_found_in_another_format_and_size(check, tmp_path):
    folder(tmp_path / "train", {})
    folder(tmp_path / "test", {})
    for number in range(5):
        picture(number).save(tmp_path / f"train/a{number}.png")
    picture(1).save(tmp_path / "test/v.bmp")
    picture(2).save(tmp_path / "test/w.jpg", quality=75)
    picture(3).resize((80, 60)).save(tmp_path / "test/x.jpg", quality=90)
    picture(0).save(tmp_path / "test/u.webp", lossless=True)
    picture(30).save(tmp_path / "test/y.png")
    dull = [120 + value // 25 for value in range(256)]
    pale = picture(5).point([*dull, *dull, *bytes(256)])  # no blue
    for path in ("train/a5.png", "test/zz.bmp"):
        pale.save(tmp_path / path)
    (tmp_path / "test/z.png").write_bytes((tmp_path / "train/a4.png").read_bytes())
    found = check(tmp_path / "train", tmp_path / "test")
    assert found.names() == [
        ("a0.png", "u.webp", "picture"),
        ("a1.png", "v.bmp", "picture"),
        ("a2.png", "w.jpg", "picture"),
        ("a3.png", "x.jpg", "picture"),
        ("a4.png", "z.png", "bytes"),
        ("a5.png", "zz.bmp", "picture"),
    ]
    confidences = [pair["confidence"] for pair in found.pairs]
    assert confidences[:2] == [1, 1] and confidences[4] == 1 and 0.99 < min(confidences[2:4]) < 1


def test_other_letters_on_the_same_plate_are_another_picture(check, tmp_path):
    for split, letters in (("train", "AB 1234 CD"), ("test", "XE 9807 KM")):
        plate = Image.new("RGB", (256, 64), "white")
        ImageDraw.Draw(plate).text((60, 25), letters, fill="black")
        (tmp_path / split).mkdir()
        plate.save(tmp_path / split / "plate.png")
    found = check(tmp_path / "train", tmp_path / "test")
    assert (found.code, found.pairs) == (0, []) and found.printed.endswith("no pairs\n")


def test_of_pictures_the_nearest_in_each_split_is_named(check, tmp_path):
    for split in ("train", "test", "validation"):
        (tmp_path / split).mkdir()
    picture(1).save(tmp_path / "train/a.png")
    for path in ("test/p.jpg", "validation/o.jpg"):
        picture(1).save(tmp_path / path, quality=50)
    for path in ("test/q.webp", "validation/r.webp"):
        picture(1).save(tmp_path / path, lossless=True)
    more = ["--validation", str(tmp_path / "validation")]
    found = check(tmp_path / "train", tmp_path / "test", *more)
    names = [pair["held_out"] for pair in found.pairs if pair["split"] == "train"]
    assert names == ["q.webp", "r.webp"]


def test_a_pair_has_the_offset_of_its_longest_stretch_and_the_mean_of_all():
    pair = Pair("a", "train", "x", "test", "sound")
    alike = np.zeros(0, int)
    stretches = [Match(0, 0, 1.0, 3.0, 0.2, alike), Match(0, 0, 5.0, 9.0, 0.1, alike)]
    measured = _measured(pair, stretches)
    assert (measured.offset, measured.confidence) == (5.0, pytest.approx(1 - 1.5 / 12))
    assert 11 < measured.seconds < 12  # stretches touch each other


def test_what_is_only_said_of_samples_is_compared_too(check, tmp_path):
    def row(text: str, seconds: float | str, recording: str | float | None = None) -> dict:
        # The first field that holds something counts.
        words = {"transcript": None, "text": text}
        return words | {"duration": seconds, "recording_id": recording}

    train = [row(TEXTS[0], 3.21), row(TEXTS[1], 4.0), row("yes", 1.0), row("", 2.0, 0)]
    train += [row("", 3.0, 0), row("", "unknown", "r2"), row("yes it is", 2.0)]
    # Half a number, or none, is no number of a recording.
    train += [row("yes it is so", 2.0), row("", 9.0, 1.5), row("no", 9.0, np.nan)]
    test = [row(TEXTS[0].upper(), 3.215), row(TEXTS[1], 4.02), row("yes", 1.0), row("", 5.0, 0.0)]
    test += [row("yes it is", 2.0), row("yes it is so", 2.0), row("", 7.0, 1)]
    test += [row("no", 7.0, np.nan)]
    # Who knows how long they last?
    train.append(row(TEXTS[2], "unknown"))
    test.append(row(TEXTS[2], "unknown"))
    found = check(lines(tmp_path / "a.jsonl", train), lines(tmp_path / "b.jsonl", test))
    # A recording is named once. Others may say yes for a second, or the same sentence faster.
    assert found.names() == [
        ("a.jsonl:1", "b.jsonl:1", "transcript and duration"),
        ("a.jsonl:4", "b.jsonl:4", "recording id"),
        ("a.jsonl:8", "b.jsonl:6", "transcript and duration"),
    ]
    assert found.pairs[0]["confidence"] is None and "confidence" not in found.printed


def test_each_of_three_held_out_splits_is_compared_with_each_other_one(tmp_path):
    """A recording is named once with each."""
    for split in ("train", "dev", "test", "other"):
        name = "r0" if split == "train" else "r1"
        row = {"text": split, "duration": 5.0, "recording_id": name}
        lines(tmp_path / split / "a.jsonl", [row])
    held_out = {split: [tmp_path / split] for split in ("dev", "test", "other")}
    pairs, _ = compare.compare([tmp_path / "train"], held_out, workers=1)
    found = {(pair.split, pair.of_split) for pair in pairs}
    assert found == {("dev", "test"), ("dev", "other"), ("test", "other")} and len(pairs) == 3


def test_a_segment_is_of_the_recording_that_its_row_names(check, tmp_path):
    for number, split in enumerate(("train", "test")):
        folder(tmp_path / split, {split: noise(6, number)})
        row = {"audio_filepath": f"{split}.flac", "offset": 1.0, "duration": 2.0}
        lines(tmp_path / split / "a.jsonl", [row | {"recording_id": "r1"}])
    found = check(tmp_path / "train/a.jsonl", tmp_path / "test/a.jsonl")
    assert found.names() == [("a.jsonl:1", "a.jsonl:1", "recording id")]


def test_segments_are_of_the_file_that_they_are_cut_from(check, tmp_path):
    """One whose duration is not known lasts to its end."""
    folder(tmp_path / "sound", {"all": np.concatenate([noise(5.5, 1), noise(6, 2)])})
    (tmp_path / "link.flac").symlink_to(tmp_path / "sound/all.flac")
    row = {"audio_filepath": "sound/all.flac", "offset": 5.5, "duration": np.nan}
    train = lines(tmp_path / "a.jsonl", [row])
    test = lines(
        tmp_path / "b.jsonl", [{"audio_filepath": "link.flac", "offset": 0, "duration": 6}]
    )
    assert check(train, test).names() == [("a.jsonl:1", "b.jsonl:1", "recording id")]
    found = check(train, {"x": noise(6, 2)})
    assert found.names() == [("a.jsonl:1", "x.flac", "sound")]
    assert found.pairs[0]["offset"] == pytest.approx(0, abs=0.02)


def test_sound_beside_a_table_that_holds_no_bytes_is_read(check, tmp_path):
    folder(tmp_path / "sound", {"a": noise(5, 1)})
    (tmp_path / "train").mkdir()
    audio = [{"bytes": None, "path": "../sound/a.flac"}]
    pq.write_table(pa.table({"audio": audio}), tmp_path / "train/a.parquet")
    found = check(tmp_path / "train", tmp_path / "sound")
    assert found.names() == [("a.parquet:1", "a.flac", "bytes")]


def test_endings_in_capitals_and_of_several_parts_are_read(check, tmp_path):
    sound = ("part.0/B.seg.FLAC", encoded(noise(5, 1), "FLAC"))
    path = write_tar(tmp_path / "train/A.TAR", [sound, ("part.0/B.TXT", TEXTS[0].encode())])
    (tmp_path / "test").mkdir()
    (tmp_path / "test/X.FLAC").write_bytes(encoded(noise(5, 1)[RATE:], "FLAC"))
    (path.parent / "NOTES.JSON").write_text("no lines")
    words = lines(tmp_path / "words.JSONL", [{"text": TEXTS[0], "duration": 5.0}])
    found = check(path.parent, tmp_path / "test", "--validation", str(words))
    assert found.names() == [
        ("A.TAR:part.0/B", "X.FLAC", "sound"),
        ("A.TAR:part.0/B", "words.JSONL:1", "transcript and duration"),
    ]


def test_a_pair_is_found_in_the_surest_way(check, tmp_path):
    sound = noise(5, 1)
    for split, form in (("train", "WAV"), ("test", "FLAC")):
        place = folder(tmp_path / split, {"a": sound}, form)
        words = {"text": TEXTS[0], "recording_id": "r1"}
        (place / "a.json").write_text(json.dumps(words))
    found = check(tmp_path / "train", tmp_path / "test")
    assert found.names() == [("a.wav", "a.flac", "sound")] and found.pairs[0]["confidence"] > 0.99


def test_the_words_of_tars_and_of_files_beside_sound_are_read(check, tmp_path):
    train = folder(tmp_path / "train", {"a": noise(5, 1)})
    (train / "a.txt").write_text(f"{TEXTS[1]}\n")
    # A file that is no JSON says nothing, and one without a transcript leaves the text.
    (train / "a.json").write_text("{")
    (train / "c.txt").write_text(TEXTS[2])
    (train / "c.json").write_text('{"id": 3}')
    (train / "c.flac").write_bytes(encoded(noise(4, 3), "FLAC"))
    members = []
    for name, text, seconds in (("words", TEXTS[1], 5.0), ("more", TEXTS[2], 4.0)):
        words = {"transcript": text, "duration": seconds}
        members.append((f"only/{name}.json", json.dumps(words).encode()))
    write_tar(tmp_path / "test/b.tar", members)
    found = check(train, tmp_path / "test")
    assert found.names() == [
        ("c.flac", "b.tar:only/more", "transcript and duration"),
        ("a.flac", "b.tar:only/words", "transcript and duration"),
    ]


@pytest.mark.parametrize("kind", [folder, tar], ids=lambda kind: kind.__name__)
def test_files_of_a_folder_that_are_not_read_are_said(kind, tmp_path, capsys):
    for split in ("train", "test"):
        kind(tmp_path / split, {"a": noise(1, 1)})
    (tmp_path / "train/notes.csv").write_text("a")
    (tmp_path / "train/b.zip").write_text("a")
    (tmp_path / "train/info.json").write_text("[")
    (tmp_path / "train/.hidden.flac").write_text("a")
    argv = ["--train", str(tmp_path / "train"), "--test", str(tmp_path / "test")]
    assert check_splits.main([*argv, "--workers", "1"]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}/train: 3 files are not read, such as b.zip" in said and "/test:" not in said


def test_a_sample_that_cannot_be_read_is_counted_with_its_reason(check, tmp_path):
    train = folder(tmp_path / "train", {"a": noise(5, 1), "b": noise(5, 2)})
    (train / "c.wav").write_bytes(b"no sound")
    (train / "d.png").write_bytes(b"\x89PNG and no more")
    whole = (train / "b.flac").read_bytes()
    (train / "b.flac").write_bytes(whole[: len(whole) // 2])
    (train / "e.wav").write_bytes(encoded(np.zeros(0), "WAV"))
    rows = [{"audio_filepath": name, "text": "a"} for name in ("nowhere.wav", "train")]
    outside = [(-1, 3), (5, 2), (np.nan, 1), (1, 0), (np.inf, None)]
    for offset, seconds in outside:
        row = {"audio_filepath": "train/a.flac", "offset": offset, "duration": seconds}
        rows.append(row)
    found = check(train, lines(tmp_path / "b.jsonl", rows))
    assert found.code == 0 and found.samples == {"train": 5, "test": 7}
    assert found.not_read == {
        "train": {"damaged": 1, "not_audio": 1, "damaged_picture": 1, "no_samples": 1},
        "test": {"cannot_be_opened": 2, "outside_of_file": 5},
    }
    assert "train: 5 samples, 4 of them not read" in found.printed
    assert "such as d.png (cannot identify image file)" in found.printed
    assert "2 x cannot_be_opened, such as b.jsonl:1 (No such file or directory)" in found.printed


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("nothing", None, "nothing: is not there. Give a folder of"),
        ("a.zip", b"PK", "a.zip: files that end in .zip are not read"),
        ("a.tar", b"x" * 600, "a.tar: cannot be read as a plain tar"),
        ("a.parquet", b"x" * 600, "a.parquet: cannot be read as parquet"),
        ("a.jsonl", b"{}x\n", "a.jsonl: line 1 is not JSON"),
        ("a.json", b"[1]\n", "a.json: line 1 is not a JSON object"),
        ("a.jsonl", b'{"id": 3}\n', "a.jsonl: row 1 has no audio, no"),
        ("empty/.hidden.wav", b"", "empty: no sample is there"),
    ],
)
def test_what_is_no_split_is_refused_by_name(name, content, words, tmp_path, capsys):
    path = tmp_path / name
    if content is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    train = tmp_path / Path(name).parts[0]
    test = folder(tmp_path / "test", {"x": noise(1, 1)})
    argv = ["--train", str(train), "--test", str(test), "--workers", "1"]
    assert check_splits.main(argv) == 2
    assert words in capsys.readouterr().err


def test_a_split_to_compare_with_must_be_given(capsys):
    with pytest.raises(SystemExit) as end:
        check_splits.main(["--train", "a"])
    assert end.value.code == 2 and "give --test or --validation" in capsys.readouterr().err


def test_without_numpy_the_command_says_what_to_install():
    argv = [
        sys.executable,
        "-S",
        "-m",
        "millrace.audit.check_splits",
        "--train",
        "a",
        "--test",
        "b",
    ]
    environment = {"PYTHONPATH": f"{ROOT}/scripts"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith(
        "millrace.audit.check_splits: numpy is not installed. pip install 'millrace[splits]'\n"
    )


def test_rows_beyond_those_asked_for_and_samples_of_all_reasons_are_counted():
    pairs = [Pair(f"a{number}", "train", "x", "test", "bytes") for number in range(3)]
    compared = Compared()
    problems = ("empty", "empty", "damaged", "")
    contents = [Content(Sample("a", None), problem=problem) for problem in problems]
    assert list(compared.counted("train", contents)) == contents
    text = table.text(pairs, compared, 2)
    assert "... and 1 more: --json has all" in text and "more" not in table.text(pairs, compared, 3)
    assert "train: 4 samples, 3 of them not read" in text


def test_a_process_that_is_killed_is_said_with_what_to_do(monkeypatch):
    class Killed(futures.ThreadPoolExecutor):
        def submit(self, *_: object) -> futures.Future:
            killed: futures.Future = futures.Future()
            killed.set_exception(futures.process.BrokenProcessPool())
            return killed

    monkeypatch.setattr(content, "ProcessPoolExecutor", lambda workers, _: Killed(workers))
    with refused(r"that decodes was killed\. .* take fewer --workers"):
        list(content.contents([Sample("a", None)], 1, workers=2))


def test_several_processes_find_what_one_finds(check, tmp_path):
    clips = {f"{number:02d}": noise(2, number) for number in range(40)}
    train = folder(tmp_path / "train", clips, "WAV")
    test = folder(tmp_path / "test", {"x": clips["03"][800:], "y": clips["37"][800:]})
    one = check(train, test)
    assert one.names() == [("03.wav", "x.flac", "sound"), ("37.wav", "y.flac", "sound")]
    assert check(train, test, "--workers", "2").pairs == one.pairs


def test_train_is_compared_in_parts_without_a_gap():
    """Drawn fingerprints of 40 recordings of half an hour each."""
    rng = np.random.default_rng(0)
    count = round(1800 / STEP_SECONDS)
    tracks = [rng.integers(1, 2**32, count, np.uint32) for _ in range(40)]
    # Of each, a minute is held out.
    begins = [5_000 + 100 * number for number in range(40)]
    held_out = [
        Held(
            "test", Content(Sample(f"x{number}", None), words=tracks[number][begin : begin + 7_500])
        )
        for number, begin in enumerate(begins)
    ]
    train = (
        Content(Sample(f"a{number}", None), words=track[::SEARCHED_STEPS])
        for number, track in enumerate(tracks)
    )
    pairs = list(Comparison(held_out).pairs("train", train))
    assert [(pair.sample, pair.held_out) for pair in pairs] == [
        (f"a{number}", f"x{number}") for number in range(40)
    ]
    for pair, begin in zip(pairs, begins, strict=True):
        assert pair.offset == pytest.approx(-begin * STEP_SECONDS, abs=0.05)
        # Ends of less than a second, where both are cut elsewhere, are not counted.
        assert 53 <= pair.seconds <= 60.5
