"""Preprocessing, labels and splits: each bug has its number, and nothing else fails, nor do the
twins."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset

from millrace.audit.checks.findings import VERDICTS, Finding
from millrace.audit.probes.colours import Painted, _images, colours, order
from millrace.audit.probes.figures import (
    _described,
    _flat,
    _widen,
    channel_axis,
    constants,
    figures,
    measured,
    merged,
    values,
)
from millrace.audit.probes.labels import _alone, labels, token_rows
from millrace.audit.probes.listed import media
from millrace.audit.probes.splits import _ids, _read, _source, splits
from millrace.audit.runner.target import Options, Target
from tests.audit import pictures
from tests.audit.ranks import Clock
from tests.audit.running import judged, probed, target_of, verdict_on


@pytest.mark.parametrize(
    "shape, axis",
    [
        ((2, 3, 8, 8), 1),
        ((2, 8, 8, 3), 3),
        ((2, 40, 40, 1), 3),
        ((2, 5, 3, 16, 16), 2),
        ((2, 5, 16, 16, 3), 4),
        ((2, 1, 4, 4), None),
        ((2, 3, 8, 7), None),
        ((2, 7, 8, 3), None),
        ((2, 8, 8), None),
    ],
)
def test_a_picture_has_channels_and_at_least_eight_pixels_a_side(shape, axis):
    assert channel_axis(torch.Size(shape)) == axis


ENTRIES = ("DP10", "DP11", "DP12", "DP13", "labels", "splits")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder, draw = tmp_path_factory.mktemp("images"), random.Random(0)
    for number in range(8):
        pixels = bytes(
            min(draw.randrange(256) * (c + 1) // 3, 255) for _ in range(256) for c in range(3)
        )
        Image.frombytes("RGB", (16, 16), pixels).save(folder / f"{number}.png")
    return str(folder)


@pytest.fixture
def findings(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "open", Image.open)  # a probe replaces it, in a process of its own

    def said(factory: str, val: bool = False, expect: str = "", **args) -> list[Finding]:
        name = f"{pictures.here}:{factory}"
        options = Options(name, args, val_loader=name if val else "", expect=expect)
        probes = (values, colours, labels, splits)
        seen = {probe.__name__: probed(probe, Target(options), tmp_path) for probe in probes}
        return [finding for entry in ENTRIES for finding in judged(entry, **seen)]

    return said


@pytest.fixture
def verdicts(findings):
    def judge(factory: str, **settings) -> dict[str, str]:
        worst: dict[str, str] = {}
        said = findings(factory, **settings)
        for finding in sorted(said, key=lambda each: VERDICTS.index(each.verdict)):
            worst[finding.entry] = finding.verdict
        return worst

    return judge


def failed(verdicts: dict[str, str]) -> set[str]:
    return {entry for entry, verdict in verdicts.items() if verdict == "fail"}


@pytest.mark.parametrize(
    "kind, bug",
    [
        ("plain", ""),
        ("good", ""),
        ("dark", ""),
        ("jitter first", ""),
        ("half", ""),
        ("pixel constants", ""),
        ("turned bgr mean", ""),
        ("one for three", ""),
        ("turned good", "DP11"),
        ("unscaled", "DP12"),
        ("unscaled, normalised", "DP12"),
        ("twice", "DP12"),
        ("twice, normalised", "DP12"),
        ("too early", "DP13"),
        ("tensor twice", "DP13"),
        ("jitter last", "DP13"),
        ("lengths", "DP13"),
    ],
)
def test_images(verdicts, root, kind, bug):
    assert failed(verdicts("pictures", kind=kind, root=root)) == {*bug.split()}


@pytest.mark.parametrize("kind, bug", [("good", ""), ("turned good", "DP11"), ("twice", "DP12")])
def test_images_in_lists(verdicts, root, kind, bug):
    assert failed(verdicts("pictures", kind=kind, root=root, as_list=True)) == {*bug.split()}


@pytest.mark.parametrize(
    "kind, expect, verdict",
    [
        ("plain", "0-1", "pass"),
        ("good", "0-1", "fail"),
        ("good", "imagenet", "pass"),
        ("plain", "imagenet", "fail"),
        ("half", "imagenet", "fail"),
        ("bgr mean", "imagenet", "fail"),
        ("own constants", "0,1", "pass"),
        ("plain", "0,1", "fail"),
        ("plain", "none", "not applicable"),
        ("plain", "", "not applicable"),
        ("good", "", "pass"),
        ("bgr mean", "", "fail"),
        ("turned bgr mean", "", "pass"),
        ("own constants", "", "pass"),
    ],
)
def test_ranges_are_compared_with_what_is_expected(verdicts, root, kind, expect, verdict):
    assert verdicts("pictures", expect=expect, kind=kind, root=root)["DP10"] == verdict


COLOUR = {
    "name": "",
    "image": True,
    "dtype": "float32",
    "values": 256,
    "mean": [0.5] * 3,
    "std": [0.2] * 3,
    "min": [0.0] * 3,
    "whole": False,
    "distinct": 64,
}
GREY = {"mean": [0.5]}


def seen(*steps: dict, expect: str = "", fields: tuple[dict, ...] = ()) -> dict:
    chains = [list(steps)] if steps else []
    plain = {"constants": [], "normalised": []}
    return {**plain, "expect": expect, "chains": chains, "fields": list(fields)}


@pytest.mark.parametrize(
    "highest, changes, expect, verdict",
    [
        (1 / 255, {}, "", "not decidable"),
        (1 / 255, {}, "0-1", "fail"),
        (2 / 255, {}, "0-1", "pass"),
        (2, {}, "", "pass"),
        (100, {}, "", "not decidable"),
        (255, {}, "", "fail"),
        (257, {}, "", "not decidable"),
        (257, {}, "0-1", "fail"),
        (255, {"distinct": 63}, "", "not decidable"),
        (255, {"dtype": "uint8"}, "", "pass"),
        (255, {"min": [-1.0] * 3}, "", "pass"),
        (255, GREY | {"whole": True}, "", "fail"),
        (257, GREY | {"whole": True}, "", "not decidable"),
        (255, GREY | {"whole": True, "distinct": 63}, "", "pass"),  # labels
        (255, GREY, "", "pass"),  # features
        (255, GREY, "0-1", "fail"),
        (255, {}, "none", "not applicable"),
        (255, {"min": [0.0, 0.0, 255.0]}, "", "not decidable"),  # coordinates
    ],
)
def test_pixels_are_judged_by_their_range_and_levels(highest, changes, expect, verdict):
    field = COLOUR | {"max": [highest] * 3} | changes
    assert verdict_on("DP12", values=[seen(expect=expect, fields=(field,))]) == verdict


def test_grey_whole_numbers_beside_a_picture_may_be_its_mask():
    picture = COLOUR | {"max": [1.0] * 3}
    mask = COLOUR | GREY | {"name": "mask", "whole": True, "max": [255.0]}
    findings = judged("DP12", values=[seen(fields=(picture, mask))])
    assert [finding.verdict for finding in findings] == ["pass", "not decidable"]
    words = "the batch spans 0..1, mean 0.5, 0.5, 0.5, std 0.2, 0.2, 0.2"
    assert findings[0].cause == words
    # What is expected, is expected of the picture.
    assert verdict_on("DP10", values=[seen(expect="0-1", fields=(picture, mask))]) == "pass"


def test_one_mean_of_several_that_is_red_first_may_be_the_one_that_is_used():
    means = {"loader.a": [0.406, 0.456, 0.485], "loader.b": [0.485, 0.456, 0.406]}
    for kept, verdict in (("ab", "not applicable"), ("a", "fail"), ("b", "not applicable")):
        held = {path: mean for path, mean in means.items() if path[-1] in kept}
        seen = {"images": [""], "orders": ["RGB"] * 2, "means": held}
        assert judged("DP10", colours=[seen])[0].verdict == verdict


def step(name: str, at: int = 0, kind: str = "tensor", **facts) -> dict:
    value = {"type": kind, "is_tensor": kind == "tensor", "min": -2, "max": 2}
    taken = {key: facts.pop(key) for key in ("min", "max") if key in facts}
    return {"path": "loader", "mean": [], "at": at, "name": name, "taken": value | taken, **facts}


NORMALIZE = {"mean": [0.5] * 3}
FIXES = {
    ("DP12", "Normalize"): "scale once",
    ("DP13", "ColorJitter"): "put Normalize last",
    ("DP13", "Normalize"): "remove one of them",
    ("DP13", "RandomCrop"): "first operations on images",
}


@pytest.mark.parametrize(
    "entry, steps, verdict",
    [
        # What takes arrays may scale them itself.
        ("DP12", [step("Normalize", kind="array", min=0, max=255, **NORMALIZE)], "not applicable"),
        ("DP12", [step("Normalize", min=0, max=255, **NORMALIZE)], "fail"),
        ("DP12", [step("Normalize", min=0, max=100, **NORMALIZE)], "not applicable"),
        ("DP13", [step("Normalize", **NORMALIZE), step("ColorJitter", 1)], "fail"),
        ("DP13", [step("Normalize", **NORMALIZE), step("ColorJitter", 1, min=0)], "pass"),
        # A second one may have turned the values back.
        (
            "DP13",
            [
                step("Normalize", **NORMALIZE),
                step("Normalize", 1, mean=[-1.0] * 3),
                step("ColorJitter", 2),
            ],
            "pass",
        ),
        (
            "DP13",
            [step("Normalize", **NORMALIZE), step("Normalize", 1, **NORMALIZE)],
            "fail",
        ),
        # Each of several views has a pipeline of its own.
        (
            "DP13",
            [step("Normalize", min=0, **NORMALIZE), step("Normalize", 1, min=0, **NORMALIZE)],
            "pass",
        ),
        ("DP13", [step("ToTensor"), step("RandomCrop", 1, raised="TypeError")], "fail"),
        ("DP13", [step("ToTensor"), step("RandomCrop", 1, raised="OSError")], "pass"),
    ],
)
def test_a_transform_is_judged_by_what_it_took_and_what_was_before(entry, steps, verdict):
    [finding] = judged(entry, values=[seen(*steps)])[:1]
    assert finding.verdict == verdict
    assert verdict != "fail" or finding.fix.startswith(FIXES[entry, steps[-1]["name"]])


@pytest.mark.parametrize(
    "highest, mean, words",
    [
        (255, 0.5, "Normalize takes 0..255, its constants are for 0..1"),
        (1, 127.0, "Normalize takes 0..1, its constants are for 0..255"),
    ],
)
def test_the_range_that_constants_are_for_is_told(highest, mean, words):
    normalize = step("Normalize", min=0, max=highest, mean=[mean] * 3)
    [finding] = judged("DP12", values=[seen(normalize)])
    assert finding.verdict == "fail" and finding.cause.endswith(words)


def test_an_image_that_to_tensor_did_not_scale_is_named_by_it():
    sixteen_bits = {"type": "Tensor", "is_tensor": True, "min": 0.0, "max": 65535.0}
    field = COLOUR | {"max": [65535.0] * 3}
    [finding] = judged("DP12", values=[seen(step("ToTensor", gave=sixteen_bits), fields=(field,))])
    assert finding.verdict == "fail"
    assert finding.cause.endswith("loader[0] ToTensor does not scale it")
    # One that is as dark as the image has not scaled it before.
    dark = {"min": 0.0, "max": 1 / 255}
    field |= {"max": [1 / 255] * 3}
    not_scaled = step("ToTensor", gave=sixteen_bits | dark)
    verdict = verdict_on("DP12", values=[seen(not_scaled, fields=(field,))])
    assert verdict == "not decidable"


@pytest.mark.parametrize(
    "train, val, constants, is_blamed",
    [
        (True, True, [3], True),
        (True, True, [1], True),
        (True, True, [2], False),
        (True, False, [3], False),  # not all was read
        (False, True, [3], False),
    ],
)
def test_constants_of_both_splits_are_blamed_if_they_may_be_those_of_a_field(
    train, val, constants, is_blamed
):
    values = seen() | {"constants": constants, "normalised": ["x"]}
    for name, complete, mean in (("train", train, 0.5), ("val", val, -0.5)):
        field = COLOUR | {"name": "x", "max": [1.0] * 3, "mean": [mean] * 3}
        values[name] = {"complete": complete, "fields": [field]}
    failed = [each for each in judged("DP10", values=[values]) if each.verdict == "fail"]
    assert bool(failed) == is_blamed
    values["val"]["fields"][0] |= GREY
    assert verdict_on("DP10", values=[values]) == "not applicable"


@pytest.mark.parametrize(
    "changes, verdict",
    [
        ({"min": [-1.8] * 3}, "pass"),
        ({"min": [-3.0] * 3}, "fail"),
        ({"min": [-2.11, -2.03, -1.8], "max": [-2.11, -2.03, -1.8]}, "fail"),  # scaled twice
        (GREY | {"min": [-1.8], "max": [2.0]}, "fail"),  # ImageNet's are of three channels
    ],
)
def test_what_imagenet_expects_is_three_channels_of_0_to_1(changes, verdict):
    field = COLOUR | {"max": [2.0] * 3} | changes
    assert verdict_on("DP10", values=[seen(expect="imagenet", fields=(field,))]) == verdict


def test_a_transform_whose_errors_are_caught_is_none_that_is_out_of_place():
    values = seen(step("RandomCrop", raised="RuntimeError"), fields=(COLOUR | {"max": [1.0] * 3},))
    assert verdict_on("DP13", values=[values]) == "pass"


def test_the_figures_of_batches_are_those_of_all_their_values():
    batches = [torch.arange(2.0 * 3 * 8 * 8).reshape(2, 3, 8, 8), torch.zeros(1, 3, 8, 8)]
    found = merged("image", [measured(batch) for batch in batches])
    std, mean = torch.std_mean(torch.cat(batches).double(), (0, 2, 3), unbiased=False)
    assert found["mean"] == pytest.approx(mean.tolist())
    assert found["std"] == pytest.approx(std.tolist())
    assert (found["min"], found["max"]) == ([0.0] * 3, [255.0, 319.0, 383.0])
    assert found["whole"]
    broken = [measured(batch) for batch in (*batches, torch.full((1, 3, 8, 8), 0.5))]
    assert not merged("image", broken)["whole"]
    assert found["distinct"] == 2 * 3 * 8 * 8  # of the batch that has most
    # What is no number counts as 0.
    assert merged("x", [measured(torch.tensor([float("nan"), 3.0]))])["mean"] == [1.5]
    seen = {"min": 0, "max": 1}
    _widen(seen, {"min": -1, "max": 2})
    assert seen == {"min": -1, "max": 2}


@pytest.mark.parametrize("seconds, is_whole", [(3.0, True), (1.0, False)])
def test_what_was_read_until_the_time_was_over_is_not_whole(tmp_path, seconds, is_whole):
    rank = Clock(0, 1, tmp_path, 0.0, seconds=[seconds])
    rows = [{"id": "a", "x": torch.rand(4)}] * 3
    loader = DataLoader(rows)
    assert figures(loader, rank, None, 2.0)["complete"] == is_whole
    seen = _read(loader, rank, 2.0)
    assert (seen["complete"], seen["read"]) == (is_whole, 3 if is_whole else 1)
    assert seen["marks"]["id"] == {"a": 0}  # the first


def test_a_data_set_is_known_by_what_it_holds_beside_transforms():
    sources = [
        _source(SimpleNamespace(rows=list(range(count)), transform=number))
        for count, number in ((5000, 1), (5000, 2), (5001, 1), (3, 1))
    ]
    assert sources[0] == sources[1] != sources[2]
    assert sources[3] == ""  # so few may be another's by chance
    assert _source(Subset([1, 2], [0])) == _source(Subset([1, 2], [1])) != ""


def test_files_with_pictures_or_sound_are_known_by_their_endings(tmp_path):
    for name in ("a.PNG", "b.txt"):
        (tmp_path / name).touch()
    listed = media(("a.PNG", "b.txt"), SimpleNamespace(root=tmp_path))
    assert list(listed) == [str(tmp_path / "a.PNG")]


@pytest.mark.parametrize(
    "mean, std, is_read",
    [
        (2.9, 1.0, True),
        (-3.1, 1.0, False),
        (3.1, 1.0, False),
        (0.0, 0.6, True),
        (0.0, 0.4, False),
        (0.0, 1.9, True),
        (0.0, 2.1, False),
    ],
)
def test_both_sets_are_read_whole_if_their_values_are_normalised(tmp_path, mean, std, is_read):
    rows = mean + std * torch.tensor([-1.0, 1.0]).repeat(4)
    fitted = torch.tensor([0.0, 2.0])
    table = pictures.Table(rows * fitted.std() + fitted.mean(), fitted)
    loader = DataLoader(table, batch_size=4)
    [seen] = probed(values, target_of(loader, loader), tmp_path)
    assert ("train" in seen, "val" in seen) == (is_read, is_read)


@pytest.mark.parametrize("other, answer", [(0.9, ""), (0.7, "BGR")])
def test_channels_that_answer_to_two_colours_have_no_order(other, answer):
    lit = {"red": [0.0, 0.0, 1.0], "green": [0.0, 1.0, other], "blue": [1.0, 0.0, 0.0]}
    assert order(lit) == answer
    [finding] = judged("DP11", colours=[{"images": [""], "orders": [answer], "means": {}}])
    assert not answer or finding.cause.endswith("is channel 2")


@pytest.mark.parametrize("flags, is_painted", [(set(), True), ({1}, True), ({0}, False)])
def test_opencv_reads_colours_unless_it_is_asked_for_something_else(flags, is_painted):
    painted = object.__new__(Painted)
    painted.colour = (1, 2, 3)
    pixels = painted._by_opencv(None, torch.zeros(1, 3).numpy(), flags)
    assert pixels.tolist() == [[3, 2, 1] if is_painted else [0, 0, 0]]
    assert _images(torch.zeros(2, 1, 8, 8)) == {}


@pytest.mark.parametrize(
    "mode, is_painted", [("RGB", True), ("RGBA", True), ("LA", False), ("P", False)]
)
def test_pil_reads_colours_but_for_masks(mode, is_painted):
    painted = object.__new__(Painted)
    painted.colour = (1, 2, 3)
    read = Image.new(mode, (2, 2))
    given = painted._by_pil(Image, read, set())
    assert (given is not read) == is_painted
    assert not is_painted or given.getpixel((0, 0)) == (1, 2, 3)


def test_the_order_of_colours_that_are_in_memory_is_open(verdicts):
    assert verdicts("in_memory")["DP11"] == "not decidable"


@pytest.mark.parametrize(
    "kind, left, verdict",
    [
        *(("answer", left, "pass") for left in (False, True)),
        *(
            (kind, True, "fail")
            for kind in ("from column 0", "padding", "prompt", "end", "everything")
        ),
        *((kind, False, "fail") for kind in ("padding", "prompt", "end", "whole text")),
    ],
)
def test_labels(verdicts, kind, left, verdict):
    assert verdicts("tokens", kind=kind, left=left)["labels"] == verdict


@pytest.mark.parametrize("shared, verdict", [(3, "pass"), (4, "not decidable")])
def test_an_opening_of_four_tokens_that_all_texts_share_may_be_a_prompt(shared, verdict):
    texts = [[*range(10, 10 + shared), number, 2] for number in (20, 30)]
    rows = [{"ids": text, "labels": text, "mask": [1] * len(text), "alone": None} for text in texts]
    assert verdict_on("labels", labels=[{"special": {"eos": 2, "pad": 0}, "rows": rows}]) == verdict


def row(ids: list[int], trained: str, mask: list[int] | None = None, alone=None) -> dict:
    """`trained`: a mark for each place, x if it is."""
    labels = [token if mark == "x" else -100 for token, mark in zip(ids, trained, strict=True)]
    return {"ids": ids, "labels": labels, "mask": mask, "alone": alone}


def shifted(seen: dict) -> dict:
    return seen | {"labels": [*seen["labels"][1:], -100]}


AUDIO = [1, 9, 9, 2]


@pytest.mark.parametrize(
    "rows, pad, verdict, words",
    [
        # A label may be the next token, as a loss that does not shift wants it.
        ([shifted(row([5, 6, 20, 2], "..xx"))], 0, "pass", "2 tokens trained on in 1 row"),
        # A token that begins every text is none of the prompt.
        (
            [row([1, 11, 12, 13, last, 2], "x...xx") for last in (20, 30)],
            0,
            "pass",
            "6 tokens trained on in 2 rows",
        ),
        # Nor is the opening of texts that are packed, of which the next one is not predicted.
        (
            [row([1, 11, 12, 13, 14, last, 1, 11, 2], ".xxxxx.xx") for last in (20, 30)],
            0,
            "not decidable",
            "14 tokens trained on in 2 rows",
        ),
        # Where only places of images are masked, it may be meant; of audio it is a known bug.
        (
            [row([1, 11, 12, 13, 6, 8, 4, 7, last, 2], "xxxx....xx") for last in (20, 30)],
            0,
            "not decidable",
            "12 tokens trained on in 2 rows",
        ),
        (
            [row([1, 11, 12, 13, 9, last, 2], "xxxx.xx") for last in (20, 30)],
            0,
            "fail",
            "the prompt is trained on: row 0, 1; 12 tokens trained on in 2 rows",
        ),
        ([row([1, 11, 12, 13, 20, 2], "xxxxxx")] * 2, 0, "pass", "12 tokens trained on in 2 rows"),
        # One token ends texts and pads them: the mask tells which is which.
        ([row([5, 20, 2, 2], ".xx.", [1, 1, 1, 0])], 2, "pass", "2 tokens trained on in 1 row"),
        ([row([5, 20, 2, 2], ".xx.", [1, 1, 0, 0])], 2, "pass", "2 tokens trained on in 1 row"),
        ([row([5, 20, 2, 2], ".xxx", [1, 1, 0, 0])], 2, "fail", "padding is trained on: row 0, 3"),
        ([row([5, 20, 2, 2], ".xx.")], 2, "not decidable", "nothing tells padding"),
        # A text may be cut off before its end, if the ends of others are trained on.
        ([row([5, 20, 2], ".xx"), row([6, 21, 2], ".x.")], 0, "pass", "3 tokens trained on in 2"),
        # One mistake is told once.
        (
            [row([5, 20, 2, 0], "xxxx", [1, 1, 1, 0], row([5, 20, 2], ".xx"))],
            0,
            "fail",
            "padding is trained on",
        ),
        (
            [row(AUDIO, "xxxx", None, row(AUDIO, "...x"))],
            0,
            "fail",
            "a sample is trained on other tokens in a batch than alone: row 0, 1 tokens alone, 4 h",
        ),
        # An end before what is trained on is none of the answer.
        ([row([5, 2, 20, 21], "..xx")], 0, "pass", "2 tokens trained on in 1 row"),
        ([row([5, 20, 2, 0], "xxxx")], 0, "fail", "padding is trained on"),
        ([row([5, 20, 2], ".xx"), row([6, 21, 2], "...")], 0, "pass", "2 tokens trained on in 2"),
    ],
)
def test_labels_are_judged_by_what_they_repeat(rows, pad, verdict, words):
    special = {"eos": 2, "pad": pad, "audio": 9, "image": 8, "video": 4}
    [finding] = judged("labels", labels=[{"special": special, "rows": rows}])
    assert finding.verdict == verdict and finding.cause.startswith(words)


def test_a_loss_mask_says_what_is_trained_on():
    ids = torch.tensor([[5, 6, 7]])
    batch = {"input_ids": ids, "labels": ids, "loss_mask": torch.tensor([[0, 1, 1]])}
    [seen] = token_rows(batch)
    assert seen["labels"] == [-100, 6, 7]


def test_a_sample_that_differs_each_time_has_no_row_of_its_own():
    drawn = iter(range(4))

    def collate(_: list) -> dict:
        ids = torch.tensor([[next(drawn) // 3]])
        return {"input_ids": ids, "labels": ids}

    loader = SimpleNamespace(collate_fn=collate)
    assert _alone(loader, 0)["ids"] == [0]
    assert _alone(loader, 0) is None


def test_ids_that_are_numbers_tell_no_samples_apart():
    assert list(_ids({"id": "7", "key": 8, "recording": "r7"})) == [("recording", "r7")]


def test_nested_transforms_are_in_line_and_of_several_values_the_image_counts():
    a, b, c = (torch.nn.Identity() for _ in range(3))
    assert _flat([torch.nn.Sequential(a, b), c]) == [a, b, c] and _flat([a, 3]) is None
    named = {"mask": torch.zeros(1), "image": torch.ones(1)}
    assert [_described(value)["max"] for value in (named, (torch.ones(1), 0), [named])] == [1.0] * 3


def test_constants_of_a_scaler_are_found():
    scaler = SimpleNamespace(mean_=torch.tensor([1.0, 2.0]), scale_=torch.tensor([1.0, 3.0]))
    normalize = SimpleNamespace(mean=[0.5], std=[0.2])
    assert constants({"a": scaler, "b": normalize, "c": SimpleNamespace(mean=[0.5])}) == [2, 1]


@pytest.mark.parametrize(
    "factory, args, verdict",
    [
        ("parts", {"kind": "subset"}, "pass"),
        ("parts", {"kind": "subset", "first": 195}, "fail"),
        ("parts", {"kind": "sampler", "first": 195}, "fail"),
        ("parts", {"kind": "noise", "first": 195}, "fail"),
        ("parts", {"kind": "loaded twice"}, "pass"),
        ("parts", {"kind": "loaded twice", "first": 195}, "fail"),
        # Indices into data sets that differ do not say which samples these are.
        ("parts", {"kind": "two kinds", "first": 195}, "not decidable"),
        ("recordings", {"shared": False}, "pass"),
        ("recordings", {"shared": True}, "fail"),
        ("speakers", {"first": 4}, "pass"),
        ("speakers", {"first": 3}, "fail"),
        ("speakers", {"first": 8}, "not applicable"),
        ("unnamed", {}, "not decidable"),
    ],
)
def test_splits(verdicts, factory, args, verdict):
    assert verdicts(factory, val=True, **args)["splits"] == verdict


def test_constants_of_training_are_right(verdicts):
    assert not failed(verdicts("tables", val=True, kind="train"))


@pytest.mark.parametrize("kind, name", [("all", "train + val"), ("val", "val")])
def test_the_split_that_constants_were_fitted_on_is_named(findings, kind, name):
    [fail] = [each for each in findings("tables", val=True, kind=kind) if each.verdict == "fail"]
    means = fail.evidence["means"]
    words = f"constants of {name}: its mean is {means[name]:.2g}, train's {means['train']:.2g}"
    assert fail.cause.endswith(words)
    assert means[name] == min(means.values()) < 0.005 < means["train"]
    assert max(means, key=means.get) == ("val" if kind == "all" else "train")


def test_a_shared_sample_is_named_by_its_number_in_each_loader(findings):
    said = findings("parts", val=True, kind="subset", first=195)
    [fail] = [each for each in said if each.entry == "splits"]
    # The first of validation is the 195th row, which training has there.
    assert fail.cause.endswith("by index: 5 samples; sample 0 of validation is 195 of training")
    pairs = [(example["val"], example["train"]) for example in fail.evidence["examples"]]
    assert sorted(pairs) == [(at, 195 + at) for at in range(5)]


def test_one_file_in_both_splits_is_noticed(verdicts, root):
    assert verdicts("pictures", val=True, kind="jitter first", root=root)["splits"] == "fail"


@pytest.mark.parametrize("train, val", [(True, True), (True, False), (False, True)])
def test_splits_of_which_one_was_read_in_part_do_not_pass(train, val):
    read = {"train": {"read": 9, "complete": train}, "val": {"read": 9, "complete": val}}
    seen = {"shared": {"file": {"count": 0, "examples": []}}, **read}
    (finding,) = judged("splits", splits=[seen])
    assert finding.verdict == ("pass" if train and val else "not decidable")
    seen["val"] |= {"read": 0}
    (finding,) = judged("splits", splits=[seen])
    assert finding.verdict == ("not applicable" if val else "not decidable")
