"""The shape of every lane's sources: settings, partition files kept in step, digest tables, a
message.

A lane's `sources.py` says what its items are. It has a dataclass `Settings`, whose fields are keys
of the lane's config, and `collect(settings, folder, table)`, which reads the sources and returns
`Contents`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from millrace.common import atomic, jsonl
from millrace.common.workflow import built, partitions, placements

# Gives the digest table of a name; one table for each kind of fact that is read from files.
Tables = Callable[..., partitions.DigestCache]


class SourcesMissing(SystemExit):
    """There is nothing to build from. Raised by an input function it ends Snakemake with its one
    line. If only the demo corpus was never fetched, it is `pristine`: a hint, and there are no
    partitions.
    """

    def __init__(self, text: str, pristine: bool = False) -> None:
        self.text, self.pristine = text, pristine
        super().__init__(text)


@dataclass
class Sources:
    """What the rules need: partition ids by group (a country, "tars"), and source files by split.

    `missing` says why there are none, `notes` are lines about sources and settings that do not stop
    a run, `changes_until` says what differs from what the targets of a stage ("": all) were built
    from. `unchanged` are files that say what they said when they were built, whatever their times;
    `check` reads what a dry run has no time for.
    """

    partitions: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    missing: SourcesMissing | None = None
    notes: list[str] = field(default_factory=list)
    changes_until: Callable[[str], str] = lambda stage: ""
    unchanged: Collection[str] = ()
    check: Callable[[], None] = lambda: None

    @property
    def changes(self) -> str:
        """What differs from what was built."""
        return self.changes_until("")

    def required(self) -> Sources:
        """Itself. Raises SourcesMissing, but for the demo that was never fetched."""
        if self.missing and not self.missing.pristine:
            raise self.missing
        return self


@dataclass
class Contents:
    """What a lane found: the content of each partition file by id, and their assignment.

    `partitions` (id, content) is read once, if at all: `state` tells whether all that it rests on
    is as it was at the last sync. The rest may be complete only after it. `others` are more files
    of the same kind, by sub-folder and name: what belongs to no partition. `notes` are lines for
    the user. `items` tells how they compare with what was built, by sub-folder ("" for the
    partitions; with one for "gone", groups that were built and are no more are listed there for the
    merge), `then` what all make. `settings` count for new placements only, `placed` says so. Groups
    in `left_out` are not chosen. `unchanged` and `check` are those of Sources.
    """

    assignment: placements.Placements | None
    partitions: Mapping[str, Any] | Iterable[tuple[str, Any]]
    groups: dict[str, list[str]]
    state: str = ""
    total: int = 0  # items of all partitions
    files: dict[str, list[str]] = field(default_factory=dict)
    others: Mapping[str, Mapping[str, dict]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    items: Mapping[str, built.Items] = field(default_factory=dict)
    then: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    placed: str = ""
    left_out: Collection[str] = ()
    before_run: Callable[[], None] = lambda: None
    unchanged: Collection[str] = ()
    check: Callable[[], None] = lambda: None


def misplaced(key: str, path: Path, expected: str, *patterns: str) -> str:
    """What is wrong with the folder that a config key names; and one up or down where `patterns`
    match."""
    inside = sorted(path.iterdir()) if path.is_dir() else []
    state = (
        "does not exist" if not path.exists() else "is not a folder" if not path.is_dir() else ""
    )
    shown = ", ".join(each.name for each in inside[:3])
    state = state or (f"holds {shown}" if inside else "is empty (is its disk mounted?)")
    near = (path.parent, path.parent.parent, *filter(Path.is_dir, inside))
    right = [
        f"; set it to {each}"
        for each in near
        if any(any(each.glob(pattern)) for pattern in patterns)
    ]
    return f"{key}: {path} {state}{''.join(right[:1])}; expected there: {expected}"


def settings_of(kind: type, section: Mapping[str, Any]) -> Any:
    """The lane's `Settings`, out of the keys of its config section that have the same names."""
    return kind(**{item.name: section[item.name] for item in fields(kind)})


def load(folder: str | os.PathLike) -> Sources:
    """The partitions as the last sync left them; none before the first."""
    try:
        return Sources(**jsonl.read(Path(folder) / "index" / "partitions.json"))
    except (FileNotFoundError, TypeError):  # TypeError: the shape of an earlier version
        return Sources()


def sync(
    collect: Callable[[Any, Path, Tables], Contents | None],
    settings: Any,
    folder: str | os.PathLike,
    is_run: bool = False,
) -> Sources:
    """Bring the partition files under `folder` in step with a lane's sources, and return the
    partitions.

    Files whose content is the same are not written. With `collect` returning None the lane needs no
    partitions. If the sources are missing, everything stays as the last sync left it. New
    placements are a draft until a job reads a partition (placements.py); `is_run`: jobs may follow.
    Raises MillraceError for damaged sources and assignments, OSError for what may not be read or
    written.
    """
    folder = Path(folder)
    tables: list[partitions.DigestCache] = []

    def table(name: str, version: int = 1) -> partitions.DigestCache:
        tables.append(partitions.DigestCache(folder / "index" / f"{name}.json", version))
        return tables[-1]

    try:
        contents = collect(settings, folder, table)
    except SourcesMissing as error:
        last = load(folder)
        last.missing = SourcesMissing(error.text, error.pristine and not last.partitions)
        return last
    if contents is None:
        return Sources()

    ids = {name: built.keep(folder / name, items) for name, items in contents.items.items()}
    names = _as_before(folder, contents, is_run)
    if names is None:
        names = _rebuild(folder, contents, tables, is_run)
    if "gone" in contents.items:
        _list_gone(folder / "gone/groups.json", contents, ids[""] - {*names})
    for name, items in contents.items.items():
        built.restore_times(folder / name, items)
    return Sources(
        partitions=contents.groups,
        files=contents.files,
        notes=contents.notes,
        changes_until=partial(_changes_until, folder, contents, names),
        unchanged=contents.unchanged,
        check=contents.check,
    )


