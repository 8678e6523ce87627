"""The model in a checkpoint of a run."""

from __future__ import annotations

from pathlib import Path

from millrace.asr.models.base import AsrModel
from millrace.asr.training.options import TrainOptions
from millrace.asr.training.task import AsrTask
from millrace.common import jsonl
from millrace.common.errors import MillraceError, own_file
from millrace.common.training import run_folder
from millrace.common.training.checkpoint import Checkpoints


def load_model(run: Path, name: str, bucket_dir: Path) -> tuple[AsrModel, str]:
    """The model of checkpoint `name` (best, last, step-...) in the folder of a run, and where it lay.

    A model that has its vocabulary from the training transcripts takes it from `bucket_dir` again. Raises
    MillraceError if that holds other transcripts now.
    """
    with own_file(note := run / run_folder.NOTE):
        chosen = jsonl.read(note)["run"]
        options = TrainOptions(str(bucket_dir), model=chosen["model"], model_options=chosen["model_options"])
    checkpoints = Checkpoints(run / "checkpoints")
    checkpoint = checkpoints.named(name)
    state = checkpoints.load(checkpoint, mapped=True)
    task = AsrTask(options)
    if not Path(options.model).is_dir() and state["task"].get("texts") != task.texts_digest:
        problem = f"the transcripts of {bucket_dir} are not those that this checkpoint was trained on"
        remedy = (
            "Give --bucket-dir of the run's data; a checkpoint of an earlier version: train one step more"
        )
        raise MillraceError(problem, str(checkpoint.folder), remedy)
    model = task.build_model()
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        problem = f"the checkpoint is of another model ({' '.join(str(error).split())[:300]})"
        raise MillraceError(problem, str(checkpoint.folder), f"Is {options.model} as it was?") from error
    return model.eval(), str(checkpoint.folder)
