"""Grammars for tool calls: each model family's format, in the grammar library's Lark. Pure.

Special tokens have no text, so a grammar refers to them by id: `tokens`, by name. In text the lexer
looks for what begins a call, and from there on only a call may follow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
        """As a whole grammar."""
        return "\n".join([f"start: {self.expression}", *self.rules, ""])


class CallGrammar(Protocol):
    """`at_most_one`: at most one call."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        """At least one call, and nothing else."""

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        """Any text, with calls in it."""

    def begins(self, schemas: Schemas) -> Sequence[str]:
        """The texts with which `calls` may begin."""


@dataclass(frozen=True)
class JsonTag:
    """For each call: a text, the arguments, a text. `%s` is the function's name."""

    begin: str
    end: str
    separator: str
    trigger: str
    """The start of `begin`, which marks a call inside text."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        return separated(Rules(self._bodies(schemas, "")), self.separator, at_most_one=at_most_one)

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        return triggered(
            self.trigger, Rules(self._bodies(schemas, self.trigger)), at_most_one=at_most_one
        )

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return [self.begin % name for name in schemas]

    def _bodies(self, schemas: Schemas, trigger: str) -> str:
        """Without the trigger, which is in front."""
        return alternatives(
            f"{quoted((self.begin % name).removeprefix(trigger))} {json_rule(schema)} "
            f"{quoted(self.end)}"
            for name, schema in schemas.items()
        )


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
        entry = alternatives(
            f"{quoted(begin)} {json_rule(schema)} {quoted('}')}"
            for begin, schema in (
                (f'{{"name": "{name}", "arguments": ', schema) for name, schema in schemas.items()
            )
        )
        more = "" if at_most_one else f" ({quoted(', ')} entry)*"
        return Rules(f"{quoted('[')} entry{more} {quoted(']')}", (f"entry: {entry}",))


@dataclass(frozen=True)
class NamedTag:
    """For each call: a marker, the name, another marker, the arguments."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        call = f"({token(_MARKER, tokens)} {self._body(schemas, tokens)})"
        return Rules(call if at_most_one else f"{call}+")

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        return marked(Rules(self._body(schemas, tokens)), tokens, at_most_one=at_most_one)

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return [_MARKER]

    def _body(self, schemas: Schemas, tokens: Tokens) -> str:
        return alternatives(
            f"{quoted(name)} {token(_ARGS, tokens)} {json_rule(schema)}"
            for name, schema in schemas.items()
        )


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
