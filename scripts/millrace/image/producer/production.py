"""The producer's work: make the epochs that the trainer wants next, in the memory there is, remove
those that nobody needs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted
from millrace.common.machine.memory import GB
from millrace.image.producer import epochs, sentry, shuffle
from millrace.image.producer.sentry import Made, Producer, Wanted
from millrace.image.producer.shuffle import EpochMaker
from millrace.image.records.record_set import RecordSet


def check_memory(records: RecordSet, pool: int, memory: int) -> int:
    """The pool that is used, at most all files; say its bytes. Raises MillraceError above `memory`
    bytes."""
    sizes = shuffle.pool_bytes(records)
    files = len(records.files)
    pool = min(pool, files)
    text = (
        f"shuffling {pool} of {counted(files, 'file')} together takes {sizes[pool - 1] / GB:.3g} GB"
        " of memory"
    )
    if sizes[pool - 1] > memory:
        fitting = int((sizes <= memory).sum())
        remedy = f"Give --shuffle_pool {fitting}, the most that fits"
        if not fitting:
            remedy = "Not one file fits: convert to smaller files"
        raise MillraceError(f"{text}, above {memory / GB:.3g} GB", str(records.folder), remedy)
    log.info("%s: %s%s", records.folder, text, " (a full shuffle)" if pool == files else "")
    return pool


def produce(maker: EpochMaker, side: Producer, ahead: int) -> int:
    """Make epochs 1 to top - 1, at most `ahead` after the trainer's; return top when all are
    made."""
    last = side.made()
    # Not done, from here on: a trainer that starts now waits until this producer knows of it.
    side.announce(last.fast if last else 0, last.attempt if last else 0)
    is_trusted = last is None or last.boot == sentry.BOOT

    served: Wanted | None = None
    while True:
        epochs.sweep(maker.root)
        what = "a trainer" if served is None else f"epoch {served.slow} to be trained"
        side.report(f"waits for {what}")
        wanted = side.wait(partial(_next_wish, side, last, served), what)

        end = min(wanted.slow + ahead, wanted.top - 1)
        window = range(max(wanted.slow, 1), end + 1)
        # A trainer in epoch 0 reads none of these, and until its attempt is noted it begins none.
        is_new = wanted.slow == 0 and (last is None or wanted.attempt != last.attempt)
        whole = _keep(maker, window, side, is_trusted, is_new)
        is_trusted = True
        missing = [epoch for epoch in window if epoch not in whole]
        if missing:
            fast = missing[0] - 1
        else:
            fast = max(end, wanted.slow - 1, 0)
        is_done = end >= wanted.top - 1 and not missing
        side.announce(fast, wanted.attempt, is_done)

        if is_done:
            text = "%s: no epoch is left to make, of %d that the trainer wants"
            log.info(text, maker.root, wanted.top)
            return wanted.top
        if missing:
            maker.make(missing[0], side.report)
            log.info("epoch %d is whole: %s", missing[0], epochs.folder_of(maker.root, missing[0]))
        else:
            served = wanted


def _next_wish(side: Producer, last: Made | None, served: Wanted | None) -> Wanted | None:
    """What the trainer wants, if that is not what was `served`; `last` was announced before this
    producer started."""
    wanted = side.wanted()
    if wanted is None or wanted.top == 0 or wanted == served:
        return None
    if last is None:
        return wanted
    was_served_to_its_end = last.is_done and wanted.slow >= wanted.top
    if not was_served_to_its_end:
        return wanted

    # This producer was started for the next training, unless the trainer was started again only to
    # find that all is trained.
    if wanted.attempt == last.attempt:
        return None
    beat = side.beat("trainer")
    return wanted if beat and beat.is_working else None


def _keep(
    maker: EpochMaker, window: range, side: Producer, is_trusted: bool, is_new: bool
) -> list[int]:
    """Remove epochs that are out of the window or cannot be used; return what is left.

    Record files of epochs are not fsynced, as they can be made again: what lay there before this
    machine was started (not `is_trusted`), a power cut may have torn. Of a trainer that `is_new`
    nothing is read yet.
    """
    left = []
    for epoch, mark in epochs.whole(maker.root).items():
        is_wanted = epoch in window
        is_ours = mark == maker.mark(epoch)
        if is_wanted and is_ours and is_trusted:
            left.append(epoch)
        elif is_wanted and not is_new and side.is_counting("trainer", 3 * side.times.beat):
            # The trainer may read the epoch.
            if not is_ours:
                raise _other_flags(maker, epoch, mark)
            left.append(epoch)
        elif epochs.remove(maker.root, epoch):
            log.info("epoch %d is removed: nobody needs it", epoch)
    return left


def _other_flags(maker: EpochMaker, epoch: int, mark: Mapping[str, Any]) -> MillraceError:
    flags = f"--seed {mark['seed']} --shuffle_pool {mark['pool']}"
    problem = f"was made with {flags} of {mark['records']} records, and the trainer is at work"
    remedy = "Give the same flags and records, or end the trainer first"
    return MillraceError(problem, str(epochs.folder_of(maker.root, epoch)), remedy)
