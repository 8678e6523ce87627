"""github: QwenLM/Qwen3-ASR#70, pull request 212: the prefix is masked from the left edge, where
padding is.

The collator of finetuning/qwen3_asr_sft.py, with a processor that pads on the left and writes audio
places by the length of the recording, as the model's own does (it would have to be downloaded)."""

import torch
from torch.utils.data import DataLoader, Dataset

PAD, EOS, AUDIO = 0, 13, 16
# The chat template: a system turn, the user's turn up to the audio; its end and the assistant's
# header.
BEFORE, AFTER = [10, 11, 12, 13, 12, 10, 14, 12, 15], [17, 13, 12, 10, 18, 12]


class Recordings(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        random = torch.Generator().manual_seed(index)
        seconds = 2 + index % 5
        target = torch.randint(100, 200, (3 + index % 4,), generator=random).tolist()
        return {"audio": torch.randn(8, 4 * seconds, generator=random), "target": target}


def processor(texts, audios):
    width = max(len(text) for text in texts)
    frames = max(audio.shape[1] for audio in audios)
    pad = torch.nn.functional.pad
    return {
        "input_ids": torch.tensor([[PAD] * (width - len(text)) + text for text in texts]),
        "attention_mask": torch.tensor(
            [[0] * (width - len(text)) + [1] * len(text) for text in texts]
        ),
        "input_features": torch.stack(
            [pad(audio, (0, frames - audio.shape[1])) for audio in audios]
        ),
        "feature_attention_mask": torch.tensor(
            [[1] * audio.shape[1] + [0] * (frames - audio.shape[1]) for audio in audios]
        ),
    }


def batch_of(features):
    audios = [feature["audio"] for feature in features]
    prefixes = [BEFORE + [AUDIO] * (audio.shape[1] // 2) + AFTER for audio in audios]
    targets = [feature["target"] + [EOS] for feature in features]
    full_inputs = processor([pfx + tgt for pfx, tgt in zip(prefixes, targets, strict=True)], audios)
    prefix_lens = processor(prefixes, audios)["attention_mask"].sum(dim=1).tolist()
    full_inputs["labels"] = full_inputs["input_ids"].clone()
    return full_inputs, prefix_lens


def collate_released(features):
    full_inputs, prefix_lens = batch_of(features)
    labels = full_inputs["labels"]
    for i, pl in enumerate(prefix_lens):
        labels[i, :pl] = -100
    labels[labels == PAD] = -100
    return full_inputs


def collate_mended(features):
    full_inputs, prefix_lens = batch_of(features)
    mask, labels = full_inputs["attention_mask"], full_inputs["labels"]
    labels[(mask.cumsum(1) <= torch.tensor(prefix_lens)[:, None]) | (mask == 0)] = -100
    return full_inputs


def released():
    return DataLoader(
        Recordings(), batch_size=4, shuffle=True, num_workers=2, collate_fn=collate_released
    )


def mended():
    return DataLoader(
        Recordings(), batch_size=4, shuffle=True, num_workers=2, collate_fn=collate_mended
    )
