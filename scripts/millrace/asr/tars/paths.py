"""Paths of tars that manifests name: which spelling counts of several that lead to one file; and
what people are told to do about a tar that has changed."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable


def one_spelling(tars: Collection[str]) -> dict[str, str]:
    """One name for all paths that lead to one tar, such as x.tar, /here/x.tar and links.

    That is the file's own path if it occurs, else an absolute one: nobody's paths change without
    need.
    """
    places = real_paths(tars)

    def best_first(tar: str) -> tuple[bool, bool, str]:
        is_link = tar != places[tar]
        is_relative = not os.path.isabs(tar)
        return is_link, is_relative, tar

    names: dict[str, str] = {}
    for tar in sorted(tars, key=best_first):
        names.setdefault(places[tar], tar)
    return {tar: names[places[tar]] for tar in tars}


def real_paths(paths: Iterable[str]) -> dict[str, str]:
    """Every path as os.path.realpath gives it, absolute and without links, with one look at each
    folder."""
    known = {"/": "/", "//": "/"}

    def real(path: str) -> str:
        if path.count("/") > 255:  # deeper than any folder of tars
            return path
        if path not in known:
            folder, name = os.path.split(path)
            here = os.path.join(real(folder), name)
            known[path] = os.path.realpath(here) if os.path.islink(here) else here
        return known[path]

    places = {}
    for path in paths:
        is_url = "://" in path
        places[path] = path if is_url else real(os.path.abspath(path))
    return places


# Where nothing is pending: after --touch, or if an index is damaged.
_ALL_INDICES = "asr_data -R asr_build_tar_indices"
REBUILD = (
    f"Build its index and the buckets again: snakemake asr_data (after --touch: {_ALL_INDICES})"
)
REMAKE = f"Build it again: snakemake {_ALL_INDICES}"
