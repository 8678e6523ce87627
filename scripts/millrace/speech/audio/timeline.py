"""The timeline of a recording: where its decoded frames belong, which gaps are pauses and which are
damage, and from where on that is unknown.

The timeline is the decoded samples, one after the other, from the first one that the encoder was
given: encoder delay, Opus pre-skip and edit lists are taken off as FFmpeg does. If the file's time
stamps say that something is missing (lost packets, a damaged page, a pause), silence of that length
takes its place, so that what follows stays where it was.

No span may touch a hole: silence that is longer than MAX_PAUSE_SECONDS, comes with an error, or is
in a lossless stream. All other silence is a pause. Of streams without stamps (MP3) nothing tells
how much audio a damaged stretch held, and stamps that step back contradict those before:
`lost_from` is where that begins, and no span may pass it.
"""

from __future__ import annotations

import math

import av

# A missing packet or two, or Opus' discontinuous transmission, is a pause; more than this is
# damage.
MAX_PAUSE_SECONDS = 0.5
# Stamps of these can be reset anywhere: FFmpeg too takes jumps above 10 s for resets, not for
# missing audio.
RESETTABLE = {"mpegts", "mpeg"}
MAX_RESETTABLE_GAP = 10.0
MAX_UNSTATED_GAP = 60.0
# FFmpeg stamps by half of each block; next to a change of size a quarter of each decodes. A quarter
# of the longest block that libvorbis makes of speech.
_VORBIS_JITTER = 0.016
_MAX_STATED_GAP = 86_400.0  # else a flipped bit in a stamp costs hours of silence
# Their frames have time stamps; FFmpeg stamps those of others by counting what it has decoded.
STAMPED = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "ogg", "flac"}
STAMPED |= {"wav", "w64", "aiff", "caf", "wv", *RESETTABLE}
# What these lose is lost: they code no silence by leaving it out, and don't conceal what they can't
# decode.
_LOSSLESS = {"flac", "alac", "wavpack", "tta", "ape", "mlp"}
_LOSSLESS |= {"truehd", "tak", "shorten", "wmalossless", "mp4als"}


