"""Finding a recording's audio on this machine from what an alignment file calls it on another."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping
from pathlib import Path

from scripts.common.partitions import Stat
from scripts.speech import alignment

# Where the corpus keeps audio, the likeliest first; other folders under downloaded_audio/ follow by name.
FOLDERS = ("mp4_converted", "youtube_converted", "m3u8_streams", "generic_video", "mp3_audio", "processed_video")
# What lies beside audio and is not audio.
_NOT_MEDIA = frozenset(
    (".csv", ".html", ".jpg", ".json", ".jsonl", ".lock", ".log", ".md", ".part", ".pdf", ".png", ".py", ".srt")
    + (".tar", ".tmp", ".tsv", ".txt", ".vtt", ".xml", ".ytdl")
)


class MediaFolder:
    """The audio files of one country, found by name, by stem, or by an old path mapped to a new one.

    `path_map` maps path prefixes as written in alignment files to prefixes on this machine.
    """

    def __init__(self, country_folder: str | os.PathLike, path_map: Mapping[str, str]) -> None:
        self.country_folder = Path(country_folder)
        self.path_map = sorted(path_map.items(), key=lambda pair: -len(pair[0]))
        self.roots = (self.country_folder, self.country_folder.parent, self.country_folder.parent.parent)
        self._by_name: dict[str, str] = {}
        self._by_stem: dict[str, str] = {}
        self._stats: dict[str, Stat] = {}
        self._index(self.country_folder / "downloaded_audio")

    def _index(self, audio_root: Path) -> None:
        if not audio_root.is_dir():
            return
        known = {name: rank for rank, name in enumerate(FOLDERS)}
        for folder, subfolders, names in os.walk(audio_root, followlinks=True):
            subfolders.sort(key=lambda name: (known.get(name, len(known)), name))
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in sorted(names):
                if name.startswith(".") or os.path.splitext(name)[1].lower() in _NOT_MEDIA:
                    continue
                path = os.path.join(folder, name)
                self._by_name.setdefault(_normal(name), path)
                self._by_stem.setdefault(_normal(alignment.stem(name)), path)

    def find(self, audio_file: str) -> Stat | None:
        """The audio file on this machine, or None where it is missing.

        Tried in this order: the path as `path_map` maps it, the path itself (absolute, or relative to the country,
        the corpus, or the corpus' parent), the same file name in the country's audio folders, the same stem there.
        """
        written = audio_file.replace("\\", "/") if "/" not in audio_file else audio_file
        candidates = [new + written[len(old) :] for old, new in self.path_map if written.startswith(old)]
        candidates += [written] if os.path.isabs(written) else [str(root / written) for root in self.roots]
        name = os.path.basename(written)
        for path in (
            *candidates,
            self._by_name.get(_normal(name)),
            self._by_stem.get(_normal(alignment.stem(name))),
        ):
            if path is not None and (stat := self._stat(path)) is not None:
                return stat
        return None

    def _stat(self, path: str) -> Stat | None:
        if path not in self._stats:
            if not os.path.isfile(path):
                return None
            self._stats[path] = Stat.of(path)
        return self._stats[path]

    def longest_stem(self, name: str) -> str | None:
        """The longest stem of an audio file that `name` starts with, followed by `_` or nothing."""
        name, end = _normal(name), len(name)
        while end > 0:
            if name[:end] in self._by_stem:
                return alignment.stem(os.path.basename(self._by_stem[name[:end]]))
            end = name.rfind("_", 0, end)
        return None


def _normal(name: str) -> str:
    # macOS writes decomposed names, alignment files composed ones.
    return unicodedata.normalize("NFC", name)
