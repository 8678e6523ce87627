"""Qwen3-ASR's audio encoder for training: nothing is computed on padding, the host waits for no
device.

The published module convolves padding too, asks the device for lengths clip by clip, and calls
attention once for each window of each clip: 24 layers times hundreds of windows are thousands of
small kernels a step. With lengths from the host and windows padded to the longest one, the numbers
are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.qwen3_asr.configuration_qwen3_asr import Qwen3ASREncoderConfig
from transformers.models.qwen3_asr.modeling_qwen3_asr import Qwen3ASRAudioAttention

from millrace.asr.models.base import Prepared

_MOST_CHUNKS = 1_000  # convolved in one call


class WindowedAttention(Qwen3ASRAudioAttention):
    """The same weights and results; `max_seqlen` is the longest window, read from the device if not
    given."""

    def forward(
        self,
        hidden_states: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int | None = None,
        **kwargs: object,
    ) -> Tensor:
        # Where each token stands in (windows, longest), the windows padded to the longest.
        device = hidden_states.device
        cu_seqlens = cu_seqlens.to(device, torch.int64)
        lengths = cu_seqlens.diff()
        longest = max_seqlen or int(lengths.max())
        inside = torch.arange(longest, device=device) < lengths[:, None]
        places = _places(cu_seqlens, longest, hidden_states.shape[0])

        # Query, key and value go there in one copy: (3, windows, heads, longest, head_dim).
        projected = torch.cat(
            [
                self.q_proj(hidden_states),
                self.k_proj(hidden_states),
                self.v_proj(hidden_states),
            ],
            dim=-1,
        )
        padded = projected.new_zeros(inside.numel(), projected.shape[-1])
        padded = padded.index_copy(0, places, projected)
        heads = padded.view(*inside.shape, 3, self.num_heads, self.head_dim)
        query, key, value = heads.permute(2, 0, 3, 1, 4)

        # Attention inside each window, and back to the tokens alone.
        mask = inside[:, None, None]
        mixed = F.scaled_dot_product_attention(query, key, value, mask, scale=self.scaling)
        mixed = mixed.transpose(1, 2)
        mixed = mixed.flatten(2).flatten(0, 1)
        return self.out_proj(mixed.index_select(0, places))


def _places(ends: Tensor, longest: int, count: int) -> Tensor:
    """Places of `count` tokens in windows padded to `longest`; window n ends at `ends[n + 1]`."""
    windows = torch.arange(len(ends) - 1, device=ends.device)
    window = torch.repeat_interleave(windows, ends.diff(), output_size=count)
    place_in_window = torch.arange(count, device=ends.device) - ends[window]
    return window * longest + place_in_window


def chunks_at_once(audio: Qwen3ASREncoderConfig) -> int:
    """How many chunks are convolved in one call, so that no tensor has 2**31 elements.

    cuDNN counts elements in 32 bits. Above, with 1.7B 1,398 s of audio, it fails with an error that
    does not say so, and that no calibration would take for too large a batch.
    """
    # Each convolution halves height and width; the first output is the largest.
    width = audio.n_window  # half of a chunk's frames
    elements = audio.downsample_hidden_size * -(-audio.num_mel_bins // 2) * width
    return max(min(_MOST_CHUNKS, (2**31 - 1) // elements), 1)


def _convolved(encoder: nn.Module, chunks: Tensor) -> Tensor:
    """(chunks, tokens of a chunk, width) of mel (chunks, 1, bins, frames)."""
    hidden = chunks
    for convolution in (encoder.conv2d1, encoder.conv2d2, encoder.conv2d3):
        hidden = F.gelu(convolution(hidden))
    by_token = hidden.permute(0, 3, 1, 2)
    return encoder.conv_out(by_token.flatten(2))


def encode(
    encoder: nn.Module,
    mel: Tensor,
    prepared: Prepared,
) -> Tensor:
    """Output of a Qwen3ASREncoder, (audio tokens of the batch, width), for mel (B, bins, chunks *
    chunk).

    Its own `forward` finds the valid tokens with `nonzero`, for which the host would wait in every
    step; here they come with the batch (see QwenPreparer).
    """
    count, bins, width = mel.shape
    chunk = 2 * encoder.n_window
    chunks = mel.view(count, bins, width // chunk, chunk)
    chunks = chunks.transpose(1, 2)
    chunks = chunks.reshape(-1, 1, bins, chunk)
    heard = chunks.index_select(0, prepared["chunks"])
    parts = heard.split(chunks_at_once(encoder.config))
    hidden = torch.cat([_convolved(encoder, part) for part in parts])
    positions = encoder.positional_embedding(hidden.shape[1])
    hidden = hidden + positions.to(hidden.dtype)
    hidden = hidden.flatten(0, 1)
    hidden = hidden.index_select(0, prepared["heard"])
    ends = prepared["window_ends"]
    for layer in encoder.layers:
        hidden, *_ = layer(hidden, ends, max_seqlen=prepared.host["longest_window"])
    return encoder.ln_post(hidden)
