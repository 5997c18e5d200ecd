"""Grammars for tool calls: each model family's format, as structural tags of the grammar library.

Special tokens have no text, so a grammar refers to them by id. `tokens`: these ids, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

Schemas = Mapping[str, Any]
"""Schema of the arguments, by function."""
Tokens = Mapping[str, int]
Form = dict[str, Any]

_MARKER: Final = "[TOOL_CALLS]"
_ARGS: Final = "[ARGS]"
_MAX_WHITESPACE: Final = 32


class CallGrammar(Protocol):
    """Grammars of one format. `at_most_one`: the answer may have at most one call."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
        """At least one call, and nothing else."""

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
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

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
        return separated(self._tags(schemas), self.separator, at_most_one=at_most_one)

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
        return triggered(self._tags(schemas), self.trigger, at_most_one=at_most_one)

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return [self.begin % name for name in schemas]

    def _tags(self, schemas: Schemas) -> list[Form]:
        return [
            tag(self.begin % name, arguments(schema), self.end) for name, schema in schemas.items()
        ]


@dataclass(frozen=True)
class XmlTag:
    """A tag for the function, with a tag for each argument inside."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
        return separated(self._tags(schemas), "\n", at_most_one=at_most_one)

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
        return triggered(self._tags(schemas), "<tool_call>", at_most_one=at_most_one)

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return ["<tool_call>"]

    def _tags(self, schemas: Schemas) -> list[Form]:
        return [
            tag(
                f"<tool_call>\n<function={name}>\n",
                arguments(schema) | {"style": "qwen_xml"},
                "\n</function>\n</tool_call>",
            )
            for name, schema in schemas.items()
        ]


@dataclass(frozen=True)
class JsonList:
    """One marker and a list of all calls."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
        return self._list(schemas, tokens, at_most_one=at_most_one)

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
        return marked(
            [self._list(schemas, tokens, at_most_one=at_most_one)], tokens, at_most_one=True
        )

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return [_MARKER]

    def _list(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
        objects = [
            tag(f'{{"name": "{name}", "arguments": ', arguments(schema), "}")
            for name, schema in schemas.items()
        ]
        parts = [constant("["), separated(objects, ", ", at_most_one=at_most_one)]
        return tag(token(_MARKER, tokens), {"type": "sequence", "elements": parts}, "]")


@dataclass(frozen=True)
class NamedTag:
    """For each call: a marker, the name, another marker, the arguments."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
        return separated(self._tags(schemas, tokens), "", at_most_one=at_most_one)

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Form:
        return marked(self._tags(schemas, tokens), tokens, at_most_one=at_most_one)

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return [_MARKER]

    def _tags(self, schemas: Schemas, tokens: Tokens) -> list[Form]:
        marker, args = token(_MARKER, tokens), token(_ARGS, tokens)
        between = constant(args) if isinstance(args, str) else args
        return [
            tag(
                marker,
                {"type": "sequence", "elements": [constant(name), between, arguments(schema)]},
                "",
            )
            for name, schema in schemas.items()
        ]


def tag(begin: str | Form, content: Form, end: str) -> Form:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def constant(text: str) -> Form:
    return {"type": "const_string", "value": text}


def arguments(schema: Any) -> Form:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": _MAX_WHITESPACE}


def token(text: str, tokens: Tokens) -> str | Form:
    """A marker: by id if it is a special token, else by its text."""
    return {"type": "token", "token": tokens[text]} if text in tokens else text


def either(schema: Any, calls: Form) -> Form:
    """JSON of this schema, or calls."""
    return {"type": "or", "elements": [arguments(schema), calls]}


def separated(tags: list[Form], separator: str, *, at_most_one: bool) -> Form:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": at_most_one,
    }


def triggered(tags: list[Form], trigger: str, *, at_most_one: bool) -> Form:
    return {
        "type": "triggered_tags",
        "triggers": [trigger],
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": at_most_one,
    }


def marked(tags: list[Form], tokens: Tokens, *, at_most_one: bool) -> Form:
    """Text with tags that begin with the marker."""
    if _MARKER not in tokens:
        return triggered(tags, _MARKER, at_most_one=at_most_one)
    return {
        "type": "token_triggered_tags",
        "trigger_tokens": [tokens[_MARKER]],
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": at_most_one,
    }
