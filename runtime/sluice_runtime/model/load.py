"""Builds a Decoder from a spec and a source of weights. Knows the checkpoint's tensor names."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import torch
from sluice_contract.base import ConfigError
from sluice_contract.config.engine import AttentionBackend, WeightDType
from torch import Tensor

from sluice_runtime.errors import InvalidConfigError, ModelLoadError
from sluice_runtime.kv.pool import CPU
from sluice_runtime.layers.adapters import AdapterBank, SlotShape
from sluice_runtime.layers.backend import Backend, choose_backend, with_weights
from sluice_runtime.layers.rope import inverse_frequencies, pair_order
from sluice_runtime.layers.stack import ExpertsWeights, LayerShape, LayerWeights, MlpWeights
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.files import ModelFiles
from sluice_runtime.model.load_progress import LoadProgress, OnRead, unreported
from sluice_runtime.model.quantised import QuantisedWeights
from sluice_runtime.model.read_ahead import read_ahead
from sluice_runtime.model.shard import Shape, Shard, Split
from sluice_runtime.model.spec import ModelSpec, spec_from
from sluice_runtime.model.staging import CudaCopies
from sluice_runtime.model.streamed_weights import StreamedWeights
from sluice_runtime.model.weights import Checkpoint, MappedWeights, RandomWeights, WeightSource
from sluice_runtime.parallel.group import SOLO, Group

logger = logging.getLogger("sluice.engine")

HARMLESS: Final = ("rotary_emb.inv_freq", "lm_head.weight")
"""Endings of tensors that need not be read: derived from others, or tied to the embedding."""

SPLITS: Final[Mapping[str, Split]] = {
    "embed_tokens": Split.ROWS,
    "q_proj": Split.ROWS,
    "k_proj": Split.ROWS,
    "v_proj": Split.ROWS,
    "o_proj": Split.COLUMNS,
    "gate": Split.NONE,
    "gate_proj": Split.ROWS,
    "up_proj": Split.ROWS,
    "down_proj": Split.COLUMNS,
    "lm_head": Split.ROWS,
    "fc": Split.NONE,
}
"""Matrices by the last part of their names, divided as Megatron-LM does: a rank has whole heads, a
share of the feed-forward part, of each expert too, and a share of the vocabulary. Norms and routers
every rank has whole."""


@dataclass(frozen=True)
class Placement:
    """Where a model's weights go, which part of each, and what becomes of them there."""

    device: torch.device = CPU
    group: Group = SOLO
    slots: SlotShape | None = None
    """For adapters; None: there will be none."""
    weights: WeightDType = "auto"
    """What matrices become."""

    @property
    def shard(self) -> Shard:
        return Shard(self.group.rank, self.group.size)


WHOLE_ON_CPU: Final = Placement()


def load_model(
    files: ModelFiles,
    dtype: str,
    seed: int,
    backend: AttentionBackend = "auto",
    placement: Placement = WHOLE_ON_CPU,
    on_read: OnRead = unreported,
) -> Decoder:
    """The model behind `files`, in `dtype` (`auto`: the checkpoint's).

    `backend` is the value of `attentionBackend`; `on_read` is called with how far files are read.

    Raises:
        ModelLoadError: one line with file, tensor, shapes or the key of config.json.
        InvalidConfigError: see `check_division`, `choose_backend` and `with_weights`.
    """
    spec = spec_from(files.config)
    check_division(spec, placement.group.size)
    model_dtype: torch.dtype = getattr(torch, spec.dtype if dtype == "auto" else dtype)
    choice = choose_backend(model_dtype, spec.head_dim, placement.device, backend)
    kernels = with_weights(choice.backend, placement.weights)
    held_as = "" if placement.weights == "auto" else f"; matrices: {placement.weights}"
    logger.info("kernels: %s%s", choice.message, held_as)

    def built(weights: WeightSource) -> Decoder:
        return build_decoder(Reader(spec, weights, model_dtype, placement), kernels)

    if files.folder is None:
        return built(RandomWeights(seed, placement.device))
    with Checkpoint(files.folder) as checkpoint, weights_of(checkpoint, placement, on_read) as read:
        if spec.quantised is None:
            return built(read)
        size = checkpoint.size_bytes >> 20
        logger.info("weights: %s, %d MiB read; held as %s", spec.quantised, size, model_dtype)
        return built(QuantisedWeights(checkpoint, read, spec.quantised, placement.device))


