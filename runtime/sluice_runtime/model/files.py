"""Finds a model's files and reads its JSON: config, generation config.

Used by both processes, so it imports no torch. Knows where files are, not what the weights mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice_contract.base import ConfigError
from sluice_contract.config.engine import EngineSettings, ModelRef
from sluice_contract.config.weight_files import LFS_POINTER, pointer_text, unread_weights

from sluice_runtime.errors import InvalidConfigError, ModelLoadError

DRAFT_KEY: Final = "speculation.draft.uri"

_DUMMY_COMMON: Final[dict[str, Any]] = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "eos_token_id": 258,
    "torch_dtype": "float32",
}

DUMMIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen3-tiny": _DUMMY_COMMON
    | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rope_theta": 1e6},
    "qwen2-tiny": _DUMMY_COMMON
    | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": 1e6},
    "qwen3-moe-tiny": _DUMMY_COMMON
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "rope_theta": 1e6,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    },
    "gemma3-tiny": _DUMMY_COMMON
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_act": "gelu_pytorch_tanh",
        "num_hidden_layers": 6,
        "query_pre_attn_scalar": 24,
        "sliding_window": 24,
    },
    "gpt-oss-tiny": _DUMMY_COMMON
    | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 24,
        "rope_theta": 15e4,
    },
    "granite-tiny": _DUMMY_COMMON
    | {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "rope_theta": 1e4,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.0625,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
    },
    "llama-tiny": _DUMMY_COMMON
    | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 1e4},
    "mistral-tiny": _DUMMY_COMMON
    | {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "rope_theta": 1e6,
        "sliding_window": None,
    },
    "mixtral-tiny": _DUMMY_COMMON
    | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "rope_theta": 1e6,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "phi3-tiny": _DUMMY_COMMON
    | {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.75,
    },
    "glm4-tiny": _DUMMY_COMMON
    | {
        "architectures": ["Glm4ForCausalLM"],
        "model_type": "glm4",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
    },
    "olmo2-tiny": _DUMMY_COMMON
    | {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "rope_theta": 5e5},
}
"""Architectures with random weights, by the name in `dummy://NAME`. Vocabulary: 256 bytes, then
`<bos>` 256, `<pad>` 257, `<eos>` 258."""


@dataclass(frozen=True)
class ModelFiles:
    """A model's files on disk. `folder` is None for random weights."""

    uri: str
    folder: Path | None
    config: Mapping[str, Any]
    """Content of config.json."""
    generation: Mapping[str, Any]
    """Content of generation_config.json; empty when there is none."""

    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer by generation_config.json, or by config.json or its text_config.
        `tokenizer.end_token_ids` adds the tokenizer's own.

        Raises:
            ModelLoadError: a value is neither a token id nor a list of token ids; names the file
                and the key.
        """
        text = self.config.get("text_config")
        text_part = text if isinstance(text, Mapping) else {}
        return (
            *_token_ids("generation_config.json: ", self.generation),
            *_token_ids("config.json: ", self.config),
            *_token_ids("config.json: text_config.", text_part),
        )


def resolve(uri: str, key: str = "model.uri") -> ModelFiles:
    """The model behind `uri`, the value of `key`: a plain path, `file:///path` or `dummy://name`.

    Raises:
        ModelLoadError: names the URI and what is allowed, or the file that is missing or damaged.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        return _from_folder(uri, Path(rest if separator else uri), key)
    if scheme == "dummy":
        if rest not in DUMMIES:
            raise ModelLoadError(f"{key}: {uri!r} is unknown; allowed: {_dummy_uris()}")
        return ModelFiles(uri, None, DUMMIES[rest], {})
    raise ModelLoadError(
        f"{key}: {uri!r} is not allowed; allowed: a plain path, file:///path, {_dummy_uris()}"
        " (hf:// and pvc:// are for InferenceServices, whose engines get a folder)"
    )


