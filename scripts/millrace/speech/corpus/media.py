"""Finding a recording's audio on this machine from what an alignment file calls it on another: in
which folders, by which names, and which of several is taken."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from millrace.common.path_map import PathMap, slashed
from millrace.common.workflow.partitions import Stat
from millrace.speech.corpus import alignment
from millrace.speech.corpus.roots import AudioRoots

# Where the corpus keeps audio, the likeliest first; other folders under downloaded_audio/ follow by
# name.
FOLDERS = (
    "mp4_converted",
    "youtube_converted",
    "m3u8_streams",
    "generic_video",
    "mp3_audio",
    "processed_video",
)
# Suffixes of audio, which come before unknown ones; that a file is audio is decided by its content.
_MEDIA = {
    ".aac",
    ".aif",
    ".aiff",
    ".flac",
    ".m4a",
    ".m4b",
    ".mka",
    ".mkv",
    ".mov",
    ".mp2",
    ".mp3",
    ".mp4",
    ".mpeg",
    ".mpg",
    ".oga",
    ".ogg",
    ".opus",
    ".ts",
    ".wav",
    ".weba",
    ".webm",
    ".wma",
}
# What lies beside audio and is not audio.
_NOT_MEDIA = {
    ".csv",
    ".gif",
    ".html",
    ".jpg",
    ".json",
    ".jsonl",
    ".lock",
    ".log",
    ".md",
    ".nfo",
    ".part",
    ".pdf",
    ".png",
    ".py",
    ".srt",
    ".tar",
    ".tmp",
    ".tsv",
    ".txt",
    ".vtt",
    ".webp",
    ".xml",
    ".ytdl",
}


class MediaFolder:
    """The audio files of one country, found by name, by stem, or by an old path mapped to a new
    one.

    `path_map` maps path prefixes as written in alignment files to prefixes on this machine;
    `audio_roots` are folders that audio may lie in, beside the corpus and what `path_map` leads to.
    `stats` are those of all files below downloaded_audio; `outside` says of what else was looked
    for whether it is there.
    """

    def __init__(
        self, country_folder: str | os.PathLike, path_map: PathMap, audio_roots: Sequence[str] = ()
    ) -> None:
        root = Path(country_folder)
        self.path_map = path_map
        # What maps to nothing leads to the root of the file system.
        mapped = (new or "/" for _, new in path_map.pairs)
        self.audio_roots = AudioRoots([root.parent, root, *mapped, *audio_roots])
        self.roots = [
            os.path.join(each, "").removeprefix("./")
            for each in (root, root.parent, root.parent.parent)
        ]
        self.stats: dict[str, Stat] = {}
        self.outside: dict[str, list[int] | None] = {}
        # Paths of media by folder, both in the order in which they are tried.
        self._media: dict[str, list[str]] = {}
        self._walked: set[tuple[int, int]] = set()
        self._walk(os.path.join(root, "downloaded_audio"))

    def _walk(self, folder: str) -> None:
        try:
            status = os.stat(folder)
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        # Links that lead upwards would be followed for ever. The error of an unreadable folder goes
        # on: if its audio counted as missing, good shards would be removed.
        if (status.st_dev, status.st_ino) in self._walked:
            return
        self._walked.add((status.st_dev, status.st_ino))
        likely: list[tuple[bool, str]] = []
        folders: list[str] = []
        self._media[folder] = []  # its place among the folders
        for entry in entries:
            try:
                status = entry.stat()
            except OSError:  # a link to nowhere or to itself, or deleted since the listing
                continue
            if stat.S_ISDIR(status.st_mode):
                folders += [] if entry.name.startswith(".") else [entry.name]
            elif stat.S_ISREG(status.st_mode):
                self.stats[entry.path] = Stat.of(entry.path, status)
                suffix = os.path.splitext(entry.name)[1].lower()
                if (
                    not entry.name.startswith(".")
                    and suffix not in _NOT_MEDIA
                    and is_utf8(entry.path)
                ):
                    likely.append((suffix not in _MEDIA, entry.path))
        self._media[folder] = [path for _, path in sorted(likely)]
        known = {name: rank for rank, name in enumerate(FOLDERS)}
        for name in sorted(folders, key=lambda name: (known.get(name, len(known)), name)):
            self._walk(os.path.join(folder, name))

    @cached_property
    def _tables(self) -> list[dict[str, list[str]]]:
        """Paths by each of their `_titles`, the likeliest first."""
        tables: list[dict[str, list[str]]] = [{}, {}, {}, {}]
        for media in self._media.values():
            for path in media:
                titles = _titles(os.path.basename(path))
                for table, title in zip(tables, titles, strict=True):
                    table.setdefault(title, []).append(path)
        return tables

    def find(self, audio_file: str) -> Stat | None:
        """The audio file on this machine, or None if it is missing.

        Tried in this order: the path as `path_map` maps it, the path itself (absolute, or relative
        to the country, the corpus, or the corpus' parent), the same file name in the country's
        audio folders, the same stem there; name and stem as written, else in Unicode's normal form.
        Of several that which lies in a folder of the same name comes first.
        A path that `audio_roots` do not hold is passed over; AudioOutside if there is nothing else.
        """
        refused: Stat | None = None
        for status in self._candidates(audio_file):
            # Links below downloaded_audio are the owner's, not of the alignment file.
            is_walked = os.path.dirname(status.path) in self._media
            if is_walked or self.audio_roots.hold(self.audio_roots.real(status.path)):
                return status
            refused = refused or status
        if refused:
            raise self.audio_roots.outside(refused.path, self.audio_roots.real(refused.path))
        return None

    def _candidates(self, audio_file: str) -> Iterator[Stat]:
        """The files that `audio_file` may mean, the surest first."""
        written = slashed(audio_file)
        plain = written
        if written != os.path.normpath(written):
            plain = str(PurePosixPath(written))
        if written.startswith("/"):
            places = [written]
        else:
            places = [root + plain for root in self.roots]
        for path in [*self.path_map.mapped(written), *places]:
            if status := self._stat(path):
                yield status
        for table, title in zip(
            self._tables, _titles(os.path.basename(written.rstrip("/"))), strict=True
        ):
            paths = table.get(title, ())
            # Of several the one in a folder of the same name: mp3_audio/x.opus is mp3_audio/x.mp3.
            ordered = sorted(paths, key=lambda path: _folder(path) != _folder(written))
            yield from (self.stats[path] for path in ordered)

    def _stat(self, path: str) -> Stat | None:
        """The stat of a regular file; a folder that is missing is asked for once."""
        folder = os.path.dirname(path)
        if path in self.stats or folder in self._media:
            return self.stats.get(path)
        if folder and folder not in self.outside:
            self.outside[folder] = [] if os.path.isdir(folder) else None
        if folder and self.outside[folder] is None:
            return None
        if known := signature(path):
            self.stats[path] = Stat(path, *known)
        self.outside[path] = known
        return self.stats.get(path)


def signature(path: str) -> list[int] | None:
    """That of a regular file; None if there is none, [] for a folder."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if stat.S_ISDIR(status.st_mode):
        return []
    if stat.S_ISREG(status.st_mode):
        return Stat.of(path, status).signature
    return None


def is_utf8(name: str) -> bool:
    """Whether a name read from a folder is UTF-8, as all files that Millrace writes are."""
    return name.encode(errors="ignore").decode() == name


def _titles(name: str) -> tuple[str, str, str, str]:
    """What a file is looked for by, the surest first: name, then stem, as written and in normal
    form."""
    stem = alignment.stem(name)
    return name, _normal(name), stem, _normal(stem)


def _folder(path: str) -> str:
    """The name of the folder that a file lies in."""
    return os.path.basename(os.path.dirname(path))


def _normal(name: str) -> str:
    # macOS writes decomposed names, alignment files composed ones.
    return unicodedata.normalize("NFC", name)
