"""The original script's index, a .pt file with a dict of pointers by id, written for other
programs."""

from __future__ import annotations

import os

from millrace.common import atomic
from millrace.music.features.index import FeatureIndex
from millrace.music.features.track import H5


def write_old_index(path: str | os.PathLike, index_file: str | os.PathLike) -> None:
    """Write {id: {h5_file, h5_key, mm_path, hop_s, shape}}, the paths relative to their roots."""
    import torch

    index = FeatureIndex(index_file)
    mapping = {}
    for number in range(len(index)):
        entry: dict = {}
        for track in reversed(index.entries(number)):
            file = os.path.relpath(track.file, index.roots[track.source])
            entry |= (
                {"h5_file": file, "h5_key": track.key} if track.source == H5 else {"mm_path": file}
            )
            # What nothing states is left to the training configuration, as the original script
            # does.
            is_stated = track.facts["hop"] != "config"
            entry |= {
                "hop_s": track.hop if is_stated else None,
                "shape": [track.bins, track.frames],
            }
        mapping[index.id(number)] = entry
    with atomic.replacing(path) as partial:
        torch.save(mapping, partial)
