# The image lane: an image folder -> record files with their index.
from millrace.image import sources as image_sources
from millrace.image.inputs import ImageInputs

IMAGE = ImageInputs(
    config["image"], LANES.sources("image", image_sources), **LANES.machine(ancient)
)
LANES.register_targets("image", IMAGE.targets, stages=IMAGE.stages, listed=IMAGE.listed)


wildcard_constraints:
    block=r"(train|val|validation)-\d+",
    split=r"train|val|validation",
    run=r"[A-Za-z0-9._-]+",


# Targets for people


rule image:
    """Image lane: everything it builds."""
    input:
        IMAGE.targets,
    localrule: True


rule image_train:
    """Image lane: the runs of the config."""
    input:
        IMAGE.runs,
    localrule: True


rule image_readers:
    """Image lane: ways of reading images, measured; part of no other target."""
    input:
        IMAGE.readers,
    localrule: True


rule image_records:
    """Image lane up to the record files and the index of every split."""
    input:
        IMAGE.records,
    localrule: True


# Jobs


rule image_fetch_demo:
    """Write scikit-learn's handwritten digits as an image folder: the demo, without a download."""
    output:
        index="resources/image/demo.json",
    log:
        "logs/image/fetch_demo/demo.log",
    benchmark:
        "benchmarks/image/fetch_demo/demo.tsv"
    localrule: True
    conda:
        "../envs/data.yaml"
    message:
        "Write the demo's images"
    shell:
        "python -m millrace.image.fetch_demo --index {output.index} 2> {log}"


rule image_create_records:
    """Convert the images of some record files; those that are right already are kept."""
    input:
        partition="results/image/partitions/{block}.json",
    output:
        report="results/image/records/partitions/{block}.json",
    log:
        "logs/image/create_records/{block}.log",
    benchmark:
        "benchmarks/image/create_records/{block}.tsv"
    conda:
        "../envs/data.yaml"
    threads: 4
    resources:
        mem_mb=LANES.memory_mb(700, per_mb=20),
        runtime=LANES.runtime(15, per_mb=30),
    message:
        "Convert the images of {wildcards.block}"
    shell:
        "python -m millrace.image.create_records --partition {input.partition:q} --local-scratch-dir results/image/records"
        " --report {output.report:q} --threads {threads} 2> {log:q}"


rule image_merge_records:
    """Write the index of a split's record files, with lengths, classes, rejects and ledger."""
    input:
        split="results/image/partitions/splits/{split}.json",
        held_out=IMAGE.held_out,
        reports=LANES.remaking("image", IMAGE.reports, workflow),
    output:
        index="results/image/records/{split}/records.json",
    log:
        "logs/image/merge_records/{split}.log",
    benchmark:
        "benchmarks/image/merge_records/{split}.tsv"
    conda:
        "../envs/data.yaml"
    threads: 4
    resources:
        mem_mb=LANES.memory_mb(1500),
        runtime=LANES.runtime(60),
    params:
        max_error_fraction=config["image"]["records"]["max_error_fraction"],
        on_leak=IMAGE.on_leak,
    message:
        "Write the index of {wildcards.split}"
    shell:
        "python -m millrace.image.merge_records --split {input.split:q} --partitions-dir results/image/partitions"
        " --index {output.index:q} --held-out {input.held_out:q} {params.on_leak} --max-error-fraction {params.max_error_fraction} --threads {threads} 2> {log:q}"


rule image_train_active:
    """Train one run of the config while a producer shuffles its next epoch; goes on from its last checkpoint."""
    input:
        records=IMAGE.records,
        audit=IMAGE.gate,
    output:
        metrics="results/image/runs/{run}/metrics.json",
        report=report(
            "results/image/runs/{run}/report.html",
            caption="report/image_training.rst",
            category="Images",
            labels={"what": "Training of the run {run}"},
        ),
    log:
        "logs/image/train_active/{run}.log",
    benchmark:
        "benchmarks/image/train_active/{run}.tsv"
    conda:
        "../envs/train.yaml"
    threads: IMAGE.threads
    resources:
        mem_mb=LANES.memory_mb(16000),
        gpu=IMAGE.gpus,
    params:
        environment=IMAGE.environment,
        launcher=IMAGE.launcher,
        scratch="results/image/epochs/{run}",
        arguments=IMAGE.run_arguments,
    message:
        "Train the run {wildcards.run}"
    shell:
        "{params.environment} python {params.launcher} millrace.image.train_active"
        " --local-scratch-dir {params.scratch:q} {params.arguments} --report {output.report:q} --metrics {output.metrics:q}"
        " results/image/records 2> {log:q}"


rule image_benchmark_readers:
    """Measure the image folder against record files."""
    input:
        records=IMAGE.records,
    output:
        rates="results/image/report/readers.json",
    log:
        "logs/image/benchmark_readers/all.log",
    benchmark:
        "benchmarks/image/benchmark_readers/all.tsv"
    conda:
        "../envs/train.yaml"
    threads: 3
    resources:
        mem_mb=LANES.memory_mb(4000),
        runtime=LANES.runtime(60),
    params:
        folder=config["image"]["raw_data_dir"],
    message:
        "Measure readers of images"
    shell:
        "python -m millrace.image.benchmark_readers --raw-data-dir {params.folder:q} --records results/image/records"
        " --output {output.rates:q} 2> {log:q}"
