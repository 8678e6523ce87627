"""Sources and partitions: what a change of the corpus changes, and what it leaves alone."""

import json
import os
import shutil
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

from millrace.common import jsonl
from millrace.common.path_map import PathMap
from millrace.common.workflow.sources import Sources
from millrace.speech.corpus import alignment
from millrace.speech.corpus.media import MediaFolder
from millrace.speech.country.tables import write_splits
from millrace.speech.names import SHARD_NUMBERS, safe_name
from tests import corpora
from tests.refusals import refused
from tests.speech.chain import FRACTIONS, Chain, edit


class Corpus(Chain):
    """A corpus in a folder, and what the last sync made of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.partitions, self.options = folder / "partitions", {"train_subset_hours": 0.02}

    def sync(self) -> Sources:
        return super().sync(**self.options)

    def add(self, country: str, *video_ids: str, seconds: float = 8) -> None:
        for video_id in video_ids:
            corpora.add_recording(self.root, country, video_id, seconds)

    def files(self) -> dict[str, tuple[int, bytes]]:
        return {
            p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in self.partitions.glob("*.json")
        }

    def changed(self) -> set[str]:
        """Partition files that a sync writes, removes or adds."""
        before = self.files()
        self.sync()
        after = self.files()
        return {Path(name).stem for name in before | after if before.get(name) != after.get(name)}

    def contents(self) -> dict[str, dict]:
        return {p.stem: jsonl.read(p) for p in self.partitions.glob("*.json")}

    def recordings(self, country: str = "") -> dict[str, dict]:
        """The recordings of a country, or of all, with their partition and split."""
        return {
            recording["video_id"]: {**recording, "home": name, "split": content["split"]}
            for name, content in self.contents().items()
            for recording in content["recordings"]
            if content["country"] == country or not country
        }

    def home(self, video_id: str) -> str:
        return self.recordings()[video_id]["home"]

    def splits(self, country: str) -> dict[str, str]:
        """The split of each recording of a country."""
        return {name: recording["split"] for name, recording in self.recordings(country).items()}

    def audio(self, video_id: str, country: str = "") -> Path:
        """Where its audio was found."""
        return Path(self.recordings(country)[video_id]["transcripts"][0]["audio"]["path"])

    def homes(self, country: str) -> dict[str, str]:
        """The partition of each recording of a country."""
        return {name: recording["home"] for name, recording in self.recordings(country).items()}

    def name_audio(self, written: str) -> None:
        """Add an alignment that names its audio so, and sync."""
        value = {"audio_file": written, "segments": [{"start": 1, "end": 5}]}
        corpora.write_alignment(self.root, "spain", "rec_t", value)
        self.sync()

    def remove_what_was_made_of(self, country: str) -> None:
        """As the merge does, once the country is gone."""
        for folder in (self.shards_dir, self.manifest_dir):
            for path in folder.glob(f"*/{country}-*"):
                shutil.rmtree(path)

    def country(self, name: str) -> dict:
        return jsonl.read(self.partitions / "countries" / f"{name}.json")

    def assigned(self) -> list[dict]:
        """The lines of the assignment file."""
        return [line for _, line, _ in jsonl.lines(self.assignment)]


ALIGNED, AUDIO = "Alignment/alignment_output", "downloaded_audio/mp4_converted"


@pytest.fixture
def made(tmp_path) -> Corpus:
    """A corpus without any country."""
    return Corpus(tmp_path)


@pytest.fixture
def corpus(made) -> Corpus:
    corpora.make_corpus(made.root, {"germany": 12, "estonia": 5}, seconds=10)
    made.sync()
    return made


def test_countries_without_a_language_or_alignments_are_said(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.add("atlantis", "one")
    for empty in ("latvia", "lemuria"):
        (corpus.root / empty / ALIGNED).mkdir(parents=True)
    synced = corpus.sync()
    assert synced.notes == [
        "latvia: no *_aligned.json in its Alignment/alignment_output",
        "lemuria: no *_aligned.json in its Alignment/alignment_output",
        "the language of atlantis is unknown (und): set speech.language_map",
    ]
    assert synced.partitions["latvia"] == []
    assert corpus.country("latvia")["notes"] == ["no_alignment_files"]


def test_a_language_that_is_set_later_counts(made):
    made.add("atlantis", "one")
    for language_map, language in (({}, "und"), ({"atlantis": "grc"}, "grc")):
        made.options["language_map"] = language_map
        made.sync()
        assert {content["language"] for content in made.contents().values()} == {language}


def test_a_recording_is_as_long_as_its_longest_transcript(made):
    made.add("malta", "one")
    short = {"start": 0.0, "end": 3.6, "human_text": "a", "asr_text": "a"}
    value = {"audio_file": "one.wav", "segments": [short]}
    corpora.write_alignment(made.root, "malta", "one_t0", value)
    corpora.write_alignment(made.root, "malta", "one_t2", value)
    made.sync()
    (recording,) = made.recordings().values()
    assert len(recording["transcripts"]) == 3
    assert [line["cost"] > 0.0011 for line in made.assigned()] == [True]


def test_an_alignment_that_may_not_be_read_is_read_once_it_may_be(made, monkeypatch):
    def refuse(raw: bytes) -> None:
        raise PermissionError(13, "Permission denied")

    made.add("malta", "one", "two")
    made.sync()
    made.add("malta", "late")
    monkeypatch.setattr(alignment, "parse", refuse)
    made.sync()
    assert [row["reason"] for row in made.country("malta")["rejected"]] == ["json_unreadable"]
    monkeypatch.undo()
    made.sync()
    assert made.country("malta")["rejected"] == [] and "late" in made.recordings()


def test_every_recording_is_in_one_partition_of_its_country_and_split(corpus):
    seen = [
        (c["country"], r["video_id"]) for c in corpus.contents().values() for r in c["recordings"]
    ]
    assert len(seen) == len(set(seen)) == 17
    for name, content in corpus.contents().items():
        subset = f"-{content['subset_id']}" if content["subset_id"] else ""
        assert name.startswith(f"{content['country']}-{content['split']}{subset}-")
        assert int(name[-5:]) % SHARD_NUMBERS == 0
    assert {c["split"] for c in corpus.contents().values()} == set(FRACTIONS)
    assert len({c["subset_id"] for c in corpus.contents().values() if c["split"] == "train"}) > 1


def test_a_second_sync_changes_nothing_and_reads_no_alignment(corpus, monkeypatch):
    monkeypatch.setattr(
        alignment, "parse", lambda raw: pytest.fail("an alignment file was read again")
    )
    assert corpus.changed() == set()


def test_touching_reformatting_and_a_lost_cache_change_nothing(corpus):
    for path in corpus.root.glob("*/Alignment/*/*.json"):
        value = jsonl.read(path)
        segments = [dict(sorted(segment.items(), reverse=True)) for segment in value["segments"]]
        value = {"extra": 1, "segments": segments, "audio_file": value["audio_file"]}
        path.write_text(json.dumps(value, indent=3))
    os.utime(corpus.root)
    assert corpus.changed() == set()
    shutil.rmtree(corpus.partitions / "index")
    assert corpus.changed() == set()


def test_adding_recordings_moves_none(corpus):
    before = corpus.homes("germany")
    corpus.add("germany", *(f"added_{number}" for number in range(30)), seconds=12)
    corpus.sync()
    after = corpus.homes("germany")
    assert after.items() > before.items() and len(after) == len(before) + 30


@pytest.mark.parametrize("file", [f"{ALIGNED}/rec_0011_t1_aligned.json", f"{AUDIO}/rec_0011.wav"])
def test_what_is_deleted_and_comes_back_changes_its_partition_only(corpus, file):
    path, home = corpus.root / "germany" / file, corpus.home("rec_0011")
    raw = path.read_bytes()
    path.unlink()
    assert corpus.changed() == {home}
    path.write_bytes(raw)
    assert corpus.changed() == {home} and corpus.home("rec_0011") == home


def test_an_emptied_partition_is_removed(corpus):
    name, content = next(iter(corpus.contents().items()))
    for recording in content["recordings"]:
        Path(recording["transcripts"][0]["path"]).unlink()
    synced = corpus.sync()
    assert name not in corpus.contents() and name not in synced.partitions[content["country"]]
    assert name not in corpus.country(content["country"])["partitions"]


def test_unusable_files_are_listed_with_their_country(corpus):
    corpora.write_alignment(corpus.root, "estonia", "cut", b'{"audio_file": "x')
    corpora.write_alignment(corpus.root, "estonia", "unknown_t1", {"segments": [{"start": 1}]})
    for name in ("summary.json", "NOTES.JSON"):
        (corpus.root / f"estonia/{ALIGNED}/{name}").write_text("{}")
    assert corpus.changed() == set()
    country = corpus.country("estonia")
    rejects = [(row["file"].partition(".")[0], row["reason"]) for row in country["rejected"]]
    unusable = [("cut_aligned", "json_damaged"), ("summary", "not_an_alignment_name")]
    assert country["files"] == 5 + 4 and rejects == [
        ("NOTES", "not_an_alignment_name"),
        *unusable,
        ("unknown_t1_aligned", "no_audio_file"),
    ]


def test_ids_that_are_prefixes_or_twins_by_case_or_normal_form_stay_apart(made):
    names = {"a", "a_b", "a_b_c", "A", "día 1.2", "día 1"}
    names |= {unicodedata.normalize(form, "día") for form in ("NFC", "NFD")}
    made.add("spain", *names)
    made.sync()
    recordings = made.recordings()
    assert set(recordings) == names and all(made.audio(name).stem == name for name in names)
    assert all(recordings[name]["transcripts"][0]["transcript_id"] == "t1" for name in names)


@pytest.mark.parametrize(
    "written",
    ["/old/place/rec.opus", "downloaded_audio/m/rec.wav", "spain/downloaded_audio/m/rec.wav"],
)
def test_audio_is_found_by_map_by_relative_path_or_by_stem(made, written):
    where = made.root / "spain/downloaded_audio/m"
    if written.startswith("/old"):
        where = made.folder / "elsewhere"
        made.options["path_map"] = {"/old/place": str(where)}
    where.mkdir(parents=True)
    path = where / Path(written).name
    path.write_bytes(b"bytes")
    made.name_audio(written)
    assert made.audio("rec") == path


@pytest.mark.parametrize(
    "folder, found",
    [
        ("mp4_converted", "mp4_converted"),
        ("generic_video", "generic_video"),
        ("mp3_audio", "mp3_audio"),
        ("elsewhere", "mp4_converted"),  # the likeliest
    ],
)
def test_of_two_recordings_of_one_name_the_folder_decides(made, folder, found):
    for place in ("mp4_converted", "generic_video", "mp3_audio", "a_folder"):
        path = made.root / f"spain/downloaded_audio/{place}/rec.wav"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"bytes")
    made.name_audio(f"/old/downloaded_audio/{folder}/rec.opus")
    assert made.audio("rec").parent.name == found


def test_no_corpus_and_an_empty_folder_keep_what_is_there(corpus):
    before = corpus.files()
    shutil.move(corpus.root, corpus.root.with_name("away"))
    synced = corpus.sync()
    assert f"speech.countries_root: {corpus.root} does not exist" in str(synced.missing)
    assert sum(map(len, synced.partitions.values())) == len(before) and not synced.missing.pristine
    corpus.root.mkdir()
    assert (
        "is empty (is its disk mounted?)" in str(corpus.sync().missing) and corpus.files() == before
    )


@pytest.mark.parametrize("place", [".", "countries/germany", "countries/germany/Alignment"])
def test_a_root_that_is_off_by_a_level_is_named_with_the_right_one(corpus, place):
    root, corpus.root = corpus.root, corpus.folder / place
    missing = str(corpus.sync().missing)
    assert (
        f"countries_root: {corpus.root} holds " in missing
        and f"; set it to {root}; expected" in missing
    )
    assert "<country>/Alignment/alignment_output/*_aligned.json" in missing


def test_a_draft_follows_the_settings_until_a_run_starts(made):
    corpora.make_corpus(made.root, {"malta": 12}, seconds=10)
    for options in ({}, {"partition_hours": 1.0}, {"train_subset_hours": 0.01}):
        made.dry(**options)
        drafted = made.contents()
        assert not made.assignment.exists() and made.dry(**options).notes == []
    assert len(drafted) > 3
    Chain.sync(made, **options)
    assert made.contents() == drafted
    synced = Chain.sync(made, partition_hours=1.0)
    assert made.contents() == drafted
    assert synced.notes == [
        "partition_hours 0.01 -> 1.0; train_subset_hours 0.01 -> 100.0: new recordings follow, but"
        f" 12 ({sum(line['cost'] for line in made.assigned()):.4g} h) keep their place. To place"
        f" all anew, delete {made.assignment} and {made.folder}: test recordings may then come into"
        " train"
    ]
    assert made.dry(partition_hours=1.0).notes == []


def build(corpus: Corpus, country: str = "*", stage: str = "") -> None:
    """Stand in for the jobs, or those until a stage: what they write is newer than the
    partitions."""
    for partition in corpus.partitions.glob(f"{country}-*.json"):
        for path in (corpus.manifest_dir / "partitions", corpus.shards_dir / "partitions"):
            (path / partition.stem).mkdir(parents=True, exist_ok=True)
        (corpus.manifest_dir / f"partitions/{partition.stem}/manifest.parquet").write_text("")
        if not stage:
            (corpus.shards_dir / f"partitions/{partition.stem}/index.parquet").write_text("")
    for path in corpus.partitions.glob(f"countries/{country}.json"):
        (corpus.manifest_dir / f"{path.stem}_manifest.csv").write_text("")
        if not stage:
            (corpus.shards_dir / f"{path.stem}_index.parquet").write_text("")
    if not stage:
        (corpus.folder / "index.parquet").write_text("")


CHANGES = {
    "text": ({"human_text": "x"}, "text"),
    "times and text": ({"end": 4.0, "asr_text": "x"}, "times and text"),
    "CER": ({"cer": 0.1}, "CER"),
}


@pytest.mark.parametrize("change, kind", CHANGES.values(), ids=CHANGES)
def test_what_differs_from_what_was_built_is_said_until_it_is_built(corpus, change, kind):
    corpus.options["partition_hours"] = 0.02
    total = len(corpus.contents())
    for _ in range(2):
        changes = corpus.dry(**corpus.options).changes
        assert changes == f"17 recordings new -> {total} of {total} partitions"
    build(corpus)
    assert corpus.sync().changes == ""
    path = corpus.aligned("germany", "rec_0007")
    raw = path.read_bytes()
    for human_text in ("first", "second"):
        edit(path, lambda value, text=human_text: value["segments"][0].update(human_text=text))
        corpus.sync()
    path.write_bytes(raw)
    edit(path, lambda value: value["segments"][0].update(change))
    said = (
        f"1 recording changed (germany/rec_0007: {kind}), 0 new, 0 gone -> 1 of {total} partitions"
    )
    assert corpus.sync().changes == corpus.sync().changes == said
    assert corpus.sync().changes_until("manifest") == said
    # With the manifests alone only their targets are up to date.
    (corpus.manifest_dir / f"partitions/{corpus.home('rec_0007')}/manifest.parquet").write_text("")
    assert corpus.sync().changes == said and corpus.sync().changes_until("manifest") == ""
    shutil.copy(path, corpus.aligned("germany", "rec_0007", "t2"))
    assert f"(germany/rec_0007: transcripts and {kind})" in corpus.sync().changes
    build(corpus)
    assert corpus.sync().changes == ""


def aside(corpus: Corpus, path: Path) -> Callable[[], object]:
    """Move a file or folder out of the corpus; what puts it back as it was."""
    kept = corpus.folder / "aside"
    shutil.move(path, kept)
    return lambda: shutil.move(kept, path)


def edit_text(corpus: Corpus) -> Callable[[], object]:
    """It is written again as it was, which gives it another time."""
    path = corpus.aligned("germany", "rec_0002")
    raw = path.read_bytes()
    edit(path, lambda value: value["segments"][1].update(human_text="something else"))
    return lambda: path.write_bytes(raw)


def replace_audio(corpus: Corpus) -> Callable[[], object]:
    path = corpus.audio("rec_0002", "germany")
    put_back = aside(corpus, path)
    path.write_bytes(b"other audio")
    return put_back


def add_and_remove(corpus: Corpus) -> Callable[[], object]:
    corpus.add("germany", "added")
    added = [*(corpus.root / "germany").glob("*/*/added*")]
    return lambda: [path.unlink() for path in added]


def remove_and_restore(corpus: Corpus) -> Callable[[], object]:
    path = corpus.aligned("germany", "rec_0002")
    raw = path.read_bytes()
    path.unlink()
    return lambda: path.write_bytes(raw)


def add_a_transcript(corpus: Corpus) -> Callable[[], object]:
    path = corpus.aligned("germany", "rec_0002", "t2")
    shutil.copy(corpus.aligned("germany", "rec_0002"), path)
    return path.unlink


def remove_a_country(corpus: Corpus) -> Callable[[], object]:
    return aside(corpus, corpus.root / "estonia")


UNDONE = {
    "text": edit_text,
    "audio": replace_audio,
    "recording added": add_and_remove,
    "recording removed": remove_and_restore,
    "transcript": add_a_transcript,
    "country removed": remove_a_country,
}


@pytest.mark.parametrize("dry_runs", [0, 2])
@pytest.mark.parametrize("stage, has_tables", [("manifest", True), ("", True), ("", False)])
@pytest.mark.parametrize("change", UNDONE.values(), ids=UNDONE)
def test_an_undone_edit_leads_back_to_what_was_built_whatever_dry_runs_have_seen(
    corpus, change, stage, has_tables, dry_runs
):
    build(corpus, stage=stage)
    for path in () if has_tables else corpus.manifest_dir.glob("*.csv"):
        path.unlink()  # speech_shards makes none

    def inputs() -> dict[str, tuple[int, bytes]]:
        """All that the jobs' times are compared with."""
        folders = [corpus.partitions / name for name in ("", "countries", "gone")]
        paths = [path for folder in folders for path in folder.glob("*.json")]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    assert corpus.sync().changes_until(stage) == ""
    before = inputs()
    undo = change(corpus)
    for _ in range(dry_runs):
        dry = corpus.dry(**corpus.options)
        said = dry.changes_until(stage)
        assert ("recording" in said) == (stage == "" or change != remove_a_country)
    undo()
    assert corpus.dry(**corpus.options).changes_until(stage) == ""
    assert inputs() == before


