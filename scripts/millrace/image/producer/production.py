"""The producer's work: make the epochs that the trainer wants next, remove those that nobody
needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from millrace.common.cli import log
from millrace.common.errors import MillraceError, counted
from millrace.common.machine.memory import GB
from millrace.image.producer import epochs, sentry, shuffle
from millrace.image.producer.sentry import Producer, Wanted
from millrace.image.producer.shuffle import EpochMaker
from millrace.image.records.record_set import RecordSet


def check_memory(records: RecordSet, pool: int, memory: int) -> int:
    """The pool that is used, at most all files; say its bytes. Raises MillraceError above `memory`
    bytes."""
    sizes, files = shuffle.pool_bytes(records), len(records.files)
    pool = min(pool, files)
    text = f"shuffling {pool} of {counted(files, 'file')} together takes {sizes[pool - 1] / GB:.3g} GB of memory"
    if sizes[pool - 1] > memory:
        fitting = int((sizes <= memory).sum())
        remedy = f"Give --shuffle_pool {fitting}, the most that fits, or more --memory"
        remedy = (
            remedy
            if fitting
            else "Not one file fits: give more --memory, or convert to smaller files"
        )
        raise MillraceError(f"{text}, above {memory / GB:.3g} GB", str(records.folder), remedy)
    log.info("%s: %s%s", records.folder, text, " (a full shuffle)" if pool == files else "")
    return pool


def check_disk(records: RecordSet, root: Path, ahead: int, wanted: Wanted | None) -> None:
    """Say the bytes of all epochs that lie on disk at once. Raises MillraceError if they do not
    fit."""
    each = sum(file.bytes for file in records.files)
    # No more are made than a trainer wants; epoch 0 is `train/` itself.
    number = (
        min(ahead + 1, max(wanted.top - 1, 0)) if wanted and wanted.slow < wanted.top else ahead + 1
    )
    folders = [epochs.folder_of(root, epoch) for epoch in epochs.whole(root)]
    free = shutil.disk_usage(root).free
    free += sum(path.stat().st_size for folder in folders for path in folder.iterdir())
    text = f"at most {counted(number, 'epoch')} of {each / GB:.3g} GB on disk at once, {free / GB:.3g} GB free"
    if number * each > free:
        most = free // each - 1
        remedy = f"Free space, or give --allowed-ahead {most}" if most >= 0 else "Free space"
        raise MillraceError(text, str(root), remedy)
    log.info("%s: %s", root, text)


def produce(maker: EpochMaker, side: Producer, ahead: int) -> int:
    """Make epochs 1 to top - 1, at most `ahead` after the trainer's; return top when all are
    made."""
    last, served = side.made(), None
    # Not done, from here on: a trainer that starts now waits until this producer knows of it.
    side.announce(last.fast if last else 0, last.attempt if last else 0)
    is_trusted = last is None or last.boot == sentry.BOOT

    def work() -> Wanted | None:
        wanted = side.wanted()
        if wanted is None:
            return None
        if last and last.is_done and wanted.slow >= wanted.top:
            # A training that was served to its end: this producer was started for the next one,
            # unless the trainer was started again only to find that all is trained.
            beat = side.beat("trainer")
            if wanted.attempt == last.attempt or not (beat and beat.is_working):
                return None
        return None if wanted == served else wanted

    while True:
        epochs.sweep(maker.root)
        what = "a trainer" if served is None else f"epoch {served.slow} to be trained"
        side.report(f"waits for {what}")
        wanted = side.wait(work, what)
        end = min(wanted.slow + ahead, wanted.top - 1)
        window = range(max(wanted.slow, 1), end + 1)
        whole = _keep(maker, window, side, is_trusted)
        missing = [epoch for epoch in window if epoch not in whole]
        fast = missing[0] - 1 if missing else max(end, wanted.slow - 1, 0)
        is_done, is_trusted = end >= wanted.top - 1 and not missing, True
        side.announce(fast, wanted.attempt, is_done)
        if is_done:
            log.info(
                "%s: no epoch is left to make, of %d that the trainer wants", maker.root, wanted.top
            )
            return wanted.top
        if missing:
            maker.make(missing[0], side.report)
            log.info("epoch %d is whole: %s", missing[0], epochs.folder_of(maker.root, missing[0]))
        else:
            served = wanted


def _keep(maker: EpochMaker, window: range, side: Producer, is_trusted: bool) -> list[int]:
    """Remove epochs that are out of the window or cannot be used; return what is left.

    Record files of epochs are not fsynced, as they can be made again: what lay there before this
    machine was started (not `is_trusted`), a power cut may have torn.
    """
    left = []
    for epoch, mark in epochs.whole(maker.root).items():
        if epoch in window and (fits := mark == maker.mark(epoch)) and is_trusted:
            left.append(epoch)
        elif epoch in window and side.counting(
            "trainer", 3 * side.times.beat
        ):  # it may read the epoch
            if not fits:
                flags = f"--seed {mark['seed']} --shuffle_pool {mark['pool']}"
                problem = f"was made with {flags} of {mark['records']} records, and the trainer is at work"
                remedy = "Give the same flags and records, or end the trainer first"
                raise MillraceError(problem, str(epochs.folder_of(maker.root, epoch)), remedy)
            left.append(epoch)
        elif epochs.remove(maker.root, epoch):
            log.info("epoch %d is removed: nobody needs it", epoch)
    return left
