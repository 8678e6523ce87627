# What all lanes share: the package on the path, the config checked, the targets of the lanes that are switched on.
import gc
import os
import sys

from snakemake.exceptions import LockException, WorkflowError

sys.path.insert(0, os.path.join(workflow.basedir, "scripts"))

from millrace.common.workflow import lanes, terminal
from millrace.common.workflow.config import check_syntax, validate_config

if workflow.is_main_process:
    check_syntax("config.yaml")
    # What Snakemake has loaded stays: looking for garbage in it is a fifth of the time of a large dry run.
    gc.freeze()
    gc.set_threshold(50_000)


configfile: "config.yaml"


terminal.use_progress_bars(workflow.logger_manager)
config = validate_config(
    config,
    os.path.join(workflow.basedir, "rules", "schemas"),
    command_line=workflow.config_settings.config,
    files=workflow.configfiles,
    check=workflow.is_main_process,
)
LANES = lanes.Lanes(
    config,
    workflow.basedir,
    is_main_process=workflow.is_main_process,
    dry_run=workflow.output_settings.dryrun,
    jobs=workflow.resource_settings.nodes,
)

# Snakemake's own text advises to unlock, also while the other run lives.
LockException.__init__ = lambda error: WorkflowError.__init__(error, LANES.lock_message())

# Steps are run as modules of the clone, by the Python that runs Snakemake (or by that of a rule's conda environment).
shell.prefix(LANES.shell_prefix(str(workflow.deployment_settings.deployment_method)))


def lane_targets(wildcards):
    """The final files of every lane in `lanes`; without the demo corpus a hint, without another corpus an error."""
    return LANES.targets()