def test_an_edit_that_is_undone_after_manifests_were_made_of_it_makes_them_pending(corpus):
    build(corpus)
    corpus.sync()
    undo = edit_text(corpus)
    corpus.sync()
    build(corpus, "germany", stage="manifest")
    assert corpus.sync().changes_until("manifest") == ""
    undo()
    home, synced = corpus.recordings("germany")["rec_0002"]["home"], corpus.sync()
    assert (
        "germany/rec_0002: text" in synced.changes
        and synced.changes_until("manifest") == synced.changes
    )
    manifest = corpus.manifest_dir / f"partitions/{home}/manifest.parquet"
    assert (corpus.partitions / f"{home}.json").stat().st_mtime_ns > manifest.stat().st_mtime_ns


def test_an_emptied_partition_is_over_for_the_manifests_once_they_are_merged(corpus):
    build(corpus)
    corpus.sync()
    (name,) = [name for name in corpus.contents() if name.startswith("estonia-test-")]
    (recording,) = corpus.contents()[name]["recordings"]
    Path(recording["transcripts"][0]["path"]).unlink()
    gone = f"1 gone (estonia/{recording['video_id']})"
    assert gone in corpus.sync().changes_until("manifest")
    build(corpus, "estonia", stage="manifest")
    assert corpus.sync().changes_until("manifest") == "" and gone in corpus.sync().changes
    # The merge of the shards deletes what was made of it.
    for folder in (corpus.manifest_dir, corpus.shards_dir):
        shutil.rmtree(folder / "partitions" / name)
    build(corpus, "estonia")
    assert corpus.sync().changes == ""


