"""Rewrites clients' JSON schemas for the grammar library; pure.

Keywords that the library does not enforce are refused or, in a best-effort schema, left out and
their places reported. Objects without `additionalProperties` are closed on demand, types implied by
keywords are written out, `oneOf` becomes `anyOf`, and unknown formats are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.patterns import portable
from sluice_runtime.grammar.schema_keywords import (
    FORMATS,
    IMPLIED_TYPE,
    IN_PLACE,
    IS_OF_TYPE,
    LEFT_WITH,
    LISTS,
    MAPS,
    MAX_DEPTH,
    OBJECT_KEYWORDS,
    RESTRICTING,
    SCHEMAS,
    ConjunctionFacts,
    Steps,
    at,
    facts_of,
    is_conjunction,
    list_of,
    refused,
    target_of,
    unimplemented_keywords,
)


class Usable(NamedTuple):
    """A schema for the library, which may be changed."""

    schema: Any
    left_out: list[str]
    """Places of keywords that were left out of a best-effort schema."""
    moved: Mapping[str, str]
    """Original places of schemas that were moved or copied, by new place."""


def usable_schema(schema: object, *, closed: bool = True, steps: Steps | None = None) -> Any:
    """The schema for the library. `closed`: objects have only the properties, and tuples only the
    items, that the schema names; `steps`: steps that the request has left.

    Raises:
        GrammarError: a part of the schema would not be enforced; the message says where.
    """
    return _Rewriting(schema, closed, steps or Steps()).run().schema


def best_effort_schema(
    schema: object, *, closed: bool = True, steps: Steps | None = None
) -> Usable:
    """The schema without the keywords for which `usable_schema` refuses it.

    Raises:
        GrammarError: no steps are left to the request.
    """
    return _Rewriting(schema, closed, steps or Steps(), best_effort=True).run()


def subschemas(schema: object, path: str = "") -> list[tuple[str, Any]]:
    """The schemas directly in a schema, with their places."""
    parts: list[tuple[str, Any]] = []
    if isinstance(schema, dict):
        _replaced(schema, path, lambda key, part, place: parts.append((place, part)))
    return parts


class _Rewriting:
    """Rewriting of one schema. A schema is a `member` if sibling schemas restrict its value too;
    rules about the whole value then do not apply to the member alone."""

    def __init__(
        self, root: object, closed: bool, steps: Steps, *, best_effort: bool = False
    ) -> None:
        self._root = root
        self._steps = steps
        self._closed = closed
        self._best_effort = best_effort
        self._left_out: dict[str, None] = {}
        self._copies: dict[tuple[str, bool], str] = {}
        """Names of definitions, by reference and whether the copy is a member."""
        self._pending: list[tuple[str, str, bool]] = []

    def run(self) -> Usable:
        schema = self._usable(self._root, "", 0, member=False)
        copies, moved = dict[str, Any](), dict[str, str]()
        while self._pending:
            name, reference, member = self._pending.pop()
            target, place = target_of(reference, self._root), reference[2:].replace("/", ".")
            if reference == "#" and isinstance(target, dict):
                target = {key: value for key, value in target.items() if key != "$defs"}
            copies[name] = self._usable(target, place, 0, member=member)
            moved[f"$defs.{name}"] = place
        if copies:
            schema["$defs"] = schema.get("$defs", {}) | copies
        return Usable(schema, list(self._left_out), moved)

    def _leave_out(self, place: str, error: GrammarError) -> None:
        """Records what is left out of a best-effort schema; for other schemas raises `error`."""
        if not self._best_effort:
            raise error
        self._left_out[place] = None

    def _usable(self, schema: object, path: str, depth: int, *, member: bool) -> Any:
        self._steps.take()
        if isinstance(schema, bool):
            return schema
        if depth > MAX_DEPTH:
            error = GrammarError(f"the schema is nested too deeply; allowed: {MAX_DEPTH} deep")
            self._leave_out(path, error)
            return {}
        if not isinstance(schema, dict):
            place = path or "the schema"
            self._leave_out(
                place, refused(place, schema, "an object, true or false", "is no schema")
            )
            return {}
        usable = self._without_unimplemented(_with_tuples(_restrictions(schema)), path)
        usable = self._with_names(usable, path)
        conjunction = is_conjunction(usable)
        facts = facts_of(usable, self._root, self._steps) if conjunction else None
        alone = not (member or conjunction)
        usable = self._with_reference(usable, path, member=not alone)
        if not conjunction:
            usable = _with_evaluated(usable)
        if alone:
            usable = _typed(usable)

        def part_of(key: str, part: Any, place: str) -> Any:
            inner = not alone and key in IN_PLACE
            return self._usable(part, place, depth + 1, member=inner)

        usable = _with_portable_patterns(_replaced(usable, path, part_of))
        if facts is not None:
            return self._conjoined(usable, facts, path, depth, member=member)
        if "oneOf" in usable:
            usable["anyOf"] = usable.pop("oneOf")
        return usable if member else self._complete(usable, path)

    def _without_unimplemented(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        for key, error in list(unimplemented_keywords(schema, path, self._root, self._steps)):
            self._leave_out(at(path, key), error)
            gone = (key, LEFT_WITH.get(key))
            schema = {other: value for other, value in schema.items() if other not in gone}
        return schema

    def _with_reference(self, schema: dict[str, Any], path: str, *, member: bool) -> dict[str, Any]:
        """The schema with its reference redirected to a definition that is rewritten for this
        use."""
        reference = schema.get("$ref")
        if not isinstance(reference, str) or target_of(reference, self._root) is None:
            return schema  # the library reports the error
        if not (reference == "#" or reference.startswith("#/")):
            return schema
        if not member and _leads_through_keywords(reference):
            return schema
        if (name := self._copies.get((reference, member))) is None:
            taken = self._root.get("$defs", {}) if isinstance(self._root, dict) else {}
            last = re.sub("[^a-zA-Z0-9_-]", "_", reference.rpartition("/")[2])
            name = f"{last if reference != '#' else 'root'}_copy{len(self._copies)}"
            while name in taken:
                name += "_"
            self._copies[reference, member] = name
            self._pending.append((name, reference, member))
        return schema | {"$ref": f"#/$defs/{name}"}

    def _conjoined(
        self,
        schema: dict[str, Any],
        facts: ConjunctionFacts,
        path: str,
        depth: int,
        *,
        member: bool,
    ) -> dict[str, Any]:
        """The schema with what several restrictions of one value imply together."""
        parts = schema["allOf"] if isinstance(schema.get("allOf"), list) else []
        if "oneOf" in schema:
            parts = [*parts, {"anyOf": schema.pop("oneOf")}]
        rest, names = schema.pop("unevaluatedProperties", None), facts.names
        if "additionalProperties" in schema:
            rest = None  # additionalProperties evaluates all properties
        if rest is None and names | facts.patterns and not (member or facts.is_open):
            rest, names = False if self._closed else None, names | facts.required
        if rest is not None:
            named = {"properties": dict.fromkeys(names, True)}
            fitting = {"patternProperties": dict.fromkeys(facts.patterns, True)}
            closing = named | (fitting if facts.patterns else {}) | {"additionalProperties": rest}
            parts = [*parts, closing]
        if parts:
            schema["allOf"] = parts
        if not member and facts.kinds and not facts.is_typed:
            schema["type"] = sorted(facts.kinds)
        return schema

    def _complete(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """The schema with every required name among its properties; closed if that is asked for."""
        properties = schema.get("properties", {})
        required = [name for name in list_of(schema, "required") if isinstance(name, str)]
        missing = [name for name in required if name not in properties]
        others = schema.get("additionalProperties", True)
        if missing and others is False and "patternProperties" not in schema:
            allowed = "names of properties, where additionalProperties is false"
            self._leave_out(
                at(path, "required"), refused(at(path, "required"), missing[0], allowed)
            )
            schema["required"] = [name for name in schema["required"] if name not in missing]
            missing = []
        if isinstance(properties, dict) and (others is True or "patternProperties" not in schema):
            named = properties | dict.fromkeys(missing, others)
            schema = schema | ({"properties": named} if missing else {})
        if self._closed and schema.keys() & {"properties", "patternProperties"}:
            schema.setdefault("additionalProperties", False)
        if self._closed and _is_whole_tuple(schema):
            schema.setdefault("items", False)
        return schema

    def _with_names(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """The schema with `propertyNames` replaced by the properties that it names, or by a pattern
        for names."""
        if "propertyNames" not in schema:
            return schema
        rest = {key: value for key, value in schema.items() if key != "propertyNames"}
        names = schema["propertyNames"]
        if isinstance(names, dict) and isinstance(names.get("$ref"), str) and len(names) == 1:
            names = target_of(names["$ref"], self._root)
        fits = _named_properties(names, rest)
        if fits is None:
            place = at(path, "propertyNames")
            allowed = (
                'an "enum", a "const", a "pattern", or a "minLength" and a "maxLength" of names; '
                "the latter beside nothing but additionalProperties and required"
            )
            self._leave_out(
                place, refused(place, schema["propertyNames"], allowed, "is not implemented")
            )
            return rest
        return rest | fits


def _named_properties(names: object, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Keywords equivalent to the `propertyNames` schema `names`; None if there are none."""
    if names is True or names == {}:
        return {}
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return None
    limits = {key: value for key, value in names.items() if key in RESTRICTING and key != "type"}
    if isinstance(limits.get("format"), str) and limits["format"] not in FORMATS:
        del limits["format"]
    others, properties = schema.get("additionalProperties", True), schema.get("properties", {})
    match limits:
        case {"enum": [*listed], **rest} if not rest and "patternProperties" not in schema:
            pass
        case {"const": name, **rest} if not rest and "patternProperties" not in schema:
            listed = [name]
        case _:
            pattern = _pattern_of_names(limits)
            if pattern is None or schema.keys() & {"properties", "patternProperties"}:
                return {} if not limits else None
            return {"patternProperties": {pattern: others}, "additionalProperties": False}
    named = [name for name in listed if isinstance(name, str)]
    if not isinstance(properties, dict):
        return None
    fits = {name: properties.get(name, others) for name in [*properties, *named] if name in named}
    return {"properties": fits, "additionalProperties": False}


