"""Prompts: lists of texts as the packages hold them, names, duplicates, raw G.722."""

from __future__ import annotations

import gzip

import numpy as np

from millrace.speech.audio.encode import encode_av
from millrace.speech.demo import prompts as demo_prompts
from millrace.speech.demo.prompts import Prompt
from tests.refusals import refused


def _g722(samples: np.ndarray) -> bytes:
    return encode_av(samples.astype(np.int16), 16_000, "g722", "g722", 64_000)


def _tone(hertz: float, seconds: float) -> np.ndarray:
    return (8000 * np.sin(2 * np.pi * hertz * np.arange(int(16_000 * seconds)) / 16_000)).astype(
        np.int16
    )


def test_recorded_prompts(tmp_path):
    """Only lines with a sure text and a sound become prompts."""
    tones = {
        letter: _g722(_tone(300 + 40 * number, 1)) for number, letter in enumerate("abcdefghij")
    }
    tones["zero"] = _g722(np.zeros(16_000))
    spoken = {"plain": "a", "quoted": "b", "digits/1F": "c", "letters/dash": "d", "letters/at": "e"}
    spoken |= {
        "beep": "f",
        "join": "f",
        "aside": "g",
        "empty": "g",
        "stops": "g",
        "twice": "h",
        "again": "i",
    }
    spoken |= {"silence/1": "j", "clock": "j", "hush": "zero"}
    for name, letter in spoken.items():
        path = tmp_path / "audio/usr/share/asterisk/sounds/xx_XX_f_Voice" / f"{name}.g722"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tones[letter])
    lines = (
        "\ufeff; comment: not a prompt\r\n\r\nplain: Good   day.\r\n"
        'quoted: "Good evening."\ndigits/1f: una\nletters/dash: dash [-]\n'
        "letters/at: [@]\nbeep: [a tone]\njoin: <beep>\naside: Yes (emphatic) sir\n"
        "empty:\nstops: ...\nlost: No audio.\ntwice: ten\ntwice: eleven\nagain: ten\nagain: ten\n"
        "hush: Silence?\nsilence/1: one second\nclock: It is 12:40\n"
    )
    path = tmp_path / "texts/usr/share/doc/asterisk-core-sounds-xx/core-sounds-xx.txt.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(lines.encode()))
    prompts = list(demo_prompts.recorded(tmp_path / "texts", tmp_path / "audio"))
    texts = ["Good day.", "Good evening.", "una", "dash", "ten", "It is 12:40"]
    assert [prompt.text for prompt in prompts] == texts
    for prompt in prompts:
        assert prompt.samples.dtype == np.int16 and abs(len(prompt.samples) - 16_000) < 400


def test_wrong_folder_is_a_clear_error(tmp_path):
    with refused("no list of prompts"):
        list(demo_prompts.recorded(tmp_path, tmp_path))
    with refused(r"not G\.722 audio"):
        demo_prompts.decode(tmp_path / "absent.g722")


def test_distinct_by_text_and_by_audio():
    one, two, three = (_tone(hertz, 0.5) for hertz in (300, 400, 500))
    prompts = [
        *(Prompt("Merci.", one), Prompt("MERCI !", two), Prompt("Other words", one.copy())),
        *(Prompt("Élève", three), Prompt("eleve", _tone(600, 0.5))),
        # Shares its audio with the second, which was dropped: what was dropped once stays out.
        Prompt("Third words", two.copy()),
    ]
    assert [prompt.text for prompt in demo_prompts.distinct(prompts)] == ["Merci.", "Élève"]