def test_recordings_that_come_and_go_are_named_and_many_are_listed(corpus):
    build(corpus)
    corpus.sync()
    corpus.add("estonia", "new", seconds=10)
    corpus.aligned("germany", "rec_0001").unlink()
    audio = corpus.audio("rec_0002", "germany")
    audio.write_bytes(audio.read_bytes()[:-2000])
    line = corpus.sync().changes
    assert line.startswith(
        "1 recording changed (germany/rec_0002: audio), 1 new (estonia/new), 1 gone"
        " (germany/rec_0001) -> "
    )
    corpus.options["language_map"] = {"germany": "gsw"}
    line = corpus.sync().changes
    listing = corpus.partitions / "changes.txt"
    assert line.startswith("11 recordings changed, 1 new, 1 gone -> ") and line.endswith(
        f"(listed in {listing})"
    )
    lines = listing.read_text().splitlines()
    assert {"changed\tgermany/rec_0002\tlanguage and audio", "new\testonia/new"} <= {*lines}
    assert len(lines) == 13


def test_a_country_that_has_gone_is_said_and_listed_for_the_merge_and_one_not_chosen_is_not(corpus):
    gone = corpus.partitions / "gone/groups.json"
    build(corpus)
    corpus.sync()
    corpus.options["countries"] = ["germany"]
    assert corpus.sync().changes == "" and not gone.exists()
    corpus.options["countries"] = []
    assert corpus.sync().changes == ""
    shutil.move(corpus.root / "estonia", corpus.folder)
    total = len(corpus.sync().partitions["germany"])
    assert corpus.sync().changes == "estonia: 5 recordings gone -> the merges"
    edit(corpus.aligned("germany", "rec_0007"), lambda value: value["segments"][0].update(cer=0.1))
    assert (
        corpus.sync().changes
        == "estonia: 5 recordings gone; 1 recording changed (germany/rec_0007: CER), 0 new, 0 gone"
        f" -> 1 of {total} partitions"
    )
    assert jsonl.read(gone) == ["estonia"]
    corpus.remove_what_was_made_of("estonia")
    assert "estonia" not in corpus.sync().changes and jsonl.read(gone) == ["estonia"]
    shutil.move(corpus.folder / "estonia", corpus.root)
    assert "1 recording changed, 5 new, 0 gone -> " in corpus.sync().changes
    assert not gone.exists()  # no merge has read it


