"""Small models of transformers with random weights, saved as folders that the registry loads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson
import transformers
from transformers import PreTrainedModel, ProcessorMixin

from millrace.asr.models.labels import Characters
from millrace.asr.models.qwen.config import byte_level_tokenizer

# Sizes of models that train in seconds; the convolutions keep their strides, 20 ms a frame.
CTC_SIZES = {
    "codevector_dim": 16,
    "proj_codevector_dim": 16,
    "classifier_proj_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_conv_pos_embedding_groups": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_conv_pos_embeddings": 16,
    "conv_dim": [16] * 7,
    "num_feat_extract_layers": 7,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}
WHISPER_SIZES = {
    "d_model": 32,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_target_positions": 448,
    "max_source_positions": 400,  # 8 s, so that a test does not compute 30
}
EOS, PAD, START = "<|endoftext|>", "<|pad|>", "<|startoftranscript|>"


def write(folder: Path, model_type: str, texts: Iterable[str]) -> Path:
    """`folder` with a model of that type, weights from torch's generator, its vocabulary from
    `texts`."""
    folder.mkdir(parents=True, exist_ok=True)
    model, processor = (
        _whisper(texts) if model_type == "whisper" else _ctc(model_type, texts, folder)
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _ctc(
    model_type: str, texts: Iterable[str], folder: Path
) -> tuple[PreTrainedModel, ProcessorMixin]:
    characters = Characters.from_transcripts(texts).characters.replace(" ", "")
    # The pad token, which is CTC's blank, is often the last in vocabularies for fine-tuning.
    tokens = ["<unk>", "|", *(c for c in characters if c != "|"), "<pad>"]
    vocabulary = folder / "vocab.json"
    vocabulary.write_bytes(orjson.dumps({token: number for number, token in enumerate(tokens)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(vocabulary), bos_token=None, eos_token=None)
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    processor = transformers.Wav2Vec2Processor(extractor, tokenizer)
    ids = {"vocab_size": len(tokens), "pad_token_id": len(tokens) - 1}
    config = transformers.AutoConfig.for_model(model_type, **CTC_SIZES, **ids)
    return transformers.AutoModelForCTC.from_config(config), processor


def _whisper(texts: Iterable[str]) -> tuple[PreTrainedModel, ProcessorMixin]:
    tokenizer = byte_level_tokenizer(texts, EOS, PAD, START)
    end, pad, start = tokenizer.convert_tokens_to_ids([EOS, PAD, START])
    ids = {
        "eos_token_id": end,
        "bos_token_id": end,
        "pad_token_id": pad,
        "decoder_start_token_id": start,
    }
    config = transformers.WhisperConfig(**WHISPER_SIZES, **ids, vocab_size=len(tokenizer))
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config.update(**ids, suppress_tokens=None)
    seconds = 2 * config.max_source_positions // 100
    extractor = transformers.WhisperFeatureExtractor(chunk_length=seconds)
    return model, transformers.WhisperProcessor(extractor, tokenizer)
