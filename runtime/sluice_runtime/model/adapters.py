"""Reads a LoRA adapter in PEFT's format: adapter_config.json and adapter_model.safetensors.

Low-rank pairs for the projections of attention and feed-forward part are supported. Everything else
in an adapter would change its results, and is refused by its key. Format:
https://huggingface.co/docs/peft/main/en/developer_guides/checkpoint. Knows no request.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from sluice_contract.config.weight_files import unread_weights
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.layers.adapters import AdapterBank, MatrixPlace, Pair
from sluice_runtime.layers.rope import in_order
from sluice_runtime.model.files import lfs_pointer, read_json
from sluice_runtime.model.shard import Shard, Split

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "self_attn.q_proj": ("query",),
    "self_attn.k_proj": ("key",),
    "self_attn.v_proj": ("value",),
    "self_attn.qkv_proj": ("query", "key", "value"),
    "self_attn.o_proj": ("output",),
    "mlp.gate_proj": ("gate",),
    "mlp.up_proj": ("up",),
    "mlp.gate_up_proj": ("gate", "up"),
    "mlp.down_proj": ("down",),
}
"""Fields of `LayerWeights`, stacked by outputs, by their name in checkpoints."""
_SPLITS: Final[Mapping[str, Split]] = {
    "query": Split.ROWS,
    "key": Split.KEYS,
    "value": Split.KEYS,
    "output": Split.COLUMNS,
    "gate": Split.GATED,
    "up": Split.GATED,
    "down": Split.DOWN,
}
"""Division of a field's matrix among ranks."""
_TURNING: Final = ("query", "key")

FEATURES: Final[tuple[tuple[str, tuple[object, ...]], ...]] = (
    ("peft_type", ("LORA",)),
    ("bias", ("none",)),
    ("use_dora", (False,)),
    ("use_qalora", (False,)),
    ("use_bdlora", (False,)),
    ("lora_bias", (False,)),
    ("init_lora_weights", (True, False, "gaussian", "orthogonal", "eva")),
    ("fan_in_fan_out", (False,)),
    ("modules_to_save", ([],)),
    ("trainable_token_indices", ()),
    ("target_parameters", ([],)),
    ("layer_replication", ()),
    ("alora_invocation_tokens", ()),
    ("arrow_config", ()),
    ("rank_pattern", ({},)),
    ("alpha_pattern", ({},)),
)
"""Keys that change what an adapter computes, with the values that are implemented; None is always
allowed."""

_NAME: Final = re.compile(
    r"base_model\.model\.model\.layers\.(?P<layer>\d+)\."
    r"(?P<matrix>\w+\.\w+)\.lora_(?P<side>[AB])\.weight"
)
_DIGEST_BYTES: Final = 8
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Adapter:
    """This rank's part of a loaded adapter, in host memory."""

    rank: int
    pairs: Mapping[MatrixPlace, Pair]


@dataclass(frozen=True)
class AdapterConfig:
    """Rank and scale from adapter_config.json."""

    rank: int
    scale: float
    """Factor on the product of A and B."""


def adapter_folder(uri: str) -> Path:
    """The folder behind a plain path or `file:///path`.

    Raises:
        ModelLoadError: the URI is of another kind, or names no folder.
    """
    scheme, separator, rest = uri.partition("://")
    folder = Path(rest if separator else uri)
    if (separator and scheme != "file") or not folder.is_dir():
        raise ModelLoadError(f"adapters: uri: {uri!r} is no folder; allowed: one in PEFT's format")
    return folder


