"""The demo corpus as a whole: what is on disk agrees with itself, and stays as it is when the step runs
again."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import jiwer
import numpy as np
import pytest

from millrace.speech import fetch_corpus
from millrace.speech.demo.prompts import LANGUAGES, SAMPLING_RATE, normal

FOLDERS = {
    "mp4_converted",
    "youtube_converted",
    "m3u8_streams",
    "generic_video",
    "mp3_audio",
    "processed_video",
}
RECORDED = (
    "--source",
    "debian",
    "--languages",
    "es",
    "ru",
)  # the list with the most defects, and another alphabet


class Corpus:
    """A corpus on disk, read without any code of the lane."""

    def __init__(self, root: Path) -> None:
        self.root, self.countries, self.index_path = root, root / "countries", root / "corpus.json"
        self.index = json.loads(self.index_path.read_text())

    def alignments(self) -> list[tuple[Path, dict]]:
        return [
            (path, json.loads(path.read_text()))
            for path in sorted(self.countries.glob("*/Alignment/*/*.json"))
        ]

    def audio(self, alignment: dict) -> Path:
        return self.root / alignment["audio_file"]

    def mtimes(self) -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in self.root.rglob("*") if path.is_file()}


def _fetch(root: Path, *options: str) -> Corpus:
    arguments = ["--countries-root", str(root / "countries"), "--index", str(root / "corpus.json"), *options]
    assert fetch_corpus.main(arguments) == 0
    return Corpus(root)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return _fetch(tmp_path_factory.mktemp("synthesised"), "--source", "synthesis", "--languages", "it")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Real speech; needs apt and the network where the clone has not fetched it yet."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        if os.environ.get("MILLRACE_CI"):
            pytest.fail("no apt-get and dpkg, although MILLRACE_CI is set")
        pytest.skip("no apt-get and dpkg on this machine")
    root = tmp_path_factory.mktemp("recorded")
    kept = Path(__file__).parents[2] / "resources/speech/debian"
    if kept.is_dir():
        (root / "debian").symlink_to(kept)
    arguments = ["--countries-root", str(root / "countries"), "--index", str(root / "corpus.json"), *RECORDED]
    if fetch_corpus.main(arguments):
        if os.environ.get("MILLRACE_CI"):
            pytest.fail("the packages could not be fetched, although MILLRACE_CI is set")
        pytest.skip("the packages could not be fetched")
    return Corpus(root)


def _decode(path: Path) -> np.ndarray:
    """Mono floats at 16 kHz, by PyAV or soundfile."""
    if path.suffix in (".wav", ".flac"):
        import soundfile

        samples, rate = soundfile.read(path, dtype="float32")
    else:
        import av

        with av.open(str(path)) as container:
            frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
            rate = container.streams.audio[0].rate
        samples = np.concatenate(frames, axis=1)[0].astype(np.float32)
        samples /= 32768.0 if frames[0].dtype == np.int16 else 1.0
    if rate != SAMPLING_RATE:
        import soxr

        samples = soxr.resample(samples, rate, SAMPLING_RATE)
    return samples


def _spans(alignment: dict) -> list[tuple[float, float, str, str, float | None]]:
    return [
        (
            row["start"] if "start" in row else row["start_seconds"],
            row["end"] if "end" in row else row["end_seconds"],
            row["human_text"] if "human_text" in row else row["human_transcript"],
            row["asr_text"] if "asr_text" in row else row["asr_transcript"],
            row.get("cer"),
        )
        for row in alignment["segments"]
    ]


def _check_layout(corpus: Corpus, languages: list[str]) -> None:
    assert sorted(path.name for path in corpus.countries.iterdir()) == sorted(
        LANGUAGES[name] for name in languages
    )
    spellings, formats, scored = set(), {}, set()
    for path, alignment in corpus.alignments():
        audio = corpus.audio(alignment)
        country = path.relative_to(corpus.countries).parts[0]
        assert audio.is_file()
        assert audio.parent.parent == corpus.countries / country / "downloaded_audio"
        assert audio.parent.name in FOLDERS
        assert path.name.startswith(f"{audio.stem}_") and path.name.endswith("_aligned.json")
        formats.setdefault(country, []).append(audio.suffix[1:])
        spellings |= {frozenset(row) - {"cer"} for row in alignment["segments"]}
        scored |= {"cer" in row for row in alignment["segments"]}
    assert spellings == {
        frozenset({"start", "end", "asr_text", "human_text", "start_idx", "end_idx"}),
        frozenset(
            {"start_seconds", "end_seconds", "asr_transcript", "human_transcript", "start_idx", "end_idx"}
        ),
    }
    assert scored == {True, False}
    for country, suffixes in formats.items():
        assert len(suffixes) >= 4 and {"opus", "m4a", "mp3"} < set(suffixes), country
        assert set(suffixes) & {"flac", "wav"}, country
    every = [suffix for suffixes in formats.values() for suffix in suffixes]
    lossless = [suffix for suffix in every if suffix in ("flac", "wav")]
    assert 0.1 <= len(lossless) / len(every) <= 0.4


def _check_audio(corpus: Corpus) -> None:
    """Durations, and that speech lies in the segments and nowhere else."""
    for _, alignment in corpus.alignments():
        path = corpus.audio(alignment)
        samples = _decode(path)
        assert 3 * 60 <= len(samples) / SAMPLING_RATE <= 15 * 60, path
        lossless = path.suffix in (".wav", ".flac")
        # A lossy encoder smears a transient by less than 10 ms; an alignment that is off by more would be
        # heard here.
        margin = 0 if lossless else SAMPLING_RATE // 100
        outside = np.ones(len(samples), bool)
        last_end = 0.0
        for start, end, *_ in _spans(alignment):
            assert last_end < start < end <= len(samples) / SAMPLING_RATE, path
            first, last = start * SAMPLING_RATE, end * SAMPLING_RATE
            assert max(abs(first - round(first)), abs(last - round(last))) < 1e-6, path  # whole samples
            outside[max(0, round(first) - margin) : round(last) + margin] = False
            assert np.abs(samples[round(first) : round(last)]).max() > 0.02, (path, start)
            last_end = end
        quiet = np.abs(samples[outside])
        assert len(quiet) > SAMPLING_RATE * len(alignment["segments"]) / 4
        if lossless:
            assert not quiet.any(), path
        else:
            assert np.sqrt(np.mean(quiet**2)) < 1e-3, path


def _check_texts(corpus: Corpus) -> None:
    rates = []
    for _, alignment in corpus.alignments():
        for _, _, human, heard, cer in _spans(alignment):
            assert human and human == " ".join(human.split()) and heard
            truth = jiwer.cer(human, heard)
            assert cer is None or cer == truth
            rates.append(truth)
    rates = np.array(rates)
    assert (rates == 0).mean() > 0.05
    assert (rates <= 0.15).mean() > 0.8
    assert 0 < (rates > 0.3).mean() < 0.15


def _check_durations(corpus: Corpus) -> None:
    seconds = np.array(
        [span[1] - span[0] for _, alignment in corpus.alignments() for span in _spans(alignment)]
    )
    assert ((seconds >= 3) & (seconds <= 12.01)).mean() > 0.7
    assert 0 < (seconds < 3).mean() < 0.2
    assert 0 < (seconds > 20).mean() < 0.1


def _check_index(corpus: Corpus) -> None:
    index = corpus.index
    found = {
        str(path.relative_to(corpus.countries)): path
        for path in corpus.countries.rglob("*")
        if path.is_file()
    }
    assert set(index["files"]) == set(found)
    for name, path in found.items():
        raw = path.read_bytes()
        assert index["files"][name] == {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    for country, summary in index["countries"].items():
        alignments = [value for path, value in corpus.alignments() if f"/{country}/" in str(path)]
        assert summary["recordings"] == len(alignments)
        assert summary["segments"] == sum(len(value["segments"]) for value in alignments)
        ends = sum(_spans(value)[-1][1] for value in alignments) / 3600
        assert summary["hours"] == pytest.approx(ends, rel=0.01)
    assert index["hours"] == pytest.approx(sum(summary["hours"] for summary in index["countries"].values()))
    assert all(re.match(r"\d", version) for version in index["packages"].values())


def test_layout(corpus: Corpus) -> None:
    _check_layout(corpus, ["it"])


def test_alignments_are_exact(corpus: Corpus) -> None:
    _check_audio(corpus)


def test_texts_and_error_rates(corpus: Corpus) -> None:
    _check_texts(corpus)


def test_duration_limits_have_something_to_reject(corpus: Corpus) -> None:
    _check_durations(corpus)


def test_index_describes_what_is_there(corpus: Corpus) -> None:
    _check_index(corpus)
    assert corpus.index["source"] == "synthesised"
    assert "espeakng-loader" in corpus.index["packages"]


def test_no_sentence_in_two_recordings(corpus: Corpus) -> None:
    # Synthesised prompts are sentences: every full stop ends one.
    seen: dict[str, str] = {}
    for _, alignment in corpus.alignments():
        for _, _, human, _, _ in _spans(alignment):
            for sentence in human.split(". "):
                assert (
                    seen.setdefault(normal(sentence), alignment["audio_file"]) == alignment["audio_file"]
                ), sentence
                assert sentence
    assert len(seen) == corpus.index["countries"]["italy"]["prompts"]


def test_second_run_mends_and_keeps(corpus: Corpus) -> None:
    """A repeated run writes nothing but what is damaged or missing, also without the index (Snakemake removes
    it)."""
    index = corpus.index_path.read_bytes()
    before = corpus.mtimes()
    paths = sorted(corpus.countries.rglob("*.opus"))
    damaged, missing = paths[0], sorted(corpus.countries.rglob("*_aligned.json"))[1]
    content = {path: path.read_bytes() for path in (damaged, missing)}
    damaged.write_bytes(content[damaged][:-1] + b"\0")
    missing.unlink()
    stray = damaged.with_name("of_the_user.opus")
    stray.write_bytes(b"mine")
    obsolete = damaged.with_name("demo_it_99.opus")
    obsolete.write_bytes(b"of an earlier, larger corpus")
    listed = corpus.root / ".corpus_files.json"
    names = json.loads(listed.read_text())
    listed.write_text(json.dumps([*names, str(obsolete.relative_to(corpus.countries))]))
    corpus.index_path.unlink()
    try:
        again = _fetch(corpus.root, "--source", "synthesis", "--languages", "it", "--threads", "1")
        assert again.index_path.read_bytes() == index
        assert stray.read_bytes() == b"mine"
        assert not obsolete.exists()
        assert json.loads(listed.read_text()) == names
        assert {path: path.read_bytes() for path in content} == content
    finally:
        stray.unlink()
    after = corpus.mtimes()
    renewed = {str(damaged), str(missing), str(corpus.index_path), str(listed)}
    assert {name for name in before if after.get(name) != before[name]} == renewed
    assert set(after) == set(before)


def test_without_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No apt-get on the path: `debian` is an error that says what to do; nothing is written."""
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = [
        "--countries-root",
        str(tmp_path / "c"),
        "--index",
        str(tmp_path / "corpus.json"),
        "--languages",
        "it",
    ]
    assert fetch_corpus.main([*arguments, "--source", "debian"]) == 1
    message = capfd.readouterr().err
    assert "apt-get is not on this machine" in message and "--source synthesis" in message
    assert "Traceback" not in message
    assert not (tmp_path / "corpus.json").exists()


