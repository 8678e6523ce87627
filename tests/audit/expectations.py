"""What the audit must say of loaders whose answer is known, written down before it was run on them.

Each line: the loader in tests/audit/loaders, the verdicts of what the source is about, and the
options."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    loader: str
    verdicts: dict[str, str]
    options: str = "--ranks 1"


LOOP = "--loop docs_distributed.py:"
KNOWN = [
    # PyTorch's documentation: each worker yields all of range(3, 7); two forms that split it.
    Known("loaders/docs_iterable.py:duplicated", {"DP2": "fail"}),
    Known("loaders/docs_iterable.py:split_in_iter", {"DP2": "pass"}),
    Known("loaders/docs_iterable.py:split_in_worker_init", {"DP2": "pass"}),
    # Both forms split by worker only: under two ranks every sample is used twice.
    Known("loaders/docs_iterable.py:split_in_iter", {"DP2": "fail"}, "--ranks 2"),
    Known("loaders/docs_pinning.py:with_method", {"DP5": "pass"}),
    Known("loaders/docs_pinning.py:without_method", {"DP5": "fail"}),
    # Whether the order changes is the loop's matter: undecided without it.
    Known(
        "loaders/docs_distributed.py:loader",
        {"DP2": "pass", "DP3": "pass", "DP14": "not decidable"},
        "--ranks 2",
    ),
    Known(
        "loaders/docs_distributed.py:loader",
        {"DP14": "pass"},
        "--ranks 2 " + LOOP + "with_set_epoch",
    ),
    Known(
        "loaders/docs_distributed.py:loader",
        {"DP14": "fail"},
        "--ranks 2 " + LOOP + "without_set_epoch",
    ),
    Known("loaders/docs_randomness.py:loader", {"DP1": "pass"}),
    # The page's generator under DDP: seeded alike, so worker k of every rank draws the same
    # numbers.
    Known("loaders/docs_randomness.py:distributed", {"DP1": "fail", "DP2": "pass"}, "--ranks 2"),
    # torch seeds NumPy in each worker since 1.9.
    Known("loaders/pytorch_5059.py:described", {"DP1": "pass", "DP7": "pass"}),
    # NumPy seeded from the first word of its state, which is 2147483648 after torch's own seeding.
    Known("loaders/pytorch_5059.py:remedy", {"DP1": "fail"}),
    # Spawned workers load torch anew: more time than the default on a busy machine.
    Known("loaders/vision_8066.py:released", {"DP6": "fail"}, "--ranks 1 --timeout 240"),
    Known("loaders/vision_8066.py:mended", {"DP6": "pass"}, "--ranks 1 --timeout 240"),
    Known("loaders/datasets_5360.py:by_worker", {"DP2": "fail"}, "--ranks 2"),
    Known("loaders/datasets_5360.py:by_worker", {"DP2": "pass"}),
    Known("loaders/datasets_5360.py:by_node", {"DP2": "pass", "DP3": "pass"}, "--ranks 2"),
    # Without workers the second pass has another order, with workers it has the first's.
    Known("loaders/webdataset_172.py:described", {"DP2": "pass", "DP14": "fail"}),
    Known("loaders/webdataset_172.py:persistent", {"DP2": "pass", "DP14": "pass"}),
    Known("loaders/webdataset_172.py:longer_than_what_is_read", {"DP14": "pass"}),
    Known("loaders/qwen3_asr_70.py:released", {"labels": "fail"}),
    Known("loaders/qwen3_asr_70.py:mended", {"labels": "pass"}),
    Known("loaders/discogs_vinet.py:train_loader", {"DP1": "pass", "DP14": "pass"}),
]
