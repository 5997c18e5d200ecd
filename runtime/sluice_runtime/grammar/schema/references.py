"""Checks that the grammar library resolves a reference in a JSON schema; pure.

The library takes names as they are written: no escapes, no list indexes, no anchors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from sluice_runtime.grammar.schema.keywords import MAPS, SCHEMAS, at, refused

_ALLOWED: Final = (
    'one that begins with "#", by the names on the way to a schema in this one, such as {}'
)


def refuse_unresolvable(reference: object, root: object, path: str) -> None:
    """`path`: of the schema whose `$ref` it is.

    Raises:
        GrammarError: it leads to no schema within `root`; names place, value and what is allowed.
    """
    place, allowed = at(path, "$ref"), _ALLOWED.format(_example(root))
    if not (isinstance(reference, str) and reference.startswith("#")):
        raise refused(place, reference, allowed, "leads out of the schema")
    if reference != "#" and not reference.startswith("#/"):
        raise refused(place, reference, allowed, "is an anchor, which is not implemented")
    steps = [step for step in reference[1:].split("/") if step]
    if not _is_schema(steps, root):
        known = _is_schema([_unescaped(step) for step in steps], root, by_number=True)
        raise refused(place, reference, allowed, "is not implemented" if known else "leads nowhere")
    if not _is_checked(steps):
        raise refused(place, reference, allowed, "leads through what is no keyword")


def _is_schema(steps: Sequence[str], root: object, *, by_number: bool = False) -> bool:
    found = root
    for step in steps:
        if isinstance(found, Mapping) and step in found:
            found = found[step]
        elif by_number and isinstance(found, list) and step in map(str, range(len(found))):
            found = found[int(step)]
        else:
            return False
    return isinstance(found, Mapping | bool)


def _is_checked(steps: Sequence[str]) -> bool:
    """Whether the path goes through keywords: the content of annotations is not checked."""
    left = iter(steps)
    return all(key in SCHEMAS or (key in MAPS and next(left, None) is not None) for key in left)


def _unescaped(step: str) -> str:
    """As the specification resolves it."""
    return unquote(step).replace("~1", "/").replace("~0", "~")


def _example(root: object) -> str:
    """An allowed reference, from the schema's own definitions if it has any."""
    for key in ("$defs", "definitions"):
        definitions = root.get(key) if isinstance(root, Mapping) else None
        if isinstance(definitions, Mapping) and definitions:
            return f'"#/{key}/{min(definitions)[:60]}"'
    return '"#/$defs/name"'
