# The ASR lane: any tars -> byte-offset index -> duration buckets -> calibration -> training -> throughput report.
from millrace.asr import sources as asr_sources
from millrace.asr.inputs import AsrInputs

ASR = AsrInputs(
    config["asr"], LANES.sources("asr", asr_sources), SPEECH.shards, **LANES.machine(ancient)
)
LANES.register_targets("asr", ASR.targets, ASR.pending_notes, ASR.stages, ASR.listed)
# To find copies by their sound all audio is decoded, and a gigabyte of held-out sound compared.
ASR_BY_SOUND = config["asr"]["copies"] == "audio"


wildcard_constraints:
    tars=r"tars-\d+",
    bucket=r"b_[0-9._]+",
    run=r"[A-Za-z0-9._-]+",
    checkpoint=r"best|last|step-\d+",
    layout=r"transformers|qwen-asr",


# Targets for people


rule asr:
    """ASR lane: everything it builds."""
    input:
        ASR.targets,
    localrule: True


rule asr_data:
    """ASR lane up to the bucket parquets that training reads."""
    input:
        ASR.data,
    localrule: True


rule asr_calibrate:
    """ASR lane: the largest batch of every bucket that trains within memory, verified on all ranks."""
    input:
        ASR.calibrate,
    localrule: True


rule asr_train:
    """ASR lane: the runs of the config, and the page of what they are worth."""
    input:
        ASR.runs,
        ASR.runs_page,
    localrule: True


rule asr_throughput:
    """ASR lane: the baseline against Millrace, measured; part of no other target."""
    input:
        ASR.throughput,
    localrule: True


rule asr_hub:
    """Publish the models of the runs on the Hub of asr.hub: this machine's own, unless the config names another."""
    input:
        ASR.receipts,
    localrule: True


# Jobs


rule asr_build_tar_indices:
    """Find where every member of a partition of tars lies, reading headers only."""
    input:
        partition="results/asr/partitions/{tars}.json",
    output:
        index="results/asr/tar_index/{tars}.parquet",
        report="results/asr/tar_index/{tars}.json",
    log:
        "logs/asr/build_tar_indices/{tars}.log",
    benchmark:
        "benchmarks/asr/build_tar_indices/{tars}.tsv"
    conda:
        "../envs/data.yaml"
    threads: 4
    resources:
        mem_mb=LANES.memory_mb(300 + 10 * config["asr"]["partition_gb"]),
        runtime=LANES.runtime(15 + 2 * config["asr"]["partition_gb"]),
    message:
        "Index the tars of {wildcards.tars}"
    shell:
        "python -m millrace.asr.build_tar_indices --partition {input.partition:q} --threads {threads}"
        " --output {output.index:q} --report {output.report:q} 2> {log:q}"


rule asr_build_bucket_manifests:
    """Sort samples into duration buckets, each row with the place of its bytes."""
    input:
        manifests=ASR.manifests,
        indices=LANES.remaking("asr", ASR.indices, workflow),
    output:
        config="results/asr/buckets/bucket_config.json",
    log:
        "logs/asr/build_bucket_manifests/all.log",
    benchmark:
        "benchmarks/asr/build_bucket_manifests/all.tsv"
    conda:
        "../envs/audio.yaml"
    threads: 2
    resources:
        mem_mb=LANES.memory_mb(2000 if ASR_BY_SOUND else 800, per_mb=1),
        runtime=LANES.runtime(15, per_mb=2 if ASR_BY_SOUND else 0.05),
    params:
        manifests=ASR.manifest_place,
        sweep=ASR.sweep,
        tar_root=ASR.tar_root,
        tar_template=ASR.tar_template,
        path_map=ASR.path_map,
        edges=ASR.edges,
        over_max=LANES.flag("asr", "over_max"),
        on_leak=LANES.flag("asr", "on_leak"),
        copies=LANES.flag("asr", "copies"),
        seed=LANES.flag("asr", "seed"),
        max_error_fraction=LANES.flag("asr", "max_error_fraction"),
    message:
        "Sort the samples into duration buckets"
    shell:
        "python -m millrace.asr.build_bucket_manifests --manifests {params.manifests:q}"
        " --tar-index {input.indices:q} {params.sweep} --tar-root={params.tar_root:q} --tar-template {params.tar_template:q}"
        " --path-map {params.path_map:q}"
        " {params.edges} {params.over_max} {params.on_leak} {params.copies} {params.seed} {params.max_error_fraction}"
        " --threads {threads} --output {output.config} 2> {log}"


