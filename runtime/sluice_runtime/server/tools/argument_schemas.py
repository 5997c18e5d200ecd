"""The schemas that a grammar holds the arguments of calls to. Imports no torch.

A strict function's schema is enforced as a whole, or the request is refused. That of another is
best effort: what no grammar enforces is left out and named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from sluice_runtime.errors import GrammarError, InvalidRequestError
from sluice_runtime.grammar.best_effort import CheckBudget, fitted
from sluice_runtime.grammar.constraint import invalid_grammar, refusal_place
from sluice_runtime.grammar.json_schema import Usable, best_effort_schema
from sluice_runtime.server.structured import MAX_CHARACTERS, checked_schema
from sluice_runtime.server.tools.call_grammars import Rules
from sluice_runtime.server.tools.formats import ToolFormat

Build = Callable[[Mapping[str, Any]], Rules]
"""The grammar of an answer whose calls have these arguments, by function."""
_ANY_OBJECT: Final = {"type": "object", "additionalProperties": True}


class CallRules(NamedTuple):
    """The grammar of an answer with calls."""

    rules: Rules
    left_out: tuple[str, ...]
    """What is not enforced, by tool and place."""
    read_by: Mapping[str, Any]
    """The schemas by which the arguments are read."""


def call_rules(
    schemas: Mapping[str, Any], strict: Collection[str], form: ToolFormat, build: Build
) -> CallRules:
    """The grammar with the schemas of these functions; `strict`: which of them are enforced.

    Raises:
        InvalidRequestError: a strict function's schema cannot be enforced; names it and the place.
    """
    held = _HeldSchemas(form)
    for name, schema in schemas.items():
        held.add(name, schema, strict=name in strict)
    return held.rules(build)


class _HeldSchemas:
    """The schemas of a request's functions."""

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._strict: dict[str, Any] = {}
        self._loose: dict[str, Usable] = {}
        self._order: list[str] = []
        self._left_out: dict[str, list[str]] = {}
        self._budget = CheckBudget()

    def add(self, name: str, schema: Any, *, strict: bool) -> None:
        field = f"tools.{name}"
        self._order.append(name)
        if strict:
            self._strict[name] = checked_schema(field, schema)
            self._adapt(name, self._strict[name], _raising(field))
            return
        usable = best_effort_schema(schema)
        self._loose[name], self._left_out[name] = usable, usable.left_out
        self._adapt(name, usable.schema, lambda place, _: self._left_out[name].append(place))

    def rules(self, build: Build) -> CallRules:
        """The grammar, with as much of the schemas that are not strict as can be enforced."""
        if (rules := self._built(build)) is None:
            for name in self._strict:
                self._refuse_invalid(name)
            for name in self._loose:
                self._fit(name)
            rules = self._built(build)
        largest = sorted(self._loose, key=lambda name: -len(str(self._loose[name].schema)))
        while rules is None and largest:
            self._give_up(largest.pop(0))
            rules = self._built(build)
        notes = [
            f"tools.{name}: {place}" if place else f"tools.{name}"
            for name in self._order
            for place in self._left_out.get(name, ())
        ]
        rules = build(self._schemas) if rules is None else rules
        return CallRules(rules, tuple(notes), self._read_by())

    def _read_by(self) -> dict[str, Any]:
        if (read_by := self._form.read_by) is None:
            return {}
        return {name: read_by(schema) for name, schema in self._schemas.items()}

    @property
    def _schemas(self) -> dict[str, Any]:
        loose = {name: usable.schema for name, usable in self._loose.items()}
        return {name: (self._strict | loose)[name] for name in self._order}

    def _built(self, build: Build) -> Rules | None:
        """The grammar; None: the schemas that are not strict may have to be changed for it."""
        try:
            rules = build(self._schemas)
        except GrammarError:
            return None
        if len(rules.text) > MAX_CHARACTERS or invalid_grammar(rules.text):
            return None
        return rules

    def _alone(self, name: str) -> Build:
        def build(schemas: Mapping[str, Any]) -> Rules:
            return self._form.grammar.calls({name: schemas[name]}, {}, at_most_one=True)

        return build

    def _refuse_invalid(self, name: str) -> None:
        field, schema = f"tools.{name}", self._strict[name]
        try:
            reason = invalid_grammar(self._alone(name)({name: schema}).text)
            reason = reason and refusal_place(schema, reason)
        except GrammarError as error:
            reason = str(error)
        if reason:
            raise InvalidRequestError(f"{field}: {reason}", field)

    def _fit(self, name: str) -> None:
        """Leaves out what keeps a schema from being enforced, if it does."""
        if self._built(self._alone(name)) is not None:
            return
        places = fitted(self._loose[name], self._budget)
        if places is None or self._built(self._alone(name)) is None:
            self._give_up(name)
        else:
            self._left_out[name] += places

    def _give_up(self, name: str) -> None:
        """Any object will do."""
        self._loose[name] = Usable(dict(_ANY_OBJECT), [], {})
        self._left_out[name] = [""]

    def _adapt(
        self, name: str, schema: Any, leave_out: Callable[[str, GrammarError], None]
    ) -> None:
        if self._form.adapt is not None and isinstance(schema, dict):
            self._form.adapt(schema, leave_out)


def _raising(field: str) -> Callable[[str, GrammarError], None]:
    def leave_out(_: str, error: GrammarError) -> None:
        raise InvalidRequestError(f"{field}: {error}", field) from None

    return leave_out
