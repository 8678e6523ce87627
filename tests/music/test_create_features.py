"""Features of one's own audio, and every kind of audio that gives none."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from pathlib import Path

import av
import h5py
import numpy as np
import pytest
import soundfile

from millrace.common import jsonl
from millrace.common.workflow.sources import Sources
from millrace.music.audio import recording
from millrace.music.audio.chunks import audio_files
from millrace.music.audio.recording import decode
from millrace.music.create_features import main
from millrace.music.features import h5_files
from millrace.music.features.metadata import read_metadata
from millrace.music.features.track import Contract, Refused
from millrace.music.inputs import MusicInputs

HERTZ, RATE, SECONDS = 440, 44_100, 3


def tone(seconds: float = SECONDS) -> np.ndarray:
    """Stereo: a tone at the left, noise of half its loudness at both sides."""
    rng = np.random.default_rng(0)
    noise = 0.05 * rng.standard_normal((int(seconds * RATE), 2))
    noise[:, 0] += 0.5 * np.sin(2 * np.pi * HERTZ * np.arange(len(noise)) / RATE)
    return noise


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a first run, over two good recordings and one of each kind of bad ones."""
    folder = tmp_path_factory.mktemp("features")
    root = folder / "audio"
    (root / "b").mkdir(parents=True)
    soundfile.write(root / "a.wav", tone(), RATE)
    soundfile.write(root / "b/-ünder score.flac", tone(), RATE)
    soundfile.write(root / "b/a.flac", tone(), RATE)
    soundfile.write(root / "silence.wav", np.zeros(RATE * 2), RATE)
    soundfile.write(root / "short.wav", tone(0.4), RATE)
    opposite = np.concatenate([tone()[:, :1] * [1, -1], np.zeros((RATE, 2))])
    soundfile.write(root / "opposite.wav", opposite, RATE)
    soundfile.write(root / "nan.wav", np.full(RATE * 2, np.nan), RATE, subtype="FLOAT")
    whole = (root / "b/a.flac").read_bytes()
    (root / "cut.flac").write_bytes(whole[: len(whole) // 2])
    (root / "text.mp3").write_text("no audio at all")
    (root / "empty.ogg").touch()
    (root / "playlist.mp3").write_text("ffconcat version 1.0\nfile a.wav\n")
    (root / "notes.txt").write_text("not a recording")
    (root / "dead.wav").symlink_to("gone")
    (root / "linked").symlink_to(root / "b")
    (root / "..wav").symlink_to(root / "a.wav")
    assert run(folder) == 0
    return folder


def run(folder: Path, *flags: str, threads: int = 1) -> int:
    outputs = {name: str(folder / f"{name}.json") for name in ("jsonl", "rejects", "ledger")}
    places = [
        "--audio-root",
        str(folder / "audio"),
        "--h5-root",
        str(folder / "h5"),
        f"--threads={threads}",
    ]
    return main(
        [*places, *(word for name in outputs for word in (f"--{name}", outputs[name])), *flags]
    )


def refused(path: Path, words: str) -> None:
    """The recording is refused in these words."""
    with pytest.raises(Refused, match=words):
        decode(path)


def recordings(folder: Path) -> str:
    section = {"audio_root": str(folder / "audio")}
    return MusicInputs(section, Sources(), gpus=0, ancient=str).recordings()


def test_every_recording_has_features_or_a_reason(made):
    ledger = jsonl.read(made / "ledger.json")
    assert (ledger["rows_in"], ledger["rows_out"]) == (14, 2)
    rejects = {
        row["audio"]: row["reason"] for row in map(json.loads, (made / "rejects.json").open())
    }
    assert rejects == {
        "b/a.flac": "duplicate_id",
        "dead.wav": "missing",
        "..wav": "bad_name",
        "linked": "linked_folder",
        "nan.wav": "not_finite",
        "cut.flac": "damaged",
        "empty.ogg": "undecodable",
        "playlist.mp3": "undecodable",  # it would give the features of another file
        "short.wav": "too_short",
        "opposite.wav": "opposite_channels",
        "silence.wav": "constant",
        "text.mp3": "undecodable",
    }


def test_the_index_finds_them_by_the_jsonl_and_the_tone_is_where_it_belongs(made):
    records = read_metadata(made / "jsonl.json").records
    assert set(records) == {"a", "-ünder score"}
    tracks = h5_files.read_file(made / "h5", "cqt_chunk_00001.h5", records.values(), Contract())
    with h5py.File(made / "h5/cqt_chunk_00001.h5") as h5:
        for track in tracks:
            assert (track.refused, track.bins, track.hop) == ("", 84, 0.02)
            assert track.frames == SECONDS * 50 + 1
            assert h5[track.key][()].mean(1).argmax() == round(12 * np.log2(HERTZ / 32.70))


def test_only_chunks_of_changed_recordings_are_made_again_and_with_the_same_bytes(made):
    chunk, before = made / "h5/cqt_chunk_00001.h5", (made / "h5/cqt_chunk_00001.h5").read_bytes()
    first = chunk.stat().st_ino
    assert run(made) == 0
    assert chunk.stat().st_ino == first
    chunk.write_bytes(before[:1000])  # cut
    assert run(made) == 0
    assert chunk.read_bytes() == before
    # The workflow sees that a recording is another one, too.
    was, time = recordings(made), (made / "audio/a.wav").stat().st_mtime_ns
    os.utime(made / "audio/a.wav", (1, 1))
    assert was.startswith("11 recordings, ") and recordings(made) != was
    os.utime(made / "audio/a.wav", ns=(time, time))
    assert recordings(made) == was


@pytest.mark.parametrize("is_stated", [True, False])
def test_minutes_of_silence_in_a_small_file_are_refused(tmp_path, is_stated):
    """Days of it would fill the memory, whether the header states them or not."""
    path = tmp_path / "a.flac"
    soundfile.write(path, np.zeros(8000 * 660, np.int16), 8000)
    raw = bytearray(path.read_bytes())
    if not is_stated:
        raw[21] &= 0xF0
        raw[22:26] = bytes(4)
    path.write_bytes(raw)
    refused(path, r"more than 6\d\d s in .* bytes are no music")


def test_a_recording_that_ends_early_is_damaged_though_one_packet_is_nothing(tmp_path):
    path = tmp_path / "a.flac"
    soundfile.write(path, tone(20), RATE)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(path, r"9\.9 s of 20\.0 s are left")


ID3 = b"ID3\4\0\0\0\7\1\0" + bytes(7 * 128**2 + 128)  # as with a picture


@pytest.mark.parametrize(
    "tag, rate, channels", [(b"", 44_100, 1), (ID3, 44_100, 2), (b"", 16_000, 1)]
)
def test_an_mp3_that_is_cut_is_damaged(tmp_path, tag, rate, channels):
    path = tmp_path / "a.mp3"
    soundfile.write(path, tone(5)[:, :channels], rate)
    raw = path.read_bytes()
    path.write_bytes(tag + raw)
    assert len(decode(path)) > 16_000
    path.write_bytes(tag + raw[: round(0.97 * len(raw))])  # the tag does not count
    refused(path, r"it is cut: [\d,]+ bytes of [\d,]+ are there")


@pytest.mark.parametrize(
    "begin, name, flags, bytes_more, is_cut",
    [
        (b"\xff", b"Xing", 3, 100, True),
        (b"\xff", b"Info", 15, 100, True),
        (b"\xff", b"Info", 3, 1, False),  # what is missing is next to nothing
        (b"\xff", b"Info", 1, 100, False),  # the number of frames only
        (b"\xff", b"Info", 2, 100, False),  # it would stand in another place
        (b"\xff", b"LAME", 3, 100, False),
        (b"\0", b"Xing", 3, 100, False),
    ],
)
def test_only_the_first_frame_of_an_mp3_says_how_many_bytes_there_are(
    tmp_path, begin, name, flags, bytes_more, is_cut
):
    path = tmp_path / "a.mp3"
    header = struct.pack(">4sIII", name, flags, 5, 1000 + bytes_more)
    path.write_bytes((begin + bytes(20) + header).ljust(1000, b"\0"))
    with pytest.raises(Refused) if is_cut else contextlib.nullcontext():
        recording._check_whole(path)


def test_a_wav_that_is_cut_is_damaged_and_one_from_a_pipe_is_not(tmp_path):
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(20), RATE)
    raw = path.read_bytes()
    for share in (0.5, 0.97):
        path.write_bytes(raw[: round(share * len(raw))])
        refused(path, r"it is cut: [\d,]+ bytes of 3,528,044 are there")
    path.write_bytes(raw[: round(0.99 * len(raw))])  # as little as other recordings may lose
    assert len(decode(path)) == round(0.99 * 20 * 16_000)

    path.write_bytes(raw[:4] + b"\xff" * 4 + raw[8:40] + b"\xff" * 4 + raw[44:])
    assert len(decode(path)) == 20 * 16_000

    for container, endian in (("W64", "FILE"), ("WAV", "BIG")):
        soundfile.write(path, tone(20), RATE, "PCM_16", endian, container)
        assert len(decode(path)) == 20 * 16_000
        path.write_bytes(path.read_bytes()[:-100_000])
        refused(path, "it is cut")


def test_an_ogg_that_is_cut_is_damaged(tmp_path):
    path = tmp_path / "a.ogg"
    soundfile.write(path, tone(20), RATE)
    raw = path.read_bytes()
    last = raw.rindex(b"OggS")
    for length in (last + 2, last + 20, last + 30, len(raw) - 9):
        path.write_bytes(raw[:length])
        refused(path, r"it is cut: [\d,]+ bytes of [\d,]+ are there")
    path.write_bytes(raw + b"TAG")  # what others write behind the pages is none of them
    assert len(decode(path)) == 20 * 16_000


def test_floats_on_the_scale_of_int16_are_refused(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(20) * 32768, RATE, subtype="FLOAT")
    with pytest.raises(Refused, match="where 1 is full scale"):
        recording.features(tmp_path / "a.wav")


def test_a_second_is_enough_and_a_film_without_sound_is_refused(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(16_000), 16_000)
    assert len(decode(tmp_path / "a.wav")) == 16_000
    for is_silent in (False, True):
        with av.open(tmp_path / "a.mp4", "w") as container:
            stream = container.add_stream("mpeg4", rate=10, width=16, height=16)
            sound = None if is_silent else container.add_stream("aac", rate=16_000, layout="mono")
            for _ in range(20):
                container.mux(
                    stream.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), "u1")))
                )
            container.mux(stream.encode(None))
            if sound is not None:
                frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), "f4"), "fltp", "mono")
                frame.rate = 16_000
                container.mux([*sound.encode(frame), *sound.encode(None)])
        if sound is not None:  # the picture lasts longer
            assert 16_000 <= len(decode(tmp_path / "a.mp4")) < 20_000
    refused(tmp_path / "a.mp4", "the file has no audio")


