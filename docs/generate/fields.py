"""The fields of a model as rows of tables, path by path.

A part that occurs in several places (the resources of a container, say) is described once;
elsewhere its row names that place. Knows no model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sluice_operator.api.schema import left_out

from docs.generate.markdown import anchor, table
from docs.generate.schema_words import Schema, allowed_words, type_words

FEW: Final = 1
"""Most fields of a part that is described again wherever it occurs."""


@dataclass(frozen=True)
class Row:
    """One field. `default` is empty when leaving it out means nothing."""

    path: str
    type: str
    default: str
    allowed: str
    meaning: str


@dataclass(frozen=True)
class Section:
    """The fields of one part of a page, under a heading of its path."""

    path: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Notes:
    """Notes that a schema does not have: by path, the only values that this version allows; by name
    of a field, the place where its values are explained."""

    so_far: Mapping[str, str] = field(default_factory=dict)
    explained: Mapping[str, str] = field(default_factory=dict)


def sections_of(
    root: Schema, path: str, opening: tuple[str, ...], notes: Notes, told: dict[str, str]
) -> Iterator[Section]:
    """The section of `path`, then of each path of `opening`, which must be below those before.

    `told`: the place where each part is described, by the part's content; grows.
    """
    below = {path: root}
    for one in (path, *opening):
        walk = _Walk(opening, notes, told, below)
        yield Section(one, tuple(walk.rows(below[one], one)))


@dataclass(frozen=True)
class _Walk:
    opening: tuple[str, ...]
    notes: Notes
    told: dict[str, str]
    below: dict[str, Schema]
    """Parts with a section of their own, found on the way."""

    def rows(self, part: Schema, path: str) -> Iterator[Row]:
        for name, node in part["properties"].items():
            place = f"{path}.{name}" if path else name
            suffix, inner = _inner(node)
            more = self._where(f"{place}{suffix}", inner) if inner else ""
            yield self._row(part, name, node, place, more)
            if inner and not more:
                yield from self.rows(inner, f"{place}{suffix}")

    def _where(self, path: str, inner: Schema) -> str:
        """Text that names the place where the fields of `inner` are described; empty: right
        here."""
        if path in self.opening:
            self.below[path] = inner
            self.told[_identity(inner)] = f"[{path}](#{anchor(path)})"
            return f"Fields: [{path}](#{anchor(path)})."
        if _identity(inner) in self.told:
            return f"Fields as of {self.told[_identity(inner)]}."
        if _size(inner) > FEW:
            self.told[_identity(inner)] = f"`{path}`"
        return ""

    def _row(self, part: Schema, name: str, node: Schema, place: str, more: str) -> Row:
        default = left_out(node)
        required = "required" if name in part.get("required", ()) else ""
        meaning = " ".join(words for words in (node.get("description", ""), more) if words)
        allowed = "; ".join(words for words in self._allowed(part, name, node, place) if words)
        return Row(
            place, type_words(node), required if default is None else default, allowed, meaning
        )

    def _allowed(self, part: Schema, name: str, node: Schema, place: str) -> Iterator[str]:
        words = allowed_words(node)
        link = self.notes.explained.get(name) if "enum" in node else None
        yield f"{words} ([meanings]({link}))" if link else words
        for rule in part.get("x-kubernetes-validations", ()):
            if rule.get("fieldPath") == f".{name}":
                yield allowed_by(rule)
        _, inner = _inner(node)
        for rule in (inner or node).get("x-kubernetes-validations", ()):
            if "fieldPath" not in rule:
                yield allowed_by(rule)
        if place in self.notes.so_far:
            yield _so_far(self.notes.so_far[place])


def allowed_by(rule: Schema) -> str:
    """What a rule across fields allows, from an entry of x-kubernetes-validations."""
    return str(rule["message"]).removeprefix("allowed: ")


def _so_far(words: str) -> str:
    if words.startswith("nothing"):
        return f"**Not yet**{words.removeprefix('nothing')}"
    return f"**So far only** {words}"


def key_table(section: Section, title: str) -> Iterator[str]:
    """A section of a file's keys, under its heading."""
    yield from (f"## {title}", "")
    rows = (
        (f"`{row.path}`", row.type, row.default, row.allowed, row.meaning) for row in section.rows
    )
    yield from table(("key", "type", "default", "allowed", "what it does"), rows)
    yield ""


def rules_of(node: Schema, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every rule across fields with the path that it is about, of equal ones the first."""
    seen = set[str]()
    for place, rule in _rules(node, path):
        if rule["rule"] not in seen:
            seen.add(rule["rule"])
            yield place, rule


def _rules(node: Schema, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for rule in node.get("x-kubernetes-validations", ()):
        yield path + rule.get("fieldPath", ""), rule
    for name, child in node.get("properties", {}).items():
        suffix, inner = _inner(child)
        if inner:
            yield from _rules(inner, f"{path}.{name}{suffix}")


def _inner(node: Schema) -> tuple[str, Schema | None]:
    """The object that a field holds, itself or as an item; and how its path goes on."""
    if "properties" in node:
        return "", node
    if "properties" in node.get("items", {}):
        return "[]", node["items"]
    values = node.get("additionalProperties")
    if isinstance(values, dict) and "properties" in values:
        return ".KEY", values
    return "", None


def _identity(part: Schema) -> str:
    return json.dumps(part["properties"], sort_keys=True)


def _size(part: Schema) -> int:
    inner = [_inner(node)[1] for node in part["properties"].values()]
    return len(inner) + sum(_size(one) for one in inner if one)
