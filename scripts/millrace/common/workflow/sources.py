"""How a parse brings every lane's partition files in step with its sources: when all are made anew,
and what is said of misplaced folders and changed settings.

A lane's `sources.py` says what its items are. It has a dataclass `Settings`, whose fields are keys
of the lane's config, and `collect(settings, folder, table)`, which looks at the sources and returns
`Found`: what tells them from those of the last parse, and `build`, which makes all partitions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import atomic, jsonl
from millrace.common.workflow import differences, partitions, placements

# Gives the digest table of a name; one table for each kind of fact that is read from files.
Tables = Callable[..., partitions.DigestCache]


class SourcesMissing(SystemExit):
    """There is nothing to build from. Raised by an input function it ends Snakemake with its one
    line. If only the demo corpus was never fetched, it is `pristine`: a hint, and there are no
    partitions.
    """

    def __init__(self, text: str, pristine: bool = False) -> None:
        self.text = text
        self.pristine = pristine
        super().__init__(text)


@dataclass
class Sources:
    """What the rules need: partition ids by group (a country, "tars"), and source files by split.

    `missing` says why there are none, `notes` are lines about sources and settings that do not stop
    a run, `changes_until` says what differs from what the targets of a stage ("": all) were built
    from, `outputs_until` what the jobs of all partitions write for these targets. `unchanged` are
    files that say what they said when they were built, whatever their times.
    """

    partitions: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    missing: SourcesMissing | None = None
    notes: list[str] = field(default_factory=list)
    changes_until: Callable[[str], str] = lambda stage: ""
    outputs_until: Callable[[str], list[str]] = lambda stage: []
    unchanged: Collection[str] = ()

    @property
    def changes(self) -> str:
        """What differs from what was built."""
        return self.changes_until("")

    def required(self) -> Sources:
        """Itself. Raises SourcesMissing, but for the demo that was never fetched."""
        if self.missing and not self.missing.pristine:
            raise self.missing
        return self


# Writes a partition file: its id and content.
Write = Callable[[str, Any], None]


@dataclass(frozen=True)
class Partitions:
    """All partitions of a lane, complete: what `Found.build` returns when it has written their
    files.

    `others` are more files of the same kind, by sub-folder and name: what belongs to no partition.
    `notes` are lines for the user. `settings` count for new placements only, `placed` says so.
    """

    assignment: placements.Placements
    groups: dict[str, list[str]]
    total: int = 0  # items of all partitions
    files: dict[str, list[str]] = field(default_factory=dict)
    others: Mapping[str, Mapping[str, dict]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    placed: str = ""


@dataclass(frozen=True)
class Found:
    """What a lane finds at a parse, before any partition is made.

    `build` makes them. It is not called if `state` is that of the last sync: all that they rest on
    is as it was. `items` tells how they compare with what was built, by sub-folder ("" for the
    partitions; with one for "gone", groups that were built and are no more are listed there for the
    merge), `then` what all make. Groups in `left_out` are not chosen. `unchanged` is that of
    Sources.
    """

    build: Callable[[Write], Partitions]
    state: str = ""
    items: Mapping[str, differences.Items] = field(default_factory=dict)
    then: str = ""
    left_out: Collection[str] = ()
    unchanged: Collection[str] = ()


Collect = Callable[[Any, Path, Tables], Found | None]


class _Synced(NamedTuple):
    """The partitions after a sync."""

    names: list[str]
    groups: dict[str, list[str]]
    files: dict[str, list[str]]
    notes: list[str]
    total: int  # items of all partitions


def misplaced(key: str, path: Path, expected: str, *patterns: str) -> str:
    """What is wrong with the folder that a config key names; and a folder one or two levels up, or
    one down, in which `patterns` match."""
    if not path.exists():
        state = "does not exist"
    elif not path.is_dir():
        state = "is not a folder"
    elif inside := sorted(path.iterdir()):
        state = f"holds {', '.join(entry.name for entry in inside[:3])}"
    else:
        state = "is empty (is its disk mounted?)"
    near = [path.parent, path.parent.parent]
    if path.is_dir():
        near += sorted(folder for folder in path.iterdir() if folder.is_dir())
    for folder in near:
        if any(any(folder.glob(pattern)) for pattern in patterns):
            state += f"; set it to {folder}"
            break
    return f"{key}: {path} {state}; expected there: {expected}"


def settings_of(kind: type, section: Mapping[str, Any]) -> Any:
    """The lane's `Settings`, out of the keys of its config section that have the same names."""
    return kind(**{item.name: section[item.name] for item in fields(kind)})


