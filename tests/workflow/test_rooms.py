"""The rooms of the package: what may stand where, and who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter

from tests.workflow.module_list import PACKAGE
from tests.workflow.test_layout import imported_names

# Every lane's rooms, bottom up: a room imports only rooms before it, and `common`. Names without a
# folder are modules of the lane itself that rooms may import; after the rooms come the lane's
# steps, inputs and sources.
_BY_LANE = {
    "common": """
        errors processes atomic jsonl ledger progress cli error_rates hashing settings
        stopping path_map debian machine report hub workflow training loading
        throughput fingerprints leaks
    """,
    "speech": "columns names corpus audio manifest shards country report hub demo",
    "asr": """
        manifests tars buckets loading models transcription planning throughput
        trainers evaluation training calibration hub
    """,
    "music": "features audio sampling models training report demo",
    "image": "records producer models training",
    "audit": "runner splits probes checks report",
    # No lane: any tars in Python, read by what asr has.
    "tars": "index samples dataset loader",
}
ROOMS = {lane: rooms.split() for lane, rooms in _BY_LANE.items()}
# Folders that stand above a lane, and may import it.
ABOVE = {"tars": "asr"}
MAX_MODULES, MAX_FLOORS = 14, 9
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py"
}
FOLDERS = sorted({path.parent for path in PACKAGE.rglob("*.py")})


GRAPH = {name: imported_names(path) & set(MODULES) for name, path in MODULES.items()}


def place(module: str) -> tuple[str, int]:
    """(lane, height of the room in it) of a module; the lane's own files are above all rooms."""
    _, lane, *rest = module.split(".")
    if not rest:
        return lane, 0
    order = ROOMS[lane]
    return lane, order.index(rest[0]) if rest[0] in order else len(order)


def test_every_folder_is_a_room_and_every_room_a_folder_or_module():
    for lane, order in ROOMS.items():
        lane_folder = PACKAGE / lane
        rooms = {
            path.name
            for path in lane_folder.iterdir()
            if path.is_dir() and path.name != "__pycache__"
        }
        modules = {name for name in order if (lane_folder / f"{name}.py").is_file()}
        assert rooms | modules == set(order)


def is_below(imported: str, name: str) -> bool:
    """Whether a module may import another one."""
    lane, height = place(name)
    other_lane, other_height = place(imported)
    if other_lane != lane:
        return other_lane in ("common", ABOVE.get(lane))
    return other_height <= height


def test_imports_only_go_down():
    upwards = [
        f"{name} imports {imported}"
        for name, all_imported in GRAPH.items()
        for imported in all_imported
        if not is_below(imported, name)
    ]
    assert upwards == []


def test_there_are_no_import_circles_and_few_floors():
    list(TopologicalSorter(GRAPH).static_order())  # raises CycleError, which names the circle
    for lane, order in ROOMS.items():
        floors = {}
        for height in range(len(order)):
            below = {
                place(o)[1]
                for n in GRAPH
                if place(n) == (lane, height)
                for o in GRAPH[n]
                if place(o)[0] == lane
            }
            floors[height] = 1 + max((floors[room] for room in below if room != height), default=0)
        assert max(floors.values()) <= MAX_FLOORS, lane


def test_a_room_is_small_and_says_in_one_line_what_belongs_there():
    silent, crowded = [], []
    for folder in FOLDERS:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        if "\n" in text or not text.endswith("."):
            silent.append(str(folder))
        if len({*folder.glob("*.py")} - {folder / "__init__.py"}) > MAX_MODULES:
            crowded.append(str(folder))
    assert (silent, crowded) == ([], [])


def test_the_package_lists_its_steps():
    done = subprocess.run(
        [sys.executable, "-m", "millrace"], capture_output=True, text=True, check=True
    )
    for step in ("millrace.speech.create_shards", "millrace.asr.train_model", "millrace.tars "):
        line = next(line for line in done.stdout.splitlines() if line.startswith(step))
        assert len(line) > len(step) + 10 and line.endswith("."), line
