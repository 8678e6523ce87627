# The speech lane: aligned recordings -> manifest and splits -> WebDataset shards with their index -> report.
from millrace.speech import sources as speech_sources
from millrace.speech.inputs import SpeechInputs
from millrace.speech.corpus.splits import SPLITS as SPEECH_SPLITS

SPEECH = SpeechInputs(LANES.sources("speech", speech_sources), config["speech"]["hub"])
LANES.register_targets("speech", SPEECH.targets, stages=SPEECH.stages, listed=SPEECH.listed)
# The size of a partition, which decides on what its jobs need.
SPEECH_HOURS = config["speech"]["partition_hours"]


wildcard_constraints:
    partition=r"[^/]+-(?:train-\d+|validation|test)-\d\d\d\d\d+",
    country=r"[^/]+",
    publication=r"receipt\.json|diff\.txt",


# Targets for people


rule speech:
    """Speech lane: manifests, shards, index and report of the corpus."""
    input:
        SPEECH.targets,
    localrule: True


rule speech_manifest:
    """Speech lane up to <country>_manifest.csv and <country>_splits.csv."""
    input:
        SPEECH.manifests,
    localrule: True


rule speech_shards:
    """Speech lane up to the WebDataset shards and their merged index."""
    input:
        SPEECH.shards,
    localrule: True


rule speech_hub:
    """Publish the shards on the Hub of speech.hub: this machine's own, unless the config names another."""
    input:
        SPEECH.receipt,
    localrule: True


rule speech_hub_diff:
    """Print what speech_hub would add, change and delete, in files and bytes; nothing is sent."""
    input:
        SPEECH.hub_diff,
    localrule: True


# Jobs


rule speech_fetch_corpus:
    """Fetch the demo corpus: real speech in five languages, assembled into aligned recordings."""
    output:
        index="resources/speech/corpus.json",
    log:
        "logs/speech/fetch_corpus/corpus.log",
    benchmark:
        "benchmarks/speech/fetch_corpus/corpus.tsv"
    localrule: True
    conda:
        "../envs/audio.yaml"
    params:
        countries_root="resources/speech/countries",
    message:
        "Fetch the demo corpus"
    shell:
        "python -m millrace.speech.fetch_corpus --countries-root {params.countries_root}"
        " --index {output.index} 2> {log}"


rule speech_generate_manifest:
    """Check the segments of one partition, compute error rates, and list what is rejected."""
    input:
        partition="results/speech/partitions/{partition}.json",
    output:
        manifest="results/speech/manifest/partitions/{partition}/manifest.parquet",
        recordings="results/speech/manifest/partitions/{partition}/recordings.json",
        rejects="results/speech/manifest/partitions/{partition}/rejects.jsonl",
        ledger="results/speech/manifest/partitions/{partition}/ledger.json",
    log:
        "logs/speech/generate_manifest/{partition}.log",
    benchmark:
        "benchmarks/speech/generate_manifest/{partition}.tsv"
    conda:
        "../envs/audio.yaml"
    resources:
        mem_mb=LANES.memory_mb(200 + 10 * SPEECH_HOURS),
        runtime=LANES.runtime(15 + 3 * SPEECH_HOURS),
    params:
        min_duration=LANES.flag("speech", "min_duration"),
        max_duration=LANES.flag("speech", "max_duration"),
        normalise_text=LANES.flag("speech", "normalise_text"),
    message:
        "Check the segments of {wildcards.partition}"
    shell:
        "python -m millrace.speech.generate_manifest --partition {input.partition:q}"
        " {params.min_duration} {params.max_duration} {params.normalise_text}"
        " --manifest {output.manifest:q} --recordings {output.recordings:q}"
        " --rejects {output.rejects:q} --ledger {output.ledger:q} 2> {log:q}"


