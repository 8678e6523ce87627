"""Checks of preprocessing: normalisation, colours, scaling, transforms, labels, overlapping
splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import takewhile

from millrace.audit.checks.registry import Finding, Seen, check

# Constants in the order red, green, blue: ImageNet's, CLIP's, CIFAR-10's, Caffe's.
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
KNOWN = (*IMAGENET, *CLIP, [0.4914, 0.4822, 0.4465], [123.675, 116.28, 103.53])
TO_TENSOR = ("ToTensor", "PILToTensor", "ToImage", "ToTensorV2")
NEEDS_TENSOR = ("Normalize", "RandomErasing", "ConvertImageDtype", "LinearTransformation")
CLIPS = "ColorJitter AutoAugment RandAugment TrivialAugmentWide RandomPosterize RandomSolarize ToPILImage"
SCALE = "scale once: v2.ToImage(), v2.ToDtype(torch.float32, scale=True); floats: divide by their largest"
WEIGHTS = "take the transforms that belong to the weights: weights.transforms()"
WIDE = ("I", "F", "i", "f", "uint1", "uint3")  # PIL's modes and dtypes of more than eight bits
TWICE = 1.001 / 255  # the largest value of what was scaled twice


def steps(data: dict, *classes: str) -> list[tuple[str, dict]]:
    """Return (path, step) of the transforms of these classes that were called."""
    rows = [(chain["path"], *row) for chain in data["chains"] for row in enumerate(chain["steps"])]
    return [
        (f"{p}[{at}] {s['class']}", s) for p, at, s in rows if s["class"] in classes and "in" in s
    ]


def constants(data: dict) -> list[tuple[str, dict]]:
    """Return (path, mean and std) of each Normalize that was called, and of attributes."""
    return [*steps(data, "Normalize"), *((row["path"], row) for row in data["constants"])]


def images(data: dict) -> list[tuple[str, dict]]:
    named = (
        (f"field {name}" if name else "the batch", field) for name, field in data["fields"].items()
    )
    return [(name, field) for name, field in named if field["image"]]


def short(values: list) -> str:
    return ", ".join(f"{value:.4g}" for value in values[:4])


def said(name: str, field: dict) -> str:
    edges = f"{min(field['min']):.4g}..{max(field['max']):.4g}"
    return f"{name} spans {edges}, mean {short(field['mean'])}, std {short(field['std'])}"


def apart(a: list, b: list) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) if len(a) == len(b) else 1e9


def constants_order(data: dict) -> tuple[str, str]:
    """Return (where, order) of the first constants that are well known, or fit the images turned
    only."""
    for path, row in constants(data):
        mean, std = row.get("mean") or [], row.get("std") or []
        for values, order in (
            (v[::turn], o) for v in (mean, std) for turn, o in ((1, "RGB"), (-1, "BGR"))
        ):
            if any(apart(values, known) <= 1e-3 * max(1, *known) for known in KNOWN):
                return f"{path} has {short(mean)}", order
        for _, field in images(data):
            if not len(mean) == len(std) == field["channels"] == 3:
                continue
            before = [z * s + m for z, s, m in zip(field["mean"], std, mean, strict=True)]
            if 4 * apart(before, mean[::-1]) < apart(before, mean) > 0.3 * min(std):
                return f"{path} has {short(mean)}", "other"
    return "", ""


def image_order(orders: dict[str, list]) -> str:
    """Return the order of the channels that the probe images showed, such as "BGR", or ""."""
    return next(
        (o[0] for o in orders.values() if len(set(o)) == 1 and sorted(o[0]) == ["B", "G", "R"]), ""
    )


@check("DP10", probes=("values", "colours"))
def normalisation(data: Seen, colours: Seen) -> Iterator[Finding]:
    (where, needed), order = constants_order(data), image_order(colours["orders"])
    if needed == "other" or (needed == "BGR" and order != "BGR"):
        cause = f"{where}: the order is not that of the images ({order or 'RGB, as far as known'})"
        yield Finding(
            "DP10", "fail", cause, {}, f"give the constants in the order of the images; {WEIGHTS}"
        )
    if "sets" in data and all(each["complete"] for each in data["sets"].values()):
        yield from fitted(data)
    colour = [(name, field) for name, field in images(data) if field["channels"] == 3]
    fields = colour or images(data) or list(data["fields"].items())
    if data["expect"] not in ("", "none") and fields:
        yield from (expected(name, field, data["expect"]) for name, field in fields)
    elif data["expect"] != "none" and fields and constants(data):
        yield Finding("DP10", "pass", "; ".join(said(*each) for each in fields), dict(fields))
    else:
        cause = "nothing is normalised, no range is expected"
        yield Finding("DP10", "not applicable", cause, {}, "", "--expect")


def expected(name: str, field: dict, expect: str) -> Finding:
    """Compare a field with --expect: its range before normalisation, or its mean and std."""
    if expect in ("0-1", "imagenet"):
        mean, std = (
            IMAGENET
            if expect == "imagenet"
            else ([each] * field["channels"] for each in (0.0, 1.0))
        )
        edges = [
            x * s + m for k in ("min", "max") for x, s, m in zip(field[k], std, mean, strict=False)
        ]
        right = (
            min(edges) >= -0.05 and TWICE < max(edges) <= 1.05 and len(mean) == field["channels"]
        )
        plain = (
            min(field["min"]) >= 0 or apart([min(field["min"]), max(field["max"])], [-1, 1]) <= 1e-3
        )
        right &= expect == "0-1" or not plain
    else:
        mean, std = map(float, expect.split(","))
        right = all(abs(m - mean) <= 0.5 * std for m in field["mean"])
        right &= all(0.5 * std < s < 2 * std for s in field["std"])
    cause = f"{said(name, field)}, expected {expect}"
    return Finding("DP10", "pass" if right else "fail", cause, field, WEIGHTS * (not right))


def fitted(data: dict) -> Iterator[Finding]:
    """Constants that give train + val (or val) a mean of 0, and train none, are of the wrong
    set."""
    train_fields, val_fields = (data["sets"][of]["fields"] for of in ("train", "val"))
    for name in train_fields.keys() & val_fields:
        train, val = train_fields[name], val_fields[name]
        if val["channels"] != train["channels"] or not 0.5 < max(train["std"]) < 2:
            continue
        share = val["count"] / (val["count"] + train["count"])
        both = [
            (1 - share) * t + share * v for t, v in zip(train["mean"], val["mean"], strict=True)
        ]
        means = {"train": train["mean"], "train + val": both, "val": val["mean"]}
        off = {of: max(map(abs, mean)) for of, mean in means.items()}
        best = min(("train + val", "val"), key=off.get)
        # Rounded constants leave a mean of up to 0.005; if no constants are seen, only 0 proves
        # anything.
        used = [
            row
            for _, row in constants(data)
            if len(row.get("mean") or ()) in (1, train["channels"])
        ]
        least = 0.01 if off[best] > 1e-4 else 1e-3
        if off[best] <= (0.005 if used else 1e-4) and off["train"] >= max(10 * off[best], least):
            cause = f"{name}: constants of {best}: its mean is {off[best]:.2g}, train's {off['train']:.2g}"
            fix = "compute mean and std of the training split alone, and use them for both"
            yield Finding("DP10", "fail", cause, {"means": off, "constants": used[:1]}, fix)


@check("DP11", probes=("values", "colours"))
def colours(values: Seen, data: Seen) -> Iterator[Finding]:
    (where, needed), order = constants_order(values), image_order(data["orders"])
    seen = {name: data[name] for name in ("orders", "places", "raised")}
    orders = {o for some in data["orders"].values() for o in some}
    if data["negative"]:
        fix = "add .copy(): img[:, :, ::-1].copy(), or use cv2.cvtColor"
        refused = (data["raised"] or {}).get("type") == "ValueError"
        cause = f"an array with a negative stride, which torch refuses: {data['negative']}"
        yield Finding("DP11", "fail" if refused else "pass", cause, seen, fix)
    if order in ("RGB", needed) and order:
        cause = f"the channels are {order}" + f", and so are the constants: {where}" * (
            order != "RGB"
        )
        yield Finding("DP11", "pass", cause, seen)
    elif order:
        cause = (
            f"the channels are {order}: red in {data['places'][0]} is channel {order.index('R')}"
        )
        fix = "after reading: cv2.cvtColor(img, cv2.COLOR_BGR2RGB), or read with PIL"
        yield Finding("DP11", "fail", cause, seen, fix)
    elif not data["images"] or orders == {"grey"}:
        yield Finding("DP11", "not applicable", "no field is a batch of colour images", seen)
    else:
        cause = (
            "colours change at random"
            if "mixed" in orders
            else "no file was replaced by a probe image"
        )
        needs = "a data set that lists the paths of its images, and reads them when a sample is asked for"
        yield Finding("DP11", "not decidable", cause, seen, "", needs)


def misscaled(field: dict) -> str:
    """Say what is wrong with the values of an image that is not normalised; "?" if that is open."""
    low, high, colour = min(field["min"]), max(field["max"]), field["channels"] == 3
    if "float" not in field["dtype"] or low < 0:
        return ""
    if high > 2:
        grid = field["whole"] and field["distinct"] >= (16 if colour else 64)
        sure = grid and (colour or not 256 < high <= 16384)
        sure |= colour and 100 < high <= 256 and field["distinct"] >= 16
        return f"0..{255 if high <= 256 else 65535}, unscaled" if sure else "?" * grid
    return ("scaled twice" if field["grid"] else "?") * (0 < high <= TWICE and field["small"] >= 8)


@check("DP12", probes=("values",))
def scaling(data: Seen) -> Iterator[Finding]:
    proof, judged, scaled = [], False, False
    for path, step in steps(data, *TO_TENSOR):
        gave, kind = step.get("out", {}), step["in"].get("dtype", "uint8")
        scaled |= 0.5 < gave.get("max", 0) <= 1
        if kind.startswith(WIDE) and gave.get("min", -1) >= 0 and gave["max"] > 2:
            proof.append(
                f"{path} does not scale {kind}: it gives {gave['min']:.4g}..{gave['max']:.4g}"
            )
    for path, step in steps(data, "Normalize"):
        taken, high = step["in"], step["in"].get("max", 0)
        full = step.get("max_pixel_value", [255 if max(step.get("mean") or [0]) > 2 else 1])[0]
        takes = taken["kind"] == "tensor" or "albumentations" in step["module"]
        if takes and taken.get("min", -1) >= 0 and (high > 2 * full or 0 < high <= TWICE * full):
            judged = True
            cause = (
                f"{path} takes {taken['min']:.4g}..{high:.4g}, its constants are for 0..{full:g}"
            )
            yield Finding("DP12", "fail", cause, {"in": taken, "before": proof}, SCALE)
    for name, field in images(data) if data["expect"] != "none" and not judged else ():
        unscaled = proof and max(field["max"]) > 2 and field["dtype"] != "uint8"
        wrong = proof[0] if unscaled else misscaled(field)
        if wrong == "?" and max(field["max"]) <= TWICE and (scaled or data["expect"] == "0-1"):
            wrong = "scaled twice"
        elif wrong == "?" and data["expect"] == "0-1":
            wrong = "unscaled"
        verdict = {"": "pass", "?": "not decidable"}.get(wrong, "fail")
        needs = "--expect 0-1, or the range that the model needs" if wrong == "?" else ""
        cause = said(name, field) + f": {wrong}" * (verdict == "fail")
        yield Finding("DP12", verdict, cause, field, SCALE if wrong else "", needs)
    if not images(data) and not judged:
        yield Finding("DP12", "not applicable", "no field is a batch of images")


def fault(steps: list[dict], at: int) -> tuple[str, str] | None:
    """Return what is wrong with a transform in its place, and the fix."""
    step, names = steps[at], [step["class"] for step in steps]
    taken, name, raised = step.get("in", {}), step["class"], step.get("raised")
    mean, sizes = step.get("mean"), {len(step.get("mean") or ()), len(step.get("std") or ())}
    kind, shape, plain = (
        taken.get("kind"),
        taken.get("shape", ()),
        "albumentations" not in step["module"],
    )
    turn = next((place for place, name in enumerate(names) if name in TO_TENSOR), at)
    before = [s["mean"] for s in steps[:at] if s["class"] == "Normalize" and s.get("mean")]
    refused = raised and (not plain or raised in ("TypeError", "AttributeError"))
    refused = refused and not (
        name == "Normalize" and plain and "float" not in taken.get("dtype", "")
    )
    channels = shape[-3 if kind == "tensor" else -1] if len(shape) > 2 else None
    alike = sizes == {1} and (mean[0] in (0, 0.5) or taken.get("grey"))
    several = (
        name == "Normalize" and channels and 0 not in sizes and sizes != {channels} and not alike
    )
    again = name == "Normalize" and taken and mean in before
    image, clipped = kind in ("PIL", "array"), name in CLIPS.split() and len(before) == 1
    of, turned, early = f"a {taken.get('type')}", names[turn], image and plain and raised
    faults = (
        (early and name in NEEDS_TENSOR, f"takes {of}, no tensor", "put it after ToTensor()"),
        (image and refused and turn > at, f"raises {raised} on {of}", f"put it after {turned}"),
        (
            kind == "tensor" and refused and turn < at,
            f"raises {raised} on {of}",
            f"put it before {turned}",
        ),
        (
            clipped and taken.get("min", 0) < 0,
            "clips what Normalize moved out of 0..1",
            "put Normalize last",
        ),
        (again, "normalises a second time with the same constants", "remove one of them"),
        (
            several,
            f"has {max(sizes)} constants for {channels} channels",
            f"give {channels} of each",
        ),
    )
    return next(((cause, fix) for wrong, cause, fix in faults if wrong), None)


@check("DP13", probes=("values",))
def transform_order(data: Seen) -> Iterator[Finding]:
    for chain in data["chains"]:
        names = [step["class"] for step in chain["steps"]]
        faults = {at: wrong for at in range(len(names)) if (wrong := fault(chain["steps"], at))}
        for at, (cause, fix) in faults.items():
            cause = f"{chain['path']}[{at}] {names[at]} {cause}"
            yield Finding("DP13", "fail", cause, {"order": names, "step": chain["steps"][at]}, fix)
        if not faults:
            yield Finding("DP13", "pass", f"{chain['path']}: {', '.join(names)}", {"order": names})
    if not data["chains"]:
        yield Finding("DP13", "not applicable", "no chain of transforms is reached from the loader")


ALONE = "count the prompt from the first token, not from padding: start = (attention_mask[row] == 0).sum()"
# What can be wrong with the places that are trained on: cause and fix.
LABELS = {
    "padding": ("padding is trained on", "labels[attention_mask == 0] = -100"),
    "audio": (
        "placeholders of audio or images are trained on",
        "labels[input_ids == audio_token_id] = -100",
    ),
    "eos": (
        "the token that ends a text is masked",
        "mask by attention_mask == 0, not by pad_token_id",
    ),
    "prompt": ("the prompt is trained on", "labels[row, start:start + prompt_length] = -100"),
    "alone": ("a sample is trained on other tokens in a batch than alone", ALONE),
}


def trained(row: dict) -> set[int] | None:
    """Return the places of the tokens that a row is trained on; None if its labels are not its
    tokens."""
    labels = [(at, label) for at, label in enumerate(row["labels"]) if label >= 0]
    for shift in (0, 1):  # a label is its own token or the next one
        if all(row["ids"][at + shift : at + shift + 1] == [label] for at, label in labels):
            return {at + shift for at, _ in labels}
    return None


@check("labels", probes=("labels",))
def label_masks(data: Seen) -> Iterator[Finding]:
    rows, special = [row for batch in data["batches"] for row in batch], data["special"]
    end, pad = special.get("eos"), special.get("pad")
    if not rows:
        yield Finding("labels", "not applicable", "no batch has rows of input_ids with labels")
        return
    if any(trained(row) is None for row in rows):
        needs = "labels that repeat input_ids, with -100 in the places that are not trained on"
        yield Finding(
            "labels", "not decidable", "labels are not the tokens of input_ids", {}, "", needs
        )
        return
    media = {special[name] for name in ("audio", "image", "video") if name in special}
    unsure = pad == end and not rows[0]["mask"]  # what ends a text looks like padding
    rows = [row | {"mask": row["mask"] or [t != pad or unsure for t in row["ids"]]} for row in rows]
    texts = [
        [token for token, real in zip(row["ids"], row["mask"], strict=True) if real] for row in rows
    ]
    opening = len(list(takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))))
    opening *= opening >= 4 and len(set(map(tuple, texts))) > 1
    # Without a tokenizer: the last token, if all texts share it, and not the one before.
    last, previous = ({tuple(text[-n:][:1]) for text in texts} for n in (1, 2))
    end = min(last)[0] if end is None and () not in last and len(last) == 1 < len(previous) else end
    counts, wrong, ended, asked = Counter(), {name: [] for name in LABELS}, False, False
    for number, row in enumerate(rows):
        ids, on, inside = (
            row["ids"],
            trained(row),
            [at for at, real in enumerate(row["mask"]) if real],
        )
        first, last = min(on, default=len(ids)), max(on, default=len(ids))
        # An opening that all rows share is a prompt if masked places come between; else it may be a
        # text.
        asked |= any(first < at < last and at not in on for at in inside)
        ended |= any(ids[at] == end for at in on)
        places = {"padding": set(range(len(ids))) - set(inside), "prompt": set(inside[1:opening])}
        places["audio"] = {at for at in inside if ids[at] in media}
        counts["trained on"] += len(on)
        for name, some in places.items():
            counts[name] += len(some)
            wrong[name] += [[number, at] for at in sorted(some & on)]
        wrong["eos"] += [[number, at] for at in inside if at > last and ids[at] == end]
        alone = trained(row["alone"]) if row.get("alone") else None
        tokens = [row["alone"]["ids"][at] for at in sorted(alone)] if alone is not None else None
        if tokens not in (None, [ids[at] for at in sorted(on)]):
            wrong["alone"].append([number, f"{len(alone)} tokens alone, {len(on)} here"])
    first = [rows[0]["ids"][at] for at in sorted(trained(rows[0]))[:24]]
    said = f"{len(rows)} rows train on {counts['trained on']} tokens: "
    said += ", ".join(
        f"{of} {len(wrong[of])} of {counts[of]}" for of in ("prompt", "audio", "padding")
    )
    if not counts["trained on"]:
        fix = "mask the prompt only; look whether max_length cuts the answers off"
        yield Finding("labels", "fail", f"everything in {len(rows)} rows is masked", {}, fix)
        return
    wrong["eos"] *= not ended and (
        not unsure or len({number for number, _ in wrong["eos"]}) == len(rows)
    )
    wrong["alone"] *= not wrong["padding"]
    wrong["audio"] *= not wrong["alone"]
    opens, wrong["prompt"] = wrong["prompt"], wrong["prompt"] * asked
    for name, (cause, fix) in LABELS.items():
        if wrong[name]:
            cause = f"{cause}: row {wrong[name][0][0]}, {wrong[name][0][1]}; {said}"
            yield Finding(
                "labels", "fail", cause, {"places": wrong[name][:8], "first row": first}, fix
            )
    if not any(wrong.values()):
        needs = (
            "labels with -100 in the opening that all rows share, if that is a prompt"
            if opens
            else ""
        )
        yield Finding(
            "labels", "not decidable" if opens else "pass", said, {"first row": first}, "", needs
        )


@check("splits", probes=("splits",))
def overlap(data: Seen) -> Iterator[Finding]:
    if "shared" not in data:
        yield Finding(
            "splits", "not applicable", "only one split was given", {}, "", "--val-loader"
        )
        return
    if data["train"]["read"] and not data["val"]["read"] and data["val"]["complete"]:
        yield Finding("splits", "not applicable", "the split of evaluation has no samples")
        return
    shared = {kind: each for kind, each in data["shared"].items() if each["count"]}
    sure = {
        kind for kind in shared if kind in ("file", "index") or kind.startswith(("content", "rec"))
    }
    for kind in sorted(sure):
        first = shared[kind]["examples"][0]
        cause = f"{shared[kind]['count']} of validation are in training, by {kind}"
        cause += f": sample {first['val']} is {first['train']} there"
        fix = "split by recording first, and keep a list of the ids of each split"
        yield Finding("splits", "fail", cause, shared[kind], fix)
    whole = data["train"]["complete"] and data["val"]["complete"]
    if not sure and data["shared"] and not shared and whole:
        yield Finding("splits", "pass", f"nothing is shared by {', '.join(data['shared'])}", {})
    elif not sure:
        cause = f"only equal by {', '.join(shared)}" if shared else "not all was compared"
        needs = "unique ids, paths, or contents that stay the same; a longer --timeout"
        yield Finding("splits", "not decidable", cause, data, "", needs)
