"""What the words in ledgers and reject lists mean, for people."""

from __future__ import annotations

from millrace.speech.manifest.rejects import REJECTS

MEANINGS = {
    **{reject.reason: reject.meaning for reject in REJECTS},
    # alignment files
    "json_empty": "the file is empty",
    "json_damaged": "not valid JSON, cut off, or with half a character in a text",
    "json_encoding": "not in UTF-8",
    "json_not_an_object": "the top level is not an object",
    "json_unreadable": "the file cannot be read",
    "no_segments": "holds no segments",
    "audio_outside": "names audio outside of the folders that it may come from: speech.audio_roots",
    "no_audio_file": "has no `audio_file`: it does not say which audio it belongs to",
    "name_not_utf8": "the name of the file or of a folder it lies in is not UTF-8",
    "not_an_alignment_name": "the name does not end in _aligned.json: not an alignment file",
    # repairs
    "json_bom": "a byte order mark was skipped",
    "json_control": "a text of the JSON holds unescaped control characters",
    "json_nan": "the JSON holds NaN or Infinity",
    "end_clipped": "end a little beyond the audio, set to its end",
    "asr_text_missing": "no ASR text: an empty one is used",
    "cer_computed": "CER missing or unusable: computed from the texts, by speech.normalise_text",
    # warnings and notes
    "no_encoder_delay": (
        "a compressed file that does not state its encoder's delay: all of it is late,"
        " mostly by 10 to 70 ms"
    ),
    "size_wrong": (
        "a WAV is shorter or longer than it states: it was cut off, or bytes are missing or added"
        " within the audio"
    ),
    "language_unknown": "the language of the country is unknown: set language_map",
    "no_alignment_files": "the country has no JSON file in Alignment/alignment_output",
}