def _changes_until(folder: Path, contents: Contents, names: Collection[str], until: str) -> str:
    """What differs from what the targets of a stage were built from; "" if nothing does.

    What was made of an edit that is undone since is up to date for the last stage only.
    """
    stages = [stage for items in contents.items.values() for stage in items.stages]
    each = (_changes(folder, contents, names, stage) for stage in dict.fromkeys([until, *stages]))
    return next(filter(None, each), "")


def _as_before(folder: Path, contents: Contents, is_run: bool) -> list[str] | None:
    """Complete `contents` from the last sync, and return the ids; None if all must be made
    again."""
    known = jsonl.read_or({}, folder / placements.STATE)
    if not contents.state or contents.state != known.get("state"):
        return None
    is_draft = (folder / placements.DRAFT).exists()
    if is_draft and is_run:
        return None  # a dry run wrote it, without what takes time
    if is_draft != known["draft"]:
        return None  # an earlier version wrote none, or it was deleted
    last = load(folder)
    names = [name for group in last.partitions.values() for name in group]
    if not all((folder / f"{name}.json").exists() for name in names):
        return None
    contents.groups, contents.files = last.partitions, last.files
    contents.notes, contents.total = known["notes"], known["total"]
    return names


def _rebuild(
    folder: Path, contents: Contents, tables: list[partitions.DigestCache], is_run: bool
) -> list[str]:
    """Write all partition files, and what the next parse needs to leave them alone; return the
    ids."""
    # A sync that is interrupted leaves no state: the next one makes everything again.
    (folder / placements.STATE).unlink(missing_ok=True)
    names = partitions.sync_files(folder, contents.partitions)
    for name, files in contents.others.items():
        partitions.sync_files(folder / name, files.items())
    assignment = contents.assignment
    assert assignment is not None  # a generator of partitions has set it
    if is_run:
        contents.before_run()
    placements.write_draft(folder, assignment, contents.settings)
    for each in tables:
        each.save()
    index = {"partitions": contents.groups, "files": contents.files}
    atomic.write_if_changed(folder / "index" / "partitions.json", atomic.json_bytes(index))
    if fixed := differences(placements.settings_when_placed(assignment), contents.settings):
        contents.notes.append(f"{'; '.join(fixed)}: {contents.placed}")
    if contents.state:
        is_draft = (folder / placements.DRAFT).exists()
        facts = {"notes": contents.notes, "total": contents.total, "draft": is_draft}
        atomic.write_json(folder / placements.STATE, facts | {"state": contents.state})
    return names


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys of `now` that had another value before, with both values."""

    def shown(value: Any) -> str:
        pairs = (
            [f"{k} {v}" for k, v in sorted(value.items())]
            if isinstance(value, dict)
            else [str(value)]
        )
        return ", ".join(pairs)

    changed = [key for key in now if key in before and before[key] != now[key]]
    return [f"{key} {shown(before[key])} -> {shown(now[key])}" for key in changed]


def _changes(folder: Path, contents: Contents, names: Collection[str], stage: str) -> str:
    """One line of what differs from what the targets of a stage were built from, and what that
    makes pending; "" if nothing does.
    """
    phrases, lines, pending = [], [], []
    for name, items in contents.items.items():
        if not items.noun:
            continue
        ids, total = ([*contents.others[name]], 0) if name else (names, contents.total)
        compared = folder / name, ids, total, items.until(stage), contents.left_out
        texts, differences, count = built.compare(*compared)
        phrases, lines = phrases + texts, lines + differences
        pending += [f"{count} of {len(ids)} partitions"] if count and not name else []
    pending += [contents.then or "the merges"] if contents.then or not pending else []
    line = f"{'; '.join(phrases)} -> {' and '.join(pending)}" if phrases else ""
    if len(lines) > built.NAMED:
        atomic.write_text(folder / "changes.txt", "\n".join(lines) + "\n")
        line += f" (listed in {folder / 'changes.txt'})"
    return line


def _list_gone(path: Path, contents: Contents, gone_ids: Collection[str]) -> None:
    """List the groups that were built and are no more: an input of the merge, which deletes their
    files.

    What the last merge was told of stays in the list, and with it the list, while the groups are
    not back.
    """
    items, present = contents.items[""], {*contents.groups, *contents.left_out}
    gone = {items.group(name) for name in gone_ids if items.has_output(name)}
    merged = contents.items["gone"].copies(path.parent) / path.name
    gone = {*gone, *jsonl.read_or([], path), *jsonl.read_or([], merged)} - present
    if gone or merged.exists():
        atomic.write_if_changed(path, atomic.json_bytes(sorted(gone)))
    else:  # only dry runs have seen what was gone, and has come back
        path.unlink(missing_ok=True)
