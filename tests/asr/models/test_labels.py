"""Characters, CTC paths, masks of prompts, padding."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millrace.asr.models.labels import (
    IGNORE,
    Characters,
    label_places,
    labelled,
    normalise,
    padded_ids,
)
from millrace.common.error_rates import ErrorCounts, count_errors
from millrace.common.errors import MillraceError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello,  WORLD!", "hello world"),
        ("Désolé, je n’ai pas", "désolé je n'ai pas"),
        ("'quoted' dogs'", "quoted dogs"),
        ("Straße ﬁn", "strasse fin"),
        ("дабл-в Ещё", "дабл в ещё"),
        ("e\u0301te\u0301", "été"),
        ("a\u200bb\x00c\tTab\u00a0x", "a b c tab x"),
        ("¿Qué? 5 €", "qué 5"),
        ("...", ""),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected


def test_normalise_can_keep_case_and_punctuation():
    assert normalise("Hello,  World’s!", case_fold=False, punctuation=True) == "Hello, World's!"


@given(st.text())
def test_normalise_is_idempotent(text):
    once = normalise(text)
    assert normalise(once) == once


def test_characters_do_not_depend_on_the_order_of_transcripts():
    texts = ["Hello world", "Всем привет", "ça va"]
    assert len({Characters.from_transcripts(order) for order in itertools.permutations(texts)}) == 1
    few = Characters.from_transcripts(["aaa bbb cc d"], limit=3)
    assert few.characters == " ab"  # the most frequent, ties by code point


def test_characters_write_what_they_know():
    vocabulary = Characters.from_transcripts(["hello world"])
    assert vocabulary.encode("Hello, WORLD!") == [vocabulary.characters.index(c) + 1 for c in "hello world"]
    assert vocabulary.normalise("hello zebra") == "hello er"
    assert vocabulary.encode("ж ж") == []
    with pytest.raises(MillraceError, match="no character"):
        Characters.from_transcripts(["", "?!"])


def test_ctc_paths():
    vocabulary = Characters("abl")
    a, b, l = 1, 2, 3  # noqa: E741
    assert vocabulary.collapse([0, a, a, 0, b, l, l, 0, l, 0]) == "abll"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad", [0, 9])  # 9 is the end token
def test_labels_are_the_targets_with_their_end(side, pad):
    draws = random.Random(1)
    prompts = [[draws.randrange(1, 9) for _ in range(draws.randrange(1, 7))] for _ in range(20)]
    targets = [[draws.randrange(1, 9) for _ in range(draws.randrange(6))] + [9] for _ in range(20)]
    made = labelled(prompts, targets, pad, side)
    for row, (prompt, target) in enumerate(zip(prompts, targets, strict=True)):
        labels, ids, mask = (made[name][row] for name in ("labels", "input_ids", "attention_mask"))
        assert labels[labels != IGNORE].tolist() == target
        assert ids[mask == 1].tolist() == prompt + target
        assert torch.equal(ids[labels != IGNORE], labels[labels != IGNORE])
        assert bool(mask[0 if side == "right" else -1])


def test_label_places_point_to_the_position_before():
    made = labelled([[1, 2], [3]], [[4, 9], [5, 6, 9]], 0, "left")
    places, answers = label_places(made["labels"])
    flat = made["input_ids"].flatten()
    assert answers.tolist() == [4, 9, 5, 6, 9]
    assert flat[places].tolist() == [2, 4, 3, 5, 6]
    assert flat[places + 1].tolist() == answers.tolist()


def test_padding_of_nothing():
    assert padded_ids([], 0).shape == (0, 0)
    assert padded_ids([[], []], 0, "left").shape == (2, 0)
    with pytest.raises(MillraceError, match="padding_side"):
        padded_ids([[1]], 0, "middle")


def test_error_counts_add_up():
    counts = count_errors(["abcd efgh", ""], ["abXd efgh", "zz"])
    assert counts == ErrorCounts(character_edits=3, characters=9, word_edits=2, words=2)
    assert (counts + counts).cer == counts.cer == pytest.approx(3 / 9)
    assert count_errors([], []).cer == 0.0
