"""Writes out the alternatives of a schema of arguments or of a string. Pure.

A reference is resolved once, and the work for one grammar is limited: a schema in which each of n
definitions names the next one twice would have 2^n alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.schema_keywords import dict_of, list_of, refused, target_of

MAX_ALTERNATIVES: Final = 64
"""Most alternatives of one function's arguments, or of one string."""
MAX_WORK: Final = 1_000_000
"""Budget of one grammar in characters; each step costs `_STEP`, besides the characters that it
writes."""
_STEP: Final = 10
_MAX_DEPTH: Final = 150
"""Deepest nesting of schemas, counting those to which references lead."""
_LIMITS: Final = frozenset({"const", "enum", "format", "maxLength", "minLength", "pattern"})
_OF_OBJECTS: Final = frozenset({"properties", "required", "additionalProperties"})
_ItemT = TypeVar("_ItemT")

Conjunction = tuple[Any, ...]
"""Distinct schemas that a value must all fit; empty: any value."""
StringLimits = tuple[Mapping[str, Any], ...]
"""Distinct limits that a string must all keep."""


class Work:
    """Budget of characters for writing one grammar."""

    def __init__(self) -> None:
        self._left = MAX_WORK

    def charge(self, characters: int) -> None:
        """Takes characters from the budget; raises GrammarError if it is used up."""
        self._left -= characters
        if self._left < 0:
            raise GrammarError(f"arguments that take more than {MAX_WORK} characters of work")


@dataclass(frozen=True)
class Arguments:
    """One alternative of the arguments of a call."""

    properties: Mapping[str, Conjunction] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    rest: Conjunction = ()
    """Schemas of arguments without a schema of their own in `properties`."""

    def schemas(self) -> dict[str, Any]:
        """Schema of each named argument that is allowed."""
        schemas = {name: _schema(parts) for name, parts in self.properties.items()}
        return {name: schema for name, schema in schemas.items() if schema is not False}

    @property
    def others(self) -> Any:
        """The schema of all other arguments."""
        return _schema(self.rest)


_ANY: Final = Arguments()


class WrittenOut:
    """Alternatives of one function's schema."""

    def __init__(self, root: Any, work: Work) -> None:
        self._root = root
        self._work = work
        self._arguments: dict[str, list[Arguments] | None] = {}
        self._strings: dict[str, list[StringLimits] | None] = {}
        """Alternatives by reference; None: they are being written."""

    def arguments(self) -> list[Arguments]:
        """The alternatives of the arguments.

        Raises:
            GrammarError: a reference leads nowhere or to itself, or there are too many
                alternatives.
        """
        return self._objects(self._root, 0)

    def strings(self, schema: Any) -> list[StringLimits]:
        """The alternatives of a string.

        Raises:
            GrammarError: there are too many alternatives.
        """
        return self._texts(schema, 0)

    def _objects(self, schema: Any, depth: int) -> list[Arguments]:
        self._enter(depth)
        if not isinstance(schema, Mapping):
            return [_ANY] if schema is True else []
        own = [_own_arguments(schema)]
        products = [] if "properties" in schema else [own]
        for key, value in schema.items():  # the order of arguments is the schema's
            if key == "properties":
                products.append(own)
            elif key == "$ref":
                products.append(self._referred_objects(value, depth))
            elif key in ("anyOf", "oneOf"):
                parts = [self._objects(part, depth + 1) for part in list_of(schema, key)]
                products.append(_distinct(parts, id))
            elif key == "allOf":
                products += [self._objects(part, depth + 1) for part in list_of(schema, key)]
        return _product(products, self._both, _ANY, "arguments")

    def _referred_objects(self, reference: Any, depth: int) -> list[Arguments]:
        if reference not in self._arguments:
            target = target_of(reference, self._root)
            self._arguments[reference] = None
            if isinstance(target, Mapping):
                self._arguments[reference] = self._objects(target, depth + 1)
        alternatives = self._arguments[reference]
        if alternatives is None:
            raise refused("$ref", reference, "a reference to a schema that is there")
        return alternatives

    def _texts(self, schema: Any, depth: int) -> list[StringLimits]:
        self._enter(depth)
        if not isinstance(schema, Mapping):
            return [()] if schema is True else []
        kinds = schema.get("type", "string")
        if "string" not in (kinds if isinstance(kinds, list) else [kinds]):
            return []
        own = {key: schema[key] for key in schema.keys() & _LIMITS}
        products: list[list[StringLimits]] = [[(own,) if own else ()]]
        for key in ("anyOf", "oneOf"):
            if key in schema:
                parts = [self._texts(part, depth + 1) for part in list_of(schema, key)]
                products.append(_distinct(parts, _identity))
        products += [self._texts(part, depth + 1) for part in list_of(schema, "allOf")]
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference not in self._strings:
                self._strings[reference] = None
                target = target_of(reference, self._root)
                self._strings[reference] = self._texts(target, depth + 1)
            products.append(self._strings[reference] or [])
        return _product(products, self._both_limits, (), "a string")

    def _enter(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise GrammarError(f"schemas more than {_MAX_DEPTH} within each other")
        self._work.charge(_STEP)

    def _both(self, first: Arguments, second: Arguments) -> Arguments:
        """The alternative that fits both."""
        names = dict.fromkeys([*first.properties, *second.properties])
        properties = {
            name: _conjunction(
                first.properties.get(name, first.rest), second.properties.get(name, second.rest)
            )
            for name in names
        }
        self._work.charge(_STEP * sum(1 + len(parts) for parts in properties.values()))
        required = tuple(dict.fromkeys([*first.required, *second.required]))
        return Arguments(properties, required, _conjunction(first.rest, second.rest))

    def _both_limits(self, first: StringLimits, second: StringLimits) -> StringLimits:
        self._work.charge(_STEP * (len(first) + len(second)))
        return tuple({id(limits): limits for limits in (*first, *second)}.values())


def _own_arguments(schema: Mapping[str, Any]) -> Arguments:
    """Arguments that a schema defines by itself."""
    if not schema.keys() & _OF_OBJECTS:
        return _ANY
    properties = {
        name: _conjunction((part,)) for name, part in dict_of(schema, "properties").items()
    }
    rest = _conjunction((schema.get("additionalProperties", True),))
    return Arguments(properties, tuple(list_of(schema, "required")), rest)


def _conjunction(*parts: Conjunction) -> Conjunction:
    schemas = {id(schema): schema for part in parts for schema in part}.values()
    if any(schema is False for schema in schemas):
        return (False,)
    return tuple(schema for schema in schemas if schema is not True and schema != {})


def _schema(parts: Conjunction) -> Any:
    return (parts[0] if len(parts) == 1 else {"allOf": [*parts]}) if parts else True


def _product(
    products: Sequence[list[_ItemT]],
    both: Callable[[_ItemT, _ItemT], _ItemT],
    neutral: _ItemT,
    what: str,
) -> list[_ItemT]:
    """All combinations of one item from each list, joined by `both`."""
    result = [neutral]
    for options in products:
        if len(result) * len(options) > MAX_ALTERNATIVES:
            raise GrammarError(f"more than {MAX_ALTERNATIVES} alternatives of {what}")
        result = [
            second if first is neutral else first if second is neutral else both(first, second)
            for first in result
            for second in options
        ]
    return result


def _distinct(lists: Iterable[Sequence[_ItemT]], key: Callable[[_ItemT], object]) -> list[_ItemT]:
    """The items of several lists, each once."""
    return [*{key(item): item for items in lists for item in items}.values()]


def _identity(limits: StringLimits) -> object:
    return frozenset(map(id, limits))