def test_a_country_that_goes_before_anything_was_built_of_it_is_not_listed_for_the_merge(corpus):
    shutil.move(corpus.root / "estonia", corpus.folder)
    corpus.sync()
    assert not (corpus.partitions / "gone/groups.json").exists()


def test_a_country_that_is_back_for_a_dry_run_only_stays_in_the_list_that_the_merge_has_read(
    corpus,
):
    gone = corpus.partitions / "gone/groups.json"
    build(corpus)
    corpus.sync()
    away = corpus.folder / "away"
    shutil.move(corpus.root / "estonia", away)
    corpus.sync()
    corpus.remove_what_was_made_of("estonia")
    build(corpus, "germany")
    corpus.sync()
    read, time = gone.read_text(), gone.stat().st_mtime_ns
    shutil.move(away, corpus.root / "estonia")
    corpus.dry(**corpus.options)
    assert jsonl.read(gone) == []
    shutil.move(corpus.root / "estonia", away)
    assert corpus.dry(**corpus.options).changes == ""
    assert (gone.read_text(), gone.stat().st_mtime_ns) == (read, time) and jsonl.read(gone) == [
        "estonia"
    ]
    # Once a merge has read that it is back, its next end is news.
    shutil.move(away, corpus.root / "estonia")
    corpus.sync()
    build(corpus)
    corpus.sync()
    shutil.move(corpus.root / "estonia", away)
    corpus.sync()
    index = corpus.folder / "index.parquet"
    assert jsonl.read(gone) == ["estonia"] and gone.stat().st_mtime_ns > index.stat().st_mtime_ns


