"""Builds a Decoder from a spec and a source of weights. Layers: see `model.families`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import torch
from sluice_contract.base import ConfigError
from sluice_contract.config.engine import AttentionBackend
from sluice_contract.config.packing import PACKED_INPUTS, rank_counts
from sluice_kernels.packed import PackedMatrix

from sluice_runtime.errors import InvalidConfigError, ModelLoadError
from sluice_runtime.layers.adapters import AdapterBank
from sluice_runtime.layers.backend import Backend, choose_backend, with_pages, with_weights
from sluice_runtime.layers.rope import inverse_frequencies, pair_order
from sluice_runtime.layers.stack import LayerWeights
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.families.registry import family_of, spec_from
from sluice_runtime.model.files import ModelFiles
from sluice_runtime.model.kv_scales import kv_scales
from sluice_runtime.model.layer_tensors import WHOLE_ON_CPU, Placement, Reader
from sluice_runtime.model.load_progress import LoadProgress, OnRead, unreported
from sluice_runtime.model.quantised import Format, QuantisedWeights
from sluice_runtime.model.read_ahead import read_ahead
from sluice_runtime.model.shard import TensorPart
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.model.staging import CudaCopies
from sluice_runtime.model.streamed_weights import StreamedWeights
from sluice_runtime.model.weights import (
    Checkpoint,
    MappedWeights,
    RandomWeights,
    WeightSource,
)

logger = logging.getLogger("sluice.engine")

HARMLESS: Final = ("rotary_emb.inv_freq", "lm_head.weight")
"""Endings of tensors that need not be read: derived from others, or tied to the embedding."""


def load_model(
    files: ModelFiles,
    dtype: str,
    seed: int,
    backend: AttentionBackend = "auto",
    placement: Placement = WHOLE_ON_CPU,
    on_read: OnRead = unreported,
) -> Decoder:
    """Loads the model behind `files`, in `dtype` (`auto`: the checkpoint's).

    `backend`: the value of `attentionBackend`; `on_read`: called with the bytes read so far.

    Raises:
        ModelLoadError: one line with file, tensor, shapes or the key of config.json.
        InvalidConfigError: see `check_division`, `choose_backend` and `with_weights`.
    """
    spec = spec_from(files.config)
    spec = spec.serving(placement.context_tokens or spec.context_length_tokens)
    check_division(spec, placement.group.size)
    if placement.packs:
        check_groups(spec, placement.group.size)
    family = family_of(spec)
    model_dtype: torch.dtype = getattr(torch, spec.dtype if dtype == "auto" else dtype)
    pages = placement.pages
    choice = choose_backend(
        model_dtype,
        spec.head_dim,
        placement.device,
        backend,
        pages,
        family.layer_kinds(spec),
        family.native_lacks,
        spec.activation,
    )
    kernels = with_pages(with_weights(choice.backend, placement.weights), pages)
    held_as = "" if placement.weights == "auto" else f"; matrices: {placement.weights}"
    logger.info("kernels: %s%s", choice.message, held_as)

    if files.folder is None:
        reader = Reader(spec, RandomWeights(seed, placement.device), model_dtype, placement)
        scales = None if pages == "auto" else kv_scales(spec, None, placement.shard(spec))
        return replace(build_decoder(reader, kernels), kv_scales=scales)
    with Checkpoint(files.folder) as checkpoint, weights_of(checkpoint, placement, on_read) as read:
        scales = None if pages == "auto" else kv_scales(spec, checkpoint, placement.shard(spec))
        reader = Reader(spec, family.source(checkpoint, read), model_dtype, placement)
        if spec.quantised is not None:
            reader = _quantised(reader, checkpoint, read, spec.quantised)
        return replace(build_decoder(reader, kernels), kv_scales=scales)


def _quantised(
    reader: Reader, checkpoint: Checkpoint, read: WeightSource, stored_as: Format
) -> Reader:
    """A reader of quantised matrices, which stay packed if the device has a product for them."""
    spec, device, family = reader.spec, reader.placement.device, family_of(reader.spec)
    source = QuantisedWeights(checkpoint, read, stored_as, device)
    packing, held, left_out = spec.packing if reader.placement.packs else None, "dequantised as", ""
    if packing is not None:
        held = "packed, the others as"
        counts = ", ".join(f"{name} in {layers} layers" for name, layers in packing.left_out)
        left_out = f"; not packed, as config.json lists parts: {counts}" if counts else ""
    elif reader.placement.packs:
        held = f"inputs are not in whole groups of a multiple of {PACKED_INPUTS}, so {held}"
    logger.info(
        "weights: %s, %d MiB read; %s %s%s",
        stored_as,
        checkpoint.size_bytes >> 20,
        held,
        reader.dtype,
        left_out,
    )

    def packed(name: str, part: TensorPart) -> PackedMatrix | None:
        return source.read_packed(family.stored_name(checkpoint, name), part)

    weights = family.source(checkpoint, source)
    return replace(reader, weights=weights, packed=packed if packing else None)


@contextmanager
def weights_of(
    checkpoint: Checkpoint, placement: Placement, on_read: OnRead = unreported
) -> Iterator[WeightSource]:
    """Source of a checkpoint's tensors, on the device of `placement`."""
    progress = LoadProgress(checkpoint.size_bytes, on_read)
    if placement.device.type == "cpu":
        read_ahead(checkpoint.paths, progress)
        yield MappedWeights(checkpoint)
        return
    with StreamedWeights(checkpoint, CudaCopies(placement.device), progress) as streamed:
        yield streamed


def check_division(spec: ModelSpec, ranks: int) -> None:
    """Raises InvalidConfigError if `ranks` ranks cannot share the layers evenly."""
    if ranks in (counts := spec.rank_counts):
        return
    sizes = ", ".join(f"{key} {size}" for key, size in spec.shared_sizes.items())
    allowed = f"one of {', '.join(map(str, counts))}, for the model's {sizes}"
    raise InvalidConfigError(str(ConfigError("tensorParallelSize", ranks, allowed)))


def check_groups(spec: ModelSpec, ranks: int) -> None:
    """Raises InvalidConfigError if a rank would have a part of a packed group, or none."""
    packing = spec.packing
    if packing is None or ranks in (counts := rank_counts(spec, packing)):
        return
    allowed = f"one of {', '.join(map(str, counts))}, so that each rank has whole groups of "
    allowed += f"{packing.unit} packed inputs ({spec.quantised})"
    raise InvalidConfigError(str(ConfigError("tensorParallelSize", ranks, allowed)))


def build_decoder(reader: Reader, backend: Backend) -> Decoder:
    """Reads every tensor, joins matrices that are multiplied together, and checks that no tensor is
    left."""
    spec, weights, device = reader.spec, reader.weights, reader.placement.device
    family = family_of(spec)
    vocabulary, hidden = spec.vocabulary_size, spec.hidden_size
    embedding = reader.table("model.embed_tokens", vocabulary, hidden)
    slots = reader.placement.slots
    order = pair_order(spec.rope, spec.head_dim)
    bank = AdapterBank(slots, reader.dtype, device, order) if slots else None
    shape = family.layer_shape(spec, reader.placement.group, bank)
    layers = backend.layers(_layers(reader), shape)
    norm = reader.norm("model.norm", hidden, family.norm_dtype)
    head = embedding if spec.tied_embeddings else reader.table("lm_head", vocabulary, hidden)
    weights.settle()
    if left := [name for name in weights.unread() if not name.split(" in ")[0].endswith(HARMLESS)]:
        raise ModelLoadError(
            f"model.uri: tensor {left[0]} is not part of {spec.architecture} as implemented here"
        )
    frequencies = inverse_frequencies(spec.rope, spec.head_dim).to(device)
    other, scale = spec.windows and spec.windows.rope, spec.embedding_scale
    windowed = inverse_frequencies(other, spec.head_dim).to(device) if other else None
    return Decoder(
        spec,
        embedding,
        layers,
        family.last_norm(spec, norm),
        backend.operators.linear(head, None),
        frequencies,
        backend,
        reader.placement.group,
        bank,
        window_frequencies=windowed,
        embedding_scale=None if scale is None else torch.tensor(scale).to(device, reader.dtype),
    )


def _layers(reader: Reader) -> Iterator[LayerWeights]:
    """Layers, read one by one, so that only one layer at a time has its joined matrices in memory
    twice."""
    family = family_of(reader.spec)
    for index in range(reader.spec.layers):
        yield family.read_layer(reader, f"model.layers.{index}", reader.spec.hidden_size, index)
