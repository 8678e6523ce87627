"""Path prefixes of another machine, and what they are on this one: `path_map` of the config."""

from __future__ import annotations

from collections.abc import Mapping


class PathMap:
    """Maps paths, and notes which prefixes have matched, for `warnings`."""

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        pairs = {}
        for old, new in prefixes.items():
            pairs[slashed(old).rstrip("/")] = new.rstrip("/")
        self.pairs = sorted(pairs.items(), key=lambda pair: -len(pair[0]))
        self.unmatched = set(pairs)  # prefixes that no path has had
        self.example = ""  # a path without any of them

    def mapped(self, path: str) -> list[str]:
        """`path`, with forward slashes, by every prefix that it has; by the longest one first."""
        places = []
        for old, new in self.pairs:
            if path.startswith(f"{old}/"):
                self.unmatched.discard(old)
                places.append(new + path[len(old) :])
        if not places or not self.example:
            self.example = path
        return places

    def warnings(self, key: str, paths: str) -> list[str]:
        """A line for every prefix that none of the paths has had; `paths` says what they are."""
        example = f", for example {self.example} does not" if self.example else ""
        lines = []
        for old in sorted(self.unmatched):
            problem = f"{key}: none of the {paths} starts with {old}/{example}"
            lines.append(f"{problem}. Mend the prefix, or remove it")
        return lines


def slashed(path: str) -> str:
    """A path with forward slashes; a POSIX path may hold a backslash in a name."""
    if "/" in path:
        return path
    return path.replace("\\", "/")