rule asr_calibrate_bucket_bs:
    """Find the largest batch of one bucket that trains within memory, and soak it."""
    input:
        config="results/asr/buckets/bucket_config.json",
    output:
        calibration="results/asr/calibration/buckets/{bucket}.json",
    log:
        "logs/asr/calibrate_bucket_bs/{bucket}.log",
    benchmark:
        "benchmarks/asr/calibrate_bucket_bs/{bucket}.tsv"
    conda:
        "../envs/train.yaml"
    threads: 2
    resources:
        mem_mb=LANES.memory_mb(ASR.training_mb("bucket")),
        gpu=ASR.bucket_gpus,
    params:
        environment=ASR.environment,
        arguments=ASR.calibration_arguments,
    message:
        "Find the largest batch of bucket {wildcards.bucket}"
    shell:
        "{params.environment} python -m millrace.asr.calibrate_bucket_bs --bucket {wildcards.bucket}"
        " --bucket-config {input.config:q} {params.arguments} --output {output.calibration:q} 2> {log:q}"


rule asr_merge_calibration:
    """Merge the calibrations of all buckets, with the memory model fitted to them."""
    input:
        config="results/asr/buckets/bucket_config.json",
        calibrations=ASR.bucket_calibrations,
    output:
        calibration="results/asr/calibration/calibrated_bs.json",
    log:
        "logs/asr/merge_calibration/all.log",
    benchmark:
        "benchmarks/asr/merge_calibration/all.tsv"
    conda:
        "../envs/train.yaml"
    resources:
        mem_mb=LANES.memory_mb(1500),
        runtime=LANES.runtime(30),
    message:
        "Merge the calibrations of all buckets"
    shell:
        "python -m millrace.asr.merge_calibration --bucket-config {input.config}"
        " --calibrations {input.calibrations} --output {output.calibration} 2> {log}"


rule asr_verify_calibration:
    """Train on all calibrated buckets, shuffled, on all ranks, and check that every batch stays within memory."""
    input:
        config="results/asr/buckets/bucket_config.json",
        calibration="results/asr/calibration/calibrated_bs.json",
    output:
        verification="results/asr/calibration/verification.json",
    log:
        "logs/asr/verify_calibration/all.log",
    benchmark:
        "benchmarks/asr/verify_calibration/all.tsv"
    conda:
        "../envs/train.yaml"
    threads: ASR.threads
    resources:
        **ASR.places,
        mem_mb=LANES.memory_mb(ASR.training_mb("all")),
    params:
        environment=ASR.environment,
        launcher=ASR.verifier,
        arguments=ASR.verification_arguments,
    message:
        "Verify the calibration on all ranks"
    shell:
        "{params.environment} python {params.launcher} millrace.asr.verify_calibration --bucket-config {input.config}"
        " --calibration {input.calibration} {params.arguments} --output {output.verification} 2> {log}"


rule asr_train_model:
    """Train one run of the config; goes on from its last checkpoint."""
    input:
        config="results/asr/buckets/bucket_config.json",
        calibration=ASR.calibration,
        audit=ASR.gate,
    output:
        metrics="results/asr/runs/{run}/metrics.json",
    log:
        "logs/asr/train_model/{run}.log",
    benchmark:
        "benchmarks/asr/train_model/{run}.tsv"
    conda:
        "../envs/train.yaml"
    threads: ASR.threads
    resources:
        **ASR.places,
        mem_mb=LANES.memory_mb(ASR.training_mb()),
    params:
        environment=ASR.environment,
        launcher=ASR.launcher,
        arguments=ASR.run_arguments,
    message:
        "Train the run {wildcards.run}"
    shell:
        "{params.environment} python {params.launcher} millrace.asr.train_model --bucket-dir {input.config:q}"
        " --calibration={input.calibration:q} {params.arguments} --metrics {output.metrics:q} 2> {log:q}"


