"""labels, splits and stale: what is trained on, what is in two splits, an index older than its
files."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import torch

from tests.audit.mutants import both, bug, twin
from tests.audit.mutants.rows import Rows, load
from tests.audit.pictures import recordings, tokens


class Indexed(Rows):
    """Files by an index: a list of paths, or of paths with their sizes."""

    def __init__(self, folder: str, name: str, sizes: bool = False) -> None:
        super().__init__(12)
        self.index_path = Path(folder) / name / "index.json"
        entries = json.loads(self.index_path.read_text())
        places = [str(self.index_path.parent / entry["path"]) for entry in entries]
        self.paths = (
            [(path, entry["size"]) for path, entry in zip(places, entries, strict=True)]
            if sizes
            else places
        )

    def __getitem__(self, index: int) -> dict:
        path = self.paths[index] if isinstance(self.paths[index], str) else self.paths[index][0]
        return {"x": torch.tensor(list(Path(path).read_bytes()[:4])), "id": index}


CASES = {
    "labels": [
        bug("masked at the other side", partial(tokens, "from column 0", left=True)),
        twin("padded with the end", partial(tokens, "answer", pad=2)),
        twin("prompts trained on on purpose", partial(tokens, "whole text", short=True)),
    ],
    "splits": [
        bug("recordings of both", **both(recordings(shared=True))),
        twin("recordings of one", **both(recordings(shared=False))),
    ],
    "stale": [
        bug("an index of files that are gone", lambda folder: load(Indexed(folder, "gone"))),
        bug("the same with sizes", lambda folder: load(Indexed(folder, "gone", sizes=True))),
        twin("files that are there", lambda folder: load(Indexed(folder, "there"))),
    ],
}