def test_a_country_that_was_built_and_is_a_dead_link_now_is_not_taken_for_gone(corpus):
    shutil.move(corpus.root / "estonia", corpus.folder)
    (corpus.root / "estonia").symlink_to(corpus.folder / "not mounted")
    with refused(r"countries/estonia: a country that is a link to what is not there"):
        corpus.sync()


def test_a_country_that_is_asked_for_and_not_there_is_an_error(corpus):
    corpus.options["countries"] = ["germany", "atlantis"]
    with refused("atlantis"):
        corpus.sync()


NONSENSE = [{"subset_id": None}, {"subset_id": "1"}, {"group": "a/../b-train-1"}]


# A line of another country took its recordings out of the shards.
NONSENSE += [{"group": "latvia-train-1"}, {"country": "latvia"}, {"item": None}]
# A line moved to test by hand, which keeps its subset of train.
NONSENSE += [{"split": "test", "group": "estonia-test"}]
NONSENSE += [{"subset_id": -1, "group": "estonia-train--1"}]


@pytest.mark.parametrize("change", [*NONSENSE, {"split": "dev"}, {"split": "test"}])
def test_an_assignment_edited_into_nonsense_is_refused(corpus, change):
    lines = corpus.assigned()
    next(line for line in lines if line["split"] == "train").update(change)
    jsonl.write_lines(corpus.assignment, lines)
    with refused("do not agree"):
        corpus.sync()


