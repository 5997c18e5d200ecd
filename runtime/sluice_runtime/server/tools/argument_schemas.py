"""Chooses the schemas by which a grammar constrains the arguments of calls. Imports no torch.

A strict function's schema is enforced as a whole, or the request is refused. Other functions'
schemas are best effort: parts that no grammar enforces are left out and reported. The whole grammar
is built at most four times, whatever the number of functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from sluice_runtime.errors import GrammarError, GrammarUnavailableError, InvalidRequestError
from sluice_runtime.grammar.best_effort import fitted, without_patterns
from sluice_runtime.grammar.constraint import CheckBudget, invalid_grammar, refusal_place
from sluice_runtime.grammar.json_schema import Usable, best_effort_schema
from sluice_runtime.grammar.schema_keywords import Steps
from sluice_runtime.server.structured import MAX_CHARACTERS, checked_schema
from sluice_runtime.server.tools.call_grammars import Rules
from sluice_runtime.server.tools.formats import ToolFormat

Build = Callable[[Mapping[str, Any]], Rules]
"""Function that builds the grammar of an answer from the schemas of the calls' arguments, by
function."""
ANY_OBJECT: Final = {"type": "object", "additionalProperties": True}


class CallRules(NamedTuple):
    """The grammar of an answer with calls."""

    rules: Rules
    characters: int
    """The grammar's length without function names, which have their own limits."""
    left_out: tuple[str, ...]
    """Constraints that are not enforced, as paths such as `tools.NAME: PLACE`."""
    read_by: Mapping[str, Any]
    """Schemas by which the calls' arguments are parsed, by function."""


def call_rules(
    schemas: Mapping[str, Any], strict: Collection[str], form: ToolFormat, build: Build
) -> CallRules:
    """The grammar for these functions' schemas. `strict`: names of functions whose schemas must be
    enforced.

    Raises:
        InvalidRequestError: a strict function's schema cannot be enforced; the message names the
            function and the place.
    """
    functions = _HeldSchemas(form, build)
    for name, schema in schemas.items():
        functions.add(name, schema, strict=name in strict)
    return functions.call_rules()


