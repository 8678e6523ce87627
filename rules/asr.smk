# The ASR lane: any tars -> byte-offset index -> duration buckets.
from scripts.asr import sources as asr_sources
from scripts.asr.inputs import PARTITIONS as ASR_PARTITIONS, AsrInputs

ASR = AsrInputs(
    config["asr"],
    HOUSE.sources(
        "asr",
        sync=lambda: asr_sources.sync(AsrInputs.settings(config["asr"]), ASR_PARTITIONS),
        load=lambda: asr_sources.load(ASR_PARTITIONS),
        remedy="set asr.manifest_dir, or asr.source: speech for the speech lane's shards",
    ),
    SPEECH.shards,
)
HOUSE.promise("asr", ASR.targets)


wildcard_constraints:
    tars=r"tars-\d+",


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


# Jobs


rule asr_build_tar_indices:
    """Find where every member of a partition of tars lies, reading headers only."""
    input:
        partition=f"{ASR_PARTITIONS}/{{tars}}.json",
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
        mem_mb=2000,
    shell:
        "python -m scripts.asr.build_tar_indices --partition {input.partition:q} --threads {threads}"
        " --output {output.index:q} --report {output.report:q} 2> {log:q}"


rule asr_build_bucket_manifests:
    """Sort samples into duration buckets, each row with the place of its bytes."""
    input:
        manifests=ASR.manifests,
        indices=ASR.indices,
    output:
        config="results/asr/buckets/bucket_config.json",
    log:
        "logs/asr/build_bucket_manifests/all.log",
    benchmark:
        "benchmarks/asr/build_bucket_manifests/all.tsv"
    conda:
        "../envs/data.yaml"
    threads: 2
    resources:
        mem_mb=4000,
    params:
        tar_root=ASR.tar_root,
        tar_template=ASR.tar_template,
        edges=ASR.edges,
        num_buckets=config["asr"]["num_buckets"],
        last_edge=config["asr"]["last_edge"],
        over_max=config["asr"]["over_max"],
        seed=config["asr"]["seed"],
        max_error_fraction=config["asr"]["max_error_fraction"],
    shell:
        "python -m scripts.asr.build_bucket_manifests --manifests {input.manifests:q}"
        " --tar-index {input.indices:q} --tar-root={params.tar_root:q} --tar-template {params.tar_template:q}"
        " --edges {params.edges} --num-buckets {params.num_buckets} --last-edge {params.last_edge}"
        " --over-max {params.over_max} --seed {params.seed} --max-error-fraction {params.max_error_fraction}"
        " --threads {threads} --output {output.config} 2> {log}"


rule asr_benchmark_readers:
    """Measure our reader against the seed's, tarfile, webdataset and Lhotse on the lane's own tars (not part of all)."""
    input:
        config="results/asr/buckets/bucket_config.json",
    output:
        result="results/asr/benchmark/readers.json",
        figure="results/asr/benchmark/readers.svg",
    log:
        "logs/asr/benchmark_readers/all.log",
    benchmark:
        "benchmarks/asr/benchmark_readers/all.tsv"
    conda:
        "../envs/train.yaml"
    threads: 2
    resources:
        mem_mb=6000,
    shell:
        "python -m scripts.asr.benchmark_readers --buckets {input.config} --workers {threads}"
        " --output {output.result} --figure {output.figure} 2> {log}"
