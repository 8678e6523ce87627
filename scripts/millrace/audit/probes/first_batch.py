"""The first look: whether the loader can be made and gives a batch in time, and in which
environment."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import torch
from torch.utils.data import DataLoader

from millrace.audit.runner.listener import Listener, is_stream
from millrace.audit.runner.probes import Seen
from millrace.audit.runner.target import Rank, Target, locate


def look(target: Target, rank: Rank) -> Seen:
    """Read a batch without workers; what it raises is for other probes to find out.

    `imported`: modules of installed libraries, and variables that were set for them.
    `batch_seconds`: what the batch took, once the loader was made. `wrapped`: it is no DataLoader.
    """
    options = target.options
    before = dict(os.environ)
    for name in filter(None, (options.val_loader, options.model, options.loop)):
        locate(name)  # a name that is misspelt is an error, no missing verdict
    tap = Listener(target.loader(), rank, workers=0, max_batches=1)
    began = time.monotonic()
    with suppress(Exception):
        tap.run()
    seconds = time.monotonic() - began
    core = tap.original
    methods = getattr(core, "multiprocessing_context", None) or torch.multiprocessing
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    # The loader's own package is none: what it does when it is imported belongs to each process.
    names = (options.loader, options.val_loader, options.model)
    own = {name.partition(":")[0].partition(".")[0] for name in names}
    libraries = []
    for name, module in list(sys.modules.items()):
        # Asked for a name that it lacks, a lazy module, as of SpeechBrain, imports what is missing.
        is_installed = "-packages" in str(getattr(module, "__dict__", {}).get("__file__"))
        if is_installed and name.partition(".")[0] not in own:
            libraries.append(name)
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "start_method": methods.get_start_method(),
        "together": options.together,
        "batch_seconds": seconds,
        "imported": {"libraries": libraries, "environment": changed},
        "iterable": core is not None and is_stream(core),
        "wrapped": not isinstance(tap.view, DataLoader),
    }
