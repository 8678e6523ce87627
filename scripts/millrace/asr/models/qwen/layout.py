"""Qwen3-ASR in the layout of the qwen-asr package: `thinker_config`, weights named `thinker.*`.

The same numbers as in the layout of transformers, under other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from torch import Tensor
from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

from millrace.asr.models.folder import CONFIG, read_config, read_tensors
from millrace.asr.models.hf.model import COPY_AGAIN
from millrace.common import atomic
from millrace.common.errors import MillraceError

LAYOUTS = ("transformers", "qwen-asr")
# Beginnings of weights' names, there and in transformers; the first that fits counts.
_NAMES = (
    ("thinker.audio_tower.proj1.", "model.multi_modal_projector.linear_1."),
    ("thinker.audio_tower.proj2.", "model.multi_modal_projector.linear_2."),
    ("thinker.audio_tower.", "model.audio_tower."),
    ("thinker.model.", "model.language_model."),
    ("thinker.lm_head.", "lm_head."),
)
_HEAD = "lm_head.weight"
# Keys that both layouts have, with what qwen-asr takes for one that is missing; then keys of its
# own.
_AUDIO = {
    "num_mel_bins": 128,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "d_model": 1280,
    "dropout": 0,
    "attention_dropout": 0,
    "activation_function": "gelu",
    "activation_dropout": 0,
    "scale_embedding": False,
    "initializer_range": 0.02,
    "n_window": 100,
    "output_dim": 3584,
    "n_window_infer": 400,
    "downsample_hidden_size": 480,
}
_AUDIO_OWN = {
    "conv_chunksize": 500,
    "max_source_positions": 1500,
    "model_type": "qwen3_asr_audio_encoder",
}
_TEXT = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 128_000,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "use_cache": True,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
}
_TEXT_OWN = {
    "rope_theta": 5_000_000.0,
    "rope_scaling": None,
    "model_type": "qwen3_asr_text",
}
_THINKER: dict[str, Any] = {
    "audio_token_id": 151_646,
    "audio_start_token_id": 151_647,
    "audio_end_token_id": None,
    "user_token_id": 872,
    "initializer_range": 0.02,
    "model_type": "qwen3_asr_thinker",
}
_VOCABULARY = ("vocab.json", "merges.txt")
# Files beside the weights that are written again as they were read.
_KEPT = (
    *_VOCABULARY,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "preprocessor_config.json",
    "generation_config.json",
)


def is_qwen_asr(folder: str | Path) -> bool:
    """Whether a model's folder is in this layout."""
    return "thinker_config" in read_config(folder)


