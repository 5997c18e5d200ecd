"""A model's sizes, read from its config.json in transformers' form. The engine, the operator and
`sluice explain` all read them here.

Knows which sizes each architecture's config.json has or leaves out, but not what the architecture
computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_contract.base import ConfigError

Config = Mapping[str, Any]

MAX_COUNT: Final = 1 << 53
"""Largest count, since not every reader of JSON keeps larger numbers exactly."""
MAX_RANKS: Final = 64
"""Most ranks that can share the layers of an engine, one on each GPU."""

EXPERT_COUNTS: Final = ("num_experts", "num_local_experts")
"""Both spellings of the number of experts."""
_GEMMA3: Final = {
    "head_dim": 256,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "vocab_size": 262_208,
}
DEFAULTS: Final[Mapping[str, Config]] = {
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Glm4ForCausalLM": {"head_dim": 128, "num_key_value_heads": 2},
    "GlmForCausalLM": {"head_dim": 128, "num_key_value_heads": 2},
    "GptOssForCausalLM": {
        "head_dim": 64,
        "norm_topk_prob": True,  # the softmax is over the chosen experts
        "num_experts_per_tok": 4,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
    },
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "MixtralForCausalLM": {
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
    },
    "Qwen3ForCausalLM": {"head_dim": 128},
    "Qwen3MoeForCausalLM": {
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 4,
    },
}
"""Values that transformers gives to missing keys of config.json, by architecture. A key with null
is not missing."""

WINDOWED: Final = frozenset({"MistralForCausalLM", "MixtralForCausalLM", "Phi3ForCausalLM"})
"""Architectures in which sliding_window gives every layer a window. It is then the longest context,
because within a window attention is full."""


@dataclass(frozen=True)
class Experts:
    """Mixture-of-experts layers of a model."""

    layers: frozenset[int]
    """Layers with experts; the others are dense."""
    count: int
    active: int
    """Experts that compute one token."""
    width: int
    renormalised: bool
    """Whether the shares of a token's experts add up to 1."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes on which the memory of a model's weights, steps and KV cache depends."""

    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length_tokens: int
    tied_embeddings: bool
    experts: Experts | None = None

    @property
    def kv_values(self) -> int:
        """Number of key and value numbers of one token."""
        return kv_values(self.layers, self.kv_heads, self.head_dim)

    def rank_kv_heads(self, ranks: int) -> int:
        """Key heads that each of `ranks` ranks holds: its share, or a copy of one."""
        return max(1, self.kv_heads // ranks)

    def key_copies(self, ranks: int) -> int:
        """Number of ranks that hold each key head."""
        return key_copies(self.kv_heads, ranks)

    def copied_weights(self, ranks: int) -> int:
        """Weights of keys and values that `ranks` ranks hold together beyond `parameters`."""
        return copied_weights(self.kv_values, self.hidden_size, self.key_copies(ranks))

    @property
    def shared_sizes(self) -> Mapping[str, int]:
        """Sizes that ranks divide among themselves, by their keys in config.json."""
        sizes = {
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.intermediate_size,
        }
        if self.experts is None or self.experts.width == self.intermediate_size:
            return sizes
        return sizes | {"moe_intermediate_size": self.experts.width}

    @property
    def rank_counts(self) -> tuple[int, ...]:
        """Numbers of ranks that can share each layer, ascending. They divide every size; but they
        may also be a multiple of the key heads, of which each rank then holds a copy."""
        sizes = {**self.shared_sizes}
        heads = sizes.pop("num_key_value_heads")
        return tuple(
            ranks
            for ranks in range(1, MAX_RANKS + 1)
            if not any(size % ranks for size in sizes.values())
            and not (heads % ranks and ranks % heads)
        )

    @property
    def layer_values(self) -> int:
        """Weights of all layers: attention and gated feed-forward parts, all experts included."""
        return self._layer_values(self.experts.count if self.experts else 0)

    @property
    def active_layer_values(self) -> int:
        """Number of weights of all layers that one token uses."""
        return self._layer_values(self.experts.active if self.experts else 0)

    @property
    def parameters(self) -> int:
        """Weights of all matrices."""
        return self.layer_values + self.table_values

    @property
    def table_values(self) -> int:
        """Weights of the embedding, and of the output layer if it is another matrix."""
        tables = 1 if self.tied_embeddings else 2
        return tables * self.vocabulary_size * self.hidden_size

    def _layer_values(self, experts_each: int) -> int:
        attention = 2 * self.hidden_size * self.head_dim * (self.heads + self.kv_heads)
        sparse = len(self.experts.layers) if self.experts else 0
        width = self.experts.width if self.experts else 0
        inner = (self.layers - sparse) * self.intermediate_size + sparse * experts_each * width
        return self.layers * attention + 3 * self.hidden_size * inner


def kv_values(layers: int, kv_heads: int, head_dim: int) -> int:
    """Number of values in one token's keys and values."""
    return 2 * layers * kv_heads * head_dim


