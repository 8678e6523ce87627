"""The speech lane's sources: recordings, by country; run while the workflow is parsed, so nothing
heavy."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from millrace.common import jsonl
from millrace.common.errors import MillraceError, counted
from millrace.common.workflow import placements
from millrace.common.workflow.differences import Items, unsaid
from millrace.common.workflow.partitions import Assignment, Placement
from millrace.common.workflow.sources import (
    Found,
    Partitions,
    SourcesMissing,
    Tables,
    Write,
    misplaced,
)
from millrace.speech.corpus import (
    broken,
    changes,
    country_folder,
    given_splits,
    media,
    splits,
    tables,
)
from millrace.speech.corpus.alignment import SUFFIX
from millrace.speech.corpus.country_folder import FILE_CHOICES, Country
from millrace.speech.names import SHARD_NUMBERS, Partition, safe_name

# Keys whose effect is said otherwise, or that no job reads.
QUIET_KEYS = {"countries_root", "assignment_file", "path_map", "language_map"}
QUIET_KEYS |= {"splits_file", "audio_roots"}
QUIET_KEYS |= (FIXED := {"split_fractions", "train_subset_hours", "partition_hours"})
# What to do if nothing is there.
REMEDY = "run `snakemake speech_fetch_corpus` for the demo corpus, or set speech.countries_root"
# Where the demo corpus is fetched to, which is also the default of countries_root.
DEMO_ROOT = Path("resources/speech/countries")


@dataclass
class Settings:
    """What of the lane's config decides on partitions."""

    countries_root: str
    assignment_file: str
    split_fractions: Mapping[str, float]
    train_subset_hours: float
    partition_hours: float
    countries: list[str] = field(default_factory=list)
    path_map: Mapping[str, str] = field(default_factory=dict)
    audio_roots: list[str] = field(default_factory=list)
    language_map: Mapping[str, str] = field(default_factory=dict)
    splits_file: str = ""


def collect(settings: Settings, folder: Path, table: Tables) -> Found:
    """Partitions hold the recordings of one country, split and subset; `countries` what no
    partition holds: unusable files and notes.

    Raises SourcesMissing, and MillraceError for a country that is missing and a damaged assignment
    file.
    """
    root = Path(settings.countries_root)
    index = folder / "index"
    names = _refresh(settings, folder)
    heads = [head for name in names if (head := tables.head(index, name))]
    if not any(head.files for head in heads):
        raise _no_corpus(root, heads)
    _refuse_dead_links(root, folder)

    items = _items(folder.parent, folder)
    corpus = _Corpus(settings, folder, names, heads, items[""])
    read_too = [settings.assignment_file, settings.splits_file]
    if os.path.isdir(settings.splits_file):
        read_too += sorted(str(path) for path in Path(settings.splits_file).iterdir())
    # What earlier versions have synced lacks the list of held-out partitions.
    version = "held_out"
    signatures = [media.signature(path) for path in read_too]
    # Audio outside of a country's folder comes and goes without a change of its state.
    of_countries = [(head.state, head.outside) for head in heads]
    states = of_countries, asdict(settings), version, *signatures
    chosen = {country_folder.id_of(path) for path in country_folder.folders(root, [])}
    return Found(
        lambda write: _build(corpus, write),
        state=jsonl.digest(states) if all(head.state for head in heads) else "",
        items=items,
        left_out=chosen - set(names),
    )


class _Corpus(NamedTuple):
    """What a parse knows of the corpus before it makes partitions."""

    settings: Settings
    folder: Path  # of the partitions
    names: list[str]  # ids of all countries
    heads: list[Country]  # of those that have a table
    items: Items


def _refresh(settings: Settings, folder: Path) -> list[str]:
    """Bring the tables of the countries up to date; return the ids of all that are chosen."""
    root = Path(settings.countries_root)
    folders = []
    if root.is_dir():
        folders = country_folder.folders(root, settings.countries)
    rules = {key: getattr(settings, key) for key in ("path_map", "audio_roots", "language_map")}
    tables.refresh(folders, folder / "index", **rules)
    return [country_folder.id_of(path) for path in folders]


def _no_corpus(root: Path, heads: list[Country]) -> SourcesMissing:
    """There is no alignment file. An empty folder is more often a disk that is not mounted than a
    wish to delete all shards."""
    is_demo = root == DEMO_ROOT
    if is_demo and not heads and not root.with_name("corpus.json").exists():
        return SourcesMissing(f"no corpus at {root}", pristine=True)
    expected = "<country>/Alignment/alignment_output/*_aligned.json and <country>/downloaded_audio/"
    pattern = f"*/{country_folder.ALIGNED}/*{SUFFIX}"
    problem = misplaced("speech.countries_root", root, expected, pattern)
    demo = ". For the demo corpus run `snakemake speech_fetch_corpus`" if is_demo else ""
    return SourcesMissing(problem + demo)


def _refuse_dead_links(root: Path, folder: Path) -> None:
    """Raise MillraceError for a country that was built, and is now a link to nothing."""
    for link in root.iterdir():
        if not link.is_symlink() or link.exists():
            continue
        if (folder / "countries" / f"{country_folder.id_of(link)}.json").exists():
            remedy = (
                "Mount its disk; or remove the link, and what was built of the country is deleted"
            )
            raise MillraceError("a country that is a link to what is not there", str(link), remedy)


