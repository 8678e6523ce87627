"""The speech lane's sources, and how they fall into partitions; run while the workflow is parsed, so nothing heavy."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scripts.common import atomic, jsonl, partitions
from scripts.common.errors import MillraceError
from scripts.speech import alignment, splits
from scripts.speech.languages import language_of
from scripts.speech.media import MediaFolder, is_utf8

# Names of countries that quote to more than this are cut; file names take 255 bytes.
_LONGEST_NAME = 100
# A partition owns this many shard numbers, so that numbers are stable whatever its neighbours grow to.
SHARD_NUMBERS = 100


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
    language_map: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Recording:
    """All that is known of one recording: its transcripts, and its audio as it lies on disk."""

    country: str
    video_id: str
    hours: float = 0.0
    transcripts: list[dict] = field(default_factory=list)
    # The content of its audio, by which it is known when it comes back under another name.
    content: str | None = None
    twin_of: str | None = None

    @property
    def name(self) -> str:
        return f"{self.country}/{self.video_id}"


@dataclass
class Country:
    """A country folder: its recordings by video id, and what of its files could not be used."""

    name: str
    folder: Path
    language: str
    recordings: dict[str, Recording] = field(default_factory=dict)
    files: int = 0
    rejected: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Sources:
    """What the rules need: partition ids by country. `message` is one line for the user, or empty."""

    partitions: dict[str, list[str]] = field(default_factory=dict)
    message: str = ""


def safe_name(name: str) -> str:
    """A country's name as it may stand in file names and wildcards.

    urllib.parse.unquote gives it back, unless it is so long that a digest stands for its end.
    """
    if len(safe := _quoted(name)) <= _LONGEST_NAME:
        return safe
    end, head = f"~{partitions.digest(name)[:16]}", name
    while len(_quoted(head)) > _LONGEST_NAME - len(end):
        head = head[:-1]
    return _quoted(head) + end


def _quoted(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")


def load(folder: str | os.PathLike) -> Sources:
    """The partitions as the last sync left them."""
    try:
        return Sources(jsonl.read(Path(folder) / "index" / "partitions.json"))
    except FileNotFoundError:
        return Sources()


def sync(settings: Settings, folder: str | os.PathLike) -> Sources:
    """Bring the partition files under `folder` in step with the corpus, and return the partitions.

    `folder`/<partition>.json hold the recordings of one partition, `folder`/countries/<country>.json what no
    partition holds: unusable files and notes. Files whose content is the same are not written.
    """
    folder = Path(folder)
    root = Path(settings.countries_root)
    if not root.is_dir():
        return Sources(load(folder).partitions, f"no corpus at {root}")
    cache = partitions.DigestCache(folder / "index" / "digests.json")
    countries = [_read_country(name, root / name, settings, cache) for name in _country_names(root, settings)]
    if not any(country.files for country in countries):
        # An empty folder is more often a disk that is not mounted than a wish to delete all shards.
        return Sources(load(folder).partitions, f"no alignment files under {root}")
    labels = ("country", "video_id", "split", "subset_id")
    assignment = partitions.Assignment(settings.assignment_file, settings.partition_hours, labels)
    _check_labels(assignment)
    _find_twins(countries, assignment, cache)
    _note_contents(countries, assignment, cache)
    for country in countries:
        _assign(country, assignment, settings)
    assignment.save()
    contents = _partition_contents(countries, assignment)
    index = {safe_name(country.name): [] for country in countries}
    for name, content in contents.items():
        index[safe_name(content["country"])].append(name)
    partitions.sync_files(folder, contents)
    partitions.sync_files(folder / "countries", {safe_name(c.name): _country_content(c, index) for c in countries})
    cache.save()
    atomic.write_if_changed(folder / "index" / "partitions.json", atomic.json_bytes(index))
    return Sources(index)


def _country_names(root: Path, settings: Settings) -> list[str]:
    # isdir, as an entry's is_dir raises on a link that leads to itself.
    found = sorted(name for name in os.listdir(root) if not name.startswith(".") and os.path.isdir(root / name))
    if missing := sorted(set(settings.countries) - set(found)):
        raise MillraceError(
            f"speech.countries names {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not there",
            where=str(root),
            remedy=f"Folders found: {', '.join(found) or 'none'}",
        )
    return [name for name in found if not settings.countries or name in settings.countries]


def _read_country(name: str, folder: Path, settings: Settings, cache: partitions.DigestCache) -> Country:
    country = Country(_shown(name), folder, language_of(name, settings.language_map))
    if country.language == "und":
        country.notes.append("language_unknown")
    aligned = folder / "Alignment" / "alignment_output"
    if not aligned.is_dir():
        country.notes.append("no_alignment_folder")
        return country
    media = MediaFolder(folder, settings.path_map)
    for name in sorted(os.listdir(aligned)):
        path, lower = os.path.join(aligned, name), name.lower()
        if name.startswith(".") or not lower.endswith(".json"):
            if not name.startswith(".") and os.path.isdir(path) and "alignment_subfolders" not in country.notes:
                country.notes.append("alignment_subfolders")
            continue
        country.files += 1
        if lower.endswith(alignment.SUFFIX):
            _read_transcript(country, media, path, cache)
        else:
            detail = f"the name does not end in {alignment.SUFFIX}"
            country.rejected.append(_rejected(_shown(name), "not_an_alignment_name", detail))
    _mend_hours(country)
    return country


def _mend_hours(country: Country) -> None:
    """Have the sizes of audio files correct the hours of recordings that an absurd time makes far too long."""
    kinds: dict[str, list[tuple[Recording, int]]] = defaultdict(list)
    for recording in country.recordings.values():
        if files := [transcript["audio"] for transcript in recording.transcripts if transcript["audio"]]:
            largest = max(files, key=lambda audio: audio["size"])
            kinds[os.path.splitext(largest["path"])[1].lower()].append((recording, largest["size"]))
    for alike in kinds.values():
        mended = splits.believable_hours([(recording.hours, size) for recording, size in alike])
        for (recording, _), hours in zip(alike, mended, strict=True):
            recording.hours = hours


def _read_transcript(country: Country, media: MediaFolder, path: str, cache: partitions.DigestCache) -> None:
    """Add one alignment file to its recording, or to the country's rejected files."""
    name = os.path.basename(path)
    if not is_utf8(path):
        detail = "the name of the file, or of a folder it lies in, is not UTF-8; rename it"
        country.rejected.append(_rejected(_shown(name), "name_not_utf8", detail))
        return
    try:
        stat = partitions.Stat.of(path)
        if os.path.isfile(path):
            facts = cache.get(stat, _facts)
        else:
            kind = "a folder" if os.path.isdir(path) else "not a regular file"
            facts = {"reason": "json_unreadable", "detail": f"is {kind}"}
    except OSError as error:
        facts = {"reason": "json_unreadable", "detail": error.strerror or str(error)}
    if "reason" in facts:
        country.rejected.append(_rejected(name, facts["reason"], facts["detail"]))
        return
    file_stem = name[: -len(alignment.SUFFIX)]
    if (audio_file := facts["audio_file"]) is not None:
        video_id = alignment.stem(audio_file)
    elif (video_id := media.longest_stem(file_stem)) is not None:
        audio_file = video_id
    else:
        detail = "no `audio_file`, and no audio file whose name this one starts with"
        country.rejected.append(_rejected(name, "no_audio_file", detail))
        return
    stat = media.find(audio_file)
    recording = country.recordings.setdefault(video_id, Recording(country.name, video_id))
    recording.hours = max(recording.hours, facts["hours"])
    recording.transcripts.append(
        {
            "transcript_id": alignment.transcript_id(file_stem, video_id),
            "path": path,
            "digest": facts["digest"],
            "audio_file": audio_file,
            "audio": stat.as_dict() if stat else None,
        }
    )