def load(folder: str | os.PathLike) -> Sources:
    """The partitions as the last sync left them; none before the first."""
    try:
        return Sources(**jsonl.read(Path(folder) / "index" / "partitions.json"))
    except (FileNotFoundError, TypeError):  # TypeError: the shape of an earlier version
        return Sources()


def sync(collect: Collect, settings: Any, folder: str | os.PathLike) -> Sources:
    """Bring the partition files under `folder` in step with a lane's sources, and return the
    partitions.

    Files whose content is the same are not written. With `collect` returning None the lane needs no
    partitions. If the sources are missing, everything stays as the last sync left it. New
    placements are a draft until a job reads a partition (placements.py). Raises MillraceError for
    damaged sources and assignments, OSError for what may not be read or written.
    """
    folder = Path(folder)
    tables: list[partitions.DigestCache] = []

    def table(name: str, version: int = 1) -> partitions.DigestCache:
        tables.append(partitions.DigestCache(folder / "index" / f"{name}.json", version))
        return tables[-1]

    try:
        found = collect(settings, folder, table)
    except SourcesMissing as error:
        last = load(folder)
        text = error.text
        if error.pristine and last.partitions:
            text += " any more. Bring it back"
        last.missing = SourcesMissing(text, error.pristine and not last.partitions)
        return last
    if found is None:
        return Sources()

    # First, as it compares the partition files of the last sync with the outputs of the jobs.
    ids = {name: differences.keep(folder / name, items) for name, items in found.items.items()}

    synced = _as_before(folder, found) or _rebuilt(folder, found, tables)
    if "gone" in found.items:
        _list_gone(folder, found, synced, ids[""] - set(synced.names))
    for name, items in found.items.items():
        differences.restore_times(folder / name, items)
    return Sources(
        partitions=synced.groups,
        files=synced.files,
        notes=synced.notes,
        changes_until=partial(_changes_until, folder, found, synced),
        outputs_until=partial(_outputs_until, found, synced),
        unchanged=found.unchanged,
    )


def _as_before(folder: Path, found: Found) -> _Synced | None:
    """The partitions of the last sync; None if all must be made again."""
    known = jsonl.read_or({}, folder / placements.STATE)
    if not found.state or found.state != known.get("state"):
        return None
    if (folder / placements.DRAFT).exists() != known["draft"]:
        return None  # an earlier version wrote none, or it was deleted
    last = load(folder)
    names = [name for group in last.partitions.values() for name in group]
    files = [*names, *known.get("others", ())]
    if not all((folder / f"{name}.json").exists() for name in files):
        return None
    return _Synced(names, last.partitions, last.files, known["notes"], known["total"])


def _rebuilt(folder: Path, found: Found, tables: list[partitions.DigestCache]) -> _Synced:
    """Write all partition files, and what the next parse needs to leave them alone."""
    # A sync that is interrupted leaves no state: the next one makes everything again.
    (folder / placements.STATE).unlink(missing_ok=True)
    files = partitions.PartitionFiles(folder)
    made = found.build(files.write)
    files.delete_others()
    for name, others in made.others.items():
        partitions.sync_files(folder / name, others)
    placements.write_draft(folder, made.assignment, made.settings)
    for each in tables:
        each.save()
    index = {"partitions": made.groups, "files": made.files}
    atomic.write_if_changed(folder / "index" / "partitions.json", atomic.json_bytes(index))

    notes = [*made.notes, *_settings_notes(made)]
    if found.state:
        beside = [f"{name}/{file}" for name, part in made.others.items() for file in part]
        state = {
            "notes": notes,
            "total": made.total,
            "others": beside,
            "draft": (folder / placements.DRAFT).exists(),
            "state": found.state,
        }
        atomic.write_json(folder / placements.STATE, state)
    return _Synced(files.names, made.groups, made.files, notes, made.total)