@pytest.mark.parametrize(
    "channels",
    [
        tone()[:, :1] * [1, -0.5, -0.5],  # of more than two the mix is another
        np.concatenate([tone()[:, :1] * [1, 1], tone(1)[:, :1] * [1, -1]]),  # at the end only
        np.concatenate([tone(1)[:, :1] * [1, -1], tone()[:, :1] * [1, 1]]),
    ],
)
def test_channels_that_cancel_each_other_in_part_are_mixed(tmp_path, channels):
    soundfile.write(tmp_path / "a.wav", channels, RATE)
    assert np.abs(decode(tmp_path / "a.wav")).max() > 0.1


def test_endings_count_in_any_casing(tmp_path):
    for name in ("a.WAV", "b.Flac", "c.txt"):
        (tmp_path / name).touch()
    assert audio_files(tmp_path) == (["a.WAV", "b.Flac"], [])


def test_a_folder_without_recordings_is_refused(tmp_path, capsys):
    assert run(tmp_path) == 1
    assert "audio: no folder of recordings. Set music.audio_root" in capsys.readouterr().err
    (tmp_path / "audio").mkdir()
    assert run(tmp_path) == 1
    assert "no recording ends in .aac" in capsys.readouterr().err


def test_features_of_others_are_not_replaced(tmp_path, capsys):
    (tmp_path / "audio").mkdir()
    soundfile.write(tmp_path / "audio" / "a.wav", tone(), RATE)
    (tmp_path / "h5").mkdir()
    chunk = tmp_path / "h5" / "cqt_chunk_00007.h5"
    with h5py.File(chunk, "w") as h5:
        h5["a/cqt"] = np.ones((84, 50))
    assert run(tmp_path) == 1
    assert f"{chunk}: features that this step has not made" in capsys.readouterr().err
    assert chunk.exists()


def test_a_recording_that_changes_or_goes_is_noticed_in_its_chunk_only(tmp_path):
    root = tmp_path / "audio"
    root.mkdir()
    for name in ("a", "b", "c"):
        soundfile.write(root / f"{name}.wav", tone(), RATE)
    assert run(tmp_path, "--per-chunk", "1") == 0
    chunks = sorted((tmp_path / "h5").iterdir())
    before = [chunk.stat().st_ino for chunk in chunks]

    # Another recording of the same name and length, then one less.
    changed = tone()
    changed[:, 0] *= -0.5
    soundfile.write(root / "b.wav", changed, RATE)
    os.utime(root / "b.wav", ns=(1, 1))
    assert run(tmp_path, "--per-chunk", "1") == 0
    assert [chunk.stat().st_ino == inode for chunk, inode in zip(chunks, before, strict=True)] == [
        True,
        False,
        True,
    ]
    (root / "c.wav").unlink()
    assert run(tmp_path, "--per-chunk", "1") == 0
    assert sorted((tmp_path / "h5").iterdir()) == chunks[:2]
    assert jsonl.read(tmp_path / "ledger.json")["rows_out"] == 2
    assert set(read_metadata(tmp_path / "jsonl.json").records) == {"a", "b"}
