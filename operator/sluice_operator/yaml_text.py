"""How YAML is written: block style, keys in the order given, no aliases, long lines unbroken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


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
