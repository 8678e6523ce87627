"""What the audit must say of each loader of this folder, written down before it was run on them.

Entries that are not named may pass, not apply or be undecided, but must not fail."""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    loader: str  # module:function of this folder
    package: str  # that must be installed
    verdicts: dict[str, str]
    why: str
    options: str = "--ranks 1"  # of the audit

    @property
    def is_defect(self) -> bool:
        return "fail" in self.verdicts.values()


LOOP = "--loop tests.audit.field."
FIELD = [
    Expected(
        "torchdata_loaders:stateful",
        "torchdata",
        {"DP2": "pass", "resume": "pass"},
        "Its own RandomSampler keeps the generator's state.",
    ),
    Expected(
        "torchdata_loaders:stateful_in_order",
        "torchdata",
        {"DP2": "pass", "resume": "pass"},
        "The position is all that there is to keep.",
    ),
    Expected(
        "torchdata_loaders:stateful_stream",
        "torchdata",
        {"DP2": "pass", "resume": "pass"},
        "Each worker's copy of the stream has state_dict, which the loader collects.",
    ),
    Expected(
        "torchdata_loaders:distributed_sampler",
        "torchdata",
        {"DP2": "pass", "resume": "fail"},
        "After the last batch of epoch 0 a restart gives an empty epoch.",
    ),
    Expected(
        "torchdata_loaders:nodes_random",
        "torchdata",
        {"DP2": "pass", "resume": "fail"},
        "RandomSampler has no state, so SamplerWrapper draws another order after a restart.",
    ),
    Expected(
        "torchdata_loaders:nodes_in_order",
        "torchdata",
        {"DP2": "pass", "resume": "pass"},
        "The nodes keep a position in a list.",
    ),
    Expected(
        "torchdata_loaders:nodes_weighted",
        "torchdata",
        {"DP2": "pass", "resume": "pass"},
        "MultiNodeWeightedSampler keeps its generator and the state of its sources.",
    ),
    Expected(
        "datasets_loaders:shuffled",
        "datasets",
        {"DP2": "pass", "DP14": "pass"},
        "A map-style Dataset in torch format.",
    ),
    Expected(
        "datasets_loaders:distributed",
        "datasets",
        {"DP2": "pass", "DP3": "pass", "DP14": "pass"},
        "DistributedSampler over a map-style Dataset.",
        "--ranks 2 " + LOOP + "datasets_loaders:told_by_sampler",
    ),
    Expected(
        "datasets_loaders:distributed_forgotten",
        "datasets",
        {"DP2": "fail"},
        "Without DistributedSampler each rank trains on all 64 rows.",
        "--ranks 2",
    ),
    Expected(
        "datasets_loaders:transformed",
        "datasets",
        {"DP1": "pass", "DP2": "pass"},
        "with_transform draws from torch's generator, which is seeded in each worker.",
    ),
    Expected(
        "datasets_loaders:interleaved",
        "datasets",
        {"DP2": "pass", "DP14": "pass"},
        "interleave_datasets of two halves has all 64 rows.",
    ),
    Expected(
        "datasets_loaders:stream",
        "datasets",
        {"DP2": "pass"},
        "Workers share out the 8 shards.",
    ),
    Expected(
        "datasets_loaders:stream_by_node",
        "datasets",
        {"DP2": "pass", "DP3": "pass", "DP14": "pass"},
        "split_dataset_by_node shares 8 shards, and the loop calls set_epoch.",
        "--ranks 2 " + LOOP + "datasets_loaders:told",
    ),
    Expected(
        "datasets_loaders:stream",
        "datasets",
        {"DP2": "fail"},
        "Both ranks give all 64 rows.",
        "--ranks 2",
    ),
    Expected(
        "datasets_loaders:stream_state",
        "datasets",
        {"DP2": "pass", "resume": "pass"},
        "The stream's state has shard and position, and nothing is shuffled.",
    ),
    Expected(
        "datasets_loaders:stream_state_shuffled",
        "datasets",
        {"resume": "fail"},
        "The buffer of shuffle is not in the state: what it held is lost.",
    ),
    Expected(
        "datasets_loaders:stateful",
        "datasets",
        {"resume": "fail"},
        "StatefulDataLoader restores a shuffled stream and raises IndexError.",
    ),
    Expected(
        "accelerate_loaders:in_order",
        "accelerate",
        {"DP2": "pass", "DP3": "pass", "resume": "pass"},
        "prepare shares out the batches in turn.",
        "--ranks 2",
    ),
    Expected(
        "accelerate_loaders:split_batches",
        "accelerate",
        {"DP2": "pass", "DP3": "pass"},
        "Each batch of 8 is split over two ranks.",
        "--ranks 2",
    ),
    Expected(
        "accelerate_loaders:stream",
        "accelerate",
        {"DP2": "pass", "DP3": "pass"},
        "A whole stream is shared out once, by prepare.",
        "--ranks 2",
    ),
    Expected(
        "accelerate_loaders:shuffled",
        "accelerate",
        {"DP2": "pass", "resume": "fail"},
        "skip_first_batches goes on in the order of epoch 0.",
        "--ranks 2",
    ),
    Expected(
        "accelerate_loaders:stateful",
        "accelerate",
        {"DP2": "pass", "resume": "fail"},
        "The state has the position, not the order of the epoch.",
        "--ranks 2",
    ),
    Expected(
        "accelerate_loaders:twice",
        "accelerate",
        {"DP2": "fail"},
        "The sampler shares out, and prepare again: half of the samples come nowhere.",
        "--ranks 2",
    ),
    Expected(
        "accelerate_loaders:stream_twice",
        "accelerate",
        {"DP2": "fail"},
        "split_dataset_by_node shares out, and prepare again.",
        "--ranks 2",
    ),
    Expected(
        "language_loaders:causal_pad",
        "transformers",
        {"DP2": "pass", "labels": "pass"},
        "pad_token is a token of its own, and is masked.",
    ),
    Expected(
        "language_loaders:causal_pad_is_eos",
        "transformers",
        {"labels": "fail"},
        "pad_token is eos_token, and masking it masks every end.",
    ),
    Expected(
        "language_loaders:padding",
        "transformers",
        {"DP2": "pass"},
        "DataCollatorWithPadding pads to the longest text.",
    ),
    Expected(
        "language_loaders:prompt_masked",
        "transformers",
        {"DP2": "pass", "labels": "pass"},
        "Prompt and padding are -100, the answer and its end are not.",
    ),
    Expected(
        "language_loaders:labels_padded",
        "transformers",
        {"labels": "fail"},
        "Labels are a copy of padded input_ids: padding is trained on.",
    ),
    Expected(
        "language_loaders:trainer",
        "transformers",
        {"DP2": "pass", "DP14": "pass"},
        "Trainer's own loader shuffles by a seedable sampler.",
    ),
    Expected(
        "language_loaders:grouped",
        "transformers",
        {"DP2": "pass", "DP14": "pass"},
        "LengthGroupedSampler orders all 32 texts by megabatches.",
    ),
    Expected(
        "language_loaders:completions",
        "trl",
        {"DP2": "pass", "labels": "not decidable"},
        "trl 1.16.0's collator takes no completion_mask: whether the shared opening is a prompt,"
        " nobody says.",
    ),
    Expected(
        "language_loaders:no_duplicates",
        "sentence_transformers",
        {"DP2": "pass", "DP14": "not decidable"},
        "Texts all differ, so that each comes once; its order follows set_epoch.",
    ),
    Expected(
        "language_loaders:by_label",
        "sentence_transformers",
        {"DP2": "pass", "DP14": "not decidable"},
        "Each label has 8 texts, in batches of 8; its order follows set_epoch.",
    ),
    Expected(
        "stream_loaders:web_by_node",
        "webdataset",
        {"DP2": "pass", "DP3": "pass"},
        "8 shards are split over 2 ranks of 2 workers.",
        "--ranks 2",
    ),
    Expected(
        "stream_loaders:web_every_node",
        "webdataset",
        {"DP2": "fail"},
        "nodesplitter=None gives all shards to both ranks.",
        "--ranks 2",
    ),
    Expected(
        "stream_loaders:web_every_worker",
        "webdataset",
        {"DP2": "fail"},
        "workersplitter=None gives all shards to both workers.",
    ),
    Expected(
        "stream_loaders:web_alone",
        "webdataset",
        {"end": "fail"},
        "The default nodesplitter refuses to run on several nodes.",
        "--ranks 2",
    ),
    Expected(
        "stream_loaders:web_shuffled",
        "webdataset",
        {"DP2": "pass"},
        "Shards and samples are shuffled, each comes once.",
    ),
    Expected(
        "stream_loaders:lit",
        "litdata",
        {"DP2": "pass", "resume": "pass"},
        "StreamingDataLoader keeps epoch and position of each worker.",
    ),
    Expected(
        "stream_loaders:lit_combined",
        "litdata",
        {"DP2": "pass", "resume": "fail"},
        "The state of a combined stream repeats and skips samples.",
    ),
    Expected(
        "stream_loaders:mds",
        "streaming",
        {"DP2": "pass"},
        "Workers share out the samples of the shards.",
    ),
    Expected(
        "stream_loaders:grain_map",
        "grain",
        {"DP2": "pass"},
        "A shuffled source in batches.",
    ),
    Expected(
        "stream_loaders:grain_sharded",
        "grain",
        {"DP2": "pass", "DP3": "pass"},
        "Each rank takes every second number.",
        "--ranks 2",
    ),
    Expected(
        "stream_loaders:grain_unsharded",
        "grain",
        {"DP2": "fail"},
        "Both ranks give all 64 numbers.",
        "--ranks 2",
    ),
    Expected(
        "stream_loaders:bucketing",
        "lhotse",
        {"DP2": "pass", "resume": "fail"},
        "The sampler's state is ahead of the training by what workers hold.",
    ),
    Expected(
        "stream_loaders:simple_cuts",
        "lhotse",
        {"DP2": "pass", "resume": "pass"},
        "Without workers nothing is drawn ahead.",
    ),
    Expected(
        "stream_loaders:lhotse_seeded",
        "lhotse",
        {"DP1": "fail"},
        "make_worker_init_fn seeds by worker, without the epoch.",
    ),
    Expected(
        "stream_loaders:lhotse_torch_seed",
        "lhotse",
        {"DP1": "pass"},
        "torch seeds Python's random in each worker, anew in each epoch.",
    ),
    Expected(
        "framework_loaders:data_module",
        "lightning",
        {"DP2": "pass", "DP14": "pass"},
        "A DataModule after Lightning's documentation.",
    ),
    Expected(
        "framework_loaders:combined",
        "lightning",
        {"end": "pass"},
        "CombinedLoader cycles the shorter loader, on purpose.",
    ),
    Expected(
        "framework_loaders:fabric",
        "lightning",
        {"DP2": "pass", "DP14": "pass"},
        "Fabric wraps a loader for one device.",
    ),
    Expected(
        "framework_loaders:monai_cache",
        "monai",
        {"DP2": "pass", "DP14": "pass"},
        "CacheDataset holds what it has transformed before workers start.",
    ),
    Expected(
        "framework_loaders:monai_random",
        "monai",
        {"DP1": "pass", "DP2": "pass"},
        "MONAI's DataLoader seeds random transforms in each worker.",
    ),
    Expected(
        "framework_loaders:monai_torch_loader",
        "monai",
        {"DP1": "fail"},
        "torch's loader does not seed MONAI's RandomState: workers draw the same noise.",
    ),
    Expected(
        "framework_loaders:monai_thread",
        "monai",
        {"DP2": "pass"},
        "ThreadDataLoader reads in one thread.",
    ),
    Expected(
        "framework_loaders:graphs",
        "torch_geometric",
        {"DP2": "pass", "DP14": "pass"},
        "Graphs are joined to a batch; each index comes once.",
    ),
    Expected(
        "framework_loaders:graphs_by_size",
        "torch_geometric",
        {"DP2": "pass", "DP14": "pass"},
        "DynamicBatchSampler fills batches by nodes.",
    ),
    Expected(
        "framework_loaders:tensordict",
        "tensordict",
        {"DP2": "pass", "DP14": "pass"},
        "A TensorDict is asked for whole batches, and collate_fn returns them.",
    ),
    Expected(
        "framework_loaders:kornia",
        "kornia",
        {"DP1": "pass", "DP2": "pass"},
        "kornia draws from torch's generator, which is seeded in each worker.",
    ),
    Expected(
        "framework_loaders:per_class",
        "pytorch_metric_learning",
        {"DP14": "pass"},
        "MPerClassSampler draws 4 of each class.",
    ),
    Expected(
        "framework_loaders:balanced",
        "catalyst",
        {"end": "fail"},
        "catalyst gives Sampler.__init__ its labels, which torch 2.13 does not take.",
    ),
    Expected(
        "framework_loaders:wrapped_sampler",
        "catalyst",
        {"DP2": "pass", "DP3": "pass"},
        "DistributedSamplerWrapper shares out any sampler that all ranks draw alike.",
        "--ranks 2",
    ),
    Expected(
        "framework_loaders:skorch",
        "skorch",
        {"DP2": "pass", "DP14": "pass"},
        "skorch's Dataset of arrays.",
    ),
]