def test_held_out_partitions_of_all_countries_are_listed_for_their_copies(corpus):
    contents = corpus.contents()
    held_out = [name for name in contents if contents[name]["split"] in ("validation", "test")]
    assert {name.split("-")[0] for name in held_out} == {"germany", "estonia"}
    assert {name.split("-")[1] for name in held_out} == {"validation", "test"}
    listed = jsonl.read(corpus.partitions / "held_out/all.json")["partitions"]
    assert listed == sorted(held_out)


def test_splits_of_a_country_do_not_depend_on_the_hours_of_others(tmp_path):
    alone, beside = (Corpus(tmp_path / name) for name in ("alone", "beside"))
    corpora.make_corpus(beside.root, {"germany": 9}, seconds=20)
    beside.options["split_fractions"] = {"train": 1.0, "validation": 0.0, "test": 0.0}
    beside.sync()
    beside.options["split_fractions"] = FRACTIONS
    for made in (alone, beside):
        for number in range(12):
            corpora.add_recording(made.root, "estonia", f"e{number:02d}", 8 + number)
        made.sync()
    assert set(beside.splits("germany").values()) == {"train"}
    assert beside.splits("estonia") == alone.splits("estonia")


NAMED = "country,video_id,split\n"
CSV = "source_audio_path,video_id,duration_hours,size_mb,split,subset_id\n"