def _settings_notes(made: Partitions) -> list[str]:
    """A line if settings have changed since items were placed, which keep their places."""
    before = placements.settings_when_placed(made.assignment)
    changed = changed_settings(before, made.settings)
    return [f"{'; '.join(changed)}: {made.placed}"] if changed else []


def changed_settings(
    before: Mapping[str, Any], now: Mapping[str, Any], sparse: Collection[str] = ()
) -> list[str]:
    """The keys of `now` that had another value before, with both values; of `sparse` sections also
    those that only one of both has: the other has their default."""

    def shown(value: Any) -> str:
        if not isinstance(value, dict):
            return str(value)
        return ", ".join(f"{name} {part}" for name, part in sorted(value.items()))

    lines = []
    for key in dict.fromkeys([*now, *before]):
        is_compared = (key in now and key in before) or key.partition(".")[0] in sparse
        was, value = before.get(key, "not set"), now.get(key, "not set")
        if is_compared and was != value:
            lines.append(f"{key} {shown(was)} -> {shown(value)}")
    return lines


def _changes_until(folder: Path, found: Found, synced: _Synced, until: str) -> str:
    """What differs from what the targets of a stage were built from; "" if nothing does.

    What was made of an edit that is undone since is up to date for the last stage only.
    """
    stages = [stage for items in found.items.values() for stage in items.stages]
    for stage in dict.fromkeys([until, *stages]):
        if line := _changes(folder, found, synced, stage):
            return line
    return ""


def _changes(folder: Path, found: Found, synced: _Synced, stage: str) -> str:
    """One line of what differs from what the targets of a stage were built from, and what that
    makes pending; "" if nothing does.
    """
    phrases: list[str] = []
    lines: list[str] = []
    pending: list[str] = []
    for name, items in found.items.items():
        if not items.noun:
            continue
        if name:
            ids = [path.stem for path in (folder / name).glob("*.json")]
            total = 0
        else:
            ids = synced.names
            total = synced.total
        changes = differences.compare(folder / name, ids, total, items.until(stage), found.left_out)
        phrases += changes.phrases
        lines += changes.lines
        if changes.pending and not name:
            pending.append(f"{changes.pending} of {len(ids)} partitions")
    if not phrases:
        return ""

    if found.then or not pending:
        pending.append(found.then or "the merges")
    line = f"{'; '.join(phrases)} -> {' and '.join(pending)}"
    if len(lines) > differences.NAMED:
        atomic.write_text(folder / "changes.txt", "\n".join(lines) + "\n")
        line += f" (listed in {folder / 'changes.txt'})"
    return line


def _outputs_until(found: Found, synced: _Synced, stage: str) -> list[str]:
    """What the jobs of all partitions write for the targets of a stage."""
    if "" not in found.items:
        return []
    outputs = found.items[""].until(stage).outputs
    return [output.format(name) for name in synced.names for output in outputs]


def _list_gone(folder: Path, found: Found, synced: _Synced, gone_ids: Collection[str]) -> None:
    """List the groups that were built and are no more: an input of the merge, which deletes their
    files.

    What the last merge was told of stays in the list, and with it the list, while the groups are
    not back.
    """
    path = folder / "gone/groups.json"
    told = found.items["gone"].copies(path.parent) / path.name
    items = found.items[""]
    gone = {items.group(name) for name in gone_ids if items.has_output(name)}
    gone.update(jsonl.read_or([], path), jsonl.read_or([], told))
    gone -= {*synced.groups, *found.left_out}
    if gone or told.exists():
        atomic.write_if_changed(path, atomic.json_bytes(sorted(gone)))
    else:  # only dry runs have seen what was gone, and has come back
        path.unlink(missing_ok=True)