rule speech_merge_manifest:
    """Gather a country's manifest and splits as CSVs."""
    input:
        country="results/speech/partitions/countries/{country}.json",
        parts=SPEECH.manifest_files,
    output:
        manifest="results/speech/manifest/{country}_manifest.csv",
        splits="results/speech/manifest/{country}_splits.csv",
    log:
        "logs/speech/merge_manifest/{country}.log",
    benchmark:
        "benchmarks/speech/merge_manifest/{country}.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=LANES.memory_mb(400, per_mb=2),
        runtime=LANES.runtime(15, per_mb=0.1),
    message:
        "Gather the manifest of {wildcards.country}"
    # The parts are found through the country file: hundreds of paths would not fit a command line.
    shell:
        "python -m millrace.speech.merge_manifest --country {input.country:q} --manifest-dir results/speech/manifest"
        " --manifest {output.manifest:q} --splits {output.splits:q} 2> {log:q}"


rule speech_create_shards:
    """Cut one partition's segments into WebDataset shards; shards that are still good are kept."""
    input:
        manifest="results/speech/manifest/partitions/{partition}/manifest.parquet",
    output:
        index="results/speech/shards/partitions/{partition}/index.parquet",
    log:
        "logs/speech/create_shards/{partition}.log",
    benchmark:
        "benchmarks/speech/create_shards/{partition}.tsv"
    conda:
        "../envs/audio.yaml"
    resources:
        mem_mb=LANES.memory_mb(300 + 30 * SPEECH_HOURS),
        runtime=LANES.runtime(15 + 10 * SPEECH_HOURS),
    params:
        max_shard_size_gb=LANES.flag("speech", "max_shard_size_gb"),
        max_cer=LANES.flag("speech", "max_cer"),
        audio_format=LANES.flag("speech", "audio_format"),
        sampling_rate=LANES.flag("speech", "sampling_rate"),
    message:
        "Cut {wildcards.partition} into shards"
    shell:
        "python -m millrace.speech.create_shards --manifest {input.manifest:q} --output-dir results/speech/shards"
        " {params.max_shard_size_gb} {params.max_cer} {params.audio_format} {params.sampling_rate}"
        " --index {output.index:q} 2> {log:q}"


rule speech_merge_shards:
    """Gather a country's shards without copies of held-out sound: manifest, index, rejects, balance."""
    input:
        country="results/speech/partitions/countries/{country}.json",
        manifests=SPEECH.manifest_files,
        shards=LANES.remaking("speech", SPEECH.shard_files, workflow),
        held_out="results/speech/partitions/held_out/all.json",
        held_out_indices=SPEECH.held_out_indices,
    output:
        manifest="results/speech/shards/{country}_manifest.csv",
        index="results/speech/shards/{country}_index.parquet",
        rejects="results/speech/shards/{country}_rejects.csv",
        ledger="results/speech/shards/{country}_ledger.json",
        shard_lists=expand(
            "results/speech/shards/{{country}}_{split}_shards.txt",
            split=SPEECH_SPLITS,
        ),
    log:
        "logs/speech/merge_shards/{country}.log",
    benchmark:
        "benchmarks/speech/merge_shards/{country}.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=LANES.memory_mb(2000, per_mb=0.3),
        runtime=LANES.runtime(15, per_mb=0.1),
    params:
        copies=LANES.flag("speech", "copies"),
        max_error_fraction=LANES.flag("speech", "max_error_fraction"),
        error_list="logs/speech/merge_shards/{country}.rejects.csv",
    message:
        "Gather the shards of {wildcards.country}"
    shell:
        "python -m millrace.speech.merge_shards --country {input.country:q} --held-out {input.held_out:q}"
        " --manifest-dir results/speech/manifest"
        " --shards-dir results/speech/shards {params.copies} {params.max_error_fraction}"
        " --manifest {output.manifest:q} --index {output.index:q} --rejects {output.rejects:q}"
        " --ledger {output.ledger:q}"
        " --shard-lists {output.shard_lists:q} --error-list {params.error_list:q} 2> {log:q}"


