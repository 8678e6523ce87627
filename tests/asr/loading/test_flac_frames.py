"""flac_frames: what it decodes is what dr_flac gives, bit by bit, and what it is not sure of is left to
dr_flac."""

from __future__ import annotations

import ctypes
import io
import mmap
import multiprocessing
import os
import random
import subprocess
import sys

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from millrace.asr.loading import decode as decode_module
from millrace.asr.loading import flac_frames
from millrace.asr.loading.decode import DecodeError, decode, decode_flac_into
from millrace.asr.loading.flac_frames import decode_frames, stream_info
from tests.asr import flac_streams
from tests.asr.audio_tars import RATE, encoded, noise
from tests.asr.flac_streams import by_dr_flac
from tests.workflow.workflow import ROOT


def by_us(raw: bytes) -> np.ndarray | None:
    info = stream_info(raw)
    if info is None or info.samples * info.channels > 1 << 20:
        return None
    # Between two walls: what is written beyond the samples shows.
    room = np.full(info.samples * info.channels + 64, 7, np.float32)
    out = room[32:-32].reshape(info.samples, info.channels)
    whole = decode_frames(raw, info, out)
    assert (room[:32] == 7).all() and (room[-32:] == 7).all()
    return out if whole else None


def same_or_refused(raw: bytes) -> bool:
    ours = by_us(raw)
    if ours is not None:
        theirs = by_dr_flac(raw)
        assert theirs is not None, "dr_flac refuses it"
        assert np.array_equal(ours, theirs)
    return ours is not None