def _facts(path: str) -> dict[str, Any]:
    try:
        parsed = alignment.parse(Path(path).read_bytes())
    except alignment.BadAlignment as bad:
        return {"reason": bad.reason, "detail": str(bad)}
    return {"audio_file": parsed.audio_file, "digest": parsed.digest, "hours": round(parsed.hours, 6)}


def _shown(name: str) -> str:
    return name.encode("utf-8", "backslashreplace").decode()


def _rejected(name: str, reason: str, detail: str) -> dict:
    return {"file": name, "reason": reason, "detail": detail}


def _check_labels(assignment: partitions.Assignment) -> None:
    """Raise MillraceError where a hand has given a recording a split or subset that is none."""
    for placement in assignment.placements.values():
        split, subset = placement.labels["split"], placement.labels["subset_id"]
        suffix = f"-{split}-{subset}" if split == "train" else f"-{split}"
        known = type(subset) is int and subset >= 0 if split == "train" else split in splits.SPLITS and subset is None
        if not known or not placement.group.endswith(suffix) or "/" in placement.group:
            problem = (
                f"{placement.item}: split {split!r}, subset_id {subset!r} and group {placement.group!r} do not agree"
            )
            remedy = "Restore the line from version control: a recording must not change its split"
            raise MillraceError(problem, where=str(assignment.path), remedy=remedy)


def _find_twins(countries: list[Country], assignment: partitions.Assignment, cache: partitions.DigestCache) -> None:
    """Mark recordings whose audio is the same file under another name, in whichever country (`twin_of`).

    The one assigned first is the original; the others, and new ones above all, are its twins.
    """
    order = {name: rank for rank, name in enumerate(assignment.placements)}
    by_size: dict[int, list[tuple[Recording, dict]]] = defaultdict(list)
    for country in countries:
        for recording in country.recordings.values():
            for audio in {t["audio"]["path"]: t["audio"] for t in recording.transcripts if t["audio"]}.values():
                if audio["size"]:
                    by_size[audio["size"]].append((recording, audio))
    for same in by_size.values():
        if len({recording.name for recording, _ in same}) < 2:
            continue
        same.sort(key=lambda pair: order.get(pair[0].name, len(order)))
        first: dict[str, Recording] = {}
        for recording, audio in same:
            try:
                seen = cache.get(partitions.Stat.of(audio["path"]), partitions.head_tail_digest)
            except OSError:
                continue
            twin = first.setdefault(seen, recording)
            if twin is not recording and recording.twin_of is None:
                recording.twin_of = twin.twin_of or twin.name


