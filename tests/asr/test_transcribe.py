"""Files of audio become text: cut at pauses, batched, in any container, by a model of any kind."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from millrace.asr import transcribe
from millrace.asr.models import registry
from millrace.asr.transcription.transcriber import Transcriber, pieces
from millrace.common import jsonl
from tests.asr import audio_tars
from tests.asr.models import tiny
from tests.refusals import refused

RATE = 16_000
TEXTS = ["guten tag", "auf wiedersehen"]


def speech(*parts: tuple[float, float]) -> np.ndarray:
    """Noise of so many seconds each, then so many of silence."""
    rng, audio = np.random.default_rng(0), []
    for noise, silence in parts:
        audio += [rng.uniform(-0.5, 0.5, int(noise * RATE)), np.zeros(int(silence * RATE))]
    return np.concatenate(audio).astype(np.float32)


@pytest.mark.parametrize(
    "parts, ends",
    [
        ([(3, 0)], [3]),
        ([(3, 1), (3, 1), (3, 0)], [3.5, 7.5, 11]),  # the last pause within five seconds
        ([(2, 1), (1, 1), (3, 0)], [4.5, 8]),
        ([(12, 0)], [5, 10, 12]),  # without a pause where it is full
        ([(0, 12)], [5, 6, 11, 12]),
    ],
)
def test_a_long_recording_is_cut_in_the_middle_of_pauses(parts, ends):
    audio = speech(*parts)
    cut = pieces(audio, RATE, 5.0)
    assert [first for first, _ in cut] == [0, *(end for _, end in cut[:-1])]
    assert cut[-1][1] == len(audio)
    assert max(end - first for first, end in cut) <= 5 * RATE
    assert [end / RATE for _, end in cut] == pytest.approx(ends, abs=0.03)


def test_a_pause_may_hold_the_noise_of_a_room():
    audio = speech((3, 1), (3, 0))
    audio += np.random.default_rng(1).uniform(-0.005, 0.005, len(audio)).astype(np.float32)
    assert [end / RATE for _, end in pieces(audio, RATE, 5.0)] == pytest.approx([3.5, 7], abs=0.03)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A CTC model that writes something."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    registry.build("ctc", {"hidden": 8, "channels": 2}, TEXTS).save_pretrained(folder)
    return folder


def write(path: Path, audio: np.ndarray, **form: object) -> str:
    path.write_bytes(audio_tars.encoded(audio, **form))
    return str(path)


def test_a_file_alone_and_among_others_has_the_text_of_its_pieces(model, tmp_path):
    long, short = speech((2, 1), (1.5, 1), (3, 0)), speech((1, 0))
    files = [write(tmp_path / "a.flac", long), write(tmp_path / "b.wav", short, container="WAV")]
    files.append(write(tmp_path / "c.mp3", short, container="MP3"))
    transcriber = Transcriber(model, max_seconds=4.0, batch_seconds=5.0)
    together = list(transcriber.transcripts(files))
    assert [one.file for one in together] == files
    assert together == [transcriber(file) for file in files]
    assert [end for _, end, _ in together[0].pieces] == [2.5, 5.0, 8.5]
    assert [begin for begin, _, _ in together[0].pieces] == [0, 2.5, 5.0]
    assert together[0].text == " ".join(text for *_, text in together[0].pieces if text) != ""
    # A piece is what the model writes for that audio alone.
    part = write(tmp_path / "part.wav", long[: int(2.5 * RATE)], container="WAV", subtype="FLOAT")
    assert transcriber(part).text == together[0].pieces[0][2]


def test_batches_are_bounded_and_files_are_read_when_their_batch_is_near(
    model, tmp_path, monkeypatch
):
    clips = [write(tmp_path / f"{s}.flac", speech((s, 0))) for s in (1, 2)]
    transcriber = Transcriber(model, batch_seconds=4.0)
    recognise = transcriber.model.recognise
    read, batches = [], []

    def noted(batch, language):
        batches.append((len(batch), batch["audio"].shape[1] // RATE))
        return recognise(batch, language)

    def files():
        for number in range(12):
            read.append(number)
            yield clips[number % 2]

    monkeypatch.setattr(transcriber.model, "recognise", noted)
    transcripts = transcriber.transcripts(files())
    next(transcripts)
    assert len(read) == 11  # 16 s, four batches
    assert len(list(transcripts)) == 11
    assert batches == [(2, 2), (2, 2), (2, 2), (4, 1), (1, 1), (1, 2)]


def test_the_language_is_that_of_the_longest_text_and_a_short_file_is_a_piece(
    model, tmp_path, monkeypatch
):
    said = [("fr", "hm"), ("de", "ein langer satz"), ("fr", "")]
    transcriber = Transcriber(model, max_seconds=4.0)
    heard = []

    def noted(batch, _):
        heard.append((batch["lengths"] / RATE).tolist())
        return said[: len(batch)]

    monkeypatch.setattr(transcriber.model, "recognise", noted)
    transcript = transcriber(write(tmp_path / "a.flac", speech((3, 1), (2, 1), (3, 0))))
    assert heard == [pytest.approx([3.5, 3.5, 3], abs=0.03)]  # padding is no sound
    assert transcript.language == "de" and sorted(transcript.text) == sorted("hm ein langer satz")
    # But an end that is as short holds no word.
    assert len(transcriber(write(tmp_path / "c.flac", speech((4.05, 0)))).pieces) == 1
    short = transcriber(write(tmp_path / "b.flac", speech((0.05, 0))))
    assert short.pieces == [(0.0, 0.05, "hm")]


def test_the_step_writes_a_line_for_each_file_and_says_which_have_none(
    model, tmp_path, capsys, monkeypatch
):
    good, bad = write(tmp_path / "a.flac", speech((1, 0))), tmp_path / "b.txt"
    bad.write_text("no audio")
    missing, output = tmp_path / "c.flac", tmp_path / "x.jsonl"
    output.touch()  # as mktemp does
    arguments = [f"--model={model}", good, str(bad), str(missing)]
    assert transcribe.main([*arguments, f"--output={output}", "--language=de"]) == 1
    lines = jsonl.whole_lines(output)
    assert [bool(line["error"]) for line in lines] == [False, True, True]
    assert lines[2]["error"] == "No such file or directory" and lines[0]["language"] == "de"
    assert transcribe.main(arguments) == 1  # without a language too
    printed = capsys.readouterr()
    assert printed.out == f"{good}\t{lines[0]['text']}\n"
    assert f"{missing}: No such file or directory" in printed.err
    # What the shell makes of `--output *.flac`: a recording is not written over; nor is a name
    # lost.
    before = Path(good).read_bytes()
    assert transcribe.main([arguments[0], str(missing), "--output", good]) == 1
    assert Path(good).read_bytes() == before
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.flac")
    Path(odd).write_bytes(before)
    for place in (output, tmp_path / "new.jsonl"):
        assert transcribe.main([arguments[0], odd, f"--output={place}"]) == 0
        assert jsonl.read(place)["file"].endswith(r"odd\udcff.flac")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert transcribe.main([*arguments[:2], "--device=cuda"]) == 1


@pytest.mark.parametrize(
    "options, files, words",
    [
        ({}, "speech.wav", r"files is 'speech.wav'\. Give a list"),
        ({"batch_seconds": 0}, [], r"batch_seconds is 0\. Give a number above 0"),
        ({"max_seconds": "20"}, [], r"max_seconds is '20'\. Give a number above 0"),
        ({"max_seconds": 0.5}, [], "pieces of 0.5 s hold no words"),
        ({"device": "gpu"}, [], r"device is 'gpu', and there is no GPU here\. Give auto or cpu"),
    ],
)
def test_what_cannot_be_transcribed_with_is_refused(model, monkeypatch, options, files, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(words):
        list(Transcriber(model, **options).transcripts(files))


def test_pieces_are_no_longer_than_the_model_hears(tmp_path):
    whisper = tiny.write(tmp_path, "whisper", TEXTS)
    assert Transcriber(whisper).max_seconds == 8.0


def test_qwen_is_told_the_language_or_finds_it(tmp_path):
    from millrace.asr.models.qwen.prepare import language_of, tag

    torch.manual_seed(0)
    qwen = registry.build("qwen3-asr-tiny", {"tokens_per_second": 1.0}, TEXTS)
    qwen.save_pretrained(tmp_path / "model")
    file = write(tmp_path / "a.flac", speech((1, 0)))
    free, told = (Transcriber(tmp_path / "model", language=name)(file) for name in ("", "de"))
    assert told.language == "de" and free.seconds == told.seconds == 1.0
    with refused("no language 'xx'"):
        Transcriber(tmp_path / "model", language="xx")(file)
    answers = (tag("de") + "gut", tag(None) + "gut", "gut")
    assert [language_of(text) for text in answers] == ["German", "", ""]


def test_the_snippet_of_the_docs_loads_a_trained_model(model, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs/asr.md").read_text()
    code = page.partition("## A trained model")[2].partition("```python\n")[2].partition("```")[0]
    assert len(code.split("\n\n")[-1].splitlines()) <= 3
    (tmp_path / "results/asr/runs/demo").mkdir(parents=True)
    (tmp_path / "results/asr/runs/demo/model").symlink_to(model)
    file = write(tmp_path / "speech.wav", speech((1, 0)), container="WAV")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out == Transcriber(model)(file).text + "\n"