@pytest.mark.parametrize(
    "name, text",
    [
        ("germany_splits.csv", f"{CSV}x.wav,rec_0000,1,1,test,\n/a/rec_0001.mp4,,1,1,train,4.0\n"),
        (
            "list.csv",
            "country,video_id,split\ngermany,rec_0000,test\n,rec_0001,train\n\nno,such,dev\n",
        ),
        ("list.csv", "split,source_audio_path\nTEST,/a/rec_0000.wav\ntrain,rec_0001\n"),
    ],
)
def test_splits_that_were_drawn_elsewhere_come_before_drawing(made, name, text):
    corpora.make_corpus(made.root, {"germany": 8}, seconds=10)
    (made.folder / name).write_text(text)
    made.options["splits_file"] = str(made.folder / name)
    made.sync()
    splits = made.splits("germany")
    assert splits["rec_0000"] == "test" and splits["rec_0001"] == "train"
    assert Counter(splits.values()) == {"train": 6, "test": 1, "validation": 1}
    assert made.home("rec_0001").startswith(
        "germany-train-4-" if "subset" in text else "germany-train-1-"
    )


def test_the_name_of_a_splits_file_says_its_country(made):
    corpora.make_corpus(made.root, {"germany": 4, "costa rica": 4}, seconds=10)
    lists = made.folder / "lists"
    lists.mkdir()
    (lists / "germany_splits.csv").write_text("video_id,split\nrec_0000,test\n")
    (lists / "costa%20rica_splits.csv").write_text("video_id,split\nrec_0000,train\n")
    made.options["splits_file"] = str(lists)
    made.sync()
    assert made.splits("germany")["rec_0000"] == "test"
    assert made.splits("costa rica")["rec_0000"] == "train"


@pytest.mark.parametrize(
    "country, video_id",
    [
        ("Соединённое Королевство", "rec_0000"),  # whose name is cut in paths
        ("germany", "line\r\nbreak"),
        ("germany", "separator\u2028\x85"),
        ("germany", " blanks "),
    ],
)
def test_every_splits_csv_that_millrace_writes_gives_the_same_splits_again(made, country, video_id):
    corpora.make_corpus(made.root, {country: 3}, seconds=10)
    corpora.add_recording(made.root, country, video_id, 10)
    splits = dict.fromkeys(("rec_0000", "rec_0001", "rec_0002"), "validation")
    splits[video_id] = "test"
    rows = [{"video_id": name, "split": split} for name, split in splits.items()]
    name = f"{safe_name(country)}_splits.csv"
    write_splits(made.folder / name, [row | {"source_audio_path": ""} for row in rows])
    made.options["splits_file"] = str(made.folder / name)
    made.sync()
    assert made.splits(country) == splits


@pytest.mark.parametrize(
    "text, message",
    [
        (
            f"{NAMED}germany,rec_0000,{{other}}",
            r"germany/rec_0000 is in \w+ there, and in \w+ here",
        ),
        (
            "video_id,split,subset_id\nrec_0000,train,1\nrec_0000,train,2",
            "rec_0000 is in train 1 there and in train 2 here",
        ),
        (f'{NAMED}"' + "rec_0000,train\n" * 9999, "cannot be read .field larger"),
        ("video_id,split,subset_id\nrec_0000,train,1.5", "subset '1.5'"),
        (
            f"{NAMED},rec_0000,{{own}}\n,rec_0000,{{other}}",
            "rec_0000 is in .* there and in .* here",
        ),
        (f"{NAMED},rec_0000,holdout", "recording 'rec_0000', split 'holdout'"),
        (f"{NAMED}germany, ,test", "line 2: recording '', split 'test'"),
        ("germany/rec_0000 test\n", "no header with video_id and split.*Write these names"),
        ("", "no header with video_id and split"),
        (NAMED, "names no recording"),
    ],
)
def test_a_given_split_that_contradicts_is_an_error_that_names_both(corpus, text, message):
    own = corpus.splits("germany")["rec_0000"]
    file = corpus.folder / "list.csv"
    file.write_text(text.format(own=own, other="validation" if own == "test" else "test"))
    corpus.options["splits_file"] = str(file)
    with refused(message) as caught:
        corpus.sync()
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("name", ["list.csv", "lists/germany_splits.csv"])
def test_an_edit_of_the_given_splits_or_of_the_assignment_is_noticed(corpus, name):
    own = corpus.splits("germany")["rec_0000"]
    file = corpus.folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{NAMED}germany,rec_0000,{own}\n")
    corpus.options["splits_file"] = str(file.parent if "/" in name else file)
    corpus.sync()
    file.write_text(f"{NAMED}germany,rec_0000,{'validation' if own == 'test' else 'test'}\n")
    with refused("rec_0000 is in"):
        corpus.sync()

    file.write_text(f"{NAMED}germany,rec_0000,{own}\n")
    corpus.sync()
    with open(corpus.assignment, "a") as handle:
        handle.write("no line of it\n")
    with refused("assignment"):
        corpus.sync()


