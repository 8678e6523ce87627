"""Where audio may come from: an alignment file names any path."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.common import jsonl
from millrace.common.path_map import PathMap
from millrace.speech import generate_manifest
from millrace.speech.corpus.media import MediaFolder
from millrace.speech.corpus.roots import AudioOutside, AudioRoots
from tests import corpora
from tests.speech.chain import Chain, edit

AUDIO = "malta/downloaded_audio/mp4_converted"


class Corpus(Chain):
    """A country with one honest recording, and audio that belongs to nobody in the folder beside
    it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        corpora.add_recording(self.root, "malta", "honest", 8)
        corpora.add_recording(self.root, "malta", "evil", 9)
        self.secret = folder / "private/evil.wav"
        self.secret.parent.mkdir()
        shutil.move(self.root / AUDIO / "evil.wav", self.secret)

    def name(self, audio_file: str) -> None:
        """Have the second recording's alignment name this audio."""
        edit(self.aligned("malta", "evil"), lambda value: value.update(audio_file=audio_file))

    def audio(self, **options: object) -> dict[str, str]:
        """Where a sync found audio, by recording."""
        self.notes = self.sync(**options).notes
        contents = [jsonl.read(path) for path in (self.folder / "partitions").glob("*.json")]
        recordings = [recording for content in contents for recording in content["recordings"]]
        transcripts = {each["video_id"]: each["transcripts"][0] for each in recordings}
        return {
            video_id: each["audio"]["path"]
            for video_id, each in transcripts.items()
            if each["audio"]
        }

    def rejected(self) -> list[tuple[str, str]]:
        """The file and the reason of each alignment that is rejected."""
        rejects = jsonl.read(self.folder / "partitions/countries/malta.json")["rejected"]
        return [(each["file"], each["reason"]) for each in rejects]


REJECTED = [("evil_t1_aligned.json", "audio_outside")]


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    return Corpus(tmp_path)


@pytest.mark.parametrize(
    "audio_file",
    [
        "{folder}/private/evil.wav",
        "{folder}/countries/../private/evil.wav",
        "private/evil.wav",
        "../private/evil.wav",
        "downloaded_audio/../../../private/evil.wav",
        "{folder}/countries-of-others/evil.wav",
        "/etc/passwd",
    ],
)
def test_audio_outside_of_the_corpus_is_rejected_by_name(corpus, audio_file):
    shutil.copytree(corpus.secret.parent, corpus.folder / "countries-of-others")
    corpus.name(audio_file.format(folder=corpus.folder))
    assert corpus.audio().keys() == {"honest"}
    assert corpus.rejected() == REJECTED


def test_the_parse_says_what_was_rejected_and_which_key_takes_it(corpus):
    corpus.name(str(corpus.secret))
    corpus.audio()
    outside = (
        "lies outside of the folders that audio may come from. If it belongs to the corpus, add "
    )
    remedy = (
        f"{corpus.secret.parent}, or a folder above it, to speech.audio_roots (by hand:"
        " --audio-roots)"
    )
    where = "1 alignment file is left out: malta: evil_t1_aligned.json: "
    assert corpus.notes == [f"{where}{corpus.secret} {outside}{remedy}"]


@pytest.mark.parametrize(
    "link", ["malta/downloaded_audio/mp4_converted/evil.wav", "malta/downloaded_audio/new"]
)
def test_links_below_downloaded_audio_are_the_owners_and_are_followed(corpus, link):
    (corpus.root / link).symlink_to(
        corpus.secret if link.endswith(".wav") else corpus.secret.parent
    )
    assert Path(corpus.audio()["evil"]).samefile(corpus.secret) and corpus.rejected() == []
    corpus.name(str(corpus.secret))  # as the alignment file names it: passed over
    assert corpus.audio()["evil"].startswith(str(corpus.root))


def test_a_path_of_an_alignment_file_is_judged_by_where_its_links_lead(corpus):
    """In another folder of the corpus, and in one of `path_map`."""
    mapped = corpus.folder / "mapped"
    for folder in (corpus.root / "malta/other", mapped):
        folder.mkdir()
        (folder / "evil.wav").symlink_to(corpus.secret)
    for audio_file in ("other/evil.wav", "/old/evil.wav"):
        corpus.name(audio_file)
        assert corpus.audio(path_map={"/old": str(mapped)}).keys() == {"honest"}
        assert corpus.rejected() == REJECTED


def test_a_country_that_is_a_link_is_a_root(corpus):
    shutil.move(corpus.root / "malta", corpus.folder / "disk/malta")
    (corpus.root / "malta").symlink_to(corpus.folder / "disk/malta")
    shutil.move(corpus.root / AUDIO / "honest.wav", corpus.root / "malta")
    edit(corpus.aligned("malta", "honest"), lambda value: value.update(audio_file="honest.wav"))
    assert corpus.audio() == {"honest": str(corpus.root / "malta/honest.wav")}