class Timeline:
    """Places decoded frames, in the order in which they are decoded.

    `container_format`, `codec_name`: FFmpeg's names. `stated_seconds`: the container's duration, if
    any.
    """

    def __init__(
        self, container_format: str, codec_name: str, stated_seconds: float | None
    ) -> None:
        self.container_format = container_format
        self.codec_name = codec_name
        self.frames = 0
        self.samples = 0  # placed so far, at `sample_rate`
        self.sample_rate = 0  # of the first frame
        self.holes: list[tuple[int, int]] = []
        self.lost_from: int | None = None
        self.lost = False  # the place of the next frame is unknown
        self.ended = False  # at a break, behind which no frame is placed
        self.origin = math.nan  # time stamp of sample 0
        self._resettable = container_format in RESETTABLE
        # Seconds after which a gap in the stamps can't be believed.
        self._believed = (
            None if self._resettable or stated_seconds is None else stated_seconds + 1.0
        )
        self._tick = 0.0  # seconds of a stamp's unit
        self._rate = 0  # of the newest frame
        # Of the newest frame that was placed: seconds, errors before it.
        self._length = 0.0
        self._errors = 0
        self._due = 0.0  # stamp that the next frame should have
        self._pause = 0.0  # the newest gap
        # By how many seconds stamps of sound packets may be early or late.
        self._jitter = _VORBIS_JITTER if codec_name == "vorbis" else 0.0

    def end(self) -> None:
        """No more frames come; behind a break that ends the recording there would be some."""
        if self.ended and self.lost_from is None:
            self.lost_from = self.samples

    def place(self, frame: av.AudioFrame, errors: int) -> int:
        """Samples of silence to put before a frame.

        `errors`: how many there have been so far. If the frame's place is unknown, `lost_from` is
        set.
        """
        length = frame.samples / frame.sample_rate
        is_first = not self.frames
        self.frames += 1
        self.sample_rate = self.sample_rate or frame.sample_rate
        self._note_rate(frame.sample_rate)

        gap = 0.0
        if frame.pts is not None and self.container_format in STAMPED:
            assert frame.time_base is not None  # FFmpeg gives it with each stamp
            self._tick = self._tick or float(frame.time_base)
            now = frame.pts * self._tick
            if is_first:
                self._begin(now, errors)
            elif math.isnan(self.origin):
                # The first stamp of all: what came before it lies before it, frame by frame.
                self.origin = now - self.samples / self.sample_rate
                self._due = now
            jump = now - self._due
            drift = now - self.origin - self.samples / self.sample_rate
            self._check_opus(jump, length)
            self._check_extra(jump, drift, length)
            if self.codec_name == "vorbis":
                self._jitter = max(self._jitter, 0.5 * length)
            gap = self._gap(now, jump, drift, length)
            self._due = now
        self._due += length
        self._length = length
        return self._add(frame, gap, errors)

    def _note_rate(self, rate: int) -> None:
        if rate != self._rate and self.container_format == "mpegts":
            # FFmpeg stamps the frames of a PES packet by the rate that the first ones had.
            self.lost = self.lost or self.samples > self._rate > 0
        self._rate = rate

    def _begin(self, now: float, errors: int) -> None:
        """The first frame is stamped `now`."""
        # Samples before a first frame that comes with an error, or is lossless, may be missing.
        is_exact = errors or self.codec_name in _LOSSLESS
        if not is_exact or math.isnan(self.origin):
            self.origin = now
        self._due = self.origin

    def _check_opus(self, jump: float, length: float) -> None:
        """A packet of Opus that is damaged decodes to more than it held."""
        shrinks = self._length - length
        if self.codec_name == "opus" and shrinks > 0.005 and abs(jump + shrinks) < 0.003:
            self.lost = True

    def _check_extra(self, jump: float, drift: float, length: float) -> None:
        """Damage in a payload of a transport stream may make a frame too many."""
        if self.container_format == "mpegts" and -1.0 <= max(jump, drift) < -0.6 * length:
            self.lost = True

    def _add(self, frame: av.AudioFrame, gap: float, errors: int) -> int:
        """Put a frame behind a gap of so many seconds; the gap in samples."""
        if self.lost and self.lost_from is None:
            self.lost_from = self.samples
        silence = round(gap * self.sample_rate)
        is_damage = gap > MAX_PAUSE_SECONDS or self.codec_name in _LOSSLESS or errors > self._errors
        if silence and is_damage:
            self.holes.append((self.samples, self.samples + silence))
        samples = frame.samples
        if frame.sample_rate != self.sample_rate:
            samples = round(frame.samples / frame.sample_rate * self.sample_rate)
        self.samples += silence + samples
        self._errors = errors
        return silence

    def _gap(self, now: float, jump: float, drift: float, length: float) -> float:
        """Seconds of silence before a frame stamped `now`.

        Its `jump` from the frame before and its `drift` since the start must both exceed the
        tolerance: stamps that only jitter, or a clock that runs slowly away, insert nothing.
        """
        tolerance = max(0.005, 0.6 * length, self._jitter)
        since_origin = now - self.origin
        if jump > tolerance and drift > tolerance:
            gap = min(jump, drift)
            limit = MAX_RESETTABLE_GAP if self._resettable else MAX_UNSTATED_GAP
            is_stated = self._believed is not None and since_origin <= self._believed
            if gap <= limit or (is_stated and gap <= _MAX_STATED_GAP):
                self._pause = gap
                return gap
            self.origin += gap
        elif (
            self.container_format == "flac" and max(jump, drift) < -tolerance and since_origin > 1.0
        ):
            # No jitter: what is not another recording joined on, which begins at 0, is in the file
            # twice.
            self.lost = True
        elif self._pause > MAX_PAUSE_SECONDS and abs(jump + self._pause) < 0.1:
            # Back to before a pause: there was none, and since when the stamps are right again is
            # unknown.
            self.lost = True
        elif drift < -1.0:
            self.origin += drift
        return 0.0
