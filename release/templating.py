"""Manifests with places for Helm to fill in, as text.

A place is put into a plain manifest as an object; `to_template` writes YAML with Helm's actions
where the objects were. Knows no chart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_operator.cli.yaml_text import to_yaml

_MARK: Final = re.compile(r"place_(\d+)_in_the_template")
_BLOCK: Final = re.compile(rf"(?P<indent> *)(?:- )?{_MARK.pattern}(?:: null)?")
_INDENT: Final = re.compile(r"INDENT(?:\+(\d+))?")


@dataclass(frozen=True)
class Inline:
    """A scalar's value: `{{ .Values.replicas }}`."""

    action: str


@dataclass(frozen=True)
class Block:
    """Whole lines in the place of an item of a list or, as a key, of an entry of a mapping. In them
    INDENT stands for the columns they are indented by, INDENT+2 for two more."""

    text: str


def entry(text: str) -> dict[Any, Any]:
    """An entry of a mapping, to be merged with others."""
    return {Block(text): None}


def to_template(manifest: Mapping[str, Any]) -> str:
    """One document of a template."""
    places: list[Inline | Block] = []
    text = to_yaml(_marked(manifest, places))
    return "".join(f"{line}\n" for line in _lines(text.splitlines(), places))


def when(condition: str, text: str) -> str:
    """`text`, rendered only where the condition holds."""
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def _marked(value: Any, places: list[Inline | Block]) -> Any:
    if isinstance(value, Inline | Block):
        places.append(value)
        return f"place_{len(places) - 1}_in_the_template"
    if isinstance(value, Mapping):
        return {_marked(key, places): _marked(inner, places) for key, inner in value.items()}
    if isinstance(value, list):
        return [_marked(inner, places) for inner in value]
    return value


def _lines(lines: Iterable[str], places: list[Inline | Block]) -> Iterator[str]:
    for line in lines:
        found = _BLOCK.fullmatch(line)
        place = places[int(found[2])] if found else None
        if found and isinstance(place, Block):
            yield from _indented(place.text, found["indent"])
        else:
            yield _MARK.sub(lambda mark: _action(places[int(mark[1])]), line)


def _action(place: Inline | Block) -> str:
    assert isinstance(place, Inline), f"a block needs a line of its own: {place}"
    return place.action


def _indented(text: str, indent: str) -> Iterator[str]:
    for line in text.splitlines():
        yield indent + _INDENT.sub(lambda mark: str(len(indent) + int(mark[1] or 0)), line)
