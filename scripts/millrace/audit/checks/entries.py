"""The catalogue: what each entry looks like, where it comes from, how it is mended, and since
when."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from millrace.common.errors import MillraceError
from millrace.common.loading.arguments import several

FAMILIES = {
    "randomness": "Randomness and sharding",
    "contract": "Contract of dataset, collate and loader",
    "preprocessing": "Preprocessing, labels and order",
}

# A block an entry: `name family status: title`, then its fields.
CATALOGUE = """
DP1 randomness version-dependent: Randomness repeats in workers, epochs or ranks
  symptom: the same crops, flips or noise come back in every worker, every epoch or every rank
  cause: a generator made in __init__ (default_rng, random.Random, torch.Generator) is copied into
    workers; or a constant seeds it: np.random.seed(42 + worker_id) repeats every epoch,
    torch.manual_seed(CONST) in worker_init_fn in every worker, one seed on all ranks in every rank
  fix: draw with torch.rand, seeded per worker and epoch (ranks: torch.manual_seed(seed + rank)); or
    in worker_init_fn get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed())
  versions: historic: NumPy's global state (torch seeds it in workers since 1.9); live: copies and
    constants
  links: github.com/pytorch/pytorch/issues/5059
DP2 randomness live: Samples come once per worker or once per rank
  symptom: an epoch is num_workers times too long, or all ranks train on the same samples
  cause: each worker and rank iterates its copy of an IterableDataset in full (torch refuses a
    sampler on one: "expected unspecified sampler option"); map-style: no DistributedSampler, so
    each rank gets it all
  fix: in __iter__ take sample i if i % (world_size * num_workers) == rank * num_workers +
    worker_id; datasets: split_dataset_by_node(ds, rank, world_size); map-style:
    sampler=DistributedSampler(ds)
  links: github.com/huggingface/datasets/issues/5360
DP3 randomness live: Ranks make different numbers of steps
  symptom: training hangs at the end of an epoch until a collective times out; or metrics count
    samples twice
  cause: shards do not divide by world_size * num_workers, and the first to end leaves others in
    all-reduce; DistributedSampler evens out by repeating samples, which count twice in evaluation
  fix: stop all ranks at the smallest number of steps, repeat samples on short ranks, or `with
    model.join():` (drop_last=True alone leaves ranks uneven); evaluation: drop repeated samples by
    id
  links: github.com/huggingface/datasets/issues/6437
DP4 contract live: Samples of unequal shape do not collate
  symptom: "stack expects each tensor to be equal size" in mid-epoch; batch_size=1 works
  cause: default_collate stacks a field and needs one shape; padding without lengths or mask is
    silent
  fix: collate_fn= with pad_sequence(..., batch_first=True) that returns lengths or a mask; else a
    list
  links: docs.pytorch.org/docs/stable/data.html#working-with-collate-fn
DP5 contract live: pin_memory does not reach tensors of the batch
  symptom: pin_memory=True, but .to(device, non_blocking=True) copies synchronously; no error
  cause: torch pins tensors, objects with .pin_memory(), mappings and sequences, and leaves other
    objects as they are; what .pin_memory() returns replaces the batch: None loses it
  fix: def pin_memory(self): self.x = self.x.pin_memory(); return self; or collate into a dict or
    named tuple
  links: docs.pytorch.org/docs/stable/data.html#memory-pinning
DP6 contract version-dependent: The loader fails or differs under spawn or forkserver
  symptom: "Can't pickle local object" on another platform or Python; or transforms vanish without
    an error
  cause: spawn and forkserver pickle dataset, collate_fn and worker_init_fn: lambdas, local
    functions and open files fail, and what __reduce__ or __getstate__ leaves out is lost; fork
    shares open files
  fix: module-level functions, functools.partial or a top-level callable class; open files at first
    use in the worker (HDF5 too); keep the script behind a __main__ guard
  versions: Python 3.14 starts workers with forkserver on Linux, before it fork; historic:
    vision#8066, lost transforms of wrap_dataset_for_transforms_v2, mended by vision#8067 in
    torchvision 0.16.1
  links: github.com/pytorch/vision/issues/8066
