"""Batched log-mel against the feature extractors of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen3ASRFeatureExtractor, WhisperFeatureExtractor

from millrace.asr.models.mel import LogMel
from tests.asr.clips import batch, clip, sounds


@pytest.mark.parametrize("seconds", [(3.3, 1.0, 0.61, 2.00503), (2.0, 1.5), (2.00503, 0.5)])
def test_features_and_masks_are_the_extractors(seconds):
    """Whisper's with padding to the longest, and Qwen3-ASR's before it pads to chunks."""
    audio, clips = batch(seconds).audio, sounds(batch(seconds))
    form = {"sampling_rate": 16_000, "return_attention_mask": True, "return_tensors": "pt"}
    whisper = WhisperFeatureExtractor(feature_size=80)(clips, padding="longest", **form)
    torch.testing.assert_close(LogMel(80)(audio), whisper.input_features, atol=1e-4, rtol=0)
    qwen = Qwen3ASRFeatureExtractor()(clips, padding=True, n_window=0, **form)
    mel = LogMel(128)
    torch.testing.assert_close(mel(audio), qwen["input_features"], atol=1e-4, rtol=0)
    valid = [mel.valid_frames(len(sound), audio.shape[1]) for sound in clips]
    assert valid == qwen["attention_mask"].sum(1).tolist() == whisper.attention_mask.sum(1).tolist()


def test_precision_of_the_model_does_not_reach_the_features():
    audio = batch([1.0, 0.61]).audio
    mel = LogMel(80)
    expected = mel(audio)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(mel(audio), expected)
    assert torch.equal(torch.nn.Sequential(mel).bfloat16()(audio), expected)


def test_silence_and_no_clips():
    mel = LogMel(80)
    silence = mel(torch.zeros(2, 16_000))
    assert silence.shape == (2, 80, 100)
    assert torch.equal(silence, torch.full_like(silence, -1.5))  # (log10(1e-10) + 4) / 4
    assert mel(torch.zeros(0, 16_000)).shape == (0, 80, 100)


def test_loudness_of_one_clip_does_not_touch_another():
    quiet, loud = clip(1.0) * 0.01, clip(1.0, 1)
    together = LogMel(80)(torch.from_numpy(np.stack([quiet, loud])))
    assert torch.equal(together[:1], LogMel(80)(torch.from_numpy(quiet[None])))
