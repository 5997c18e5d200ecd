"""The parts of a schema one by one, so that what the library does not take has a place; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from sluice_runtime.grammar.schema.json_schema import ALONE, RESTRICTING
from sluice_runtime.grammar.schema.keywords import LISTS, MAPS, SCHEMAS, at

_MOST_PARTS: Final = 2000
"""Half a millisecond each."""


class Part(NamedTuple):
    """One keyword of a schema, or its keywords without the schemas below it."""

    place: str
    value: object
    """As it is shown to a person."""
    schema: Mapping[str, Any]
    """That holds this part, and nothing else."""
    pattern: str | None = None
    """The part, where it is a regular expression."""


def parts_of(text: str, *, tagged: bool) -> Iterator[Part]:
    """Of a schema as the library gets it; `tagged`: of all schemas in a structural tag."""
    try:
        given = json.loads(text)
    except ValueError:
        return
    schemas = _tagged(given) if tagged else [given]
    yield from islice((part for schema in schemas for part in _parts(schema, "")), _MOST_PARTS)


def _tagged(tag: object) -> Iterator[object]:
    if isinstance(tag, dict) and tag.get("type") == "json_schema" and "json_schema" in tag:
        yield tag["json_schema"]
        return
    below = tag.values() if isinstance(tag, dict) else tag if isinstance(tag, list) else ()
    for one in below:
        yield from _tagged(one)


def _parts(schema: object, path: str) -> Iterator[Part]:
    if not isinstance(schema, dict):
        return
    yield from _patterns(schema, path)
    yield from _own(schema, path)
    for key, value in schema.items():
        below = at(path, key)
        if key in SCHEMAS:
            yield from _parts(value, below)
        elif key in LISTS and isinstance(value, list):
            for number, part in enumerate(value):
                yield from _parts(part, f"{below}[{number}]")
        elif key in MAPS and isinstance(value, dict):
            for name, part in value.items():
                yield from _parts(part, f"{below}.{name}")


def _patterns(schema: Mapping[str, Any], path: str) -> Iterator[Part]:
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        yield Part(at(path, "pattern"), pattern, {"type": "string", "pattern": pattern}, pattern)
    of_names = schema.get("patternProperties")
    for name in of_names if isinstance(of_names, dict) else ():
        alone = {"type": "object", "patternProperties": {name: True}}
        yield Part(at(path, "patternProperties"), name, alone, name)


def _own(schema: Mapping[str, Any], path: str) -> Iterator[Part]:
    """All keywords at once, as they may contradict each other."""
    first = next((key for key in ALONE if key in schema), None)
    if first in ("const", "enum"):
        yield Part(at(path, first), schema[first], {first: schema[first]})
    if first is not None:
        return
    kept = {
        key: value
        for key, value in schema.items()
        if key in RESTRICTING and key not in ("pattern", "patternProperties")
    }
    holding = kept.keys() & {*SCHEMAS, *LISTS, *MAPS}
    shown = {key: value for key, value in kept.items() if key not in holding}
    if shown:
        emptied = {key: _emptied(key, kept[key]) for key in holding}
        yield Part(path or "the schema", shown, kept | emptied)


def _emptied(key: str, below: Any) -> object:
    """Any schema in place of those that a keyword holds."""
    if key in MAPS and isinstance(below, dict):
        return {name: {} for name in below}
    if key in LISTS and isinstance(below, list):
        return [{} for _ in below]
    return {} if isinstance(below, dict) else below