def resolve_model(model: ModelRef) -> ModelFiles:
    """The model that a configuration names.

    Raises:
        InvalidConfigError: a revision is given for a model without revisions.
        ModelLoadError: see `resolve`.
    """
    files = resolve(model.uri)
    if model.revision is not None:
        allowed = f"nothing with {model.uri} (only models of a hub have revisions)"
        raise InvalidConfigError(str(ConfigError("model.revision", model.revision, allowed)))
    return files


def resolve_draft(settings: EngineSettings) -> ModelFiles | None:
    """The draft model of a configuration; None: there is none.

    Raises:
        ModelLoadError: see `resolve`.
    """
    speculation = settings.speculation
    if speculation is None or speculation.draft is None:
        return None
    return resolve(speculation.draft.uri, DRAFT_KEY)


def drafts_with_head(settings: EngineSettings) -> bool:
    """Whether drafts come from a draft head instead of a draft model."""
    return settings.speculation is not None and settings.speculation.method == "Eagle"


@contextmanager
def of_draft() -> Iterator[None]:
    """Makes errors about files that are read in this context name the draft model's key."""
    try:
        yield
    except ModelLoadError as error:
        text = str(error).removeprefix("model.uri: ")
        raise ModelLoadError(f"{DRAFT_KEY}: {text}") from None


def read_json(path: Path, key: str = "model.uri") -> Mapping[str, Any]:
    """The JSON object in a file that `key` led to; raises ModelLoadError naming both."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelLoadError(f"{key}: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        flaw = lfs_pointer(path) or f"is not JSON: {error}"
        raise ModelLoadError(f"{key}: {path} {flaw}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{key}: {path} holds {type(value).__name__}; allowed: an object")
    return value


def lfs_pointer(path: Path) -> str:
    """Description of a file that Git LFS has not fetched; empty for any other file."""
    try:
        with path.open("rb") as file:
            is_pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
            return pointer_text(path.stat().st_size) if is_pointer else ""
    except OSError:
        return ""


def _from_folder(uri: str, folder: Path, key: str) -> ModelFiles:
    try:
        is_folder, why = folder.is_dir(), "is no folder"
    except OSError as error:
        is_folder, why = False, f"cannot be read ({error.strerror})"
    if not is_folder:
        raise ModelLoadError(f"{key}: {uri!r} {why}; allowed: a Hugging Face folder")
    config = {**_modelopt(folder, key), **_config(folder, key)}
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path, key) if generation_path.exists() else {}
    return ModelFiles(uri, folder, config, generation)


def _config(folder: Path, key: str) -> Mapping[str, Any]:
    try:
        return read_json(folder / "config.json", key)
    except ModelLoadError as error:
        names = os.listdir(folder) if os.access(folder, os.R_OK) else ["config.json"]
        if "config.json" in names:
            raise
        hint = unread_weights(names) if names else "the folder is empty"
        raise ModelLoadError(f"{error}{hint and f'; {hint}'}") from None


def _token_ids(place: str, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids of `eos_token_id`; empty if it is null or missing."""
    value = values.get("eos_token_id")
    token_ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token_id) is int for token_id in token_ids):
        raise ModelLoadError(
            f"{place}eos_token_id: {value!r} is not allowed; allowed: a token id, or a list of them"
        )
    return tuple(token_ids)


def _modelopt(folder: Path, key: str) -> Mapping[str, Any]:
    """Quantisation settings from ModelOpt's file next to config.json, in the form that config.json
    has for other formats."""
    path = folder / "hf_quant_config.json"
    written = read_json(path, key).get("quantization") if path.exists() else None
    if not isinstance(written, dict) or written.get("quant_algo") is None:
        return {}
    return {"quantization_config": {"quant_method": "modelopt", **written}}


def _dummy_uris() -> str:
    return ", ".join(f"dummy://{name}" for name in DUMMIES)


def tokenizer_config(files: ModelFiles) -> Mapping[str, Any]:
    """Content of tokenizer_config.json; empty when there is none."""
    path = None if files.folder is None else files.folder / "tokenizer_config.json"
    return {} if path is None or not path.exists() else read_json(path)


def token_text(token: object) -> str:
    """Text of a special token in tokenizer_config.json: a string, or an object with `content`."""
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else ""
