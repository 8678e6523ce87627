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
    "mp4_converted", "youtube_converted", "m3u8_streams", "generic_video", "mp3_audio", "processed_video",
}  # fmt: skip
# The list with the most defects, and another alphabet.
RECORDED = ("--source", "debian", "--languages", "es", "ru")
SYNTHESISED = ("--source", "synthesis", "--languages", "it")


class Corpus:
    """A corpus on disk, read without any code of the lane."""

    def __init__(self, root: Path) -> None:
        self.root, self.countries, self.index_path = root, root / "countries", root / "corpus.json"
        self.index = json.loads(self.index_path.read_text())

    def alignments(self) -> list[tuple[Path, dict]]:
        paths = sorted(self.countries.glob("*/Alignment/*/*.json"))
        return [(path, json.loads(path.read_text())) for path in paths]

    def audio(self, alignment: dict) -> Path:
        return self.root / alignment["audio_file"]

    def mtimes(self) -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in self.root.rglob("*") if path.is_file()}


def _arguments(root: Path, *options: str) -> list[str]:
    return ["--countries-root", str(root / "countries"), "--index", str(root / "corpus.json"), *options]


def _fetch(root: Path, *options: str) -> Corpus:
    assert fetch_corpus.main(_arguments(root, *options)) == 0
    return Corpus(root)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return _fetch(tmp_path_factory.mktemp("synthesised"), *SYNTHESISED)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Real speech; needs apt and the network if the clone has not fetched it yet."""
    missing = pytest.fail if os.environ.get("MILLRACE_CI") else pytest.skip
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        missing("no apt-get and dpkg on this machine")
    root = tmp_path_factory.mktemp("recorded")
    archives = Path(__file__).parents[2] / "resources/speech/debian"
    if archives.is_dir():
        (root / "debian").symlink_to(archives)
    if fetch_corpus.main(_arguments(root, *RECORDED)):
        missing("the packages could not be fetched")
    return Corpus(root)


def _decode(path: Path) -> np.ndarray:
    """Mono floats at 16 kHz, by PyAV or soundfile."""
    import av
    import soundfile
    import soxr

    if path.suffix in (".wav", ".flac"):
        samples, rate = soundfile.read(path, dtype="float32")
    else:
        with av.open(str(path)) as container:
            frames = [frame.to_ndarray() for frame in container.decode(audio=0)]
            rate = container.streams.audio[0].rate
        samples = np.concatenate(frames, axis=1)[0].astype(np.float32)
        samples /= 32768.0 if frames[0].dtype == np.int16 else 1.0
    return samples if rate == SAMPLING_RATE else soxr.resample(samples, rate, SAMPLING_RATE)


def _spans(alignment: dict) -> list[tuple[float, float, str, str, float | None]]:
    """(start, end, human text, ASR text, CER) of each segment, whichever names it uses."""
    long = "start_seconds" in alignment["segments"][0]
    names = LONG_NAMES if long else SHORT_NAMES
    return [(*(row[name] for name in names), row.get("cer")) for row in alignment["segments"]]


SHORT_NAMES = ("start", "end", "human_text", "asr_text")
LONG_NAMES = ("start_seconds", "end_seconds", "human_transcript", "asr_transcript")


def _check_layout(corpus: Corpus, languages: list[str]) -> None:
    assert {path.name for path in corpus.countries.iterdir()} == {LANGUAGES[name] for name in languages}
    spellings, formats, scored = set(), {}, set()
    for path, alignment in corpus.alignments():
        audio = corpus.audio(alignment)
        country = path.relative_to(corpus.countries).parts[0]
        assert audio.is_file() and audio.parent.name in FOLDERS
        assert audio.parent.parent == corpus.countries / country / "downloaded_audio"
        assert path.name.startswith(f"{audio.stem}_") and path.name.endswith("_aligned.json")
        formats.setdefault(country, []).append(audio.suffix[1:])
        spellings |= {frozenset(row) - {"cer", "start_idx", "end_idx"} for row in alignment["segments"]}
        scored |= {"cer" in row for row in alignment["segments"]}
    assert spellings == {frozenset(SHORT_NAMES), frozenset(LONG_NAMES)} and scored == {True, False}
    for country, suffixes in formats.items():
        assert len(suffixes) >= 4 and {"opus", "m4a", "mp3"} < set(suffixes), country
        assert set(suffixes) & {"flac", "wav"}, country
    every = [suffix for suffixes in formats.values() for suffix in suffixes]
    assert 0.1 <= sum(suffix in ("flac", "wav") for suffix in every) / len(every) <= 0.4


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
            first, last = round(start * SAMPLING_RATE), round(end * SAMPLING_RATE)
            assert (start, end) == (first / SAMPLING_RATE, last / SAMPLING_RATE), path
            outside[max(0, first - margin) : last + margin] = False
            assert np.abs(samples[first:last]).max() > 0.02, (path, start)
            last_end = end
        quiet = np.abs(samples[outside])
        assert len(quiet) > SAMPLING_RATE * len(alignment["segments"]) / 4
        if lossless:
            assert not quiet.any(), path
        else:
            assert np.sqrt(np.mean(quiet**2)) < 1e-3, path


def _check_texts(corpus: Corpus) -> None:
    spans = [span for _, alignment in corpus.alignments() for span in _spans(alignment)]
    rates = []
    for start, end, human, heard, cer in spans:
        assert human and human == " ".join(human.split()) and heard and end > start
        rates.append(jiwer.cer(human, heard))
        assert cer is None or cer == rates[-1]
    rates = np.array(rates)
    assert (rates == 0).mean() > 0.05 and (rates <= 0.15).mean() > 0.8 and 0 < (rates > 0.3).mean() < 0.15


def _check_durations(corpus: Corpus) -> None:
    """The limits on durations have something to reject."""
    spans = [span for _, alignment in corpus.alignments() for span in _spans(alignment)]
    seconds = np.array([end - start for start, end, *_ in spans])
    assert ((seconds >= 3) & (seconds <= 12.01)).mean() > 0.7
    assert 0 < (seconds < 3).mean() < 0.2 and 0 < (seconds > 20).mean() < 0.1


def _check_index(corpus: Corpus) -> None:
    index = corpus.index
    contents = {
        str(path.relative_to(corpus.countries)): path.read_bytes()
        for path in corpus.countries.rglob("*")
        if path.is_file()
    }
    assert index["files"] == {
        name: {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()} for name, raw in contents.items()
    }
    for country, summary in index["countries"].items():
        alignments = [value for path, value in corpus.alignments() if f"/{country}/" in str(path)]
        assert summary["recordings"] == len(alignments)
        assert summary["segments"] == sum(len(value["segments"]) for value in alignments)
        ends = sum(_spans(value)[-1][1] for value in alignments) / 3600
        assert summary["hours"] == pytest.approx(ends, rel=0.01)
    assert index["hours"] == pytest.approx(sum(summary["hours"] for summary in index["countries"].values()))
    assert all(re.match(r"\d", version) for version in index["packages"].values())


def test_the_synthesised_corpus_is_as_described(corpus: Corpus) -> None:
    _check_layout(corpus, ["it"])
    _check_texts(corpus)
    _check_durations(corpus)
    _check_index(corpus)
    assert corpus.index["source"] == "synthesised" and "espeakng-loader" in corpus.index["packages"]


def test_alignments_are_exact(corpus: Corpus) -> None:
    _check_audio(corpus)


def test_no_sentence_in_two_recordings(corpus: Corpus) -> None:
    # Synthesised prompts are sentences: every full stop ends one.
    seen: dict[str, str] = {}
    for _, alignment in corpus.alignments():
        audio = alignment["audio_file"]
        for sentence in (part for span in _spans(alignment) for part in span[2].split(". ")):
            assert sentence and seen.setdefault(normal(sentence), audio) == audio, sentence
    assert len(seen) == corpus.index["countries"]["italy"]["prompts"]


def test_second_run_mends_and_keeps(corpus: Corpus) -> None:
    """A repeated run writes only what is damaged or missing, also without the index."""
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
        again = _fetch(corpus.root, *SYNTHESISED, "--threads", "1")
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
    assert fetch_corpus.main(_arguments(tmp_path, *RECORDED)) == 1
    message = capfd.readouterr().err
    assert "apt-get is not on this machine" in message and "--source synthesis" in message
    assert "Traceback" not in message and not (tmp_path / "corpus.json").exists()


@pytest.mark.debian
def test_the_recorded_corpus_is_as_described(recorded: Corpus) -> None:
    _check_layout(recorded, ["es", "ru"])
    _check_texts(recorded)
    _check_durations(recorded)
    _check_index(recorded)
    assert recorded.index["source"] == "debian" and recorded.index["hours"] > 0.6
    packages = [f"asterisk-core-sounds-{language}" for language in ("es", "ru")]
    assert set(recorded.index["packages"]) == {f"{name}{kind}" for name in packages for kind in ("", "-g722")}


@pytest.mark.debian
def test_recorded_alignments_are_exact(recorded: Corpus) -> None:
    _check_audio(recorded)


@pytest.mark.debian
def test_no_recorded_audio_in_two_recordings(recorded: Corpus) -> None:
    """Prompts are cut out of lossless recordings and compared by bytes."""
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