def key_copies(kv_heads: int, ranks: int) -> int:
    """Number of `ranks` ranks that hold each of a model's key heads."""
    return max(1, ranks // kv_heads)


def copied_weights(token_values: int, hidden_size: int, copies: int) -> int:
    """Number of weights of keys and values in all copies but the first. `token_values`: the result
    of `kv_values`, each number of which takes a row of weights."""
    return (copies - 1) * token_values * hidden_size


def language_model(config: Config) -> Config:
    """The part of a config.json about the language model, with defaults for missing sizes. Keys
    missing in `text_config` are taken from beside it."""
    if isinstance(text := config.get("text_config"), Mapping):
        own = {key: value for key, value in text.items() if value is not None}
        config = {**config, **own, "architectures": config.get("architectures")}
    defaults = DEFAULTS.get(architecture_of(config) or "", {})
    if any(key in config for key in EXPERT_COUNTS):  # it has one of the spellings: no default
        defaults = {key: value for key, value in defaults.items() if key not in EXPERT_COUNTS}
    return {**defaults, **config}


def architecture_of(config: Config) -> str | None:
    """The first of `architectures`."""
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    return first if isinstance(first, str) else None


def shape_from(config: Config) -> ModelShape:
    """Sizes from the result of `language_model`.

    Raises:
        ConfigError: names the key, its value and what is allowed.
    """
    heads, hidden = whole_number(config, "num_attention_heads"), whole_number(config, "hidden_size")
    layers, context = (
        whole_number(config, key) for key in ("num_hidden_layers", "max_position_embeddings")
    )
    if config.get("sliding_window") is not None and architecture_of(config) in WINDOWED:
        context = min(context, whole_number(config, "sliding_window"))
    return ModelShape(
        vocabulary_size=whole_number(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=whole_number(config, "intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=whole_number(config, "num_key_value_heads", heads),
        head_dim=whole_number(config, "head_dim", hidden // heads),
        context_length_tokens=context,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        experts=_experts(config, layers),
    )


def _experts(config: Config, layers: int) -> Experts | None:
    key = next((key for key in EXPERT_COUNTS if config.get(key)), None)
    if key is None:
        return None
    count, active = whole_number(config, key), whole_number(config, "num_experts_per_tok")
    if active > count:
        raise ConfigError("num_experts_per_tok", active, f"at most {count} ({key})")
    step, dense = (
        whole_number(config, "decoder_sparse_step", 1),
        config.get("mlp_only_layers") or [],
    )
    if not isinstance(dense, list):
        raise ConfigError("mlp_only_layers", dense, "a list of layers")
    own_width = "moe_intermediate_size" if "moe_intermediate_size" in config else None
    return Experts(
        layers=frozenset(
            layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0
        ),
        count=count,
        active=active,
        width=whole_number(config, own_width or "intermediate_size"),
        renormalised=bool(config.get("norm_topk_prob", False)),
    )


def whole_number(config: Config, key: str, default: int | None = None) -> int:
    """The number at `key`; `default` if it is null or missing.

    Raises:
        ConfigError: the value is not a whole number of at least 1.
    """
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_COUNT:
        raise ConfigError(key, value, "a whole number from 1")
    return value
