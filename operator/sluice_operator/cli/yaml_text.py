"""Writes YAML (block style, keys in the order given, no aliases, long lines unbroken), and reads it
as kubectl does, except that duplicate keys are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, ClassVar, Final

import yaml

MERGE: Final = "tag:yaml.org,2002:merge"
_TAG: Final = "tag:yaml.org,2002:"
_INTEGER: Final = re.compile(
    r"[-+]?(?:0x[0-9a-fA-F][0-9a-fA-F_]*|0b[01][01_]*|0[oO]?[0-7_]+|0|[1-9][0-9_]*)$"
)
_NUMBER: Final = re.compile(
    r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)"
    r"|\.(?:nan|NaN|NAN))$"
)
_LETTER: Final = re.compile(r"[yYnN]$")
_OTHERWISE: Final = {_TAG + name for name in ("int", "float", "timestamp")}
"""Types that kubectl reads by other rules: `1:30` is no number, and a date is text."""
MAX_NODES: Final = 100_000
"""Limit of one document; the largest that an API server accepts has fewer."""
_DIGITS: Final = "0123456789"


class DuplicateKeyError(ValueError):
    """A mapping that has a key twice; `str()` names key and lines."""


def _add_kubectl_scalars(kind: type[yaml.SafeLoader | yaml.SafeDumper]) -> None:
    """Adds the plain scalars that kubectl does not read as text: `1e3` and `0o7` are numbers, `y`
    is true."""
    kind.add_implicit_resolver(f"{_TAG}int", _INTEGER, list("-+" + _DIGITS))
    kind.add_implicit_resolver(f"{_TAG}float", _NUMBER, list("-+." + _DIGITS))
    kind.add_implicit_resolver(f"{_TAG}bool", _LETTER, list("yYnN"))


class ExpandedError(ValueError):
    """A document whose aliases stand for too much, or whose lists are nested too deeply."""


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Writes multi-line texts as blocks, so that a file in a ConfigMap is readable."""
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_add_kubectl_scalars(_PlainDumper)
_PlainDumper.add_representer(str, _text)


def to_yaml(value: Any) -> str:
    """One YAML document."""
    return yaml.dump(value, Dumper=_PlainDumper, sort_keys=False, width=10_000, allow_unicode=True)


def to_yaml_stream(values: Iterable[Any]) -> str:
    """Several documents, separated by `---`."""
    return "---\n".join(to_yaml(value) for value in values)


class _UniqueKeys(yaml.SafeLoader):
    """Refuses duplicate keys; PyYAML would silently drop the first."""

    bool_values: ClassVar = yaml.SafeLoader.bool_values | {"y": True, "n": False}

    def construct_document(self, node: yaml.Node) -> Any:
        if _size(node, {}) > MAX_NODES:
            raise ExpandedError(f"its aliases stand for more than {MAX_NODES} values")
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == MERGE or not isinstance(key_node, yaml.ScalarNode):
                continue
            key, line = self.construct_object(key_node), key_node.start_mark.line + 1
            if key in lines:
                text = f"line {line}: key {key!r} is given again; allowed: once (line {lines[key]})"
                raise DuplicateKeyError(text)
            lines[key] = line
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, sizes: dict[int, float]) -> float:
    """Number of values in `node` with aliases expanded; infinite where it contains itself."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = math.inf  # until the size is known
        inner = (
            chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        )
        sizes[id(node)] = 1 + sum(_size(below, sizes) for below in inner)
    return sizes[id(node)]


_UniqueKeys.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OTHERWISE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_add_kubectl_scalars(_UniqueKeys)


def read_yaml_stream(text: str) -> Iterator[Any]:
    """Every document.

    Raises:
        DuplicateKeyError: names the key and both lines.
        ExpandedError: it would be too large, or is too deep.
        yaml.YAMLError: it is not YAML.
    """
    try:
        yield from yaml.load_all(text, Loader=_UniqueKeys)
    except RecursionError:
        raise ExpandedError("its lists and mappings are nested too deeply") from None


def not_yaml(error: Exception) -> str:
    """Why a text is not YAML, and where, on one line."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    marks = ((error.context, error.context_mark), (error.problem, error.problem_mark))
    parts = [f"{message}{_where(mark)}" for message, mark in marks if message]
    return " ".join(", ".join(parts).split())


def _where(mark: yaml.Mark | None) -> str:
    return "" if mark is None else f" (line {mark.line + 1}, column {mark.column + 1})"