def adapter_key(name: str, folder: Path) -> str:
    """Key of an adapter: its name and a digest of its files, so that equal keys give equal answers.

    Raises:
        ModelLoadError: a file cannot be read.
    """
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for path in (folder / CONFIG, folder / WEIGHTS):
        try:
            with path.open("rb") as file:
                digest.update(str(path.stat().st_size).encode() + b"\n")
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
        except OSError as error:
            why = error.strerror
            if path.name == WEIGHTS and (hint := unread_weights(os.listdir(folder), WEIGHTS)):
                why = f"{why}; {hint}"
            raise ModelLoadError(f"adapters: {path} cannot be read: {why}") from None
    return f"{name}@{digest.hexdigest()}"


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Reads adapter_config.json.

    Raises:
        ModelLoadError: names the key, its value and what is allowed.
    """
    path = folder / CONFIG
    config = read_json(path, "adapters")
    for key, allowed in FEATURES:
        value = config.get(key)
        if value is not None and value not in allowed:
            words = " or ".join(["absent", *map(repr, allowed)])
            raise _refused(path, key, value, words)
    rank = _number(path, config, "r")
    if rank != int(rank):
        raise _refused(path, "r", rank, "a whole number from 1")
    root = math.sqrt(rank) if config.get("use_rslora") else rank
    return AdapterConfig(int(rank), _number(path, config, "lora_alpha") / root)


def read_adapter(folder: Path, bank: AdapterBank, shard: Shard, inner: int) -> Adapter:
    """Reads the part of `shard`, in the type and for the matrices of `bank`. `inner`: inner values
    of the whole model's feed-forward part, which ranks may share unevenly.

    Raises:
        ModelLoadError: one line with file, key or tensor, value and what is allowed.
    """
    config = read_adapter_config(folder)
    if config.rank > bank.shape.rank:
        allowed = f"at most {bank.shape.rank} (maxLoraRank)"
        raise _refused(folder / CONFIG, "r", config.rank, allowed)
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            return Adapter(config.rank, dict(_pairs(path, file, config, bank, shard, inner)))
    except (SafetensorError, OSError) as error:
        flaw = lfs_pointer(path) or f"cannot be read: {error}"
        raise ModelLoadError(f"adapters: {path} {flaw}") from None


def _pairs(
    path: Path, file: Any, config: AdapterConfig, bank: AdapterBank, shard: Shard, inner: int
) -> Iterator[tuple[MatrixPlace, Pair]]:
    names, shapes = set(file.keys()), dict(bank.shapes())
    for name in sorted(names):
        places, side = _places(path, name)
        if any(place not in shapes for place in places):
            raise ModelLoadError(f"adapters: {path}: tensor {name}: the model has no such matrix")
        other = name.replace(f"lora_{side}.", f"lora_{'B' if side == 'A' else 'A'}.")
        if other not in names:
            raise ModelLoadError(f"adapters: {path}: tensor {other} is missing")
        if side == "B":
            continue
        wholes = [
            _whole_shapes(shapes[place], place, config.rank, shard, inner) for place in places
        ]
        outs = [b_shape[0] for _, b_shape in wholes]
        a = _read(path, file, name, wholes[0][0])
        b = _read(path, file, other, (sum(outs), config.rank)) * config.scale
        for place, rows in zip(places, torch.split(b, outs), strict=True):
            if bank.head_order is not None and place.field in _TURNING:
                rows = in_order(rows, bank.head_order)
            pair = _part(Pair(a, rows), _SPLITS[place.field], shard, bank)
            if not all(bool(factor.isfinite().all()) for factor in pair):
                # Multiplied by zero it would still be NaN, and would reach other rows of a step.
                raise ModelLoadError(f"adapters: {path}: tensor {name} or its B is not finite")
            yield place, pair


def _part(whole: Pair, split: Split, shard: Shard, bank: AdapterBank) -> Pair:
    """A rank's part of a pair: for a matrix divided by outputs it has all of A, otherwise all of
    B."""
    by_inputs = split.is_by_inputs
    part_a = shard.part(tuple(whole.a.shape), split if by_inputs else Split.NONE)
    part_b = shard.part(tuple(whole.b.shape), Split.NONE if by_inputs else split)
    factors = [
        factor.narrow(part.dim, part.begin, part.length).to(bank.dtype).contiguous()
        for factor, part in ((whole.a, part_a), (whole.b, part_b))
    ]
    if bank.device.type != "cpu":
        factors = [factor.pin_memory() for factor in factors]
    return Pair(*factors)


def _places(path: Path, name: str) -> tuple[list[MatrixPlace], str]:
    """Matrices that a tensor belongs to, and whether it is A or B."""
    match = _NAME.fullmatch(name)
    if match is None or match["matrix"] not in FIELDS:
        raise ModelLoadError(
            f"adapters: {path}: tensor {name} is not allowed; allowed: lora_A and lora_B of "
            + ", ".join(FIELDS)
        )
    fields = FIELDS[match["matrix"]]
    return [MatrixPlace(int(match["layer"]), field) for field in fields], match["side"]


def _whole_shapes(
    own: tuple[int, int], place: MatrixPlace, rank: int, shard: Shard, inner: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shapes of A and B, for a matrix of which this rank has `own` [out, in]: see
    `read_adapter`."""
    (out, width), split = own, _SPLITS[place.field]
    size = width if split.is_by_inputs else out
    whole = inner if split.is_inner else size * shard.parts(split)
    return ((rank, whole), (out, rank)) if split.is_by_inputs else ((rank, width), (whole, rank))


def _read(path: Path, file: Any, name: str, shape: tuple[int, int]) -> Tensor:
    """Reads a tensor, which must have `shape`, as float32."""
    tensor: Tensor = file.get_tensor(name)
    if tuple(tensor.shape) != shape:
        raise ModelLoadError(
            f"adapters: {path}: tensor {name} has shape {list(tensor.shape)}; the model and r want "
            f"{list(shape)}"
        )
    return tensor.to(torch.float32)


def _number(path: Path, config: Mapping[str, Any], key: str) -> float:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise _refused(path, key, value, "a number above 0")
    return float(value)


def _refused(path: Path, key: str, value: object, allowed: str) -> ModelLoadError:
    return ModelLoadError(f"adapters: {path}: {key}: {value!r} is not allowed; allowed: {allowed}")