@contextmanager
def weights_of(
    checkpoint: Checkpoint, placement: Placement, on_read: OnRead = unreported
) -> Iterator[WeightSource]:
    """The tensors of a checkpoint, on the device of `placement`."""
    progress = LoadProgress(checkpoint.size_bytes, on_read)
    if placement.device.type == "cpu":
        read_ahead(checkpoint.paths, progress)
        yield MappedWeights(checkpoint)
        return
    with StreamedWeights(checkpoint, CudaCopies(placement.device), progress) as streamed:
        yield streamed


def check_division(spec: ModelSpec, ranks: int) -> None:
    """Raises InvalidConfigError where so many ranks cannot share the layers evenly."""
    parts = spec.shared_sizes
    if any(part % ranks for part in parts.values()):
        sizes = [n for n in range(1, spec.kv_heads + 1) if not math.gcd(*parts.values()) % n]
        named = " and ".join(f"{key} {part}" for key, part in parts.items())
        allowed = f"one of {', '.join(map(str, sizes))}, by which the model's {named} are divided"
        raise InvalidConfigError(str(ConfigError("tensorParallelSize", ranks, allowed)))


@dataclass(frozen=True)
class Reader:
    """What is read of a checkpoint: tensors of one model, of one type, to one place."""

    spec: ModelSpec
    weights: WeightSource
    dtype: torch.dtype
    placement: Placement

    def norm(self, name: str, size: int) -> Tensor:
        """[size]."""
        return self._read(name, (size,), Split.NONE)

    def matrix(self, name: str, out: int, width: int) -> Tensor:
        """This rank's part of [out, width]."""
        return self._read(name, (out, width), SPLITS[name.rpartition(".")[2]])

    def bias(self, name: str, size: int) -> Tensor:
        """This rank's part of [size], of the matrix of that name."""
        return self._read(name, (size,), SPLITS[name.rpartition(".")[2]], "bias")

    def _read(self, name: str, shape: Shape, split: Split, kind: str = "weight") -> Tensor:
        part = self.placement.shard.part(shape, split)
        return self.weights.read(f"{name}.{kind}", part, self.dtype)


def build_decoder(reader: Reader, backend: Backend) -> Decoder:
    """Reads every tensor, joins those that are multiplied together, checks that none is left."""
    spec, weights, device = reader.spec, reader.weights, reader.placement.device
    vocabulary, hidden = spec.vocabulary_size, spec.hidden_size
    embedding = reader.matrix("model.embed_tokens", vocabulary, hidden)
    slots = reader.placement.slots
    bank = AdapterBank(slots, reader.dtype, device) if slots else None
    layers = backend.layers(_layers(reader), layer_shape(spec, reader.placement.group, bank))
    norm = reader.norm("model.norm", hidden)
    head = embedding if spec.tied_embeddings else reader.matrix("lm_head", vocabulary, hidden)
    weights.settle()
    if left := [name for name in weights.unread() if not name.split(" in ")[0].endswith(HARMLESS)]:
        raise ModelLoadError(
            f"model.uri: tensor {left[0]} is not part of {spec.architecture} as implemented here"
        )
    frequencies = inverse_frequencies(spec.rope, spec.head_dim).to(device)
    return Decoder(
        spec,
        embedding,
        layers,
        norm,
        backend.operators.linear(head, None),
        frequencies,
        backend,
        reader.placement.group,
        bank,
    )


