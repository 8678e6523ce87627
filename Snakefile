# Millrace: from raw media and metadata to a fed training run.
# `snakemake --list-rules` is the table of contents; config.yaml holds the choices of a run.
from snakemake.utils import min_version

min_version("9.27")


include: "rules/common.smk"
include: "rules/speech.smk"
include: "rules/asr.smk"
include: "rules/music.smk"
include: "rules/image.smk"
include: "rules/audit.smk"


onsuccess:
    LANES.success(str(path) for job in workflow.dag.jobs for path in job.output)
    LANES.say_end(failed=False, logs=log)


onerror:
    LANES.say_end(failed=True, logs=log)


report: "rules/report/workflow.rst"


rule all:
    """Build everything that the lanes in config.yaml promise (the default)."""
    default_target: IS_MAIN
    input:
        lane_targets,
    localrule: True