def test_what_is_no_regular_file_is_listed_and_read_from_by_nobody(corpus):
    folder = corpus.root / "estonia" / ALIGNED
    (folder / "dir_t1_aligned.json").mkdir()
    (folder / "gone_t1_aligned.json").symlink_to("nowhere")
    (folder / "loop_t1_aligned.json").symlink_to("loop_t1_aligned.json")
    (folder / "._rec_0001_t1_aligned.json").write_bytes(b"\0\5\x16\7")
    os.mkfifo(folder / "pipe_t1_aligned.json")
    (corpus.root / "loop").symlink_to("loop")
    (corpus.root / "gone").symlink_to("nowhere")
    (folder / "2024").mkdir()
    assert corpus.changed() == set()
    rejected = {row["file"]: row["detail"] for row in corpus.country("estonia")["rejected"]}
    assert rejected.keys() == {
        f"{name}_t1_aligned.json" for name in ("dir", "gone", "loop", "pipe")
    }
    assert rejected["dir_t1_aligned.json"] == "is a folder"


def test_links_upwards_end_and_only_regular_files_are_audio(made):
    made.add("spain", *"abcd")
    converted = made.root / "spain" / AUDIO
    streams = converted.with_name("m3u8_streams")
    streams.mkdir()
    for number in range(6):
        (converted / f"up{number}").symlink_to("..")
    makers = {"a": os.mkfifo, "b": os.mkdir, "c": lambda path: os.symlink("nowhere", path)}
    for video_id, make in makers.items():
        shutil.move(converted / f"{video_id}.wav", streams)
        make(converted / f"{video_id}.wav")
    for name in ("d.nfo", "d.aaa", "._d.aac", "d.opus.part"):
        (converted / name).write_text("not audio")
    made.sync()
    assert all(made.audio(video_id) == streams / f"{video_id}.wav" for video_id in makers)
    assert made.audio("d") == converted / "d.wav"


def test_names_that_are_not_utf8_are_listed_and_stop_nothing(corpus):
    folder, audio = corpus.root / os.fsdecode(b"caf\xe9") / ALIGNED, corpus.root / "estonia" / AUDIO
    folder.mkdir(parents=True)
    shutil.copy(corpus.aligned("estonia", "rec_0001"), folder)
    shutil.copy(audio / "rec_0001.wav", audio / os.fsdecode(b"caf\xe9.wav"))
    before = corpus.files()
    (name,) = set(corpus.sync().partitions) - {"germany", "estonia"}
    assert corpus.files() == before
    (row,) = corpus.country(name)["rejected"]
    assert row["reason"] == "name_not_utf8"


def test_a_path_map_ends_at_a_slash_and_may_be_of_windows(tmp_path):
    for name in ("new", "newer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.wav").touch()
    path_map = PathMap({"D:\\old\\": f"{tmp_path}/new/", "/o": f"{tmp_path}/new"})
    folder = MediaFolder(tmp_path / "spain", path_map)
    stats = [folder.find(path) for path in ("D:\\old\\a.wav", "/o/a.wav")]
    assert {stat.path for stat in stats} == {f"{tmp_path}/new/a.wav"} and folder.find(
        "/oer/a.wav"
    ) is None
    nested = PathMap({"/o": "/short", "/o/deep": "/long"})
    assert nested.mapped("/o/deep/a.wav") == ["/long/a.wav", "/short/deep/a.wav"]


def test_country_names_are_quoted_and_cut_to_fit(made):
    countries = {"é" * 60, "é" * 61, "c" * 200, "bosnia & herz."}
    for country in countries:
        made.add(country, "r")
    partitions = made.sync().partitions
    assert all(len(name) <= 100 and unquote(name, errors="strict") for name in partitions)
    assert partitions["bosnia%20%26%20herz%2E"] == ["bosnia%20%26%20herz%2E-train-1-00000"]
    assert {c["country"] for c in made.contents().values()} == countries and len(partitions) == 4


def test_an_audio_folder_that_may_not_be_read_stops_instead_of_making_its_audio_missing(tmp_path):
    audio, user = tmp_path / "malta/downloaded_audio", os.geteuid()
    audio.mkdir(parents=True)
    assert MediaFolder(tmp_path / "malta", PathMap({})).find("none.wav") is None
    audio.chmod(0)
    try:
        if user == 0:  # Root may read everything.
            os.seteuid(65534)
        with pytest.raises(PermissionError):
            MediaFolder(tmp_path / "malta", PathMap({}))
    finally:
        os.seteuid(user)
        audio.chmod(0o755)
