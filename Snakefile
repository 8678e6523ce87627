# Millrace: from raw media and metadata to a fed training run.
# `snakemake --list-rules` is the table of contents; config.yaml holds the choices of a run.
from snakemake.utils import min_version

min_version("9.27")


configfile: "config.yaml"


include: "rules/common.smk"
include: "rules/speech.smk"
include: "rules/asr.smk"


report: "rules/report/workflow.rst"


# A run that was killed leaves its lock; a note lets the next one tell that from a living run's.
onstart:
    run_lock.begin(workflow.local_exec)


rule all:
    """Build everything that the lanes in config.yaml promise (the default)."""
    default_target: True
    input:
        lane_targets,
    localrule: True
