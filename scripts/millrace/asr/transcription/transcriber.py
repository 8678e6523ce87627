"""A trained model with files of audio as its input; long ones are cut at their pauses."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from millrace.asr.loading.collate import Batch
from millrace.asr.loading.row_table import Row
from millrace.asr.models import registry
from millrace.common.errors import MillraceError
from millrace.common.loading.arguments import above_zero, several
from millrace.common.loading.decode import SAMPLING_RATE, DecodeError, decode
from millrace.common.training import devices

_MIN_SAMPLES = SAMPLING_RATE // 10  # shorter ends of a recording hold no word
_PAUSE_MS = 300
_SEEK_MS = 20
_BELOW_MEAN_DB = 16.0  # what is quieter than the mean loudness by more is a pause


@dataclass
class Transcript:
    """What was said in a file. `language` is that given, or that of the longest text by a model
    that tells it; `pieces` are (start, end, text) in seconds; `error` says why there is no text."""

    file: str
    language: str = ""
    seconds: float = 0.0
    text: str = ""
    pieces: list[tuple[float, float, str]] = field(default_factory=list)
    error: str = ""


@dataclass
class _Piece:
    transcript: Transcript
    first: int
    audio: np.ndarray
    language: str = ""
    text: str = ""


class Transcriber:
    """Writes down what is said in files, with the model of a folder: a run's, or one of
    transformers.

        transcriber = Transcriber("results/asr/runs/demo/model")
        print(transcriber("speech.wav").text)

    Pieces of `max_seconds` at most go through the model in batches of `batch_seconds`, padded.
    `language` is told to models that take one (Qwen3-ASR, Whisper), in any spelling; without it
    they find it. `device`: auto, cpu, cuda.
    """

    def __init__(
        self,
        model: str | os.PathLike,
        language: str = "",
        max_seconds: float = 20.0,
        batch_seconds: float = 240.0,
        device: str = "auto",
    ) -> None:
        self.language = language
        self.batch_seconds = above_zero("batch_seconds", batch_seconds)
        max_seconds = above_zero("max_seconds", max_seconds)
        self.device = devices.kind_of(device)
        if self.device != "cpu" and not torch.cuda.is_available():
            problem = f"device is {self.device!r}, and there is no GPU here"
            raise MillraceError(problem, remedy="Give auto or cpu")
        self.model = registry.load(model).to(self.device).eval()
        self.max_seconds = min(max_seconds, self.model.max_seconds)
        if not self.max_seconds >= 1:
            raise MillraceError(
                f"pieces of {max_seconds:g} s hold no words", "max_seconds", "Give 1 or more"
            )

    def __call__(self, file: str | os.PathLike) -> Transcript:
        """The transcript of one file. Raises MillraceError if it cannot be read or is no audio."""
        (transcript,) = self.transcripts([file])
        if transcript.error:
            raise MillraceError(transcript.error, str(file), "Give a file of audio")
        return transcript

    def transcripts(self, files: Iterable[str | os.PathLike]) -> Iterator[Transcript]:
        """The transcripts of files, in their order. Batches mix pieces of files."""
        waiting: list[Transcript] = []
        pool: list[_Piece] = []
        for file in several("files", files):
            name = str(file).encode(errors="backslashreplace").decode()  # it need not be UTF-8
            waiting.append(transcript := Transcript(name, self.language))
            try:
                audio = decode(Path(file).read_bytes())
            except (DecodeError, OSError) as error:
                transcript.error = getattr(error, "strerror", None) or str(error)
                continue
            transcript.seconds = round(len(audio) / SAMPLING_RATE, 3)
            for first, end in pieces(audio, SAMPLING_RATE, self.max_seconds):
                if end - first >= _MIN_SAMPLES or end - first == len(audio):
                    pool.append(_Piece(transcript, first, audio[first:end]))
            if sum(len(piece.audio) for piece in pool) >= 4 * self.batch_seconds * SAMPLING_RATE:
                yield from self._finish(waiting, pool)
                waiting = []
                pool = []
        yield from self._finish(waiting, pool)

    @torch.no_grad()
    def _finish(self, transcripts: list[Transcript], pool: list[_Piece]) -> list[Transcript]:
        """Transcribe the pieces, the longest first, and put their texts in place."""
        by_length = sorted(pool, key=lambda piece: -len(piece.audio))
        while by_length:
            longest = max(len(by_length[0].audio), 1)
            rows = max(int(self.batch_seconds * SAMPLING_RATE / longest), 1)
            part = by_length[:rows]
            by_length = by_length[rows:]
            clips = [torch.from_numpy(piece.audio) for piece in part]
            audio = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True)
            row = Row(0, 0, 0, 0, 0, 0.0, "", self.language)
            batch = Batch.of(
                [row] * len(part),
                [len(clip) for clip in clips],
                step=0,
                audio=audio,
                planned=len(part),
            )
            prepared = self.model.prepare(batch).to(self.device)
            results = self.model.recognise(prepared, self.language)
            for piece, result in zip(part, results, strict=True):
                piece.language, piece.text = result
        for transcript in transcripts:
            spoken = [piece for piece in pool if piece.transcript is transcript]
            for piece in spoken:
                start = round(piece.first / SAMPLING_RATE, 3)
                end = round((piece.first + len(piece.audio)) / SAMPLING_RATE, 3)
                transcript.pieces.append((start, end, piece.text))
            transcript.text = " ".join(text for *_, text in transcript.pieces if text)
            if not self.language and spoken:
                # A cough has no language.
                longest_text = max(spoken, key=lambda piece: len(piece.text))
                transcript.language = longest_text.language
        return transcripts


def pieces(audio: np.ndarray, rate: int, max_seconds: float) -> list[tuple[int, int]]:
    """(first, end) samples of the pieces of float32 `audio`: together all of it, each `max_seconds`
    at most.

    A piece ends in the middle of the last pause that it can reach; without a pause where it is
    full.
    """
    longest = int(max_seconds * rate)
    if len(audio) <= longest:
        return [(0, len(audio))]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # pydub looks for an ffmpeg program, which nothing here needs
        try:
            from pydub import AudioSegment
            from pydub.silence import detect_silence
        except ModuleNotFoundError as error:  # from Python 3.13 on audioop is a package of its own
            raise MillraceError(
                f"pydub lacks {error.name}", remedy="pip install pydub audioop-lts"
            ) from None
    raw = (np.clip(audio, -1, 1) * 32767).astype("<i2").tobytes()
    sound = AudioSegment(raw, sample_width=2, frame_rate=rate, channels=1)
    loudness = sound.dBFS if math.isfinite(sound.dBFS) else 0.0
    silences = detect_silence(sound, _PAUSE_MS, loudness - _BELOW_MEAN_DB, _SEEK_MS)
    middles = [(begin + end) * rate // 2000 for begin, end in silences]

    parts = []
    first = 0
    while len(audio) - first > longest:
        reached = [middle for middle in middles if first < middle <= first + longest]
        end = reached[-1] if reached else first + longest
        parts.append((first, end))
        first = end
    return [*parts, (first, len(audio))]