DP7 contract live: __len__ and __getitem__ disagree
  symptom: IndexError in mid-epoch; or samples seen twice or never; or `for x in dataset` never ends
  cause: __len__ counts another list than __getitem__ reads, or self.items[i % n] wraps: ds[len(ds)]
    is ds[0]
  fix: let both read one list made in __init__, without % n: ds[len(ds)] must raise IndexError
    (KeyError for keys); an IterableDataset's __len__ must be what it yields over all workers
  links: github.com/pytorch/pytorch/issues/45040
DP8 contract live: A last batch of one sample meets batch norm
  symptom: "Expected more than 1 value per channel when training" in the last batch of an epoch
  cause: len(dataset) % batch_size == 1 on a rank: BatchNorm in training mode gets (1, C), one value
    a channel
  fix: drop_last=True on the training loader, not on evaluation; or GroupNorm, LayerNorm, frozen
    BatchNorm
  links: github.com/pytorch/pytorch/issues/4534
DP9 contract live: Memory grows in every worker
  symptom: memory climbs over an epoch until the kernel kills a worker (exit code 137, no traceback)
  cause: a cache in the dataset keeps every sample, once per worker; or reading a large list of
    Python objects writes reference counts and so copies its pages into the worker (copy-on-write)
  fix: functools.lru_cache(maxsize=...), np.memmap, Arrow, Tensor.share_memory_(); no list of
    objects
  links: github.com/pytorch/pytorch/issues/13246
DP10 preprocessing live: Normalisation is out of range, or fitted on the wrong split
  symptom: a pretrained model scores far below its figure; validation lies below train without a
    reason
  cause: mean and std are those of other weights, in the other channel order, applied twice or not
    at all, or come from train + val
  fix: transform=weights.transforms() for pretrained weights; else mean and std of train alone,
    everywhere
  links: docs.pytorch.org/vision/stable/models.html
DP11 preprocessing live: Channels are BGR where RGB is expected
  symptom: no error; red and blue are swapped, and predictions that depend on colour get worse
  cause: cv2.imread and VideoCapture return BGR; PIL, torchvision and pretrained weights use RGB
  fix: cv2.cvtColor(image, cv2.COLOR_BGR2RGB) after reading; image[:, :, ::-1] needs .copy() for
    torch
  links: docs.pytorch.org/vision/stable/models.html
DP12 preprocessing live: Values are scaled wrongly, twice or not at all
  symptom: the loss is huge or NaN from step 0; or images are nearly black (values up to 1/255)
  cause: ToTensor divides uint8 by 255, not floats, 16 bits or PIL modes I and F; or uint8 is
    divided twice
  fix: transforms.v2: ToImage(), ToDtype(torch.float32, scale=True); or one division, by 65535 for
    16 bits
  links: docs.pytorch.org/vision/stable/generated/torchvision.transforms.ToTensor.html
DP13 preprocessing live: Transforms stand in the wrong order
  symptom: TypeError at the first sample, or images that are cropped or flipped after they were
    normalised
  cause: Normalize stands before ToTensor or ToDtype(scale=True); mean and std are not as long as
    channels
  fix: Compose([operations on images, ToTensor(), Normalize(mean, std)]) with a mean and a std a
    channel
  links: docs.pytorch.org/vision/stable/transforms.html
DP14 preprocessing live: Every epoch has the same order
  symptom: each epoch brings the samples in one order; the loss has the period of an epoch
  cause: the epoch in seed + epoch stays 0 without set_epoch, and persistent workers keep their
    first one; torch refuses shuffle beside sampler, and batch_size, shuffle, sampler or drop_last
    beside batch_sampler
  fix: sampler.set_epoch(epoch) (or of batch_sampler, dataset) before each epoch; Lightning and
    Accelerate call it; persistent_workers=True: keep the epoch in shared memory
    (torch.zeros(1).share_memory_())
  versions: live; datasets reaches persistent workers since 2.21
  links: github.com/huggingface/datasets/issues/6673
    github.com/starVLA/starVLA/issues/470
DP15 contract live: /dev/shm or descriptors do not suffice for the batches in flight
  symptom: "worker (pid N) is killed by signal: Bus error" or "received 0 items of ancdata" (Docker)
  cause: workers hand batches over in /dev/shm (64 MB in Docker by default), a descriptor a tensor:
    those of a batch x prefetch_factor x num_workers x ranks of the node must fit
  fix: docker run --shm-size=8g or --ipc=host, fewer num_workers, a smaller prefetch_factor;
    descriptors: ulimit -n, or set_sharing_strategy("file_system"), whose files lie in /dev/shm too
  links: github.com/pytorch/pytorch/issues/5040
    github.com/pytorch/pytorch/issues/973
