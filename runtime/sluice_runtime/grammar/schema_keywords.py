"""Examines the keywords of a JSON schema before it is rewritten for the grammar library; pure.

Finds keywords that the library does not enforce, and combines what several restrictions of one
value imply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final
from urllib.parse import unquote

from sluice_contract.log_lines import shown_json

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.patterns import portable

MAX_DEPTH: Final = 64
MAX_PROPERTIES: Final = 1_000
"""Maximum properties of one object: the library's time grows with their square."""
MAX_MULTIPLE: Final = 1024
"""Maximum `multipleOf`: the library's automaton has a state for each remainder."""
_MAX_FOLLOWED: Final = 64
"""Most references that are followed to find out whether one leads to itself."""
MAX_COMBINATIONS: Final = 1_000
"""Maximum combinations of alternatives for one value: the library writes each out."""
MAX_TOGETHER: Final = 500
"""Most schemas about one value, counted once for each reference to them, because the library writes
out each."""
MAX_STEPS: Final = 30_000
"""Maximum schemas that are looked at for one request."""
_NAMES_PER_STEP: Final = 8

SCHEMAS: Final = ("additionalProperties", "items", "unevaluatedItems", "unevaluatedProperties")
LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS: Final = ("$defs", "definitions", "properties", "patternProperties")
"""Keywords that hold schemas by name; LISTS hold lists of schemas, SCHEMAS a schema."""
IGNORED: Final = frozenset(
    {
        *("$dynamicRef", "$recursiveRef", "contains", "dependencies", "not", "uniqueItems"),
        *("dependentRequired", "dependentSchemas", "if", "then", "else"),
        *("minContains", "maxContains"),
    }
)
"""Keywords that restrict values but that the library ignores."""
_NEEDS: Final = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
"""For each keyword that means nothing alone, the keyword that it needs."""
_SAYS_NOTHING: Final[Mapping[str, object]] = {
    "uniqueItems": False,
    "not": False,
    "if": True,
    "dependentRequired": {},
    "dependentSchemas": {},
    "dependencies": {},
}
"""For each keyword, a value with which it restricts nothing."""
IMPLIED_TYPE: Final[Mapping[str, str]] = {
    key: kind
    for kind, keys in {
        "number": "exclusiveMaximum exclusiveMinimum maximum minimum",
        "string": "format maxLength minLength pattern",
        "array": "items maxItems minItems prefixItems unevaluatedItems",
        "object": "additionalProperties maxProperties minProperties patternProperties properties "
        "propertyNames required unevaluatedProperties",
    }.items()
    for key in keys.split()
}
"""For each keyword, the type of the values that it restricts."""
LEFT_WITH: Final = {
    "properties": "additionalProperties",
    "patternProperties": "additionalProperties",
    "prefixItems": "items",
}
"""Keywords about the rest of a value, by the keyword that defines what the rest is; if this keyword
is left out, so are they."""
IN_PLACE: Final = ("$ref", "anyOf", "oneOf", "allOf")
"""Keywords whose schemas are about the value itself."""
RESTRICTING: Final = (
    IMPLIED_TYPE.keys()
    | IGNORED
    | set(LISTS)
    | {"additionalItems", "multipleOf", "type", "const", "enum", "$ref"}
)
"""All keys that restrict values; any other key is an annotation."""
FORMATS: Final = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)
OBJECT_KEYWORDS: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "propertyNames"}
)
IS_OF_TYPE: Final[Mapping[str, Callable[[object], bool]]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def at(path: str, key: str) -> str:
    """Place of a keyword in the schema at `path`."""
    return f"{path}.{key}" if path else key


def refused(place: str, value: object, allowed: str, why: str = "is not allowed") -> GrammarError:
    """Error for a keyword's value."""
    return GrammarError(f"{place}: {shown_json(value)} {why}; allowed: {allowed}")


def target_of(reference: object, root: object) -> object:
    """Target of a reference within a schema; None: there is none."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    target = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target


class Steps:
    """Budget of steps through the schemas of one request."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def take(self, count: int = 1) -> None:
        """Takes steps from the budget; raises GrammarError if there are too few left."""
        self._left -= count
        if self._left < 0:
            raise GrammarError(
                f"the schemas, with what their references lead to, are too large; allowed: "
                f"{MAX_STEPS} steps through them"
            )


@dataclass
class ConjunctionFacts:
    """Facts that restrictions of one value imply together."""

    names: dict[str, None] = field(default_factory=dict)
    """Names of properties that have a schema."""
    patterns: dict[str, None] = field(default_factory=dict)
    required: dict[str, None] = field(default_factory=dict)
    kinds: set[str] = field(default_factory=set)
    """Types that the keywords are about."""
    is_typed: bool = False
    is_open: bool = False
    """Whether one of the restrictions has a rule for other properties."""


def facts_of(schema: dict[str, Any], root: object, steps: Steps) -> ConjunctionFacts:
    facts, pending, seen = ConjunctionFacts(), [schema], set[str]()
    while pending:
        part = pending.pop()
        properties, patterns = part.get("properties"), part.get("patternProperties")
        steps.take(1 + len(dict_of(part, "properties")) // _NAMES_PER_STEP)
        facts.names |= dict.fromkeys(properties if isinstance(properties, dict) else ())
        names = filter(IS_OF_TYPE["string"], list_of(part, "required"))
        facts.required |= dict.fromkeys(names)
        facts.patterns |= dict.fromkeys(
            map(portable, patterns if isinstance(patterns, dict) else ())
        )
        facts.kinds |= {IMPLIED_TYPE[key] for key in part.keys() & IMPLIED_TYPE.keys()}
        facts.is_typed |= bool(part.keys() & {"type", "const", "enum"})
        opening = {"additionalProperties", "propertyNames", "unevaluatedProperties"}
        facts.is_open |= bool(part.keys() & opening)
        pending += [inner for inner in parts_in_place(part, root, seen) if isinstance(inner, dict)]
    return facts


def parts_in_place(schema: Mapping[str, Any], root: object, seen: set[str]) -> Iterator[object]:
    """Schemas that are about the same value; `seen`: references that were followed."""
    for key in ("anyOf", "oneOf", "allOf"):
        yield from list_of(schema, key)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        yield target_of(reference, root)


def is_conjunction(schema: Mapping[str, Any]) -> bool:
    """Whether a schema restricts its value in several places."""
    places = [key for key in IN_PLACE if key in schema]
    rest = schema.keys() & (RESTRICTING - set(IN_PLACE))
    parts = schema.get("allOf", ())
    several = isinstance(parts, list) and len(parts) > 1
    return len(places) > 1 or bool(places and rest) or several


def unimplemented_keywords(
    schema: Mapping[str, Any], path: str, root: object, steps: Steps
) -> Iterator[tuple[str, GrammarError]]:
    for key in sorted(schema.keys() & IGNORED):
        silent = _NEEDS.get(key, key) not in schema
        if not silent and (key not in _SAYS_NOTHING or schema[key] != _SAYS_NOTHING[key]):
            yield key, _unimplemented(schema, path, key, "leaving it out")
    if _leads_to_itself(schema, root):
        allowed, why = "a reference to another schema", "leads to itself"
        yield "$ref", refused(at(path, "$ref"), schema["$ref"], allowed, why)
    properties = schema.get("properties", {})
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        place = at(path, "properties")
        yield "properties", refused(place, len(properties), f"at most {MAX_PROPERTIES} of them")
    step = schema.get("multipleOf", 1)
    if not (IS_OF_TYPE["number"](step) and 0 < step <= MAX_MULTIPLE):
        allowed = f"a number above 0, to {MAX_MULTIPLE}"
        yield "multipleOf", refused(at(path, "multipleOf"), step, allowed)
    least = schema.get("minProperties", 0)
    if IS_OF_TYPE["integer"](least) and least > 1 and not _has_single_names(schema):
        # An additional name may occur twice, and is then counted twice.
        allowed = "0 or 1; more beside additionalProperties: false, without patternProperties"
        yield "minProperties", _unimplemented(schema, path, "minProperties", allowed)
    if "unevaluatedProperties" in schema and not _knows_evaluated(schema, root, steps):
        allowed = "beside properties and references; not beside propertyNames or alternatives"
        key = "unevaluatedProperties"
        yield key, _unimplemented(schema, path, key, allowed)
    if not is_conjunction(schema):
        return
    if "unevaluatedItems" in schema:
        allowed = f"without {', '.join(IN_PLACE)} beside it"
        yield "unevaluatedItems", _unimplemented(schema, path, "unevaluatedItems", allowed)
    combinations = _Combinations(root, steps)
    if combinations.too_many(schema):
        why, most = "leads to too many combinations of alternatives", MAX_COMBINATIONS
    elif combinations.together(schema) > MAX_TOGETHER:
        why, most = "leads to too many schemas of one value", MAX_TOGETHER
    else:
        return
    key = next(key for key in reversed(IN_PLACE) if key in schema)
    yield key, refused(at(path, key), schema[key], f"at most {most} of them", why)


def _unimplemented(schema: Mapping[str, Any], path: str, key: str, allowed: str) -> GrammarError:
    return refused(at(path, key), schema[key], allowed, "is not implemented")


def _leads_to_itself(schema: Mapping[str, Any], root: object) -> bool:
    """Whether the schema's reference leads back to itself, so that it describes no value."""
    if not isinstance(own := schema.get("$ref"), str):
        return False
    parts, seen = [target_of(own, root)], set[str]()
    while parts and len(seen) < _MAX_FOLLOWED:
        if isinstance(part := parts.pop(), dict):
            if part.get("$ref") == own:
                return True
            parts += parts_in_place(part, root, seen)
    return False


def _has_single_names(schema: Mapping[str, Any]) -> bool:
    """Whether a property's name certainly occurs only once."""
    closed = schema.get("additionalProperties") is False
    return closed and not schema.keys() & {"patternProperties", "propertyNames"}


def _knows_evaluated(schema: Mapping[str, Any], root: object, steps: Steps) -> bool:
    """Whether a schema evaluates one set of properties, whatever the value."""
    if "propertyNames" in schema:
        return False
    parts, seen = [schema], set[str]()
    while parts:
        part = parts.pop()
        steps.take()
        for key in ("anyOf", "oneOf"):
            for option in list_of(part, key):
                facts = facts_of(option if isinstance(option, dict) else {}, root, steps)
                if facts.names or facts.patterns or facts.is_open:
                    return False
        parts += [inner for inner in parts_in_place(part, root, seen) if isinstance(inner, dict)]
    return True


class _Combinations:
    """Estimate of the alternatives that the library writes out for a schema."""

    def __init__(self, root: object, steps: Steps) -> None:
        self._root = root
        self._steps = steps
        self._counts: dict[int, int] = {}
        self._together: dict[int, int] = {}

    def too_many(self, schema: Mapping[str, Any]) -> bool:
        factors = [count for count in self._factors(schema, 0) if count > 1]
        return len(factors) > 1 and prod(factors) > MAX_COMBINATIONS

    def _count(self, schema: object, depth: int) -> int:
        if not isinstance(schema, dict):
            return 1
        if depth > MAX_DEPTH:
            return MAX_COMBINATIONS + 1
        if id(schema) not in self._counts:
            self._steps.take()
            self._counts[id(schema)] = 1  # where it leads to itself
            product = prod(self._factors(schema, depth + 1))
            self._counts[id(schema)] = min(product, MAX_COMBINATIONS + 1)
        return self._counts[id(schema)]

    def together(self, schema: object, depth: int = 0) -> int:
        """Number of schemas about a schema's value, including itself; counting stops at one above
        the maximum."""
        if not isinstance(schema, dict):
            return 1
        if depth > MAX_DEPTH:
            return MAX_TOGETHER + 1
        if id(schema) not in self._together:
            self._steps.take()
            self._together[id(schema)] = 1  # where it leads to itself
            parts = parts_in_place(schema, self._root, set())
            count = 1 + sum(self.together(part, depth + 1) for part in parts)
            self._together[id(schema)] = min(count, MAX_TOGETHER + 1)
        return self._together[id(schema)]

    def _factors(self, schema: Mapping[str, Any], depth: int) -> list[int]:
        inner = 0
        factors = [max(1, len(list_of(schema, "enum")))]
        for key in ("anyOf", "oneOf"):
            if parts := list_of(schema, key):
                factors.append(sum(self._count(part, depth) for part in parts))
        for key in ("properties", "patternProperties"):
            named = schema.get(key)
            if isinstance(named, dict):
                inner += sum(self._count(part, depth) - 1 for part in named.values())
        factors += [self._count(part, depth) for part in list_of(schema, "allOf")]
        factors += [
            self._count(schema.get(key), depth) for key in ("items", "additionalProperties")
        ]
        if isinstance(reference := schema.get("$ref"), str):
            factors.append(self._count(target_of(reference, self._root), depth))
        return [*factors, 1 + inner]


def dict_of(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A keyword's value if it is an object, else an empty object."""
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def list_of(schema: Mapping[str, Any], key: str) -> list[Any]:
    """A keyword's value if it is a list, else an empty list."""
    value = schema.get(key)
    return value if isinstance(value, list) else []
