"""Everything but PCM (Opus, AAC, MP3, FLAC, Vorbis, the audio of a video, ...) through FFmpeg's
libraries: which formats are refused, which stream is taken, what is decoded behind damage.

Frames are decoded in order and placed on a `Timeline`. A Matroska or Ogg file ends where its
structure is broken (see `damage.breaks`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator

import av
import numpy as np
import soxr

from millrace.common.loading.decode import cancel
from millrace.speech.audio.damage.breaks import find_break
from millrace.speech.audio.packets import (
    DTYPES,
    FrameRun,
    discarded,
    is_tag,
    without_outliers,
)
from millrace.speech.audio.recording import AudioError, head_of, mono
from millrace.speech.audio.timeline import STAMPED, Timeline

_CHECKED = {"flac", "tta", "wavpack"}  # each of their frames has a checksum
# Containers a recording may come in. Without a list FFmpeg sees game sounds in noise, and follows
# playlists.
_CONTAINERS = (
    "aiff ape au caf dsf dts flac matroska webm mov mp4 m4a 3gp 3g2 mj2 mlp mp3 mpc mpc8"
    " mpeg mpegts mxf nistsphere nut ogg qcp tta truehd voc w64 wav wtv wv"
)
# Refused by name: if these are damaged, or of some encoders, FFmpeg shifts their samples without an
# error.
_REFUSED = {
    "avi": "AVI",
    "asf": "ASF/WMA",
    "rm": "RealMedia",
    "amr": "AMR",
    "ac3": "AC-3",
    "eac3": "E-AC-3",
    "flv": "FLV",
    "live_flv": "FLV",
    "aac": "AAC without a container",
    "loas": "AAC without a container",
}
# G.726 is packed from the left or from the right, and a WAV does not say how: FFmpeg takes the one,
# libsndfile writes the other, which becomes noise.
_REFUSED_CODECS = {"wmav1": "WMA", "wmav2": "WMA", "adpcm_g726": "G.726"}
_CONVERT = "Convert it, for example to FLAC or m4a"
_TRIAL_PACKETS = 64
_MAX_DEMUX_ERRORS = 1000


class StreamRecording:
    """One sequential pass over a recording's best audio stream. Use as a context manager."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        self.errors = 0  # packets that could not be read or decoded
        self.sample_rate = 0  # of the first frame
        # Whether the first packet says how many samples the encoder put before it.
        self.states_delay = False
        self.container = self._open()
        try:
            self.container_format = self.container.format.name
            self._refuse(self.container_format, _REFUSED)
            self.stream = self._choose_stream()
            self.codec = self.stream.codec_context
            self.codec.thread_count = 1
            self.codec_name = self.codec.codec.canonical_name
            self._refuse(self.codec_name, _REFUSED_CODECS)
            if self.codec_name in _CHECKED:
                # Else FFmpeg decodes frames whose checksum says that they are damaged.
                self.codec.options = {"err_detect": "crccheck+explode"}
            # Byte from which on nothing can be placed.
            self.break_at = find_break(self.path, self.container_format)
        except BaseException:
            self.container.close()
            raise
        stated = None
        if self.container.duration is not None:
            stated = self.container.duration / 1e6
        self.timeline = Timeline(self.container_format, self.codec_name, stated)

    def __enter__(self) -> StreamRecording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.container.close()

    def _open(self) -> av.container.InputContainer:
        head = head_of(self.path)
        has_sync = head[:1] == b"\xff" and head[1:2] >= b"\xe0"
        is_mp3 = has_sync or head[:3] == b"ID3"
        options = {
            "format_whitelist": ",".join([*_CONTAINERS.split(), *_REFUSED]),
            # Packets of transport streams that are not whole are left out, as their stamps mislead.
            "fflags": "discardcorrupt",
        }
        if head[:4] in (b"RIFF", b"RIFX") and os.path.getsize(self.path) > 0xFFFFFFFF:
            options["ignore_length"] = "1"
        with contextlib.suppress(av.error.FFmpegError):
            container = self._open_with(options)
            if container.format.name == "mp3" and not is_mp3:
                container.close()
                problem = "begins with no frame of MP3, and no ID3 tag: where it begins is unknown"
                raise AudioError("audio_load", self.path, problem, _CONVERT)
            return container
        problem = "holds no audio that can be recognised (damaged, cut, or not audio at all)"
        raise AudioError("audio_load", self.path, problem)

    def _open_with(self, options: dict[str, str]) -> av.container.InputContainer:
        # Given a descriptor instead of a name, FFmpeg sees no extension that could lie; the
        # whitelist of protocols keeps playlists from opening other files or the network.
        fd = os.open(self.path, os.O_RDONLY)
        options = {"fd": str(fd), "protocol_whitelist": "fd", **options}
        try:
            return av.open("fd:", "r", None, options, metadata_errors="replace")
        except av.error.FFmpegError:  # some of these are ValueErrors too
            raise
        except (ValueError, OSError) as error:
            raise AudioError("audio_load", self.path, f"cannot be opened ({error})") from None
        finally:
            os.close(fd)

    def _refuse(self, name: str, refused: dict[str, str]) -> None:
        if name in refused:
            raise AudioError(
                "audio_load", self.path, f"{refused[name]} ({name}) is not supported", _CONVERT
            )

    def _choose_stream(self) -> av.AudioStream:
        streams = self.container.streams
        stream = streams.best("audio") or (streams.audio[0] if streams.audio else None)
        if stream is None:
            kinds = ", ".join(sorted({s.type for s in streams if s.type})) or "none"
            problem = f"holds no audio stream ({self.container.format.name}; streams: {kinds})"
            raise AudioError("audio_no_stream", self.path, problem)
        if stream.codec_context is None:
            raise AudioError(
                "audio_load", self.path, "the codec of its audio stream is not supported"
            )
        assert isinstance(stream, av.AudioStream)  # as "audio" was asked for
        for other in streams:
            if other.index != stream.index:
                other.discard = av.stream.Discard.all
        return stream

    def packets(self) -> Iterator[av.Packet]:
        """All packets of the stream, and at the end the one that flushes the decoder."""
        flush = None
        for _ in range(_MAX_DEMUX_ERRORS):
            try:
                for packet in self.container.demux(self.stream):
                    if packet.size == 0 and packet.pts is None:
                        flush = packet
                    else:
                        yield packet
                break
            except (
                av.error.EOFError,
                IndexError,
            ):  # IndexError: PyAV, if streams have turned up in the file
                break
            except (av.error.FFmpegError, OSError):
                self.errors += 1  # goes on behind the damage
        if flush is not None:
            yield flush

    def _placeable(self) -> Iterator[av.Packet]:
        """The packets before the break of the file, and the one that flushes the decoder."""
        position = 0  # of the newest packet in the file
        for packet in self.packets():
            position = max(position, packet.pos or 0)
            is_behind = self.break_at is not None and position >= self.break_at
            if not is_behind or packet.size == 0:
                yield packet
            elif not self.timeline.ended:
                self.errors += 1
                self.timeline.ended = True

    def _frames(self) -> Iterator[av.AudioFrame]:
        """Decoded frames; behind undecodable packets it goes on with the next one."""
        begun = False
        for tried, packet in enumerate(without_outliers(self._placeable()), 1):
            if not begun and not is_tag(packet):
                begun = True
                self._begin(packet)
            elif self.codec_name == "vorbis" and packet.has_sidedata("new_extradata"):
                # The first packet of a joined stream completes nothing of the one before.
                self.codec.flush_buffers()
            try:
                yield from self.codec.decode(packet)
            except av.error.EOFError:
                return
            except (av.error.FFmpegError, ValueError):
                self.errors += 1
                self._note_undecodable(packet)
            if tried == _TRIAL_PACKETS and self.errors > self.timeline.frames:
                return

    def _begin(self, packet: av.Packet) -> None:
        """The timeline begins with the first packet, even if those that hold its first samples
        don't decode."""
        skip, _ = discarded(packet)
        self.states_delay = skip > 0
        if self.container_format == "flac" and packet.pts:
            # Its frames are numbered from the beginning of the recording.
            problem = "begins with a later frame of FLAC: what came before it is missing"
            raise AudioError("audio_load", self.path, problem)
        if packet.pts is not None:
            delay = skip / (self.codec.sample_rate or 48000)
            self.timeline.origin = float(packet.pts * packet.time_base) + delay

    def _note_undecodable(self, packet: av.Packet) -> None:
        """Bare frames have no stamps: an undecodable packet would be missing from their
        timeline."""
        is_stamped = self.container_format in STAMPED
        if not is_stamped and self.timeline.frames and not is_tag(packet):
            self.timeline.lost = True

    def blocks(self) -> Generator[np.ndarray]:
        """Mono blocks of about a second at `sample_rate`, on the int16 scale (see
        `recording.mono`).

        Raises AudioError before the first block if nothing decodes.
        """
        run: FrameRun | None = None
        for frame in self._frames():
            if frame.samples <= 0 or frame.sample_rate <= 0:
                continue
            kind = (frame.format.name, frame.sample_rate, frame.layout.nb_channels)
            if run is None or kind != run.kind:
                if run is not None:
                    yield from self._flush(run)
                run = self._new_run(kind)
            silence = self.timeline.place(frame, self.errors)
            if silence:
                yield from self._flush(run)
                yield from self._silence(silence)
            run.add(frame)
            if run.samples >= run.rate:
                yield from self._flush(run)
        self.timeline.end()
        # Fewer frames than errors, and all of them in one block: not a stretch of sound, but
        # chance.
        is_chance = (
            self.timeline.frames < self.errors and run and self.timeline.samples == run.samples
        )
        if run is None or is_chance:
            problem = f"nothing in its {self.codec_name} stream can be decoded"
            raise AudioError("audio_load", self.path, problem)
        yield from self._flush(run)

    def _new_run(self, kind: tuple[str, int, int]) -> FrameRun:
        """Frames of another format, rate or number of channels; the first decide the
        recording's."""
        sample_format, rate, _ = kind
        if sample_format.removesuffix("p") not in DTYPES:
            problem = f"sample format {sample_format} is not supported"
            raise AudioError("audio_load", self.path, problem)
        self.sample_rate = self.sample_rate or rate
        return FrameRun(kind)

    def _silence(self, samples: int) -> Iterator[np.ndarray]:
        """Blocks of zeros, of 10 s each."""
        block = 10 * self.sample_rate
        for start in range(0, samples, block):
            yield np.zeros(min(block, samples - start), np.int16)

    def _flush(self, run: FrameRun) -> Iterator[np.ndarray]:
        """The frames of `run` as one block, at the rate of the recording; none if it is empty."""
        if not run.samples:
            return
        channels = run.take()
        block = mono(channels, cancel(channels))
        if run.rate != self.sample_rate:  # it can change (chained Ogg, late SBR)
            block = soxr.resample(
                block.astype(np.float32), run.rate, self.sample_rate, quality="HQ"
            )
        yield block
