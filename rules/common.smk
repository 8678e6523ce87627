# What all lanes share: the package on the path, the config checked, the targets of the lanes that are switched on.
import atexit
import os
import sys

from snakemake.cli import get_argument_parser
from snakemake.exceptions import LockException, WorkflowError
from snakemake.jobs import Job

# Not workflow.basedir: that is the folder of the workflow that imports this one as a module.
CLONE = os.path.dirname(workflow.current_basedir.get_path_or_uri(secret_free=True))
if not os.path.isdir(CLONE):
    sys.exit(
        f"Millrace: a module needs more than its Snakefile, and {CLONE} is no folder of this machine. "
        "Clone Millrace, and give the path of the clone's Snakefile"
    )
sys.path.insert(0, os.path.join(CLONE, "scripts"))

from millrace.common.workflow import lanes, snakemake_state, terminal
from millrace.common.workflow.config import check_syntax, validate_config

IS_MAIN = workflow.modifier.is_main_snakefile()
if not IS_MAIN:
    snakemake_state.refuse_other_paths(workflow.modifier.path_modifier.replace_prefix)
elif workflow.is_main_process:
    check_syntax("config.yaml")
    snakemake_state.keep_what_is_loaded()


configfile: "config.yaml"


config = validate_config(
    config,
    os.path.join(CLONE, "rules", "schemas"),
    files=workflow.configfiles if IS_MAIN else [],
    check=workflow.is_main_process,
)
LANES = lanes.Lanes(
    config,
    CLONE,
    is_main_process=workflow.is_main_process,
    dry_run=workflow.output_settings.dryrun,
    jobs=workflow.resource_settings.nodes,
    asked=snakemake_state.parse(sys.argv, get_argument_parser, workflow.modifier.modify_rulename),
)

snakemake_state.note_no_failed_job(Job)

# After Snakemake's own lines.
atexit.register(LANES.print_kept)

# Steps are run as modules of the clone, by the Python that runs Snakemake (or by that of a rule's conda environment).
shell = snakemake_state.own_shell(
    shell, LANES.shell_prefix(str(workflow.deployment_settings.deployment_method))
)

# A workflow that imports this one keeps its messages.
if IS_MAIN:
    terminal.use_progress_bars(workflow.logger_manager)
    snakemake_state.say_who_locks(LockException, WorkflowError, LANES.lock_message)


def lane_targets(wildcards):
    """The final files of every lane in `lanes`; without the demo corpus a hint, without another corpus an error."""
    return LANES.targets()
