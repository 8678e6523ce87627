"""Everything but PCM (Opus, AAC, MP3, FLAC, Vorbis, AMR, the audio of a video, ...) through FFmpeg's
libraries.

The timeline of a recording is its decoded samples, one after the other, from the first one that the encoder
was given: encoder delay, Opus pre-skip and edit lists are taken off as FFmpeg does. Where the file's time
stamps say that something is missing (lost packets, a damaged page, a pause) silence of that length is put in
its place, so that what follows stays where it was. A hole is recorded in `holes`, and no span may touch it,
where it is longer than MAX_PAUSE_SECONDS, comes with an error, or is in a lossless stream: only then is it
more than a pause. Of streams without stamps (MP3, ADTS, AC-3, AMR) the bytes seldom tell how much a damaged
stretch has swallowed, and stamps that step back contradict those before: `lost_from` is where that is, and no
span may pass it. Of Matroska, Ogg, MPEG transport streams, AVI, ASF and RealMedia, what the file's own
structure shows to be broken (see `damage`) is left out before it is decoded.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator

import av
import numpy as np

from millrace.speech.audio.damage import frames
from millrace.speech.audio.damage.containers import breaks
from millrace.speech.audio.packets import (
    DTYPES,
    FrameRun,
    Sizes,
    discarded,
    frames_held,
    keeps_place,
    silence_blocks,
    without_outliers,
)
from millrace.speech.audio.recording import AudioError, head_of

# A missing packet or two, or Opus' discontinuous transmission, is a pause; more than this is damage.
MAX_PAUSE_SECONDS = 0.5
# Stamps of these can be reset anywhere: FFmpeg too takes a jump above 10 s for a reset, not for missing
# audio.
RESETTABLE = {"mpegts", "flv", "live_flv", "mpeg", "rtsp", "asf"}
MAX_RESETTABLE_GAP = 10.0
_MAX_UNSTATED_GAP = 60.0
_MAX_STATED_GAP = 86_400.0  # else a flipped bit in a stamp costs hours of silence
# Bare frames: FFmpeg stamps them by counting.
_COUNTED = {"aac", "ac3", "eac3", "mp3"}
# What these lose is lost: they code no silence by leaving it out, and don't conceal what they can't decode.
LOSSLESS = {
    "flac",
    "alac",
    "wavpack",
    "tta",
    "ape",
    "mlp",
    "truehd",
    "tak",
    "shorten",
    "wmalossless",
    "mp4als",
}
# Each of their frames has a checksum.
_CHECKED = {"flac", "tta", "wavpack"}
# In these a step back is no jitter: what isn't another recording joined on, which begins at 0, is there
# twice.
_NEVER_BACK = {"flac", "flv", "live_flv", "asf"}
# Containers whose stated duration can be held against their last packets; all others are measured packet by
# packet.
_OTHERS_STATING = {"ogg", "flac", "wav", "w64", "aiff", "caf", "asf", "avi", "wv"}
STATES_DURATION = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"} | _OTHERS_STATING
# Containers a recording may come in. Without this list FFmpeg finds game sounds in random bytes, and follows
# playlists.
_CONTAINERS = (
    "aac ac3 aiff amr ape asf au avi caf dsf dts eac3 flac flv live_flv loas matroska webm mov mp4 m4a "
    "3gp 3g2 mj2 mlp mp3 mpc mpc8 mpeg mpegts mxf nistsphere nut ogg qcp rm tta truehd voc w64 wav wtv wv"
)
# Formats without any header have no content to decide by; the name is all there is.
_HEADERLESS = {".g722": "g722", ".gsm": "gsm"}
_BLOCK_SECONDS = 1.0
_TRIAL_PACKETS = 64
_MAX_DEMUX_ERRORS = 1000


def _may_be(form: str, head: bytes) -> bool:
    """Whether the first bytes of a file can be `form`, which has no header: text, and zeros, can't."""
    if form == "gsm":  # every 33 bytes begin with the same four bits
        return all(byte >> 4 == 0xD for byte in head[::33])
    return any(head) and not (head.isascii() and min(head) >= ord("\t"))