def read_files(folder: str | Path) -> dict[str, bytes]:
    """The files of a folder to write again as they are: all but config and weights of this layout,
    of transformers' the vocabulary."""
    names = _KEPT if is_qwen_asr(folder) else _VOCABULARY
    paths = [Path(folder, name) for name in names]
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def read(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Arguments of transformers' Qwen3ASRConfig, and the weights by transformers' names.

    Raises MillraceError for scaled rotary positions, and for weights that cannot be read.
    """
    thinker: dict[str, Any] = {
        **_THINKER,
        "audio_config": {},
        "text_config": {},
        **read_config(folder)["thinker_config"],
    }
    audio = {**_AUDIO, **thinker["audio_config"]}
    text = {**_TEXT, **_TEXT_OWN, **thinker["text_config"]}
    rope = text["rope_scaling"] or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope"):
        where = str(Path(folder, CONFIG))
        raise MillraceError(
            f"rope_scaling of type {kind} is unknown here", where, "Take another model"
        )
    rope = {"rope_type": "default", "rope_theta": float(text["rope_theta"])}
    arguments = {
        "audio_config": {name: audio[name] for name in _AUDIO},
        "text_config": {name: text[name] for name in _TEXT} | {"rope_parameters": rope},
        **{name: thinker[name] for name in ("audio_token_id", "initializer_range")},
        "tie_word_embeddings": text["tie_word_embeddings"],
    }
    generation = orjson.loads(read_files(folder).get("generation_config.json", b"{}"))
    ids = ("eos_token_id", "pad_token_id")
    arguments |= {name: generation[name] for name in ids if generation.get(name) is not None}
    return arguments, _weights(Path(folder))


def _weights(folder: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        for name, tensor in read_tensors(path).items():
            state[_renamed(name, 0, str(folder))] = tensor
    if not state:
        raise MillraceError("there is no model*.safetensors", str(folder), COPY_AGAIN)
    return state


def _renamed(name: str, side: int, where: str) -> str:
    for pair in _NAMES:
        if name.startswith(pair[side]):
            return pair[1 - side] + name.removeprefix(pair[side])
    raise MillraceError(f"the weight {name} is none of Qwen3-ASR", where, "Take another model")


def rope(text: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of this layout for rotary positions of `text`, a text_config of transformers.

    Raises MillraceError for scaled ones: qwen-asr would read them as plain.
    """
    given = text["rope_parameters"]
    if (kind := given.get("rope_type", "default")) != "default":
        problem = f"rotary positions of type {kind} have no place in the layout of qwen-asr"
        raise MillraceError(problem, remedy="Export with --layout transformers")
    quarter = 20 * text["head_dim"] // 128
    scaling = {
        "rope_type": "default",
        "type": "default",
        "mrope_interleaved": True,
        "interleaved": True,
    }
    scaling["mrope_section"] = [text["head_dim"] // 2 - 2 * quarter, quarter, quarter]
    return {"rope_theta": given["rope_theta"], "rope_scaling": scaling}


def write(
    folder: Path,
    hf: Any,
    processor: Any,
    kept: Mapping[str, bytes],
) -> None:
    """Write a Qwen3ASRForConditionalGeneration and its processor, and the files of `kept` as they
    are."""
    from safetensors.torch import save_file

    state = {name: t.detach().cpu().contiguous() for name, t in hf.state_dict().items()}
    # A tied head shares the memory of the embedding, which the format does not allow.
    state[_HEAD] = state[_HEAD].clone()
    renamed = {_renamed(name, 1, str(folder)): t for name, t in state.items()}
    save_file(renamed, folder / "model.safetensors")
    config = hf.config.to_dict()
    tokenizer = processor.tokenizer
    audio = config["audio_config"]
    text = config["text_config"]
    text_own = rope(text)
    start = tokenizer.convert_tokens_to_ids(tokenizer.audio_bos_token)
    end = tokenizer.convert_tokens_to_ids(tokenizer.audio_eos_token)
    ids = {
        "audio_token_id": config["audio_token_id"],
        "audio_start_token_id": start,
        "audio_end_token_id": end,
        "initializer_range": config["initializer_range"],
    }
    thinker = {
        **_THINKER | ids,
        "audio_config": _AUDIO_OWN | {name: audio[name] for name in _AUDIO},
        "text_config": _TEXT_OWN | {name: text[name] for name in _TEXT} | text_own,
    }
    thinker["text_config"]["tie_word_embeddings"] = config["tie_word_embeddings"]
    processor.save_pretrained(folder)
    for name in ("processor_config.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    settings = orjson.loads((folder / "tokenizer_config.json").read_bytes())
    settings |= {"tokenizer_class": "Qwen2TokenizerFast", "processor_class": "Qwen3ASRProcessor"}
    atomic.write_json(folder / "tokenizer_config.json", settings)
    atomic.write_json(folder / "chat_template.json", {"chat_template": processor.chat_template})
    features = {
        **processor.feature_extractor.to_dict(),
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "Qwen3ASRProcessor",
    }
    atomic.write_json(folder / "preprocessor_config.json", features)
    generation = {name: config[name] for name in ("eos_token_id", "pad_token_id")}
    atomic.write_json(folder / "generation_config.json", {"do_sample": False, **generation})
    for name, content in kept.items():
        atomic.write_bytes(folder / name, content)
    names = {"architectures": ["Qwen3ASRForConditionalGeneration"], "model_type": "qwen3_asr"}
    names["support_languages"] = sorted(set(LANGUAGE_CODE_TO_NAME.values()))
    atomic.write_json(folder / CONFIG, names | {"thinker_config": thinker})
