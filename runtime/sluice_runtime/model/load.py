"""Builds a Decoder from a spec and a source of weights. Knows the checkpoint's tensor names."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.layers.backend import Backend, choose_backend
from sluice_runtime.layers.linear import linear
from sluice_runtime.layers.rope import inverse_frequencies
from sluice_runtime.layers.stack import LayerShape, LayerWeights
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.spec import ModelSpec, spec_from
from sluice_runtime.model.weights import RandomWeights, SafetensorsWeights, WeightSource
from sluice_runtime.model_files import ModelFiles

logger = logging.getLogger("sluice.engine")

HARMLESS: Final = ("rotary_emb.inv_freq", "lm_head.weight")
"""Endings of tensors that need not be read: derived from others, or tied to the embedding."""


def load_model(files: ModelFiles, dtype: str, seed: int, backend: str | None = None) -> Decoder:
    """The model behind `files`, in `dtype` (`auto`: the checkpoint's).

    `backend` is one of `layers.backend.BACKENDS`; left out, the best there is.

    Raises:
        ModelLoadError: one line with file, tensor, shapes or the key of config.json.
    """
    spec = spec_from(files.config)
    wanted: torch.dtype = getattr(torch, spec.dtype if dtype == "auto" else dtype)
    choice = choose_backend(wanted, backend)
    logger.info("kernels: %s", choice.message)
    if files.folder is None:
        return build_decoder(spec, RandomWeights(seed), wanted, choice.backend)
    with SafetensorsWeights(files.folder) as weights:
        return build_decoder(spec, weights, wanted, choice.backend)


def build_decoder(
    spec: ModelSpec, weights: WeightSource, dtype: torch.dtype, backend: Backend
) -> Decoder:
    """Reads every tensor, joins those that are multiplied together, checks that none is left."""
    reader = _Reader(spec, weights, dtype)
    embedding = reader.matrix("model.embed_tokens.weight", (spec.vocabulary_size, spec.hidden_size))
    layers = backend.layers((_layer(reader, index) for index in range(spec.layers)), _shape(spec))
    norm = reader.tensor("model.norm.weight", (spec.hidden_size,))
    head = (
        embedding
        if spec.tied_embeddings
        else reader.matrix("lm_head.weight", (spec.vocabulary_size, spec.hidden_size))
    )
    if left := [name for name in weights.unread() if not name.split(" in ")[0].endswith(HARMLESS)]:
        raise ModelLoadError(
            f"model.uri: tensor {left[0]} is not part of {spec.architecture} as implemented here"
        )
    frequencies = inverse_frequencies(spec.rope, spec.head_dim)
    return Decoder(spec, embedding, layers, norm, linear(head), frequencies, backend)


@dataclass(frozen=True)
class _Reader:
    spec: ModelSpec
    weights: WeightSource
    dtype: torch.dtype

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A small one: a copy of its own."""
        return self.weights.read(name, shape).to(self.dtype, copy=True)

    def matrix(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A large one: stays in the mapped file where that has the wanted type, so that engines
        on one node share its memory."""
        return self.weights.read(name, shape).to(self.dtype)


def _shape(spec: ModelSpec) -> LayerShape:
    return LayerShape(spec.heads, spec.kv_heads, spec.head_dim, spec.norm_eps)


def _layer(reader: _Reader, index: int) -> LayerWeights:
    spec, prefix = reader.spec, f"model.layers.{index}"
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_size, kv_size = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def norm(name: str, size: int) -> Tensor:
        return reader.tensor(f"{prefix}.{name}.weight", (size,))

    def matrix(name: str, out: int, width: int) -> Tensor:
        return reader.matrix(f"{prefix}.{name}.weight", (out, width))

    def head_norm(name: str) -> Tensor:
        return norm(f"self_attn.{name}", spec.head_dim)

    return LayerWeights(
        attention_norm=norm("input_layernorm", hidden),
        query=matrix("self_attn.q_proj", q_size, hidden),
        key=matrix("self_attn.k_proj", kv_size, hidden),
        value=matrix("self_attn.v_proj", kv_size, hidden),
        head_norms=(head_norm("q_norm"), head_norm("k_norm")) if spec.variant.qk_norm else None,
        output=matrix("self_attn.o_proj", hidden, q_size),
        mlp_norm=norm("post_attention_layernorm", hidden),
        gate=matrix("mlp.gate_proj", inner, hidden),
        up=matrix("mlp.up_proj", inner, hidden),
        down=matrix("mlp.down_proj", hidden, inner),
    )
