"""huggingface/transformers#23530: pad_token is eos_token, and the collator masks every end.

Needs transformers, tokenizers and torch; downloads nothing.
"""

from __future__ import annotations

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast


def main():
    words = {"[EOS]": 0, "[UNK]": 1, "a": 2, "b": 3, "c": 4}
    model = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="[UNK]", eos_token="[EOS]", pad_token="[EOS]"
    )
    collate = DataCollatorForLanguageModeling(tokens, mlm=False)
    batch = collate([tokens("a b c [EOS]"), tokens("a b [EOS]")])
    ends = (batch["input_ids"] == 0) & (batch["attention_mask"] == 1)
    masked = batch["labels"][ends] == -100
    print(f"transformers {transformers.__version__}")
    print("input_ids", batch["input_ids"].tolist())
    print("labels   ", batch["labels"].tolist())
    print(f"{int(masked.sum())} of {int(ends.sum())} ends of texts are masked")


if __name__ == "__main__":
    main()
