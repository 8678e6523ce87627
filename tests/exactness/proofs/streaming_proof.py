"""MosaicML Streaming: the state inside an epoch, and after the loop over an epoch."""

import importlib.util
import os
import sys
import tempfile
import types
from pathlib import Path

import transformers.feature_extraction_utils  # noqa: F401 - before there is a stand-in

STAND_INS = ("torchvision", "torchvision.datasets", "torchvision.transforms.functional")
if importlib.util.find_spec("torchvision") is None:
    # Its readers of pictures, which are not used here, inherit from a class of torchvision.
    sys.modules.update({name: types.ModuleType(name) for name in STAND_INS})
    sys.modules["torchvision.datasets"].VisionDataset = object
    sys.modules["torchvision.transforms.functional"].to_tensor = None

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402


def in_new_process(work):
    """Run `work` in a fork, as a job that is started again."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        work()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)


def loader_of(folder):
    dataset = StreamingDataset(local=folder, shuffle=True, shuffle_seed=0, batch_size=4)
    return StreamingDataLoader(dataset, batch_size=4)


def save(folder, batches):
    """Read so many batches, or the whole epoch and its end, and keep the state."""
    import json

    loader, seen = loader_of(folder), []
    for batch in loader:
        seen.append(batch["id"].tolist())
        if len(seen) == batches:
            break
    Path(folder, "state.json").write_text(json.dumps(loader.state_dict()))
    print("  saved after:", seen, loader.state_dict())


def restore(folder):
    import json

    loader = loader_of(folder)
    loader.load_state_dict(json.loads(Path(folder, "state.json").read_text()))
    for number in range(2):
        print(f"  pass {number}:", [batch["id"].tolist() for batch in loader])


with tempfile.TemporaryDirectory() as folder:
    with MDSWriter(out=folder, columns={"id": "int"}) as writer:
        for sample in range(8):
            writer.write({"id": sample})
    for title, batches in (("inside epoch 0", 1), ("after the loop over epoch 0", None)):
        print(title)
        in_new_process(lambda batches=batches: save(folder, batches))
        in_new_process(lambda: restore(folder))
