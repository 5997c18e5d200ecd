"""Modules that `quantization_config` leaves out of quantisation.

Every method has a list of its own, with names, `*` for any text, or `re:` and an expression. Here
they only say how much memory is planned: what an engine reads, the tensors' names say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from sluice_contract.config.model_shape import ModelShape

MAX_LAYERS: Final = 1024
"""Most layers of a model whose lists are read."""
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv": tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v", "qkv")),
    "output": ("self_attn.o_proj",),
    "gate_up": tuple(f"mlp.{name}_proj" for name in ("gate", "up", "gate_up")),
    "down": ("mlp.down_proj",),
    "experts.gate_up": (
        *(f"mlp.experts.0.{name}_proj" for name in ("gate", "up")),
        *(f"block_sparse_moe.experts.0.{name}" for name in ("w1", "w3")),
    ),
    "experts.down": ("mlp.experts.0.down_proj", "block_sparse_moe.experts.0.w2"),
}
"""Modules of a layer, by the matrix that they are joined to. It is not packed if one of them is not
quantised. The first expert stands for all."""
_LISTS: Final = ("modules_to_not_convert", "ignore", "exclude_modules")


def unquantised_layers(
    quantization_config: Mapping[str, Any], shape: ModelShape
) -> tuple[tuple[str, int], ...]:
    """Keys of `MODULES` that are not quantised in some layers of a model, and in how many."""
    listed = [name for key in _LISTS for name in _names(quantization_config.get(key))]
    targets = _targets(quantization_config)
    targets = [] if "Linear" in targets else targets
    if not listed and not targets:
        return ()
    is_listed, is_target = _matcher(listed), _matcher(targets)
    sparse = shape.experts.layers if shape.experts else frozenset[int]()
    counts = dict[str, int]()
    for layer in range(shape.layers if shape.layers <= MAX_LAYERS else 0):
        for matrix, modules in MODULES.items():
            of_attention, of_experts = matrix in ("qkv", "output"), matrix.startswith("experts")
            if not of_attention and of_experts != (layer in sparse):
                continue
            paths = [f"model.layers.{layer}.{module}" for module in modules]
            if any(map(is_listed, paths)) or (targets and not any(map(is_target, paths))):
                counts[matrix] = counts.get(matrix, 0) + 1
    return tuple(counts.items())


def _targets(quantization_config: Mapping[str, Any]) -> list[str]:
    """Modules that compressed-tensors quantises; empty: all."""
    groups = quantization_config.get("config_groups")
    values = groups.values() if isinstance(groups, Mapping) else ()
    groups = [group for group in values if isinstance(group, Mapping)]
    return [name for group in groups for name in _names(group.get("targets"))]


def _names(value: object) -> list[str]:
    names = value if isinstance(value, list) else ()
    return [name for name in names if isinstance(name, str)]


def _matcher(names: list[str]) -> Callable[[str], bool]:
    """Whether a module is one of `names`, or a part of one. A name may leave out the beginning."""
    plain = {_as_first_expert(name) for name in names if not name.startswith("re:")}
    wild = [name for name in plain if "*" in name]
    expressions = [name.removeprefix("re:") for name in names if name.startswith("re:")]

    def matches(path: str) -> bool:
        words = path.split(".")
        ends = range(len(words))
        spans = [".".join(words[begin : end + 1]) for begin in ends for end in ends[begin:]]
        return (
            any(span in plain for span in spans)
            or any(fnmatchcase(span, name) for name in wild for span in spans)
            or any(_matches(expression, path) for expression in expressions)
        )

    return matches


def _as_first_expert(name: str) -> str:
    """The name without the part of a model with images, and with the first expert for any."""
    return re.sub(r"\bexperts\.\d+", "experts.0", name.replace("language_model.", ""))


def _matches(expression: str, path: str) -> bool:
    try:
        return re.match(expression, path) is not None
    except re.error:
        return False