rule asr_export_model:
    """Write the model of a checkpoint (best, last, step-00000500) in a layout (transformers, qwen-asr)."""
    input:
        config="results/asr/buckets/bucket_config.json",
        metrics="results/asr/runs/{run}/metrics.json",
    output:
        model="results/asr/export/{run}/{checkpoint}/{layout}/config.json",
    log:
        "logs/asr/export_model/{run}.{checkpoint}.{layout}.log",
    benchmark:
        "benchmarks/asr/export_model/{run}.{checkpoint}.{layout}.tsv"
    conda:
        "../envs/train.yaml"
    resources:
        mem_mb=LANES.memory_mb(12000),
        runtime=LANES.runtime(60),
    message:
        "Export the model of {wildcards.run}, {wildcards.checkpoint}, as {wildcards.layout}"
    shell:
        "python -m millrace.asr.export_model --bucket-dir {input.config:q} --metrics {input.metrics:q}"
        " --checkpoint {wildcards.checkpoint} --layout {wildcards.layout} --output {output.model:q} 2> {log:q}"


rule asr_upload_model:
    """Publish the model of a run with its card; a local rule, as a cluster's nodes often have no network."""
    input:
        config="results/asr/buckets/bucket_config.json",
        metrics="results/asr/runs/{run}/metrics.json",
    output:
        card="results/asr/hub/{run}/README.md",
        receipt="results/asr/hub/{run}/receipt.json",
    log:
        "logs/asr/upload_model/{run}.log",
    benchmark:
        "benchmarks/asr/upload_model/{run}.tsv"
    localrule: True
    conda:
        "../envs/data.yaml"
    params:
        hub=ASR.hub_flags,
    message:
        "Publish the model of {wildcards.run}"
    shell:
        "python -m millrace.asr.upload_model --bucket-config {input.config:q} --metrics {input.metrics:q} {params.hub}"
        " --card {output.card:q} --receipt {output.receipt:q} 2> {log:q}"


rule asr_report_runs:
    """Show what the runs are worth: error rates with intervals, learning curves, the worst clips to hear."""
    input:
        config="results/asr/buckets/bucket_config.json",
        metrics=ASR.reported_runs,
    output:
        summary=report(
            "results/asr/report/runs.html",
            caption="report/asr_runs.rst",
            category="ASR training",
            labels={"what": "Runs and their error rates"},
        ),
    log:
        "logs/asr/report_runs/all.log",
    benchmark:
        "benchmarks/asr/report_runs/all.tsv"
    conda:
        "../envs/train.yaml"
    resources:
        mem_mb=LANES.memory_mb(1500),
        runtime=LANES.runtime(30),
    params:
        pinned=ASR.pinned_runs,
    message:
        "Report on the runs"
    shell:
        "python -m millrace.asr.report_runs --runs {input.metrics:q} {params.pinned} --buckets {input.config}"
        " --summary {output.summary} 2> {log}"


rule asr_report_throughput:
    """Show baseline against Millrace: rates, padding, memory, time by phase and bucket, success criteria."""
    input:
        buckets="results/asr/buckets/bucket_config.json",
        bench="results/asr/runs/bench/metrics.json",
        baseline="results/asr/runs/baseline/metrics.json",
        check="results/asr/runs/check/metrics.json",
        profile="results/asr/runs/profile/metrics.json",
    output:
        summary=report(
            "results/asr/report/throughput.html",
            caption="report/asr_throughput.rst",
            category="ASR training",
            labels={"what": "Throughput, baseline against Millrace"},
        ),
        result="results/asr/report/throughput.json",
    log:
        "logs/asr/report_throughput/all.log",
    benchmark:
        "benchmarks/asr/report_throughput/all.tsv"
    conda:
        "../envs/train.yaml"
    resources:
        mem_mb=LANES.memory_mb(1500),
        runtime=LANES.runtime(30),
    message:
        "Report on throughput"
    shell:
        "python -m millrace.asr.report_throughput --bench {input.bench} --baseline {input.baseline}"
        " --check {input.check} --profile {input.profile} --buckets {input.buckets}"
        " --summary {output.summary} --result {output.result} 2> {log}"
