"""How YAML is written: block style, keys in the order given, no aliases, long lines unbroken; and
how it is read: a key that is given twice is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import yaml

MERGE: Final = "tag:yaml.org,2002:merge"


class DuplicateKeyError(ValueError):
    """A mapping that has a key twice; `str()` names key and lines."""


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Texts of several lines as blocks, so that a file in a ConfigMap can be read."""
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_PlainDumper.add_representer(str, _text)


def to_yaml(value: Any) -> str:
    """One YAML document."""
    return yaml.dump(value, Dumper=_PlainDumper, sort_keys=False, width=10_000, allow_unicode=True)


def to_yaml_stream(values: Iterable[Any]) -> str:
    """Several documents, separated by `---`."""
    return "---\n".join(to_yaml(value) for value in values)


class _UniqueKeys(yaml.SafeLoader):
    """The first of two equal keys would be dropped without a word."""

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


def read_yaml_stream(text: str) -> Iterator[Any]:
    """Every document.

    Raises:
        DuplicateKeyError: names the key and both lines.
        yaml.YAMLError: it is not YAML.
    """
    yield from yaml.load_all(text, Loader=_UniqueKeys)