rule speech_merge_index:
    """Merge the countries' indices and ledgers: what the ASR lane reads."""
    input:
        indices=SPEECH.country_indices,
        ledgers=SPEECH.country_ledgers,
        gone=SPEECH.gone,
    output:
        index="results/speech/index.parquet",
        ledger="results/speech/ledger.json",
    log:
        "logs/speech/merge_index/all.log",
    benchmark:
        "benchmarks/speech/merge_index/all.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=LANES.memory_mb(500, per_mb=1),
        runtime=LANES.runtime(15, per_mb=0.05),
    message:
        "Merge the index of all countries"
    shell:
        "python -m millrace.speech.merge_index --indices {input.indices:q} --ledgers {input.ledgers:q} --gone {input.gone:q}"
        " --shards-dir results/speech/shards --manifest-dir results/speech/manifest"
        " --index {output.index} --ledger {output.ledger} 2> {log}"


rule speech_report_corpus:
    """Show the corpus to people: hours, segments, rejects and distributions as tables and figures."""
    input:
        index="results/speech/index.parquet",
        ledger="results/speech/ledger.json",
    output:
        summary=report(
            "results/speech/report/summary.html",
            caption="report/speech_summary.rst",
            category="Speech corpus",
            labels={"what": "Hours, segments and rejects"},
        ),
        hours=report(
            "results/speech/report/hours.svg",
            caption="report/speech_hours.rst",
            category="Speech corpus",
            labels={"what": "Hours per country and split"},
        ),
        distributions=report(
            "results/speech/report/distributions.svg",
            caption="report/speech_distributions.rst",
            category="Speech corpus",
            labels={"what": "Duration, CER and WER"},
        ),
    log:
        "logs/speech/report_corpus/all.log",
    benchmark:
        "benchmarks/speech/report_corpus/all.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=LANES.memory_mb(500, per_mb=1),
        runtime=LANES.runtime(15, per_mb=0.02),
    message:
        "Report on the corpus"
    shell:
        "python -m millrace.speech.report_corpus --index {input.index} --ledger {input.ledger}"
        " --summary {output.summary} --hours {output.hours} --distributions {output.distributions} 2> {log}"


rule speech_write_card:
    """Write the card and the manifest that are published with the shards."""
    input:
        index="results/speech/index.parquet",
    output:
        card="results/speech/hub/README.md",
        manifest="results/speech/hub/manifest.jsonl",
    log:
        "logs/speech/write_card/all.log",
    benchmark:
        "benchmarks/speech/write_card/all.tsv"
    conda:
        "../envs/data.yaml"
    resources:
        mem_mb=LANES.memory_mb(500, per_mb=1),
        runtime=LANES.runtime(15, per_mb=0.05),
    params:
        repo=SPEECH.hub["repo"],
        licence=SPEECH.hub["licence"],
    message:
        "Write the card of the corpus"
    shell:
        "python -m millrace.speech.write_card --index {input.index} --shards-dir results/speech/shards"
        " --repo {params.repo:q} --licence={params.licence:q} --card {output.card} --manifest {output.manifest} 2> {log}"


rule speech_upload_shards:
    """Publish shards, card and manifest, or print what that would change; local, as nodes may have no network."""
    input:
        card="results/speech/hub/README.md",
        manifest="results/speech/hub/manifest.jsonl",
    output:
        result="results/speech/hub/{publication}",
    log:
        "logs/speech/upload_shards/{publication}.log",
    benchmark:
        "benchmarks/speech/upload_shards/{publication}.tsv"
    localrule: True
    conda:
        "../envs/data.yaml"
    params:
        hub=SPEECH.hub_flags,
    message:
        "Compare the shards with the Hub, for {wildcards.publication}"
    shell:
        "python -m millrace.speech.upload_shards --card {input.card:q} --manifest {input.manifest:q}"
        " --shards-dir results/speech/shards {params.hub} --result {output.result:q} 2> {log:q}"