resume randomness live: Resuming in mid-epoch repeats, skips or reorders samples
  symptom: after a restart from a checkpoint some samples come twice and others never; no error
  cause: the restored state lacks epoch, position or generator of the order; or it counts prefetched
    batches
  fix: save epoch and batches trained; draw the order from seed + epoch, then skip; restore before
    iter()
  versions: live; accelerate 1.15 replays the order of epoch 0 (accelerate#4195)
  links: github.com/huggingface/accelerate/issues/4195
labels preprocessing live: Labels train on prompt or padding, or not on the end
  symptom: the model repeats prompts, never stops or answers "!"; the loss looks fine
  cause: the mask counts from the left and the tokenizer pads left; prompt, audio or padding places
    are not -100; or pad_token is eos_token, and masking the padding masks every EOS
  fix: count the prompt from the first attention_mask 1; labels = -100 on prompt, audio and where
    attention_mask is 0 (not where input_ids is pad_token_id: that may be EOS)
  links: github.com/QwenLM/Qwen3-ASR/issues/70
splits preprocessing live: One recording lies in two splits
  symptom: validation looks better than new recordings will
  cause: segments, crops or copies of one recording were dealt over train and validation one by one
  fix: split by recording (speaker, patient) before cutting: GroupShuffleSplit().split(X,
    groups=recording)
  links: scikit-learn.org/stable/modules/cross_validation.html
stale contract live: The index does not fit its files
  symptom: wrong bytes or labels for a sample, new samples that never come, FileNotFoundError in
    mid-epoch
  cause: files were replaced, added or removed after the index or cache was built
  fix: build the index again; keep size and time or a digest of each file in it and compare them on
    opening
  links: docs.pytorch.org/docs/stable/data.html#map-style-datasets
edges contract live: Samples are lost at the edges of an epoch
  symptom: an epoch makes fewer steps than expected, or none; evaluation misses samples
  cause: drop_last=True drops up to batch_size - 1 samples, on an IterableDataset in every worker,
    and all of them if they are fewer than a batch; or integer division in sharding forgets the
    remainder
  fix: drop_last=False on evaluation; batch_size at most a rank's samples; range(rank, n,
    world_size)
  links: github.com/pytorch/pytorch/issues/33413
end contract live: The loader hangs, dies, never ends or needs too much memory
  symptom: no batch comes, a worker is killed, an epoch does not end, or the machine swaps
  cause: fork copied a lock or thread (OpenCV, OpenMP), an iterator has no end, or each worker loads
    it all
  fix: cv2.setNumThreads(0) or multiprocessing_context="spawn"; timeout=60; islice, with_epoch; load
    less
  links: github.com/pytorch/pytorch/issues/1355
"""


@dataclass(frozen=True)
class Entry:
    """One way in which training goes on with wrong data."""

    name: str
    family: str
    status: str
    title: str
    symptom: str
    cause: str
    fix: str
    links: str
    versions: str = "live with every torch 2"

    @property
    def urls(self) -> list[str]:
        return [f"https://{link}" for link in self.links.split()]


def _parse(block: str) -> Entry:
    head, *lines = block.replace("\n    ", " ").split("\n  ")
    names, _, title = head.partition(": ")
    name, family, status = names.split()
    texts = dict(line.split(": ", 1) for line in lines)
    return Entry(name, family, status, title, **texts)


_TEXTS = re.split(r"\n(?! )", CATALOGUE.strip())
ENTRIES = {entry.name: entry for entry in map(_parse, _TEXTS)}


def names(chosen: Iterable[str]) -> list[str]:
    """The names of chosen entries as they are written here. Raises MillraceError as `get` does, and
    for what is no list."""
    return [get(name).name for name in several("only", chosen)]


def get(name: str) -> Entry:
    """The entry of a name in any case; an unknown name is an error that lists those there are."""
    spelled = {known.lower(): known for known in ENTRIES}
    wanted = name.strip().lower()
    if wanted not in spelled:
        remedy = f"Entries: {', '.join(ENTRIES)}"
        raise MillraceError(f"there is no entry {name!r}", remedy=remedy)
    return ENTRIES[spelled[wanted]]
