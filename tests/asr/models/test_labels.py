"""Characters, CTC paths, masks of prompts, padding."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.asr.models.labels import IGNORE, Characters, labelled, normalise, padded_ids
from tests.refusals import refused


@pytest.mark.parametrize(
    "text, expected",
    {
        "Hello,  WORLD!": "hello world",
        "Désolé, je n’ai pas": "désolé je n'ai pas",
        "'quoted' dogs'": "quoted dogs",
        "n\u02bca n\uff07a n\u0060a n\u00b4a": "n'a n'a n'a n'a",
        "Straße ﬁn \u0390": "strasse fin \u0390",  # the last is decomposed when it is folded
        "дабл-в Ещё": "дабл в ещё",
        "e\u0301te\u0301": "été",
        "a\u200bb\x00c\tTab\u00a0x": "a b c tab x",
        "¿Qué? 5 €": "qué 5",
        "...": "",
    }.items(),
)
def test_normalise(text, expected):
    assert normalise(text) == expected


def test_normalise_can_keep_case_and_punctuation():
    assert normalise("Hello,  World’s!", case_fold=False, punctuation=True) == "Hello, World's!"
    assert normalise("a\u200bb\u00ad, c\td", punctuation=True) == "ab, c d"


@given(st.text())
def test_normalise_is_idempotent(text):
    once = normalise(text)
    assert normalise(once) == once


def test_characters_do_not_depend_on_the_order_of_transcripts():
    texts = ["Hello world", "Всем привет", "ça va"]
    assert len({Characters.from_transcripts(order) for order in itertools.permutations(texts)}) == 1
    few = Characters.from_transcripts(["bbb aaa cc d"], limit=2)
    assert few.characters == " a"  # the most frequent, ties by code point
    assert Characters.from_transcripts(["zzz a b zzz"], limit=2).characters == " z"
    han = "".join(map(chr, range(0x4E00, 0x4E00 + 5001)))
    assert Characters.from_transcripts([han]).characters == han[:-1]


def test_characters_write_what_they_know():
    vocabulary = Characters.from_transcripts(["hello world"])
    assert vocabulary.encode("Hello, WORLD!") == [
        vocabulary.characters.index(c) + 1 for c in "hello world"
    ]
    assert vocabulary.normalise("hello zebra") == "hello er"
    assert vocabulary.encode("ж ж") == []
    with refused("no character"):
        Characters.from_transcripts(["", "?!"])


def test_ctc_paths():
    vocabulary = Characters("abl")
    a, b, l = 1, 2, 3  # noqa: E741
    assert vocabulary.collapse([0, a, a, 0, b, l, l, 0, l, 0]) == "abll"
    assert Characters(" ab").collapse([1, 2, 1, 0, 1, 3, 1]) == "a b"


@pytest.mark.parametrize("pad", [0, 9])  # 9 is the end token
def test_labels_are_the_targets_predicted_one_place_before(pad):
    made = labelled([[1, 2], [3]], [[4, 9], [9]], pad)
    assert made["input_ids"].tolist() == [[1, 2, 4, 9], [3, 9, pad, pad]]
    assert made["attention_mask"].tolist() == [[1] * 4, [1, 1, 0, 0]]
    assert made["labels"].tolist() == [[IGNORE, IGNORE, 4, 9], [IGNORE, 9, IGNORE, IGNORE]]
    assert made["answers"].tolist() == [4, 9, 9]
    assert made["input_ids"].flatten()[made["places"]].tolist() == [2, 4, 3]


def test_padding_of_nothing():
    assert padded_ids([], 0).shape == (0, 0)
    assert padded_ids([[], []], 0, "left").shape == (2, 0)
    assert padded_ids([[1], [2, 3]], 7, "left").tolist() == [[7, 1], [2, 3]]
