"""Floating-point operations of Qwen3-ASR, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def qwen_flops(
    sizes: Mapping[str, Mapping], frames: Sequence[int], audio_tokens: Sequence[int], tokens: Sequence[int]
) -> np.ndarray:
    """float64 (B,): a forward pass over clips of so many mel frames, audio tokens, and decoder tokens, audio
    included.

    Matrix products and convolutions, two operations a multiplication and addition; attention inside its
    window; the head on all tokens is an upper bound, it runs on the answers only and is left out.
    """
    audio, text = sizes["audio"], sizes["text"]
    mel, heard, read = (np.asarray(counts, dtype=np.float64) for counts in (frames, audio_tokens, tokens))
    channels, bins, width = audio["downsample_hidden_size"], audio["num_mel_bins"], audio["d_model"]
    heights = [-(-bins // 2), -(-bins // 4), -(-bins // 8)]
    convolutions = 9 * channels * heights[0] / 2 + 9 * channels**2 * (heights[1] / 4 + heights[2] / 8)
    convolutions += channels * heights[2] * width / 8
    window = audio["n_window_infer"] // (2 * audio["n_window"]) * 13
    layer = 4 * width**2 + 2 * width * audio["encoder_ffn_dim"]
    encoder = audio["encoder_layers"] * (heard * layer + 2 * width * heard * np.minimum(heard, window))
    projector = heard * (width**2 + width * audio["output_dim"])
    hidden, head = text["hidden_size"], text["head_dim"]
    queries, keys = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    layer = hidden * (2 * queries + 2 * keys) + 3 * hidden * text["intermediate_size"]
    decoder = text["num_hidden_layers"] * (read * layer + queries * read**2)  # causal: half of 2 L^2
    return 2 * (mel * convolutions + encoder + projector + decoder)
