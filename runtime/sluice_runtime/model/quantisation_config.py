"""Reads the storage format of a quantised checkpoint from config.json.

Tensor names show which matrices are quantised, so `modules_to_not_convert`, `ignore` and the like
are not needed. Refuses what `model.quantised` does not read, by key, value and what is allowed:
keys of one of few values by the contract's table, before a download, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_contract.config.packing import QUANTISATION_KEYS
from sluice_contract.config.supported import unsupported_key

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.config_json import Config
from sluice_runtime.model.mxfp4 import Mxfp4
from sluice_runtime.model.quantised import INTS, Format, Fp8, Int4


def format_from(config: Config) -> Format | None:
    """The format that config.json names; None: weights are not quantised.

    Raises:
        ModelLoadError: names the key, its value and what is allowed.
    """
    key = next((key for key in QUANTISATION_KEYS if config.get(key) is not None), None)
    if key is None:
        return None
    value = _Keys(key, config[key] if isinstance(config[key], Mapping) else {})
    if value.values is not config[key]:
        raise value.refused("", config[key], "an object")
    method = value.one_of("quant_method", *FORMATS)
    if refused := unsupported_key(method, value.values):
        path, found, required = refused
        raise value.refused(path, found, " or ".join(map(_word, required.allowed)))
    return FORMATS[method](value)


@dataclass(frozen=True)
class _Keys:
    """An object of config.json, and its path there."""

    name: str
    values: Config

    def refused(self, key: str, value: object, allowed: str) -> ModelLoadError:
        path = f"{self.name}.{key}" if key else self.name
        return ModelLoadError(f"config.json: {path}: {value!r} is not allowed; allowed: {allowed}")

    def one_of(self, key: str, *allowed: Any) -> Any:
        """Value of the key, which must be one of `allowed`."""
        value = self.values.get(key)
        if not any(value == choice and type(value) is type(choice) for choice in allowed):
            raise self.refused(key, value, " or ".join(map(_word, allowed)))
        return value

    def below(self, key: str) -> _Keys:
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.refused(key, value, "an object")
        return _Keys(f"{self.name}.{key}", value)

    def block(self, key: str) -> tuple[int, int] | None:
        value = self.values.get(key)
        if value is None:
            return None
        whole = isinstance(value, list) and all(type(size) is int and size > 0 for size in value)
        if not whole or len(value) != 2:
            raise self.refused(key, value, "absent, or two whole numbers from 1")
        return value[0], value[1]

    def group_size(self) -> int:
        value = self.values.get("group_size", self.values.get("q_group_size"))
        if type(value) is not int or (value != -1 and (value < 1 or value % INTS)):
            raise self.refused("group_size", value, "-1, or a multiple of 8")
        return value


def _word(value: object) -> str:
    return "absent" if value is None else repr(value)


def _compressed(keys: _Keys) -> Fp8:
    groups = keys.below("config_groups")
    formats = {_compressed_group(groups.below(name).below("weights")) for name in groups.values}
    if len(formats) != 1:
        raise groups.refused("", sorted(map(str, formats)), "groups of one format")
    return formats.pop()


def _compressed_group(weights: _Keys) -> Fp8:
    block = weights.block("block_structure")
    if (weights.values["strategy"] == "block") != (block is not None):
        raise weights.refused("block_structure", block, "with strategy 'block', and only there")
    return Fp8(block)


def _awq(keys: _Keys) -> Int4:
    # Eight outputs are stored in the order 0, 2, 4, 6, 1, 3, 5, 7.
    return Int4("AWQ", 1, (0, 16, 4, 20, 8, 24, 12, 28), keys.group_size())


def _gptq(keys: _Keys) -> Int4:
    symmetric = keys.values.get("sym") is not False
    # GPTQ's first layout stores zeros reduced by one.
    offset = 0 if keys.values.get("checkpoint_format") == "gptq_v2" else 1
    return Int4("GPTQ", 0, tuple(range(0, 32, 4)), keys.group_size(), offset, symmetric)


FORMATS: Final[Mapping[str, Callable[[_Keys], Format]]] = {
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fp8": lambda keys: Fp8(keys.block("weight_block_size")),
    "gptq": _gptq,
    "modelopt": lambda _: Fp8(),
    "mxfp4": lambda _: Mxfp4(),
}
"""Constructors of formats by `quant_method`; `supported.py` of the contract lists the same
names."""
