"""The demo corpus as a whole: what is on disk agrees with itself, and stays when the step runs
again."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import av
import jiwer
import numpy as np
import pytest

from millrace.common import debian
from millrace.common.errors import MillraceError
from millrace.speech import fetch_corpus
from millrace.speech.audio.encode import encode_av
from millrace.speech.demo import corpus as demo_corpus
from millrace.speech.demo.prompts import LANGUAGES, SAMPLING_RATE, packages

FOLDERS = {"mp4_converted", "youtube_converted", "m3u8_streams"}
FOLDERS |= {"generic_video", "mp3_audio", "processed_video"}
SHORT_NAMES = ("start", "end", "human_text", "asr_text")
LONG_NAMES = ("start_seconds", "end_seconds", "human_transcript", "asr_transcript")
# The list with the most defects, and another alphabet.
RECORDED = ("es", "ru")


class Corpus:
    """A corpus on disk, read without any code of the lane."""

    def __init__(self, root: Path) -> None:
        self.root, self.countries, self.index_path = root, root / "countries", root / "corpus.json"
        self.index = json.loads(self.index_path.read_text())

    def alignments(self) -> list[tuple[Path, Path, list[dict]]]:
        """Path, path of the audio, and segments of each."""
        paths = sorted(self.countries.glob("*/Alignment/*/*.json"))
        contents = [(path, json.loads(path.read_text())) for path in paths]
        return [
            (path, self.root / value["audio_file"], value["segments"]) for path, value in contents
        ]

    def mtimes(self) -> dict[str, int]:
        return {
            str(path): path.stat().st_mtime_ns for path in self.root.rglob("*") if path.is_file()
        }


def _fetch(root: Path, *languages: str) -> Corpus:
    demo_corpus.fetch(root / "countries", root / "corpus.json", languages)
    return Corpus(root)


def write_packages(folder: Path, language: str) -> None:
    """Write the folders of packages whose prompts are chirps, each of a sound of its own."""
    texts, audio = (folder / f"{name}_1.0_all" for name in packages(language))
    random = np.random.default_rng(0)
    lines = []
    sounds = audio / f"usr/share/asterisk/sounds/{language}_XX_f_Voice"
    sounds.mkdir(parents=True)
    for number in range(300):
        time = np.arange(int(random.uniform(1.5, 4.0) * SAMPLING_RATE)) / SAMPLING_RATE
        wave = 8000 * np.sin(2 * np.pi * (200 + 3 * number + 20 * time) * time)
        sound = encode_av(wave.astype(np.int16), SAMPLING_RATE, "g722", "g722", 64_000)
        (sounds / f"p{number}.g722").write_bytes(sound)
        words = " ".join(random.choice(list("abcdefghij"), 12))
        lines.append(f"p{number}: Number {number} {words}.\n")
    # One prompt is there twice, under another name.
    shutil.copy(sounds / "p0.g722", sounds / "again.g722")
    lines.append(lines[0].replace("p0", "again"))
    listed = texts / f"usr/share/doc/x/core-sounds-{language}.txt.gz"
    listed.parent.mkdir(parents=True)
    listed.write_bytes(gzip.compress("".join(lines).encode()))


def _fetch_made(root: Path) -> Corpus:
    """Fetch with packages that lie beside the corpus already."""
    folders = {name: root / f"packages/{name}_1.0_all" for name in packages("it")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(debian, "fetch", lambda names, folder, remedy: folders)
        return _fetch(root, "it")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    root = tmp_path_factory.mktemp("made")
    write_packages(root / "packages", "it")
    return _fetch_made(root)


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
    try:
        return _fetch(root, *RECORDED)
    except MillraceError as error:
        missing(f"the packages could not be fetched: {error}")


RECORDED_MARKS = (pytest.mark.debian, pytest.mark.long)


@pytest.fixture(params=["made", pytest.param("recorded", marks=RECORDED_MARKS)])
def corpus(request: pytest.FixtureRequest) -> Corpus:
    return request.getfixturevalue(request.param)


def _decode(path: Path) -> np.ndarray:
    """Mono floats at 16 kHz."""
    resampler = av.AudioResampler("flt", "mono", SAMPLING_RATE)
    with av.open(str(path)) as container:
        frames = [*container.decode(audio=0), None]
        return np.concatenate(
            [part.to_ndarray()[0] for frame in frames for part in resampler.resample(frame)]
        )


def _spans(segments: list[dict]) -> list[tuple[float, float, str, str, float | None]]:
    """(start, end, human text, ASR text, CER) of each segment, whichever names it uses."""
    names = LONG_NAMES if "start_seconds" in segments[0] else SHORT_NAMES
    return [(*(row[name] for name in names), row.get("cer")) for row in segments]


def test_the_layout_is_as_described(corpus):
    languages = ["it"] if len(corpus.index["packages"]) == 2 else RECORDED
    assert {path.name for path in corpus.countries.iterdir()} == {
        LANGUAGES[name] for name in languages
    }
    spellings, formats, scored = set(), {}, set()
    for path, audio, segments in corpus.alignments():
        country = path.relative_to(corpus.countries).parts[0]
        assert audio.is_file() and audio.parent.name in FOLDERS
        assert audio.parent.parent == corpus.countries / country / "downloaded_audio"
        assert path.name.startswith(f"{audio.stem}_") and path.name.endswith("_aligned.json")
        formats.setdefault(country, []).append(audio.suffix[1:])
        spellings |= {frozenset(row) - {"cer", "start_idx", "end_idx"} for row in segments}
        scored |= {"cer" in row for row in segments}
    assert spellings == {frozenset(SHORT_NAMES), frozenset(LONG_NAMES)} and scored == {True, False}
    for country, suffixes in formats.items():
        assert len(suffixes) >= 4 and {"opus", "m4a", "mp3"} < set(suffixes), country
        assert set(suffixes) & {"flac", "wav"}, country
    every = [suffix for suffixes in formats.values() for suffix in suffixes]
    assert 0.1 <= sum(suffix in ("flac", "wav") for suffix in every) / len(every) <= 0.4


def test_alignments_are_exact(corpus):
    """Speech lies in the segments and nowhere else."""
    for _, path, segments in corpus.alignments():
        samples = _decode(path)
        assert 3 * 60 <= len(samples) / SAMPLING_RATE <= 15 * 60, path
        lossless = path.suffix in (".wav", ".flac")
        # A lossy encoder smears a transient by less than 10 ms; an alignment that is off by more
        # shows here.
        margin = 0 if lossless else SAMPLING_RATE // 100
        outside = np.ones(len(samples), bool)
        last_end = 0.0
        for start, end, *_ in _spans(segments):
            assert last_end < start < end <= len(samples) / SAMPLING_RATE, path
            first, last = round(start * SAMPLING_RATE), round(end * SAMPLING_RATE)
            assert (start, end) == (first / SAMPLING_RATE, last / SAMPLING_RATE), path
            outside[max(0, first - margin) : last + margin] = False
            assert np.abs(samples[first:last]).max() > 0.02, (path, start)
            last_end = end
        quiet = np.abs(samples[outside])
        assert len(quiet) > SAMPLING_RATE * len(segments) / 4
        assert not quiet.any() if lossless else np.sqrt(np.mean(quiet**2)) < 1e-3, path


def test_texts_and_durations_give_limits_something_to_reject(corpus):
    spans = [span for *_, segments in corpus.alignments() for span in _spans(segments)]
    rates = []
    for start, end, human, heard, cer in spans:
        assert human and human == " ".join(human.split()) and heard and end > start
        rates.append(jiwer.cer(human, heard))
        assert cer is None or cer == rates[-1]
    rates = np.array(rates)
    assert (
        (rates == 0).mean() > 0.05
        and (rates <= 0.15).mean() > 0.8
        and 0 < (rates > 0.3).mean() < 0.15
    )
    seconds = np.array([end - start for start, end, *_ in spans])
    assert ((seconds >= 3) & (seconds <= 12.01)).mean() > 0.7
    assert 0 < (seconds < 3).mean() < 0.2 and 0 < (seconds > 20).mean() < 0.1


def test_the_index_describes_what_is_there(corpus):
    index, files = corpus.index, {}
    for path in filter(Path.is_file, corpus.countries.rglob("*")):
        raw = path.read_bytes()
        name = str(path.relative_to(corpus.countries))
        files[name] = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert index["files"] == files
    assert all(version[0].isdigit() for version in index["packages"].values())
    languages = {name: language for language, name in LANGUAGES.items()}
    countries = {path.name for path in corpus.countries.iterdir()}
    names = [name for country in countries for name in packages(languages[country])]
    assert set(index["packages"]) == set(names)


def test_every_prompt_is_spoken_in_one_place(made):
    spans = [span for *_, segments in made.alignments() for span in _spans(segments)]
    spoken = re.findall(r"Number (\d+) ", " ".join(text for _, _, text, *_ in spans))
    assert sorted(map(int, spoken)) == list(range(300))


def test_second_run_mends_and_keeps(made):
    """A repeated run writes only what is damaged or missing, also without the index."""
    index, before = made.index_path.read_bytes(), made.mtimes()
    damaged = sorted(made.countries.rglob("*.opus"))[0]
    missing = sorted(made.countries.rglob("*_aligned.json"))[1]
    content = {path: path.read_bytes() for path in (damaged, missing)}
    damaged.write_bytes(content[damaged][:-1] + b"\0")
    missing.unlink()
    made.index_path.unlink()
    stray = damaged.with_name("of_the_user.opus")
    stray.write_bytes(b"mine")

    _fetch_made(made.root)
    assert made.index_path.read_bytes() == index
    assert {path: path.read_bytes() for path in content} == content
    assert stray.read_bytes() == b"mine"
    stray.unlink()
    after = made.mtimes()
    renewed = {str(damaged), str(missing), str(made.index_path)}
    assert {name for name in before if after.get(name) != before[name]} == renewed
    assert set(after) == set(before)


def test_without_apt(tmp_path, monkeypatch, capfd):
    """No apt-get on the path: `debian` is an error that says what to do; nothing is written."""
    monkeypatch.setenv("PATH", str(tmp_path))
    index = str(tmp_path / "corpus.json")
    arguments = ["--countries-root", str(tmp_path / "countries"), "--index", index]
    assert fetch_corpus.main(arguments) == 1
    message = capfd.readouterr().err
    assert "apt-get is not on this machine" in message and "copy the folder" in message
    assert "Traceback" not in message and not (tmp_path / "corpus.json").exists()