def sound(samples: int, channels: int, seed: int, loudness: float = 0.5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    tones = np.sin(np.arange(samples)[:, None] * rng.uniform(0.01, 0.4, channels))
    return np.clip(loudness * (tones + 0.05 * rng.standard_normal((samples, channels))), -1, 1)


def with_ffmpeg(samples: np.ndarray, level: int, frame_size: int) -> bytes:
    sink = io.BytesIO()
    with av.open(sink, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=RATE, layout="mono")
        stream.codec_context.options = {"compression_level": str(level), "frame_size": str(frame_size)}
        frame = av.AudioFrame.from_ndarray(
            (samples * 32767).astype(np.int16).reshape(1, -1), format="s16", layout="mono"
        )
        frame.rate = RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return sink.getvalue()


@pytest.mark.parametrize("level", [0, 0.4, 0.625, 1])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("subtype", ["PCM_S8", "PCM_16"])
def test_what_libflac_writes_is_decoded(subtype, channels, level):
    for seed, loudness in enumerate((0, 1e-4, 0.02, 0.5, 4)):
        sink = io.BytesIO()
        samples = sound(9001, channels, seed, loudness)
        soundfile.write(sink, samples, RATE, format="FLAC", subtype=subtype, compression_level=level)
        assert same_or_refused(sink.getvalue())


@pytest.mark.parametrize(("level", "frame_size"), [(0, 4608), (5, 4096), (8, 1152), (12, 777)])
def test_what_ffmpeg_writes_is_decoded(level, frame_size):
    """Its weights have 15 bits, so that not all sums fit half a word, and its orders go up to 32."""
    for seed in range(3):
        assert same_or_refused(with_ffmpeg(sound(12_000, 1, seed)[:, 0], level, frame_size))


def test_levels_that_soundfile_does_not_show():
    speech = sound(30_000, 1, 3)
    raw = encoded((speech * 32767).astype(np.int16))
    assert np.array_equal(by_us(raw)[:, 0], soundfile.read(io.BytesIO(raw), dtype="float32")[0])
    for variant in (bytearray(raw), memoryview(raw), raw + b"trailing junk"):
        assert np.array_equal(by_us(variant), by_us(raw))


def test_metadata_before_the_sound_is_passed_over():
    raw = encoded(noise(5000, 1))
    first = stream_info(raw).first_frame
    for kind, body in ((1, bytes(100)), (3, bytes(36)), (4, bytes(8)), (6, bytes(32)), (2, b"test")):
        block = bytes([0x80 | kind]) + len(body).to_bytes(3, "big") + body
        assert same_or_refused(raw[:4] + b"\0" + raw[5:42] + block + raw[first:])
    for damage in (
        b"\xff\0\0\0",
        b"\x84\0\0\7" + bytes(7),
        b"\x80\0\0\x22" + bytes(34),
        b"\x81\xff\xff\xff",
        b"\x01\0",
    ):
        assert not same_or_refused(raw[:4] + b"\0" + raw[5:42] + damage + raw[first:])


@given(st.integers(0, 1 << 40))
def test_streams_that_no_encoder_writes(seed):
    same_or_refused(flac_streams.stream(seed))


@given(st.integers(0, 1 << 40), st.sampled_from([0.003, 0.02, 0.1]))
def test_damage_below_right_checksums_is_judged_as_dr_flac_does(seed, odd):
    same_or_refused(flac_streams.stream(seed, odd))


def test_most_legal_streams_are_decoded():
    decoded = sum(by_us(flac_streams.stream(seed)) is not None for seed in range(150))
    assert decoded > 60


def test_no_cut_of_a_stream_is_taken_for_the_whole():
    raw = encoded(noise(700, 3))
    for length in range(len(raw)):
        assert by_us(raw[:length]) is None
    assert by_us(raw) is not None


@given(at=st.integers(42, 3000), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_sound_is_noticed(at, bit):
    raw = bytearray(encoded(noise(2500, 7)))
    raw[stream_info(raw).first_frame + at % (len(raw) - stream_info(raw).first_frame)] ^= 1 << bit
    assert by_us(bytes(raw)) is None


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_damage_is_judged_as_dr_flac_does(edits):
    raw = bytearray(encoded(noise(2500, 7)))
    for at, value in edits:
        raw[at % len(raw)] = value
    same_or_refused(bytes(raw))


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect as Linux has it")
def test_nothing_is_read_outside_the_stream():
    """The stream begins or ends where readable memory does: a read beyond would end the process."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 16 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    for place in (0, 15 * page):
        assert mprotect(ctypes.c_void_p(start + place), ctypes.c_size_t(page), 0) == 0
    view = memoryview(memory)
    rng = random.Random(0)
    streams = [flac_streams.stream(seed, 0.05) for seed in range(60)] + [encoded(noise(900, 2))]
    for raw in streams:
        by_us(view_of(view, page, raw))
        for length in (len(raw), *(rng.randrange(42, len(raw)) for _ in range(20))):
            by_us(view_of(view, 15 * page - length, raw[:length]))


def view_of(view: memoryview, place: int, raw: bytes) -> memoryview:
    view[place : place + len(raw)] = raw
    return view[place : place + len(raw)]


def test_what_it_leaves_to_dr_flac_is_decoded_all_the_same():
    deep = encoded(sound(5000, 1, 1), subtype="PCM_24")
    assert by_us(deep) is None
    assert np.array_equal(decode(deep), by_dr_flac(deep)[:, 0])
    assert by_us(encoded(noise(5000, 1, channels=3))) is None


def test_without_numba_dr_flac_decodes():
    program = (
        "import sys, logging; sys.modules['numba'] = None\n"
        "from millrace.asr.loading.decode import decode, fast_flac\n"
        "assert fast_flac() is None\n"
        "sys.stdout.buffer.write(decode(sys.stdin.buffer.read()).tobytes())"
    )
    raw = encoded(noise(5000, 1))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, input=raw, capture_output=True, check=True
    )
    assert np.array_equal(np.frombuffer(done.stdout, np.float32), decode(raw)) and not done.stderr


def test_a_parse_of_the_workflow_does_without_numba():
    program = "import sys, millrace.common.workflow.lanes, millrace.asr.inputs, millrace.asr.loading.decode\nassert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize("broken", [False, True])
def test_both_decoders_say_the_same_of_damage(broken, monkeypatch):
    raw = encoded(noise(20_000, 1))
    raw = raw[:9000] + b"\x55" + raw[9001:]
    if broken:
        monkeypatch.setattr(decode_module, "fast_flac", lambda: None)
    with pytest.raises(DecodeError, match=r"FLAC, cut or damaged: \d+ of 20000 samples"):
        decode_flac_into(raw, np.empty(20_000, np.float32))


def decoded_in_a_worker(raw: bytes) -> tuple[int, bytes]:
    return os.getpid(), decode(raw).tobytes()


def test_forked_workers_have_the_compiled_decoder():
    raw = encoded(noise(5000, 1))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for pid, samples in pool.map(decoded_in_a_worker, [raw] * 4):
            assert pid != os.getpid() and samples == decode(raw).tobytes()


def test_compiled_code_that_cannot_be_kept_is_compiled_all_the_same(monkeypatch):
    def refuse(signature: object, **options: object) -> object:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(flac_frames, "njit", refuse)
    assert flac_frames._kept(None)(len) is len
