"""What an audit of a lane's loader rests on."""

from __future__ import annotations

import json
import subprocess
import sys

from millrace.audit.inputs import CODE

# What the task of a run loads, and the audit does not look at.
NOT_OF_THE_LOADER = {"asr/evaluation", "asr/throughput"}
LOADED = """
import importlib, json, sys
for lane in sys.argv[1:]:
    importlib.import_module(f"millrace.{lane}.training.task")
print(json.dumps([name.split(".")[1:3] for name in sys.modules if name.startswith("millrace.")]))
"""


def test_a_loader_is_audited_anew_when_any_room_that_its_task_loads_has_changed():
    done = subprocess.run([sys.executable, "-c", LOADED, *CODE], capture_output=True, check=True)
    places = ["/".join(place) for place in json.loads(done.stdout)]
    rooms = {place for place in places if place.partition("/")[0] in CODE and place not in CODE}
    assert rooms - NOT_OF_THE_LOADER == {room for of_lane in CODE.values() for room in of_lane}
