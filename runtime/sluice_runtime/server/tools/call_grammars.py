"""Grammars for tool calls: each model family's format, in the grammar library's Lark. Pure.

Special tokens have no text, so a grammar refers to them by id; `tokens` has the ids by name. In
free text the lexer looks for the text that begins a call; after that only the rest of a call may
follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sluice_runtime.grammar.constraint import json_rule

Schemas = Mapping[str, Any]
"""Schema of the arguments, by the function's name."""
Tokens = Mapping[str, int]

_MARKER: Final = "[TOOL_CALLS]"
_ARGS: Final = "[ARGS]"
ANY_TEXT: Final = r"/(.|\n)*/"


@dataclass(frozen=True)
class Rules:
    """An expression in Lark, and the rules to which it refers."""

    expression: str
    rules: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Text of the whole grammar."""
        return "\n".join([f"start: {self.expression}", *self.rules, ""])


class CallGrammar(Protocol):
    """Makes the grammars of one format of calls. `at_most_one`: whether an answer may have only one
    call."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        """Grammar of one or more calls without text."""

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        """Grammar of free text with calls or without."""

    def begins(self, schemas: Schemas) -> Sequence[str]:
        """The texts with which an answer of the grammar `calls` may begin."""


@dataclass(frozen=True)
class JsonTag:
    """Format in which each call's arguments are JSON between two texts; `%s` in `begin` stands for
    the function's name."""

    begin: str
    end: str
    separator: str
    trigger: str
    """The first part of `begin`; in free text a call begins where it appears."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        return separated(self._bodies(schemas, ""), self.separator, at_most_one=at_most_one)

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        bodies = self._bodies(schemas, self.trigger)
        return triggered(self.trigger, bodies, at_most_one=at_most_one)

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return [self.begin % name for name in schemas]

    def _bodies(self, schemas: Schemas, trigger: str) -> Rules:
        """Rules for calls without their trigger."""
        begin = self.begin.removeprefix(trigger)
        return _bodies(schemas, begin, lambda schema: f"{json_rule(schema)} {quoted(self.end)}")


@dataclass(frozen=True)
class JsonList:
    """Format with one marker, then a JSON list of all calls."""

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
    """Format in which each call is a marker, the function's name, another marker and the
    arguments."""

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
    """Rules for a call of any of the functions. `begin`: the text before the arguments, with `%s`
    for the function's name; `rest`: the rest of a call, by the schema."""
    rules = list[str]()
    bodies = [
        f"{named(begin, names, rules)} {rest(schema)}" for names, schema in by_schema(schemas)
    ]
    return Rules(alternatives(bodies), tuple(rules))


def by_schema(schemas: Schemas) -> list[tuple[list[str], Any]]:
    """Groups the functions whose arguments have equal schemas: each group can share a rule."""
    groups: dict[str, tuple[list[str], Any]] = {}
    for name, schema in schemas.items():
        groups.setdefault(json.dumps(schema), ([], schema))[0].append(name)
    return [*groups.values()]


def named(form: str, names: Sequence[str], rules: list[str]) -> str:
    """Expression for `form` with any of `names` in place of `%s`. Several names are put into one
    terminal, which is added to `rules`, since the lexer cannot go back from one terminal to
    another."""
    if len(names) == 1:
        return quoted(form % names[0])
    before, after = map(quoted, form.split("%s"))
    terminal = f"NAME{len(rules)}"
    rules.append(f"{terminal}: {before} {alternatives(map(quoted, names))} {after}")
    return terminal


def quoted(text: str) -> str:
    """A text as a Lark literal; "" for an empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def alternatives(expressions: Any) -> str:
    """Expression that matches any one of `expressions`."""
    return "(" + " | ".join(expressions) + ")"


def token(text: str, tokens: Tokens) -> str:
    """Expression for a marker: its id if it is a special token, else its text."""
    return f"<[{tokens[text]}]>" if text in tokens else quoted(text)


def either(schema: Any, calls: Rules) -> Rules:
    """Rules for an answer that is either JSON of this schema or calls."""
    return Rules(f"answer | {calls.expression}", (f"answer: {json_rule(schema)}", *calls.rules))


def separated(call: Rules, separator: str, *, at_most_one: bool) -> Rules:
    """Rules for one or more calls with `separator` between them."""
    more = "" if at_most_one else f" ({quoted(separator)} call)*"
    return Rules(f"call{more}", (f"call: {call.expression}", *call.rules))


def triggered(trigger: str, body: Rules, *, at_most_one: bool) -> Rules:
    """Rules for free text in which the rest of a call follows each trigger."""
    rules = (
        f"TEXT: {ANY_TEXT}",
        f"trigger[lazy]: {ANY_TEXT} {quoted(trigger)}",
        f"call: trigger {body.expression}",
        *body.rules,
    )
    return Rules("call | TEXT" if at_most_one else "call* TEXT", rules)


def marked(body: Rules, tokens: Tokens, *, at_most_one: bool) -> Rules:
    """Rules for free text with calls, each of which begins with the marker."""
    if _MARKER not in tokens:
        return triggered(_MARKER, body, at_most_one=at_most_one)
    call = f"call: TEXT {token(_MARKER, tokens)} {body.expression}"
    return Rules(
        "call | TEXT" if at_most_one else "call* TEXT", (f"TEXT: {ANY_TEXT}", call, *body.rules)
    )