def layer_shape(spec: ModelSpec, group: Group, bank: AdapterBank | None = None) -> LayerShape:
    """Of a rank of `group`."""
    heads, kv_heads = spec.heads // group.size, spec.kv_heads // group.size
    return LayerShape(
        heads,
        kv_heads,
        spec.head_dim,
        spec.norm_eps,
        group,
        qkv_bias=spec.variant.qkv_bias,
        experts=spec.experts is not None,
        adapters=bank,
    )


def _layers(reader: Reader) -> Iterator[LayerWeights]:
    """One after the other: matrices that are joined exist twice for one layer at a time."""
    for index in range(reader.spec.layers):
        yield read_layer(reader, f"model.layers.{index}", reader.spec.hidden_size, index)


def read_layer(reader: Reader, prefix: str, width: int, index: int = 0) -> LayerWeights:
    """The layer that is called `prefix`, whose queries, keys and values are made of `width`
    inputs."""
    spec = reader.spec
    hidden = spec.hidden_size
    q_size, kv_size = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def norm(name: str, size: int) -> Tensor:
        return reader.norm(f"{prefix}.{name}", size)

    def matrix(name: str, out: int, width: int) -> Tensor:
        return reader.matrix(f"{prefix}.{name}", out, width)

    def head_norm(name: str) -> Tensor:
        return norm(f"self_attn.{name}", spec.head_dim)

    def biases() -> tuple[Tensor, ...]:
        sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        return tuple(
            reader.bias(f"{prefix}.self_attn.{name}", size) for name, size in sizes.items()
        )

    layer = LayerWeights(
        attention_norm=norm("input_layernorm", hidden),
        query=matrix("self_attn.q_proj", q_size, width),
        key=matrix("self_attn.k_proj", kv_size, width),
        value=matrix("self_attn.v_proj", kv_size, width),
        qkv_biases=biases() if spec.variant.qkv_bias else None,
        head_norms=(head_norm("q_norm"), head_norm("k_norm")) if spec.variant.qk_norm else None,
        output=matrix("self_attn.o_proj", hidden, q_size),
        mlp_norm=norm("post_attention_layernorm", hidden),
        mlp=_mlp(reader, f"{prefix}.mlp", index),
    )
    reader.weights.settle()
    return in_pair_order(layer, spec)


def in_pair_order(layer: LayerWeights, spec: ModelSpec) -> LayerWeights:
    """A layer as it was read, with queries and keys in the order of `pair_order`."""
    if (order := pair_order(spec.rope, spec.head_dim)) is None:
        return layer

    def ordered(rows: Tensor) -> Tensor:
        heads = rows.reshape(-1, spec.head_dim, *rows.shape[1:])
        return heads.index_select(1, order.to(rows.device)).flatten(0, 1)

    biases, norms = layer.qkv_biases, layer.head_norms
    return replace(
        layer,
        query=ordered(layer.query),
        key=ordered(layer.key),
        qkv_biases=biases and (ordered(biases[0]), ordered(biases[1]), biases[2]),
        head_norms=norms and (ordered(norms[0]), ordered(norms[1])),
    )


def _mlp(reader: Reader, prefix: str, layer: int) -> MlpWeights | ExpertsWeights:
    spec, experts = reader.spec, reader.spec.experts

    def gated(prefix: str, width: int) -> MlpWeights:
        return MlpWeights(
            gate=reader.matrix(f"{prefix}.gate_proj", width, spec.hidden_size),
            up=reader.matrix(f"{prefix}.up_proj", width, spec.hidden_size),
            down=reader.matrix(f"{prefix}.down_proj", spec.hidden_size, width),
        )

    if experts is None or layer not in experts.layers:
        return gated(prefix, spec.intermediate_size)
    return ExpertsWeights(
        router=reader.matrix(f"{prefix}.gate", experts.count, spec.hidden_size),
        experts=[
            gated(f"{prefix}.experts.{number}", experts.width) for number in range(experts.count)
        ],
        active=experts.active,
        renormalised=experts.renormalised,
    )