@pytest.mark.debian
def test_recorded_corpus(recorded: Corpus) -> None:
    _check_layout(recorded, ["es", "ru"])
    _check_texts(recorded)
    _check_durations(recorded)
    _check_index(recorded)
    assert recorded.index["source"] == "debian"
    assert set(recorded.index["packages"]) == {
        f"asterisk-core-sounds-{language}{kind}" for language in ("es", "ru") for kind in ("", "-g722")
    }
    assert recorded.index["hours"] > 0.6


@pytest.mark.debian
def test_recorded_alignments_are_exact(recorded: Corpus) -> None:
    _check_audio(recorded)


@pytest.mark.debian
def test_no_recorded_audio_in_two_recordings(recorded: Corpus) -> None:
    """Each segment of a lossless recording is looked for nowhere else: prompts are cut out and compared by
    bytes."""
    import soundfile

    seen: dict[bytes, Path] = {}
    pieces = 0
    for _, alignment in recorded.alignments():
        path = recorded.audio(alignment)
        if path.suffix not in (".wav", ".flac"):
            continue
        samples, _ = soundfile.read(path, dtype="int16")
        for start, end, *_ in _spans(alignment):
            utterance = samples[round(start * SAMPLING_RATE) : round(end * SAMPLING_RATE)]
            loud = np.flatnonzero(utterance)
            for piece in np.split(utterance, loud[1:][np.diff(loud) > 2000]):
                mark = hashlib.sha256(np.trim_zeros(piece).tobytes()).digest()
                assert seen.setdefault(mark, path) == path
                pieces += 1
    assert pieces > 100


@pytest.mark.debian
def test_second_recorded_run_needs_no_network(
    recorded: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the archives kept, no program is needed at all; every file keeps its mtime."""
    monkeypatch.setenv("PATH", str(tmp_path))
    before, index = recorded.mtimes(), recorded.index_path.read_bytes()
    again = _fetch(recorded.root, *RECORDED)
    assert again.index_path.read_bytes() == index
    assert again.mtimes() == before
