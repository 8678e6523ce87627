"""splits, judged: which samples that training and evaluation share are proof, and which may be
equal by chance."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.audit.checks.findings import (
    Finding,
    Seen,
    check,
    failed,
    inapplicable,
    passed,
    undecided,
)
from millrace.common.errors import counted

# Beginnings of kinds that are never equal by chance.
CERTAIN = ("file", "index", "rec")
NOUNS = {"file": "file", "index": "sample"}


@check("splits", "splits")
def overlap(seen: Seen) -> Iterator[Finding]:
    """Nothing of evaluation is in training."""
    if "shared" not in seen:
        yield inapplicable("only one split was given", needs="--val-loader")
        return
    train = seen["train"]
    val = seen["val"]
    if train["read"] and not val["read"] and val["complete"]:
        yield inapplicable("the split of evaluation has no samples")
        return

    compared = seen["shared"]
    shared = {kind: found for kind, found in compared.items() if found["count"]}
    certain = [kind for kind in sorted(shared) if kind.startswith(CERTAIN)]
    if certain:
        yield from (_in_both(kind, shared[kind]) for kind in certain)
        return
    all_compared = train["complete"] and val["complete"]
    if compared and not shared and all_compared:
        yield passed(f"nothing is shared by {', '.join(compared)}")
        return
    cause = f"only equal by {', '.join(shared)}" if shared else "not all was compared"
    needs = "paths, or a field recording_id; a longer --timeout; or check_splits on the files"
    yield undecided(cause, needs, seen)


def _in_both(kind: str, found: Seen) -> Finding:
    first = found["examples"][0]
    many = counted(found["count"], NOUNS.get(kind, "recording"))
    cause = f"in both validation and training, by {kind}: {many}"
    cause += f"; sample {first['val']} of validation is {first['train']} of training"
    fix = "split by recording first, and keep a list of the ids of each split"
    return failed(cause, found, fix)
