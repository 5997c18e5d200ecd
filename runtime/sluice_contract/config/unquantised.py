"""Modules that `quantization_config` leaves out of quantisation.

Every method has a list of its own, with names, `*` for any text, or `re:` and an expression. Here
they only say how much memory is planned: what an engine reads, the tensors' names say. Of
expressions only what published checkpoints use is read. A module that may be left out by others
counts as left out, which takes more memory. Matching never backtracks: config.json is anybody's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from sluice_contract.config.model_shape import ModelShape

MAX_LAYERS: Final = 1024
"""Most layers of a model whose lists are read; with more, all are left out."""
MAX_PATTERN_STEPS: Final = 1 << 19
"""Most characters of patterns times layers that are compared; with more, all are left out."""
MODULES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "qkv": (tuple(f"self_attn.{name}_proj" for name in "qkv"), ("self_attn.qkv_proj",)),
    "output": (("self_attn.o_proj",),),
    "gate_up": (tuple(f"mlp.{name}_proj" for name in ("gate", "up")), ("mlp.gate_up_proj",)),
    "down": (("mlp.down_proj",),),
    "experts.gate_up": (
        tuple(f"mlp.experts.0.{name}_proj" for name in ("gate", "up")),
        tuple(f"block_sparse_moe.experts.0.{name}" for name in ("w1", "w3")),
    ),
    "experts.down": (("mlp.experts.0.down_proj",), ("block_sparse_moe.experts.0.w2",)),
}
"""Modules of a layer, by the matrix that they are joined to, under each of their names. It is not
packed if one of them is not quantised. The first expert stands for all."""
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
    sparse = shape.experts.layers if shape.experts else frozenset[int]()
    steps = shape.layers * sum(map(len, filter(_is_pattern, (*listed, *targets))))
    if shape.layers > MAX_LAYERS or steps > MAX_PATTERN_STEPS:
        dense = shape.layers - len(sparse)
        every = zip(MODULES, (shape.layers,) * 2 + (dense,) * 2 + (len(sparse),) * 2, strict=True)
        return tuple((matrix, layers) for matrix, layers in every if layers)
    is_listed, is_target = _matcher(listed, unread=True), _matcher(targets, unread=False)
    counts = dict[str, int]()
    for layer in range(shape.layers):
        for matrix, modules in MODULES.items():
            of_attention, of_experts = matrix in ("qkv", "output"), matrix.startswith("experts")
            if not of_attention and of_experts != (layer in sparse):
                continue
            named = [[f"model.layers.{layer}.{name}" for name in names] for names in modules]
            is_left_out = any(any(map(is_listed, paths)) for paths in named)
            if is_left_out or (targets and not any(all(map(is_target, paths)) for paths in named)):
                counts[matrix] = counts.get(matrix, 0) + 1
    return tuple(counts.items())


def _targets(quantization_config: Mapping[str, Any]) -> list[str]:
    """Modules that compressed-tensors or GPTQ quantises; empty: all."""
    groups = quantization_config.get("config_groups")
    values = groups.values() if isinstance(groups, Mapping) else ()
    lists = [group.get("targets") for group in values if isinstance(group, Mapping)]
    steps = quantization_config.get("modules_in_block_to_quantize")
    lists += [steps, *(steps if isinstance(steps, list) else ())]
    return [name for names in lists for name in _names(names)]


def _names(value: object) -> list[str]:
    names = value if isinstance(value, list) else ()
    return [name for name in names if isinstance(name, str)]


def _is_pattern(name: str) -> bool:
    return "*" in name or name.startswith("re:")


def _matcher(names: list[str], *, unread: bool) -> Callable[[str], bool]:
    """Whether a module is one of `names`, or a part of one. A name may leave out the beginning.
    `unread`: the answer where an expression cannot be read."""
    plain = {_as_first_expert(name) for name in names if not _is_pattern(name)}
    wild = [
        [ANY if part == "*" else (part,) for part in re.split(r"(\*)", _as_first_expert(name))]
        for name in names
        if _is_pattern(name) and not name.startswith("re:")
    ]
    expressions = [_parts(name.removeprefix("re:")) for name in names if name.startswith("re:")]
    is_unread, read = None in expressions, [parts for parts in expressions if parts is not None]

    def matches(path: str) -> bool:
        begins = {0, *(at + 1 for at, letter in enumerate(path) if letter == ".")}
        ends = {len(path), *(begin - 1 for begin in begins)}
        return (
            any(path[begin:end] in plain for begin in begins for end in ends if begin < end)
            or any(ends & _ends(parts, path, begins) for parts in wild)
            or any(_ends(parts, path, {0}) for parts in read)
            or (is_unread and unread)
        )

    return matches


Part = Collection[str] | str
"""A part of a pattern: texts of which one follows, or one of the kinds below."""
ANY, ONE, DIGITS, END = "any text", "any letter", "digits", "the end"
_PART: Final = re.compile(
    r"(?P<any>\.\*)|(?P<one>\.)|(?P<digits>\\d\+)|(?P<end>\$$)|(?P<text>[\w-]+|\\\.)"
    r"|\[(?P<letters>\w+)\]|\((?:\?:)?(?P<texts>(?:[\w-]|\\\.)+(?:\|(?:[\w-]|\\\.)+)*)\)"
)


def _parts(expression: str) -> list[Part] | None:
    """An expression's parts; None: it has others than these."""
    kinds = {"any": ANY, "one": ONE, "digits": DIGITS, "end": END}
    parts, at = list[Part](), int(expression.startswith("^"))
    while at < len(expression):
        part = _PART.match(expression, at)
        if part is None:
            return None
        kind, text, at = part.lastgroup or "", part[part.lastgroup or 0], part.end()
        texts = text.split("|") if kind == "texts" else [text]
        own = [*text] if kind == "letters" else [each.replace("\\", "") for each in texts]
        parts.append(kinds.get(kind, own))
    return parts


def _ends(parts: Sequence[Part], path: str, begins: set[int]) -> set[int]:
    """Places of the path where a pattern may end that begins at one of `begins`."""
    places = begins
    for part in parts:
        if not places:
            break
        places = {*_after(part, path, places)}
    return places


def _after(part: Part, path: str, places: set[int]) -> Iterator[int]:
    last = len(path)
    if part == ANY:
        yield from range(min(places), last + 1)
    elif part == ONE:
        yield from (place + 1 for place in places if place < last)
    elif part == END:
        yield from places & {last}
    elif part == DIGITS:
        for place in places:
            while place < last and path[place].isdecimal():
                place += 1
                yield place
    else:
        for text in part:
            yield from (place + len(text) for place in places if path.startswith(text, place))


def _as_first_expert(name: str) -> str:
    """The name without the part of a model with images, and with the first expert for any."""
    return re.sub(r"\bexperts\.\d+", "experts.0", name.replace("language_model.", ""))
