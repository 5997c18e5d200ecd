"""Gemma 3: norms in float32 before and after each part, scaled embeddings and queries, and layers
with a window and their own rotation. Checkpoints from 4b on also have a vision part, which is not
read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.layers.dense import gelu_and_multiply
from sluice_runtime.layers.rope import Rope
from sluice_runtime.layers.stack import LayerWeights
from sluice_runtime.model.config_json import Config, object_of, refused, whole_number
from sluice_runtime.model.families.family import Family, NormNames
from sluice_runtime.model.layer_tensors import Reader
from sluice_runtime.model.shard import TensorPart
from sluice_runtime.model.spec import LAYER_KINDS, ModelSpec
from sluice_runtime.model.weights import Checkpoint, WeightSource

_OUTER: Final = "language_model."
_INNER: Final = "model.language_model."


@dataclass(frozen=True, kw_only=True)
class Gemma3Spec(ModelSpec):
    """Spec of Gemma 3."""

    query_scale: float
    """Factor on queries in addition to 1 / sqrt(head_dim); it is multiplied into the query
    norms."""


class _Gemma3(Family):
    def spec(self, config: Config) -> Gemma3Spec:
        spec = super().spec(config)
        scalar = whole_number(config, "query_pre_attn_scalar")
        own = {
            "activation": gelu_and_multiply,
            "embedding_scale": math.sqrt(spec.hidden_size),
            "query_scale": math.sqrt(spec.head_dim / scalar),
        }
        return Gemma3Spec(**vars(spec) | own)

    def ropes(self, config: Config, head_dim: int) -> tuple[Rope, Rope]:
        written = object_of(config, "rope_parameters") or {}
        if set(written) - {*LAYER_KINDS}:
            kinds = ", ".join(LAYER_KINDS)
            raise refused("rope_parameters", written, f"an object for each of {kinds}")
        scaling = object_of(config, "rope_scaling") or {}
        whole = {"rope_theta": config["rope_theta"], **scaling}
        windowed = {"rope_theta": config["rope_local_base_freq"]}

        def rope(kind: str, own: Config) -> Rope:
            parameters = {**own, **(object_of(written, kind) or {})}
            keys = {**config, "rope_scaling": None, "rope_parameters": parameters}
            return super(_Gemma3, self).ropes(keys, head_dim)[0]

        return rope(LAYER_KINDS[0], whole), rope(LAYER_KINDS[1], windowed)

    def read_layer(self, reader: Reader, prefix: str, width: int, index: int = 0) -> LayerWeights:
        layer, spec = super().read_layer(reader, prefix, width, index), reader.spec
        assert layer.head_norms is not None
        assert isinstance(spec, Gemma3Spec)
        query, key = layer.head_norms
        return replace(
            layer,
            attention_norm=_true(layer.attention_norm),
            attention_post_norm=_true(layer.attention_post_norm),
            mlp_norm=_true(layer.mlp_norm),
            mlp_post_norm=_true(layer.mlp_post_norm),
            head_norms=((query + 1) * spec.query_scale, key + 1),
        )

    def last_norm(self, spec: ModelSpec, stored: Tensor) -> Tensor:
        return stored + 1


def _true(stored: Tensor | None) -> Tensor | None:
    """Norm weights from stored ones, which are smaller by 1."""
    return None if stored is None else stored + 1


class _Gemma3WithVision(_Gemma3):
    """The language model: its config is in text_config, its tensors have a prefix."""

    def spec(self, config: Config) -> Gemma3Spec:
        if not isinstance(text := config.get("text_config"), Mapping):
            raise refused("text_config", text, "an object")
        return super().spec(config)

    def prefix(self, checkpoint: Checkpoint) -> str:
        """Prefix that replaces `model.` in names of the language model. In most checkpoints the
        output layer's name has the outer prefix too; in the others it has none."""
        inner = checkpoint.stored(f"{_INNER}embed_tokens.weight") is not None
        return _INNER if inner else f"{_OUTER}model."

    def source(self, checkpoint: Checkpoint, weights: WeightSource) -> WeightSource:
        return _TextPart(weights, partial(self.stored_name, checkpoint))

    def stored_name(self, checkpoint: Checkpoint, name: str) -> str:
        prefix = self.prefix(checkpoint)
        if name.startswith("model."):
            return f"{prefix}{name.removeprefix('model.')}"
        return name if prefix == _INNER else f"{_OUTER}{name}"


@dataclass(frozen=True)
class _TextPart:
    """`WeightSource` of a checkpoint's language model, under the names of a checkpoint that is only
    a language model."""

    source: WeightSource
    stored_name: Callable[[str], str]

    def read(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor:
        """See `WeightSource`."""
        return self.source.read(self.stored_name(name), part, dtype)

    def settle(self) -> None:
        """See `WeightSource`."""
        self.source.settle()

    def unread(self) -> list[str]:
        """Unread tensors of the language model: see `WeightSource`. Other parts need not be
        read."""
        own = (_OUTER, _INNER, "lm_head.")
        return [name for name in self.source.unread() if name.startswith(own)]


GEMMA3: Final = _Gemma3(
    norms=NormNames(
        after_attention="post_attention_layernorm",
        before_mlp="pre_feedforward_layernorm",
        after_mlp="post_feedforward_layernorm",
    ),
    norm_dtype=torch.float32,
    qk_norm=True,
    rope_types=("default", "linear", "dynamic", "llama3", "yarn"),
    whole_every=6,
    native_lacks="sliding windows and norms of float32",
    defaults={
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 1e4,
        "rope_theta": 1e6,
        "sliding_window": 4096,
    },
    features={
        "hidden_act": ("gelu_pytorch_tanh",),
        "hidden_activation": ("gelu_pytorch_tanh",),
    },
)
GEMMA3_WITH_VISION: Final = _Gemma3WithVision(**vars(GEMMA3))