def test_roots_may_be_links_and_links_within_them_are_followed(corpus):
    shutil.move(corpus.root, corpus.folder / "disk")
    corpus.root.symlink_to("disk")
    shutil.move(corpus.folder / "disk" / AUDIO, corpus.folder / "disk/pool")
    (corpus.root / AUDIO).symlink_to("../../pool")
    (corpus.folder / "link").symlink_to("private")
    corpus.name(f"{corpus.folder}/private/evil.wav")
    found = corpus.audio(audio_roots=[str(corpus.folder / "link")])
    assert found == {"honest": str(corpus.root / AUDIO / "honest.wav"), "evil": str(corpus.secret)}


def test_what_the_path_map_leads_to_is_a_root(corpus):
    corpus.name("/old/place/evil.wav")
    there = str(corpus.secret.parent)
    assert "evil" not in corpus.audio(path_map={"/older/place": there})
    assert corpus.audio(path_map={"/old/place": there})["evil"] == str(corpus.secret)
    corpus.name("/old/place/../private/evil.wav")
    (corpus.folder / "mapped").mkdir()
    assert "evil" not in corpus.audio(path_map={"/old/place": str(corpus.folder / "mapped")})
    assert corpus.rejected() == REJECTED


def test_the_country_s_own_file_of_that_name_is_taken_instead(corpus):
    shutil.copy(corpus.secret, corpus.root / AUDIO)
    corpus.name(str(corpus.secret))
    assert corpus.audio()["evil"] == str(corpus.root / AUDIO / "evil.wav")


def test_the_key_decides_again_whenever_it_changes(corpus):
    corpus.name(str(corpus.secret))
    roots = [str(corpus.secret.parent)]
    found = [corpus.audio(audio_roots=each).keys() for each in (roots, [], roots)]
    assert [len(names) for names in found] == [2, 1, 2]


def test_the_ledger_of_the_country_counts_it(corpus):
    corpus.name(str(corpus.secret))
    for number in range(9):
        corpora.add_recording(corpus.root, "malta", f"more_{number}", 8)
    ledger = corpus.run("malta", partition_hours=1.0)
    assert ledger["files"]["rejected"] == {"audio_outside": 1} and ledger["files"]["rows_out"] == 10


def test_by_hand_it_is_never_opened_and_listed_unless_a_root_is_named(corpus, monkeypatch):
    monkeypatch.chdir(corpus.folder)
    corpus.name(str(corpus.secret))
    code = (
        "import sys; sys.addaudithook(lambda event, given: event == 'open' and print(given[0]));"
        "from millrace.speech import generate_manifest;"
        "sys.exit(generate_manifest.main(['--country', 'malta']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "honest.wav" in ran.stdout and str(corpus.secret) not in ran.stdout
    assert "evil_t1_aligned.json" in ran.stderr and "--audio-roots" in ran.stderr
    with open("manifests/malta_rejects.csv", newline="") as handle:
        assert [(row["file"], row["reason"]) for row in csv.DictReader(handle)] == REJECTED
    Path("manifests/malta_manifest.csv").unlink()
    assert generate_manifest.main(["--country", "malta", "--audio-roots", "private"]) == 0
    with open("manifests/malta_manifest.csv", newline="") as handle:
        assert str(corpus.secret) in {row["source_audio_path"] for row in csv.DictReader(handle)}


def test_audio_outside_of_downloaded_audio_is_seen_when_it_comes_and_goes(corpus):
    pool = corpus.root / "malta/pool"
    corpus.name(f"{pool}/evil.wav")
    assert corpus.audio().keys() == {"honest"}
    pool.mkdir()
    assert corpus.audio().keys() == {"honest"}
    shutil.copy(corpus.secret, pool)
    assert corpus.audio()["evil"] == f"{pool}/evil.wav"
    (pool / "evil.wav").unlink()
    assert corpus.audio().keys() == {"honest"}


def test_hidden_files_and_those_in_a_folder_whose_name_is_not_utf8_are_no_audio(tmp_path):
    audio = tmp_path / "malta/downloaded_audio"
    strange = Path(os.fsdecode(os.fsencode(audio) + b"/\xff"))
    strange.mkdir(parents=True)
    for path in (audio / "._a.wav", strange / "b.wav", audio / "c.wav"):
        path.touch()
    media = MediaFolder(tmp_path / "malta", PathMap({}))
    names = ("._a.wav", "b.wav", "c.wav")
    assert [name for name in names if media.find(name)] == ["c.wav"]


def test_the_root_of_the_file_system_holds_all(tmp_path):
    (tmp_path / "a.wav").touch()
    (tmp_path / "countries/malta").mkdir(parents=True)
    assert AudioRoots(["/"]).hold("/a.wav")
    for target in ("", "/"):
        media = MediaFolder(tmp_path / "countries/malta", PathMap({"/mounted": target}))
        assert media.find(f"/mounted{tmp_path}/a.wav").path == f"{tmp_path}/a.wav"
    with pytest.raises(AudioOutside):
        MediaFolder(tmp_path / "countries/malta", PathMap({})).find(f"{tmp_path}/a.wav")
