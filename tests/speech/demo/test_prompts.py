"""Prompts: lists of texts as the packages hold them, names, duplicates, raw G.722."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from millrace.common.errors import MillraceError
from millrace.speech.demo import prompts as demo_prompts
from millrace.speech.demo.prompts import LANGUAGES, Prompt


def _g722(samples: np.ndarray) -> bytes:
    import io

    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="g722") as container:
        stream = container.add_stream("g722", rate=16_000)
        stream.codec_context.layout = "mono"
        frame = av.AudioFrame.from_ndarray(samples[None].astype(np.int16), format="s16", layout="mono")
        frame.sample_rate, frame.pts = 16_000, 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def _tone(hertz: float, seconds: float) -> np.ndarray:
    return (8000 * np.sin(2 * np.pi * hertz * np.arange(int(16_000 * seconds)) / 16_000)).astype(np.int16)


def _packages(root: Path, lines: str, audio: dict[str, bytes]) -> tuple[Path, Path]:
    texts = root / "texts/usr/share/doc/asterisk-core-sounds-xx/core-sounds-xx.txt.gz"
    texts.parent.mkdir(parents=True)
    texts.write_bytes(gzip.compress(b"\xef\xbb\xbf" + lines.encode()))
    for name, content in audio.items():
        path = root / "audio/usr/share/asterisk/sounds/xx_XX_f_Voice" / f"{name}.g722"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root / "texts", root / "audio"


def test_recorded_prompts(tmp_path: Path) -> None:
    """Every line of the list ends as a prompt or as a counted reason."""
    tones = {letter: _g722(_tone(300 + 40 * number, 1)) for number, letter in enumerate("abcdefghij")}
    spoken = {"plain": "a", "quoted": "b", "digits/1F": "c", "letters/dash": "d", "letters/at": "e"}
    spoken |= {"beep": "f", "join": "f", "aside": "g", "empty": "g", "stops": "g", "twice": "h", "again": "i"}
    spoken |= {"silence/1": "j", "clock": "j"}
    folders = _packages(
        tmp_path,
        "; comment: not a prompt\r\n\r\nplain: Good   day.\r\n"
        'quoted: "Good evening."\ndigits/1f: una\nletters/dash: dash [-]\n'
        "letters/at: [@]\nbeep: [a tone]\njoin: <beep>\naside: Yes (emphatic) sir\n"
        "empty:\nstops: ...\nlost: No audio.\ntwice: ten\ntwice: eleven\nagain: ten\nagain: ten\n"
        "hush: Silence?\nsilence/1: one second\nclock: It is 12:40\n",
        {name: tones[letter] for name, letter in spoken.items()} | {"hush": _g722(np.zeros(16_000))},
    )
    skipped: Counter = Counter()
    prompts = {prompt.name: prompt for prompt in demo_prompts.recorded(*folders, skipped)}
    assert {name: prompt.text for name, prompt in prompts.items()} == {
        "plain": "Good day.", "quoted": "Good evening.", "digits/1f": "una", "letters/dash": "dash",
        "again": "ten", "clock": "It is 12:40",
    }  # fmt: skip
    assert skipped == {"sound": 3, "aside": 1, "no_text": 3, "no_audio": 1, "two_texts": 1, "silent": 1}
    for prompt in prompts.values():
        assert prompt.samples.dtype == np.int16 and abs(len(prompt.samples) - 16_000) < 400


def test_wrong_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="no list of prompts"):
        list(demo_prompts.recorded(tmp_path, tmp_path, Counter()))


def test_distinct_by_text_and_by_audio() -> None:
    one, two, three = (_tone(hertz, 0.5) for hertz in (300, 400, 500))
    prompts = [
        Prompt("a", "Merci.", one),
        Prompt("b", "MERCI !", two),
        Prompt("c", "Other words", one.copy()),
        Prompt("d", "Élève", three),
        Prompt("e", "eleve", _tone(600, 0.5)),
        # Shares its audio with b, which was dropped: b's audio is nowhere, but what was dropped once stays
        # out.
        Prompt("f", "Third words", two.copy()),
    ]
    skipped: Counter = Counter()
    assert [prompt.name for prompt in demo_prompts.distinct(prompts, skipped)] == ["a", "d"]
    assert skipped == {"duplicate": 4}


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_sentences(language: str) -> None:
    found = demo_prompts.sentences(language, seed=42)
    assert len({demo_prompts.normal(text) for text in found}) == len(found) == demo_prompts.SENTENCES
    assert found == demo_prompts.sentences(language, seed=42) != demo_prompts.sentences(language, seed=43)
    assert all(text.endswith(".") and text[0].isupper() for text in found)
    cyrillic = sum("а" <= character.lower() <= "я" for text in found for character in text)
    assert (cyrillic > 1000) == (language == "ru")
