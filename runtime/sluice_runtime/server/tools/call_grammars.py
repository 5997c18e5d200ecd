"""Grammars for tool calls: each model family's format, in the grammar library's Lark. Pure.

Special tokens have no text, so a grammar refers to them by id: `tokens`, by name. In text the lexer
looks for what begins a call, and from there on only a call may follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sluice_runtime.grammar.constraint import json_rule

Schemas = Mapping[str, Any]
"""Schema of the arguments, by function."""
Tokens = Mapping[str, int]

_MARKER: Final = "[TOOL_CALLS]"
_ARGS: Final = "[ARGS]"
ANY_TEXT: Final = r"/(.|\n)*/"


@dataclass(frozen=True)
class Rules:
    """An expression in Lark, and the rules that it uses."""

    expression: str
    rules: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Text of the whole grammar."""
        return "\n".join([f"start: {self.expression}", *self.rules, ""])


class CallGrammar(Protocol):
    """`at_most_one`: at most one call."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        """Grammar of at least one call, and nothing else."""

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        """Grammar of any text, with calls in it."""

    def begins(self, schemas: Schemas) -> Sequence[str]:
        """The texts with which `calls` may begin."""


@dataclass(frozen=True)
class JsonTag:
    """Format with a text, the arguments and a text for each call. `%s` is the function's name."""

    begin: str
    end: str
    separator: str
    trigger: str
    """The start of `begin`, which marks a call inside text."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        return separated(self._bodies(schemas, ""), self.separator, at_most_one=at_most_one)

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        bodies = self._bodies(schemas, self.trigger)
        return triggered(self.trigger, bodies, at_most_one=at_most_one)

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return [self.begin % name for name in schemas]

    def _bodies(self, schemas: Schemas, trigger: str) -> Rules:
        """Rules of the calls' bodies without the trigger, which comes before them."""
        begin = self.begin.removeprefix(trigger)
        return _bodies(schemas, begin, lambda schema: f"{json_rule(schema)} {quoted(self.end)}")


@dataclass(frozen=True)
class JsonList:
    """One marker and a list of all calls."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        calls = self._list(schemas, at_most_one=at_most_one)
        return Rules(f"{token(_MARKER, tokens)} {calls.expression}", calls.rules)

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        return marked(self._list(schemas, at_most_one=at_most_one), tokens, at_most_one=True)

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return [_MARKER]

    def _list(self, schemas: Schemas, *, at_most_one: bool) -> Rules:
        begin = '{"name": "%s", "arguments": '
        entry = _bodies(schemas, begin, lambda schema: f"{json_rule(schema)} {quoted('}')}")
        more = "" if at_most_one else f" ({quoted(', ')} entry)*"
        rules = (f"entry: {entry.expression}", *entry.rules)
        return Rules(f"{quoted('[')} entry{more} {quoted(']')}", rules)


@dataclass(frozen=True)
class NamedTag:
    """Format with a marker, the name, another marker and the arguments for each call."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        body = self._body(schemas, tokens)
        call = f"({token(_MARKER, tokens)} {body.expression})"
        return Rules(call if at_most_one else f"{call}+", body.rules)

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        return marked(self._body(schemas, tokens), tokens, at_most_one=at_most_one)

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return [_MARKER]

    def _body(self, schemas: Schemas, tokens: Tokens) -> Rules:
        arguments = token(_ARGS, tokens)
        return _bodies(schemas, "%s", lambda schema: f"{arguments} {json_rule(schema)}")


def _bodies(schemas: Schemas, begin: str, rest: Callable[[Any], str]) -> Rules:
    """Calls of any of the functions; `begin`: up to the arguments, with `%s` for the name."""
    rules = list[str]()
    bodies = [
        f"{named(begin, names, rules)} {rest(schema)}" for names, schema in by_schema(schemas)
    ]
    return Rules(alternatives(bodies), tuple(rules))


def by_schema(schemas: Schemas) -> list[tuple[list[str], Any]]:
    """Functions by the schema of their arguments: those that have the same share a rule."""
    groups: dict[str, tuple[list[str], Any]] = {}
    for name, schema in schemas.items():
        groups.setdefault(json.dumps(schema), ([], schema))[0].append(name)
    return [*groups.values()]


def named(form: str, names: Sequence[str], rules: list[str]) -> str:
    """A text with one of these names for its `%s`. Several are one terminal, which is added to
    `rules`: the lexer cannot go back from one to another."""
    if len(names) == 1:
        return quoted(form % names[0])
    before, after = map(quoted, form.split("%s"))
    terminal = f"NAME{len(rules)}"
    rules.append(f"{terminal}: {before} {alternatives(map(quoted, names))} {after}")
    return terminal


def quoted(text: str) -> str:
    """A text in Lark; nothing where it is empty."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def alternatives(expressions: Any) -> str:
    """One of several expressions."""
    return "(" + " | ".join(expressions) + ")"


def token(text: str, tokens: Tokens) -> str:
    """A marker: by id if it is a special token, else by its text."""
    return f"<[{tokens[text]}]>" if text in tokens else quoted(text)


def either(schema: Any, calls: Rules) -> Rules:
    """JSON of this schema, or calls."""
    return Rules(f"answer | {calls.expression}", (f"answer: {json_rule(schema)}", *calls.rules))


def separated(call: Rules, separator: str, *, at_most_one: bool) -> Rules:
    """Calls, one at least."""
    more = "" if at_most_one else f" ({quoted(separator)} call)*"
    return Rules(f"call{more}", (f"call: {call.expression}", *call.rules))


def triggered(trigger: str, body: Rules, *, at_most_one: bool) -> Rules:
    """Text with calls: the rest of a call follows each trigger."""
    rules = (
        f"TEXT: {ANY_TEXT}",
        f"trigger[lazy]: {ANY_TEXT} {quoted(trigger)}",
        f"call: trigger {body.expression}",
        *body.rules,
    )
    return Rules("call | TEXT" if at_most_one else "call* TEXT", rules)


def marked(body: Rules, tokens: Tokens, *, at_most_one: bool) -> Rules:
    """Text with calls that begin with the marker."""
    if _MARKER not in tokens:
        return triggered(_MARKER, body, at_most_one=at_most_one)
    call = f"call: TEXT {token(_MARKER, tokens)} {body.expression}"
    return Rules(
        "call | TEXT" if at_most_one else "call* TEXT", (f"TEXT: {ANY_TEXT}", call, *body.rules)
    )