def _note_contents(countries: list[Country], assignment: partitions.Assignment, cache: partitions.DigestCache) -> None:
    """Digest the audio of new recordings: once in the life of each, a few blocks of its file."""
    for country in countries:
        for recording in country.recordings.values():
            audio = next((t["audio"] for t in recording.transcripts if t["audio"] and t["audio"]["size"]), None)
            if audio and assignment.get(recording.name) is None:
                with contextlib.suppress(OSError):
                    digest = cache.get(partitions.Stat.of(audio["path"]), partitions.head_tail_digest)
                    recording.content = f"{audio['size']}-{digest}"


def _assign(country: Country, assignment: partitions.Assignment, settings: Settings) -> None:
    """Place the country's new recordings: split, subset of train, partition."""
    hours: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    subsets: dict[int, float] = defaultdict(float)
    # What was placed under a name that is no more keeps its split: training may have seen it.
    earlier: dict[str | None, partitions.Placement] = {}
    for placement in assignment.placements.values():
        earlier.setdefault(placement.labels.get("content"), placement)
        if placement.labels["country"] == country.name:
            hours[placement.labels["split"]] += placement.cost
            counts[placement.labels["split"]] += 1
            if placement.labels["split"] == "train":
                subsets[placement.labels["subset_id"]] += placement.cost
    new = {r.name: r for r in country.recordings.values() if assignment.get(r.name) is None}
    # A twin follows the recording it equals; only one of a group of new twins stands for all in the balance.
    leaders: dict[str, list[Recording]] = defaultdict(list)
    followers: dict[str, str] = {}
    for recording in new.values():
        twin = assignment.get(recording.twin_of) if recording.twin_of else None
        twin = twin or (earlier.get(recording.content) if recording.content else None)
        if twin is not None:
            followers[recording.name] = twin.labels["split"]
            hours[twin.labels["split"]] += recording.hours
            counts[twin.labels["split"]] += 1
        else:
            leaders[recording.twin_of if recording.twin_of in new else recording.name].append(recording)
    chosen = splits.assign(
        [(name, sum(recording.hours for recording in group)) for name, group in leaders.items()],
        hours,
        counts,
        settings.split_fractions,
    )
    for name, group in leaders.items():
        followers.update({recording.name: chosen[name] for recording in group})
    for name, recording in sorted(new.items()):
        split, subset = followers[name], None
        group = f"{safe_name(country.name)}-{split}"
        if split == "train":
            subset = max(subsets, default=1)
            if subsets.get(subset) and subsets[subset] + recording.hours > settings.train_subset_hours:
                subset += 1
            subsets[subset] += recording.hours
            group += f"-{subset}"
        labels = {"country": country.name, "video_id": recording.video_id, "split": split, "subset_id": subset}
        if recording.content:
            labels["content"] = recording.content
        assignment.place(name, group, recording.hours, labels)


def _partition_contents(countries: list[Country], assignment: partitions.Assignment) -> dict[str, dict]:
    contents: dict[str, dict] = {}
    by_name = {country.name: country for country in countries}
    for placement in assignment.placements.values():
        country = by_name.get(placement.labels["country"])
        recording = country.recordings.get(placement.labels["video_id"]) if country else None
        if recording is None:
            continue
        name = f"{placement.group}-{placement.number * SHARD_NUMBERS:05d}"
        content = contents.setdefault(
            name,
            {
                "partition": name,
                "country": country.name,
                "language": country.language,
                "split": placement.labels["split"],
                "subset_id": placement.labels["subset_id"],
                "recordings": [],
            },
        )
        content["recordings"].append(
            {
                "video_id": recording.video_id,
                "twin_of": recording.twin_of,
                "twin_split": _twin_split(recording, placement, assignment),
                "transcripts": recording.transcripts,
            }
        )
    return contents


def _twin_split(recording: Recording, placement: partitions.Placement, assignment: partitions.Assignment) -> str | None:
    """The split of an identical recording when it is another one: then the later one must not be used."""
    twin = assignment.get(recording.twin_of) if recording.twin_of else None
    return twin.labels["split"] if twin and twin.labels["split"] != placement.labels["split"] else None


def _country_content(country: Country, index: Mapping[str, list[str]]) -> dict:
    return {
        "country": country.name,
        "language": country.language,
        "files": country.files,
        "recordings": len(country.recordings),
        "transcripts": sum(len(recording.transcripts) for recording in country.recordings.values()),
        "partitions": index[safe_name(country.name)],
        "rejected": country.rejected,
        "notes": country.notes,
    }