def _notes_on(heads: list[Country], results: Path) -> list[str]:
    """Lines for the user about what the tables of the countries hold."""
    notes = []
    for head in heads:
        if not head.files:
            notes.append(f"{head.name}: no *{SUFFIX} in its Alignment/alignment_output")
    unknown = [head.name for head in heads if head.language == "und" and head.files]
    if unknown:
        notes.append(
            f"the language of {', '.join(unknown)} is unknown (und): set speech.language_map"
        )
    return [*notes, *_left_out(heads, results)]


def _left_out(heads: list[Country], results: Path) -> list[str]:
    """A line with the first of the alignment files that cannot be used, and with the number of
    segments that leave the shards."""
    rejects = []
    for head in heads:
        for reject in head.rejected:
            if reject["reason"] not in FILE_CHOICES:
                rejects.append((head.name, reject))
    if not rejects:
        return []
    name, reject = rejects[0]
    count = f"{len(rejects)} alignment files are" if len(rejects) > 1 else "1 alignment file is"
    line = f"{count} left out: {name}: {reject['file']}: {reject['detail']}"
    files = {(name, Path(each["file"]).name) for name, each in rejects}
    leaving = broken.segments_in_shards(files, results)
    if leaving:
        line += f"; {counted(leaving, 'segment')} will leave the shards"
    return [line]


def _build(corpus: _Corpus, write: Write) -> Partitions:
    """Write the partition files, country by country as a large corpus takes memory."""
    settings = corpus.settings
    folder = corpus.folder
    assignment = splits.load(settings.assignment_file, settings.partition_hours)
    placements.require_kept(assignment, folder, corpus.items)
    placed: dict[str, list[Placement]] = defaultdict(list)
    for placement in assignment.saved:
        placed[placement.labels["country"]].append(placement)
    given = given_splits.read(settings.splits_file)
    rules = splits.Rules(settings.split_fractions, settings.train_subset_hours, given)

    groups: dict[str, list[str]] = {name: [] for name in corpus.names}
    countries: dict[str, dict] = {}
    for head in corpus.heads:
        country = tables.load(folder / "index", safe_name(head.name))
        splits.check_given(country, assignment, given)
        splits.place_new(country, assignment, placed[head.name], rules)

        of_country = groups[safe_name(head.name)]
        for content in _partition_contents(country, placed[head.name]).values():
            of_country.append(content["partition"])
            write(content["partition"], content)
        countries[safe_name(head.name)] = _country_content(country, of_country)

    return Partitions(
        assignment,
        groups,
        sum(content["recordings"] for content in countries.values()),
        others={"countries": countries, "held_out": {"all": {"partitions": _held_out(groups)}}},
        notes=_notes_on(corpus.heads, folder.parent),
        settings={key: getattr(settings, key) for key in sorted(FIXED)},
        placed=_places_kept(assignment, folder),
    )


def _held_out(groups: Mapping[str, list[str]]) -> list[str]:
    """The partitions of validation and test of all countries: what copies are looked for in."""
    held_out = []
    for names in groups.values():
        for name in names:
            partition = Partition.parse(name)
            if partition is not None and partition.split != "train":
                held_out.append(name)
    return sorted(held_out)


def _places_kept(assignment: Assignment, folder: Path) -> str:
    """What other settings do to recordings that are placed."""
    hours = sum(placement.cost for placement in assignment.saved)
    return (
        f"new recordings follow, but {len(assignment.saved)} ({hours:.4g} h) keep their place. "
        f"To place all anew, delete {assignment.path} and {folder.parent}: "
        "test recordings may then come into train"
    )


def _partition_contents(country: Country, placed: list[Placement]) -> dict[str, dict]:
    by_name: dict[str, dict] = {}
    for placement in placed:
        recording = country.recordings.get(placement.labels["video_id"])
        if recording is None:
            continue
        name = f"{placement.group}-{placement.number * SHARD_NUMBERS:05d}"
        if name not in by_name:
            facts = {key: placement.labels[key] for key in ("split", "subset_id")}
            facts |= {
                "partition": name,
                "country": country.name,
                "language": country.language,
            }
            by_name[name] = facts | {"recordings": []}
        by_name[name]["recordings"].append(
            {
                "video_id": recording.video_id,
                "transcripts": recording.transcripts,
            }
        )
    return by_name


def _items(results: Path, partitions: Path) -> dict[str, Items]:
    """How partition files, and what belongs to no partition, are compared with what was built."""
    of_manifest = f"{results}/manifest/{{}}_manifest.csv"
    outputs = [
        f"{results}/manifest/partitions/{{}}/manifest.parquet",
        f"{results}/shards/partitions/{{}}/index.parquet",
    ]
    recordings = Items(
        "recording",
        _recordings,
        changes.kinds,
        outputs,
        changes.country_of,
        str,
        stages={changes.FIRST_STAGE: outputs[:1]},
        merged=[f"{partitions}/countries/{{}}.json", of_manifest],
    )
    return {
        "": recordings,
        "countries": unsaid(
            [f"{results}/shards/{{}}_index.parquet"], {changes.FIRST_STAGE: [of_manifest]}
        ),
        "gone": unsaid([f"{results}/index.parquet"]),
        "held_out": unsaid([f"{results}/index.parquet"]),
    }


def _recordings(content: Mapping) -> dict[str, Any]:
    shared = {"partition": content["partition"], "language": content["language"]}
    return {
        f"{content['country']}/{each['video_id']}": shared | each for each in content["recordings"]
    }


def _country_content(country: Country, names: list[str]) -> dict:
    return {
        "country": country.name,
        "language": country.language,
        "files": country.files,
        "recordings": len(country.recordings),
        "transcripts": sum(len(recording.transcripts) for recording in country.recordings.values()),
        "partitions": names,
        "rejected": country.rejected,
        "notes": country.notes,
    }