class _HeldSchemas:
    """The schemas of a request's functions."""

    def __init__(self, form: ToolFormat, build: Build) -> None:
        self._form = form
        self._build = build
        self._strict: dict[str, Any] = {}
        self._loose: dict[str, Usable] = {}
        """Schemas that may be enforced in part; the others are any object."""
        self._left_out: dict[str, list[str]] = {}
        """Schemas by function, in the request's order."""
        self._steps = Steps()
        self._budget = CheckBudget()

    def add(self, name: str, schema: Any, *, strict: bool) -> None:
        field, self._left_out[name] = f"tools.{name}", []
        if strict:
            self._strict[name] = checked_schema(field, schema, steps=self._steps)
            self._adapt(name, self._strict[name], _raising(field))
            return
        try:
            usable = best_effort_schema(schema, steps=self._steps)
        except GrammarError:
            self._give_up(name)
            return
        self._loose[name], self._left_out[name] = usable, usable.left_out
        self._adapt(name, usable.schema, lambda place, _: self._left_out[name].append(place))

    def call_rules(self) -> CallRules:
        """The grammar, with as much of the non-strict schemas as can be enforced."""
        rules = self._built() or self._fitted()
        notes = [
            f"tools.{name}: {place}" if place else f"tools.{name}"
            for name, places in self._left_out.items()
            for place in places
        ]
        return CallRules(rules, self._characters(rules), tuple(notes), self._read_by())

    def _read_by(self) -> dict[str, Any]:
        if (read_by := self._form.read_by) is None:
            return {}
        return {name: read_by(schema) for name, schema in self._schemas().items()}

    def _fitted(self) -> Rules:
        """The grammar after changes to non-strict schemas: parts that the library refuses are left
        out, and the largest schemas are replaced by any object."""
        least = self._without_loose()
        lengths = {name: self._length(name) for name in self._loose}
        self._keep_smallest(lengths, MAX_CHARACTERS - self._characters(least))
        for name, usable in [*self._loose.items()]:
            if (places := without_patterns(usable, self._budget)) is None:
                self._give_up(name)
            else:
                self._left_out[name] += places
        if (rules := self._built()) is not None:
            return rules
        changes = [self._fit(name) for name in [*self._loose]]
        if not any(changes):  # each schema works by itself, so they are too large together
            self._keep_smallest(lengths, sum(map(lengths.__getitem__, self._loose)) // 2)
        if (rules := self._built()) is not None:
            return rules
        for name in [*self._loose]:
            self._give_up(name)
        return least

    def _without_loose(self) -> Rules:
        """The grammar with only the strict schemas; raises if the library cannot use it."""
        loose, self._loose = self._loose, {}
        try:
            rules = self._build(self._schemas())
        except GrammarError:
            self._refuse_invalid()
            raise
        if (characters := self._characters(rules)) > MAX_CHARACTERS and self._strict:
            raise InvalidRequestError(
                f"tools: {characters} characters, as they are compiled, are not allowed for the "
                f"schemas of strict tools; allowed: at most {MAX_CHARACTERS}",
                "tools",
            )
        if invalid_grammar(rules.text):
            self._refuse_invalid()
        self._loose = loose
        return rules

    def _keep_smallest(self, lengths: Mapping[str, int], characters: int) -> None:
        """Gives up the largest schemas, until those left have at most `characters` characters."""
        for name in sorted(self._loose, key=lengths.__getitem__):
            characters -= lengths[name]
            if characters < 0:
                self._give_up(name)

    def _schemas(self) -> dict[str, Any]:
        loose = {name: usable.schema for name, usable in self._loose.items()}
        exact = self._strict | loose
        return {name: exact.get(name, ANY_OBJECT) for name in self._left_out}

    def _built(self) -> Rules | None:
        """The grammar with the schemas as they are now; None if it is too large or invalid."""
        try:
            rules = self._build(self._schemas())
            if self._characters(rules) > MAX_CHARACTERS or invalid_grammar(rules.text):
                return None
        except (GrammarError, GrammarUnavailableError):
            return None
        return rules

    def _characters(self, rules: Rules) -> int:
        return len(rules.text) - sum(map(len, self._left_out))

    def _alone(self, name: str, schema: Any) -> str:
        return self._form.grammar.calls({name: schema}, {}, at_most_one=True).text

    def _length(self, name: str) -> int:
        schema = self._loose[name].schema
        try:
            return len(self._alone(name, schema)) - len(name)
        except GrammarError:
            return len(str(schema))

    def _refuse_invalid(self) -> None:
        """Refuses the first strict schema that cannot be enforced by itself."""
        for name, schema in self._strict.items():
            field = f"tools.{name}"
            try:
                reason = invalid_grammar(self._alone(name, schema))
                reason = reason and refusal_place(schema, reason)
            except GrammarError as error:
                reason = str(error)
            if reason:
                raise InvalidRequestError(f"{field}: {reason}", field)

    def _fit(self, name: str) -> bool:
        """Removes the parts that prevent a schema from being enforced; returns whether it was
        changed."""
        if not self._is_invalid(name):
            return False
        places = fitted(self._loose[name], self._budget)
        if places is None or self._is_invalid(name):
            self._give_up(name)
        else:
            self._left_out[name] += places
        return True

    def _is_invalid(self, name: str) -> bool:
        try:
            text = self._alone(name, self._loose[name].schema)
            return bool(self._budget.invalid_grammar(text))
        except (GrammarError, GrammarUnavailableError):
            return True

    def _give_up(self, name: str) -> None:
        """Replaces the schema by any object."""
        self._loose.pop(name, None)
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
