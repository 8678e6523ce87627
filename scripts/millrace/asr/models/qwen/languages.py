"""Language tags of Qwen3-ASR: `language English<asr_text>...`, or `language None<asr_text>...`."""

from __future__ import annotations

MARKER = "<asr_text>"
# The languages that Qwen3-ASR was trained with: name, then ISO 639-1 and 639-2/3 codes.
_CODES = {
    "Arabic": "ar ara",
    "Cantonese": "yue zh-hk",
    "Chinese": "zh zho chi cmn mandarin",
    "Czech": "cs ces cze",
    "Danish": "da dan",
    "Dutch": "nl nld dut",
    "English": "en eng",
    "Filipino": "fil tl tgl tagalog",
    "Finnish": "fi fin",
    "French": "fr fra fre",
    "German": "de deu ger",
    "Greek": "el ell gre",
    "Hindi": "hi hin",
    "Hungarian": "hu hun",
    "Indonesian": "id ind",
    "Italian": "it ita",
    "Japanese": "ja jpn",
    "Korean": "ko kor",
    "Macedonian": "mk mkd mac",
    "Malay": "ms msa may zsm",
    "Persian": "fa fas per farsi",
    "Polish": "pl pol",
    "Portuguese": "pt por",
    "Romanian": "ro ron rum",
    "Russian": "ru rus",
    "Spanish": "es spa",
    "Swedish": "sv swe",
    "Thai": "th tha",
    "Turkish": "tr tur",
    "Vietnamese": "vi vie",
}
_NAMES = {code: name for name, codes in _CODES.items() for code in (name.lower(), *codes.split())}


def language_name(language: str | None) -> str | None:
    """`English` for en, EN, eng, en-US, en_GB, English; None for what Qwen3-ASR has no name for."""
    wanted = (language or "").strip().lower().replace("_", "-")
    return _NAMES.get(wanted) or _NAMES.get(wanted.split("-")[0])


def tag(language: str | None) -> str:
    """What stands before the transcript in the assistant's turn."""
    return f"language {language_name(language)}{MARKER}"


def without_tag(text: str) -> str:
    """The transcript in what the model has written: all of it where there is no marker."""
    return " ".join(text.split(MARKER, 1)[-1].split())