def _pattern_of_names(limits: Mapping[str, Any]) -> str | None:
    match limits:
        case {"pattern": str(pattern), **rest} if not rest:
            return pattern
        case {**rest} if rest and rest.keys() <= {"minLength", "maxLength"}:
            least, most = rest.get("minLength", 0), rest.get("maxLength", "")
            if all(
                value == "" or (IS_OF_TYPE["integer"](value) and value >= 0)
                for value in (least, most)
            ):
                return f"^[\\s\\S]{{{least},{most}}}$"
    return None


def _leads_through_keywords(reference: str) -> bool:
    """Whether the target of a reference is a schema that is rewritten in place."""
    left = iter(reference[2:].split("/") if len(reference) > 1 else [])
    for step in left:
        if step in MAPS or step in LISTS:
            next(left, None)
        elif step not in SCHEMAS:
            return False
    return True


def _restrictions(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema's keys that restrict values. The library refuses some of the others."""
    kept = {key: value for key, value in schema.items() if key in RESTRICTING or key in MAPS}
    if isinstance(kept.get("format"), str) and kept["format"] not in FORMATS:
        del kept["format"]
    return kept


def _with_tuples(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with tuples rewritten from the form of drafts up to 2019-09 to that of 2020-12."""
    rest = schema.pop("additionalItems", None)
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        first = schema.pop("items")
        schema |= {"prefixItems": first} | ({} if rest is None else {"items": rest})
    return schema


def _with_portable_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = portable(pattern)
    if isinstance(parts := schema.get("patternProperties"), dict):
        schema["patternProperties"] = {portable(name): part for name, part in parts.items()}
    return schema


def _is_whole_tuple(schema: Mapping[str, Any]) -> bool:
    """Whether a tuple has no rule for items beyond those that it names."""
    named = len(list_of(schema, "prefixItems"))
    bounds = [schema.get(key, 0) for key in ("minItems", "maxItems")]
    return named > 0 and all(IS_OF_TYPE["integer"](bound) and bound <= named for bound in bounds)


def _with_evaluated(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `unevaluatedProperties` and `unevaluatedItems` as `additionalProperties` and
    `items`, for a schema without siblings."""
    for key, same in (
        ("unevaluatedProperties", "additionalProperties"),
        ("unevaluatedItems", "items"),
    ):
        if key in schema:
            rest = schema.pop(key)
            schema.setdefault(same, rest)
    return schema


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the types that its keywords apply to, if it has none. Objects and arrays
    without rules may have any contents."""
    if any(key in schema for key in (*IN_PLACE, "const", "enum")):
        return schema
    implied = sorted({IMPLIED_TYPE[key] for key in schema.keys() & IMPLIED_TYPE.keys()})
    typed = schema | ({"type": implied} if implied and "type" not in schema else {})
    kinds = typed.get("type")
    is_object = kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
    if is_object and not schema.keys() & OBJECT_KEYWORDS:
        typed["additionalProperties"] = True
    return typed


def _replaced(
    schema: dict[str, Any], path: str, replace: Callable[[str, Any, str], Any]
) -> dict[str, Any]:
    """The schema with `replace`'s result for each schema directly in it, by keyword and place."""
    result = dict(schema)
    for key, value in schema.items():
        place = at(path, key)
        if key in SCHEMAS:
            result[key] = replace(key, value, place)
        elif key in LISTS and isinstance(value, list):
            result[key] = [replace(key, part, f"{place}[{i}]") for i, part in enumerate(value)]
        elif key in MAPS and isinstance(value, dict):
            result[key] = {
                name: replace(key, part, f"{place}.{name}") for name, part in value.items()
            }
    return result
