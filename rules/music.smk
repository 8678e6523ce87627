# The music lane: precomputed CQT features -> feature index and coverage -> version matching.
from millrace.music import sources as music_sources
from millrace.music.inputs import MusicInputs

MUSIC = MusicInputs(
    config["music"], LANES.sources("music", music_sources), **LANES.machine(ancient)
)
LANES.register_targets("music", MUSIC.targets, stages=MUSIC.stages, listed=MUSIC.listed)


wildcard_constraints:
    features=r"(?:h5|mm)-[^/]+",
    run=r"[A-Za-z0-9._-]+",


# Targets for people


rule music:
    """Music lane: everything it builds."""
    input:
        MUSIC.targets,
    localrule: True


rule music_index:
    """Music lane up to the index of all features and the coverage of the splits."""
    input:
        MUSIC.index,
    localrule: True


rule music_train:
    """Music lane: the runs of the config, trained and evaluated."""
    input:
        MUSIC.runs,
    localrule: True


# Jobs


rule music_fetch_demo:
    """Fetch the demo corpus: free tunes, each in five versions, as features with JSONL and splits."""
    output:
        index="resources/music/demo/corpus.json",
    log:
        "logs/music/fetch_demo/demo.log",
    benchmark:
        "benchmarks/music/fetch_demo/demo.tsv"
    localrule: True
    conda:
        "../envs/audio.yaml"
    threads: 2
    message:
        "Fetch the demo corpus of the music lane"
    shell:
        "python -m millrace.music.fetch_demo --root resources/music/demo --threads {threads}"
        " --index {output.index} 2> {log}"


rule music_create_features:
    """Make features of your own audio, music.audio_root; chunks whose recordings have not changed stay."""
    output:
        jsonl="results/music/audio/features.jsonl",
        rejects="results/music/audio/rejects.jsonl",
        ledger="results/music/audio/ledger.json",
    log:
        "logs/music/create_features/audio.log",
    benchmark:
        "benchmarks/music/create_features/audio.tsv"
    conda:
        "../envs/audio.yaml"
    threads: 8
    resources:
        mem_mb=LANES.memory_mb(6000),
        runtime=LANES.runtime(1440),
    params:
        audio_root=config["music"]["audio_root"],
        h5_root="results/music/audio/h5",
        recordings=MUSIC.recordings,
    message:
        "Make features of {params.audio_root}"
    shell:
        "python -m millrace.music.create_features --audio-root {params.audio_root:q} --h5-root {params.h5_root}"
        " --threads {threads} --rejects {output.rejects} --ledger {output.ledger}"
        " --jsonl {output.jsonl} 2> {log}"


rule music_build_feature_index:
    """Find the tracks in an HDF5 file or a folder of .mm files: where they lie, their hop, whether they can be used."""
    input:
        partition="results/music/partitions/{features}.json",
    output:
        tracks="results/music/features/{features}.parquet",
        report="results/music/features/{features}.json",
    log:
        "logs/music/build_feature_index/{features}.log",
    benchmark:
        "benchmarks/music/build_feature_index/{features}.tsv"
    conda:
        "../envs/train.yaml"
    resources:
        mem_mb=LANES.memory_mb(800),
        runtime=LANES.runtime(60),
    params:
        contract=MUSIC.contract,
    message:
        "Find the tracks of {wildcards.features}"
    shell:
        "python -m millrace.music.build_feature_index --partition {input.partition:q} {params.contract}"
        " --output {output.tracks:q} --report {output.report:q} 2> {log:q}"


rule music_merge_feature_index:
    """Merge the tracks of all partitions into one index, and say what of each split has features."""
    input:
        merge=MUSIC.merge,
        tables=LANES.remaking("music", MUSIC.tables, workflow),
    output:
        index="results/music/index/features.index",
        coverage="results/music/index/coverage.json",
    log:
        "logs/music/merge_feature_index/all.log",
    benchmark:
        "benchmarks/music/merge_feature_index/all.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=LANES.memory_mb(1500, per_mb=30),
        runtime=LANES.runtime(30),
    params:
        contract=MUSIC.contract,
        prefer=LANES.flag("music", "prefer"),
        on_leak=LANES.flag("music", "on_leak"),
    message:
        "Merge the index of all features"
    shell:
        "python -m millrace.music.merge_feature_index --merge {input.merge} --tables results/music/features"
        " {params.contract} {params.prefer} {params.on_leak}"
        " --coverage {output.coverage} --output {output.index} 2> {log}"


rule music_train_model:
    """Train one run of the config; goes on from its last checkpoint."""
    input:
        index="results/music/index/features.index",
        conf=MUSIC.conf,
        audit=MUSIC.gate,
    output:
        metrics="results/music/runs/{run}/metrics.json",
    log:
        "logs/music/train_model/{run}.log",
    benchmark:
        "benchmarks/music/train_model/{run}.tsv"
    conda:
        "../envs/train.yaml"
    threads: MUSIC.threads
    resources:
        mem_mb=LANES.memory_mb(8000),
        gpu=MUSIC.gpus,
    params:
        environment=MUSIC.environment,
        launcher=MUSIC.launcher,
        arguments=MUSIC.run_arguments,
    message:
        "Train the run {wildcards.run}"
    shell:
        "{params.environment} python {params.launcher} millrace.music.train_model {params.arguments}"
        " --metrics {output.metrics:q} 2> {log:q}"


rule music_evaluate_model:
    """Evaluate the best checkpoint of a run on whole tracks of the test split."""
    input:
        metrics="results/music/runs/{run}/metrics.json",
    output:
        figures="results/music/runs/{run}/test.json",
    log:
        "logs/music/evaluate_model/{run}.log",
    benchmark:
        "benchmarks/music/evaluate_model/{run}.tsv"
    conda:
        "../envs/train.yaml"
    threads: 2
    resources:
        mem_mb=LANES.memory_mb(8000),
        gpu=MUSIC.gpus,
    params:
        environment=MUSIC.environment,
    message:
        "Evaluate the run {wildcards.run}"
    shell:
        "{params.environment} python -m millrace.music.evaluate_model partition=test"
        " checkpoint=results/music/runs/{wildcards.run:q}/checkpoint_best.ckpt --output {output.figures:q} 2> {log:q}"


rule music_report_training:
    """Report coverage and figures, for people."""
    input:
        coverage="results/music/index/coverage.json",
        figures=MUSIC.evaluations,
    output:
        page=report(
            "results/music/report/training.html",
            caption="report/music_training.rst",
            category="Music",
            labels={"what": "Version matching"},
        ),
    log:
        "logs/music/report_training/all.log",
    benchmark:
        "benchmarks/music/report_training/all.tsv"
    conda:
        "../envs/train.yaml"
    resources:
        mem_mb=LANES.memory_mb(4000),
        runtime=LANES.runtime(30),
    message:
        "Report the training of version matchers"
    shell:
        "python -m millrace.music.report_training --coverage {input.coverage} --figures {input.figures:q}"
        " --output {output.page} 2> {log}"