class StreamRecording:
    """One sequential pass over a recording's best audio stream. Use as a context manager."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        self.holes: list[tuple[int, int]] = []
        self.lost_from: int | None = None
        self.errors = 0
        self.opposite = False  # two channels have cancelled each other
        self.frames_decoded = 0
        self.sample_rate = 0
        self.channels = 0
        self.headerless = ""
        self.container = self._open()
        try:
            self.stream = self._choose_stream()
            self.codec = self.stream.codec_context
            self.codec.thread_count = 1
            self.codec_name = self.codec.codec.canonical_name
            if self.codec_name in _CHECKED:
                # Else FFmpeg plays frames whose checksum says that they are damaged.
                self.codec.options = {"err_detect": "crccheck+explode"}
        except BaseException:
            self.container.close()
            raise
        self.states_delay = False
        self.by_ffmpeg = self.container.metadata.get("encoder", "").startswith("Lavf")
        self._origin: float | None = None
        self._lost = False
        self._pause = 0.0  # the newest gap
        self._jitter = 0.0  # by how many seconds stamps of sound packets may be early or late
        self._swallowed = 0.0  # seconds in undecodable packets beyond what the stamps behind them count
        self._damaged = False  # a break of the file's structure lies behind us
        self._resync = False  # and no frame has been placed since
        self.form = self.container.format.name
        self._stampless = self.form not in STATES_DURATION and self.form not in RESETTABLE
        self._gap_limit = self._stated_end()
        self._breaks = breaks(self.path, self.form, self.stream.id)
        self._position = 0

    def __enter__(self) -> StreamRecording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.container.close()

    # Opening
    # ---------------------------------------------------------------------------------------------------------

    def _open(self) -> av.container.InputContainer:
        head = head_of(self.path)
        options = {}
        if head[:4] in (b"RIFF", b"RIFX") and os.path.getsize(self.path) > 0xFFFFFFFF:
            options["ignore_length"] = "1"
        with contextlib.suppress(av.error.FFmpegError):
            container = self._open_as(None, {"format_whitelist": _CONTAINERS.replace(" ", ","), **options})
            form = container.format.name
            if not (junk := frames.bytes_before(self.path, form)):
                return container
            container.close()
            return self._open_as(form, {"skip_initial_bytes": str(junk)})
        self.headerless = _HEADERLESS.get(os.path.splitext(self.path)[1].lower(), "")
        if self.headerless and _may_be(self.headerless, head_of(self.path, 3300)):
            with contextlib.suppress(av.error.FFmpegError):
                return self._open_as(self.headerless, {})
        problem = "holds no audio that can be recognised (damaged, cut, or not audio at all)"
        raise AudioError("audio_load", self.path, problem)

    def _open_as(self, form: str | None, options: dict[str, str]) -> av.container.InputContainer:
        # Given a descriptor instead of a name, FFmpeg has no extension to be led astray by; the whitelist
        # keeps playlists from opening other files or the network.
        fd = os.open(self.path, os.O_RDONLY)
        try:
            return av.open(
                "fd:",
                format=form,
                container_options={"fd": str(fd), "protocol_whitelist": "fd", **options},
                metadata_errors="replace",
            )
        except av.error.FFmpegError:  # some of these are ValueErrors too
            raise
        except (ValueError, OSError) as error:
            raise AudioError("audio_load", self.path, f"cannot be opened ({error})") from None
        finally:
            os.close(fd)

    def _choose_stream(self) -> av.AudioStream:
        streams = self.container.streams
        stream = streams.best("audio") or (streams.audio[0] if streams.audio else None)
        if stream is None:
            kinds = ", ".join(sorted({s.type for s in streams if s.type})) or "none"
            problem = f"holds no audio stream ({self.container.format.name}; streams: {kinds})"
            raise AudioError("audio_no_stream", self.path, problem)
        if stream.codec_context is None:
            raise AudioError("audio_load", self.path, "the codec of its audio stream is not supported")
        for other in streams:
            if other.index != stream.index:
                other.discard = av.stream.Discard.all
        return stream

    def _stated_end(self) -> float | None:
        """Seconds after which a gap in the time stamps can't be believed; None where nothing is stated."""
        if self.form in RESETTABLE or self.container.duration is None:
            return None
        return self.container.duration / 1e6 + 1.0

    # Packets
    # ---------------------------------------------------------------------------------------------------------

    def packets(self) -> Iterator[av.Packet]:
        """All packets of the stream, and at the end the one that flushes the decoder; goes on behind
        damage."""
        flush = None
        for _ in range(_MAX_DEMUX_ERRORS):
            try:
                for packet in self.container.demux(self.stream):
                    if packet.size == 0 and packet.pts is None:
                        flush = packet
                        continue
                    if not self._is_lost(packet):
                        yield packet
                break
            except (
                av.error.EOFError,
                IndexError,
            ):  # PyAV, at the end of a file in which streams have turned up
                break
            except (av.error.FFmpegError, OSError):
                self.errors += 1
        if flush is not None:
            yield flush

    def _is_lost(self, packet: av.Packet) -> bool:
        """Whether a packet lies where the file's structure is broken; notes that one break more has been
        passed."""
        if packet.pos is not None:
            self._position = max(self._position, packet.pos)
        while self._breaks and self._breaks[0].start <= self._position:
            self._damaged = self._resync = True
            # What follows is placed from what came before; a recording without a beginning has no place at
            # all.
            self._lost = self._lost or not self._breaks[0].recovers or not self.frames_decoded
            if self._position < self._breaks[0].stop:
                self.errors += 1
                return True
            self._breaks.pop(0)
        return False

    def note_first(self, packet: av.Packet) -> None:
        """Note where the timeline begins, should the packets that hold its first samples not decode."""
        skip = discarded(packet)[0]
        self.states_delay = skip > 0
        if packet.pts is not None:
            self._origin = float(packet.pts * packet.time_base) + skip / (self.codec.sample_rate or 48000)

    def _skips_too_much(self) -> bool:
        """Whether FFmpeg's decoder takes off a frame more than the encoder has put before the sound.

        FFmpeg's own WMA encoder delays by one frame; its decoder takes off the two of other encoders.
        """
        return self.codec_name in ("wmav1", "wmav2") and self.by_ffmpeg

    def _frames(self) -> Iterator[av.AudioFrame]:
        decode = self.codec.decode
        sizes = Sizes()
        noted = False
        for tried, packet in enumerate(without_outliers(self.packets()), 1):
            if not noted and not keeps_place(packet):
                self.note_first(packet)
                noted = True
            elif self.codec_name == "vorbis" and packet.has_sidedata("new_extradata"):
                # The first packet of a joined stream completes nothing of the one before.
                self.codec.flush_buffers()
            try:
                yield from decode(packet)
            except av.error.EOFError:
                return
            except (av.error.FFmpegError, ValueError):
                self.errors += 1
                if self._stampless and self.frames_decoded > 0:
                    held = 0 if keeps_place(packet) else frames_held(packet, self.form, sizes)
                    self._lost = self._lost or held is None
                    self._swallowed += ((held or 0) - 1) * float((packet.duration or 0) * packet.time_base)
            else:
                sizes.add(packet.size)
            if tried == _TRIAL_PACKETS and self.errors > self.frames_decoded:
                return

    # Blocks
    # ----------------------------------------------------------------------------------------------------------

    def blocks(self) -> Iterator[np.ndarray]:
        """Mono blocks of about a second at `sample_rate`, on the int16 scale (int16, or float where that is
        exact).

        Raises AudioError before the first block where nothing decodes.
        """
        run: FrameRun | None = None
        done = 0  # samples placed on the timeline, those of `run` included
        after = 0.0  # time stamp at which the next frame is due
        scale = 0.0
        last = 0.0  # seconds of the frame before
        errors = 0  # as of the frame before
        exact = self.codec_name in LOSSLESS
        broken_at = frames.first_break(self.path, self.form)
        for frame in self._frames():
            n, rate = frame.samples, frame.sample_rate
            if n <= 0 or rate <= 0:
                continue
            name = frame.format.name
            key = (name, rate, frame.layout.nb_channels)
            if run is None or key != (run.name, run.rate, run.channels):
                if run is not None:
                    yield from self._block(run)
                    # FFmpeg stamps the frames of a PES packet by the rate that the first ones had.
                    self._lost = self._lost or (
                        self.form == "mpegts" and rate != run.rate and done > run.rate
                    )
                base = name.removesuffix("p")
                if base not in DTYPES:
                    raise AudioError("audio_load", self.path, f"sample format {name} is not supported")
                dtype = DTYPES[base]
                run = FrameRun(name, rate, frame.format.is_planar, key[2])
                if not self.sample_rate:
                    self.sample_rate, self.channels = rate, key[2]
            first = not self.frames_decoded
            self.frames_decoded += 1
            length = n / rate
            gap = 0.0
            if frame.pts is not None:
                scale = scale or float(frame.time_base)
                now = frame.pts * scale + self._swallowed
                if first and (self._origin is None or not (self.errors or exact)):
                    self._origin = after = now
                elif first:
                    after = self._origin
                overlong = self.codec_name == "opus" and last - length > 0.005
                if overlong and abs(now - after + last - length) < 0.003:
                    self._lost = (
                        True  # the packet before this one is damaged, and decodes to more than it held
                    )
                early = max(now - after, now - self._origin - done / self.sample_rate)
                if self.form == "mpegts" and not self._damaged and -1.0 <= early < -0.6 * length:
                    continue  # a frame too many, as damage in a payload makes them: its place is taken
                if self.codec_name == "vorbis":
                    # FFmpeg stamps by half of each block; what decodes next to a change of size is a quarter
                    # of each.
                    self._jitter = max(self._jitter, 0.5 * length)
                # Where stamps are but counted packets, what was decoded counts better: the rate may have
                # changed.
                if self.form not in _COUNTED or self.errors > errors:
                    gap = self._gap(now, after, done / self.sample_rate, length)
                if first and self._skips_too_much():
                    gap += length
                    self._origin -= length
                after = now
            after, last = after + length, length
            if self.lost_from is None and (self._lost or (done + n) / self.sample_rate > broken_at):
                self.lost_from = (
                    min(done, round(broken_at * self.sample_rate)) if broken_at < math.inf else done
                )
            if gap:
                silence = round(gap * self.sample_rate)
                if run.samples:
                    yield from self._block(run)
                    run = FrameRun(name, rate, run.planar, run.channels)
                if gap > MAX_PAUSE_SECONDS or exact or self.errors > errors:
                    self.holes.append((done, done + silence))
                yield from silence_blocks(silence, self.sample_rate)
                done += silence
            errors = self.errors
            run.add(frame, dtype)
            done += n if rate == self.sample_rate else round(length * self.sample_rate)
            if run.samples >= rate * _BLOCK_SECONDS:
                yield from self._block(run)
                run = FrameRun(name, rate, run.planar, run.channels)
        if not self.frames_decoded or (
            self.frames_decoded < self.errors and done == (run.samples if run else 0)
        ):
            raise AudioError(
                "audio_load", self.path, f"nothing in its {self.codec_name} stream can be decoded"
            )
        if run is not None and run.samples:
            yield from self._block(run)

    def _block(self, run: FrameRun) -> Iterator[np.ndarray]:
        for block in run.at_rate(self.sample_rate):
            self.opposite = self.opposite or run.opposite
            yield block

    def _gap(self, now: float, due: float, placed: float, length: float) -> float:
        """Seconds of silence to put before a frame stamped `now` that was due at `due`, `placed` s into the
        timeline.

        The jump from the frame before it and the drift since the start must both exceed the tolerance: stamps
        that only jitter, or a clock that runs slowly away, insert nothing.
        """
        jump = now - due
        if self._damaged:
            return self._gap_behind_damage(jump, length)
        drift = now - self._origin - placed
        tolerance = max(0.005, 0.6 * length, self._jitter)
        if jump > tolerance and drift > tolerance:
            gap = min(jump, drift)
            resettable = self.form in RESETTABLE
            limit = MAX_RESETTABLE_GAP if resettable else _MAX_UNSTATED_GAP
            believed = self._gap_limit is not None and now - self._origin <= self._gap_limit
            if gap <= limit or (believed and gap <= _MAX_STATED_GAP):
                self._pause = gap
                return gap
            self._origin += gap
        elif self.form in _NEVER_BACK and max(jump, drift) < -tolerance and now - self._origin > 1.0:
            self._lost = True
        elif self._pause > MAX_PAUSE_SECONDS and abs(jump + self._pause) < 0.1:
            # Back to before a pause: it was none, and since when the stamps are right again is not known.
            self._lost = True
        elif drift < -1.0:
            self._origin += drift
        return 0.0

    def _gap_behind_damage(self, jump: float, length: float) -> float:
        """As `_gap`, in a file whose structure is broken: its stamps are exact, or they are wrong."""
        tolerance = max(0.003 if self._resync else max(0.005, 0.6 * length), self._jitter)
        limit = MAX_RESETTABLE_GAP if self.form in RESETTABLE else (self._gap_limit or _MAX_UNSTATED_GAP)
        self._resync = False
        if jump > limit or jump < -tolerance:
            self._lost = True
        return jump if tolerance < jump <= limit else 0.0
