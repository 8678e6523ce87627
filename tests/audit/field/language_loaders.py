"""transformers, trl and sentence-transformers: collators, Trainer's loader, batch samplers."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from tests.audit.field.data import Rows, folder, texts, tokenizer


def causal(**special):
    from transformers import DataCollatorForLanguageModeling

    words = tokenizer(eos_token="[EOS]", **special)
    rows = [words(text) for text in texts()]
    collate = DataCollatorForLanguageModeling(words, mlm=False)
    return DataLoader(rows, batch_size=4, shuffle=True, collate_fn=collate)


def causal_pad():
    return causal(pad_token="[PAD]")


def causal_pad_is_eos():
    """huggingface/transformers#23530."""
    return causal(pad_token="[EOS]")


def padding():
    from transformers import DataCollatorWithPadding

    words = tokenizer(eos_token="[EOS]", pad_token="[PAD]")
    rows = [words(text) for text in texts()]
    return DataLoader(rows, 4, shuffle=True, collate_fn=DataCollatorWithPadding(words))


def prompts(*, is_masked=True):
    from transformers import DataCollatorForSeq2Seq

    words = tokenizer(eos_token="[EOS]", pad_token="[PAD]")
    rows = [words(f"w90 w91 w92 w93 w94 {text}") for text in texts()]
    for row in rows:
        ids = row["input_ids"]
        row["labels"] = [-100] * 5 + ids[5:] if is_masked else list(ids)
    return DataLoader(rows, 4, shuffle=True, collate_fn=DataCollatorForSeq2Seq(words))


def prompt_masked():
    return prompts()


def labels_padded():
    """Labels copied from padded input_ids: a snippet of many notebooks."""
    words = tokenizer(eos_token="[EOS]", pad_token="[PAD]")

    def collate(batch):
        padded = words(batch, padding=True, return_tensors="pt")
        return {**padded, "labels": padded["input_ids"].clone()}

    return DataLoader(texts(), batch_size=4, shuffle=True, collate_fn=collate)


def trainer():
    from transformers import Trainer, TrainingArguments

    model = torch.nn.Linear(4, 1)
    args = TrainingArguments(str(folder()), use_cpu=True, remove_unused_columns=False)
    return Trainer(model, args, train_dataset=Rows()).get_train_dataloader()


def grouped():
    from transformers.trainer_pt_utils import LengthGroupedSampler

    words = tokenizer(eos_token="[EOS]", pad_token="[PAD]")
    rows = [words(text) for text in texts()]
    sampler = LengthGroupedSampler(4, lengths=[len(row["input_ids"]) for row in rows])
    return DataLoader(rows, 4, sampler=sampler, collate_fn=words.pad)


def completions():
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    words = tokenizer(eos_token="[EOS]", pad_token="[PAD]")
    rows = [{"input_ids": words(f"w90 w91 w92 w93 w94 {text}").input_ids} for text in texts()]
    for row in rows:
        row["completion_mask"] = [0] * 5 + [1] * (len(row["input_ids"]) - 5)
    collate = DataCollatorForLanguageModeling(pad_token_id=words.pad_token_id)
    return DataLoader(rows, batch_size=4, shuffle=True, collate_fn=collate)


def pairs():
    from datasets import Dataset

    names = [f"text {row}" for row in range(64)]
    return Dataset.from_dict({"anchor": names, "label": [row % 8 for row in range(64)]})


def no_duplicates():
    from sentence_transformers.sampler import NoDuplicatesBatchSampler

    rows, generator = pairs(), torch.Generator()
    batches = NoDuplicatesBatchSampler(rows, 8, drop_last=False, generator=generator, seed=1)
    return DataLoader(rows, batch_sampler=batches)


def by_label():
    from sentence_transformers.sampler import GroupByLabelBatchSampler

    rows, generator = pairs(), torch.Generator()
    batches = GroupByLabelBatchSampler(
        rows, 8, drop_last=False, valid_label_columns=["label"], generator=generator, seed=1
    )
    return DataLoader(rows, batch_sampler=batches)
