"""Grammars for calls that write each argument between tags, as Qwen3-Coder does. Pure.

Strings are written without quotation marks or escapes, so their limits become expressions on the
text; all other values are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llguidance import regex_to_lark
from sluice_contract.log_lines import shown_json

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.constraint import json_rule
from sluice_runtime.grammar.patterns import searched
from sluice_runtime.grammar.schema_keywords import at, dict_of, list_of, parts_in_place, refused
from sluice_runtime.server.tools.call_grammars import (
    ANY_TEXT,
    Rules,
    Schemas,
    Tokens,
    alternatives,
    by_schema,
    named,
    quoted,
    separated,
    triggered,
)
from sluice_runtime.server.tools.written_out import Arguments, Work, WrittenOut
from sluice_runtime.server.tools.xml_values import END, kinds_of

LeaveOut = Callable[[str, GrammarError], None]
"""Called with the place of a keyword that will not be enforced, and the error: notes the place, or
raises the error."""

_END: Final = quoted(f"\n{END}\n")
_CALL_END: Final = quoted("</function>\n</tool_call>")
_DATE: Final = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_HOUR: Final = "([01][0-9]|2[0-3])"
_TIME: Final = rf"{_HOUR}:[0-5][0-9]:([0-5][0-9]|60)(\.[0-9]+)?([zZ]|[+\-]{_HOUR}:[0-5][0-9])"
_LABEL: Final = r"[a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
_BYTE: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_HOST: Final = rf"{_LABEL}(\.{_LABEL})*"
_FORMATS: Final[Mapping[str, str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[tT]{_TIME}",
    "hostname": _HOST,
    "email": rf"[a-zA-Z0-9!#$%&'*+\/=?^_`{{|}}~.\-]+@{_HOST}",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.\-]*:[!-;=?-~]+",
}
"""Expression for each `format` of strings; checks the shape only, not for example a month's
days."""


@dataclass(frozen=True)
class XmlTag:
    """Format of calls with a tag for the function, and in it a tag for each argument."""

    def calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        return separated(_bodies(schemas, "<tool_call>"), "\n", at_most_one=at_most_one)

    def text_with_calls(self, schemas: Schemas, tokens: Tokens, *, at_most_one: bool) -> Rules:
        return triggered("<tool_call>", _bodies(schemas, ""), at_most_one=at_most_one)

    def begins(self, schemas: Schemas) -> Sequence[str]:
        return ["<tool_call>"]


_TYPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "properties": (lambda value: isinstance(value, dict), "an object"),
    "required": (
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
        "a list of names",
    ),
    "additionalProperties": (lambda value: isinstance(value, bool | dict), "a schema"),
    **{
        key: (lambda value: isinstance(value, list), "a list of schemas")
        for key in ("anyOf", "oneOf", "allOf")
    },
}
"""For each keyword that the grammar itself reads: a check that the value has the right type, and
the types allowed."""


def adapt_to_text(schema: dict[str, Any], leave_out: LeaveOut) -> None:
    """Removes from a function's schema the keywords that a grammar of text between tags cannot
    enforce, after calling `leave_out` for each.

    Raises:
        GrammarError: raised by `leave_out`.
    """
    strings = set[str]()
    for part in _in_place(schema, schema, set()):
        for key, (is_right, allowed) in _TYPES.items():
            if key in part and not is_right(part[key]):
                leave_out(key, refused(key, part[key], allowed))
                del part[key]
                if key == "properties" and part.get("additionalProperties") is False:
                    del part["additionalProperties"]  # otherwise no arguments would be allowed
        for key in ("patternProperties", "minProperties", "maxProperties"):
            if part.get(key):
                error = refused(key, part[key], "leaving it out", "is not implemented between tags")
                leave_out(key, error)
                del part[key]
        for name, value in dict_of(part, "properties").items():
            if "string" in kinds_of(value):
                for limits in _in_place(value, schema, strings):
                    _adapt_string(limits, f"properties.{name}", leave_out)


def _adapt_string(limits: dict[str, Any], path: str, leave_out: LeaveOut) -> None:
    for key, check in (("pattern", _pattern), ("format", _format)):
        if key not in limits:
            continue
        try:
            check(limits[key])
        except GrammarError as error:
            leave_out(at(path, key), GrammarError(f"{at(path, key)}: {error}"))
            del limits[key]


def _in_place(schema: Any, root: Any, seen: set[str]) -> Iterator[dict[str, Any]]:
    """The schema and all its subschemas about the same value. `seen`: references already
    followed."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield part
            pending += reversed([*parts_in_place(part, root, seen)])


def types_between_tags(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema by which to read arguments that follow the grammar: says which of them are plain
    text."""
    kinds = _kinds_of_texts(WrittenOut(schema, Work()).arguments())
    return {"properties": {name: {"type": sorted(types)} for name, types in kinds.items()}}


def _kinds_of_texts(alternatives: Sequence[Arguments]) -> dict[str, set[str]]:
    """Types of the arguments that are written as plain text: those that may be strings in every
    alternative."""
    kinds: dict[str, list[set[str]]] = {}
    for arguments in alternatives:
        for name, part in arguments.schemas().items():
            kinds.setdefault(name, []).append(kinds_of(part))
    return {
        name: set.union(*types)
        for name, types in kinds.items()
        if all("string" in part for part in types)
    }


def _bodies(schemas: Schemas, begin: str) -> Rules:
    work, rules, bodies = Work(), list[str](), []
    for names, schema in by_schema(schemas):
        begins = named(f"{begin}\n<function=%s>\n", names, rules)
        arguments = _FunctionRules(schema, work, rules).arguments()
        bodies.append(f"{begins} {arguments} {_CALL_END}")
    return Rules(alternatives(bodies), tuple(rules))


class _FunctionRules:
    """Makes the rules for one function's arguments, and adds them to `rules`."""

    def __init__(self, schema: Any, work: Work, rules: list[str]) -> None:
        self._schema = schema
        self._work = work
        self._rules = rules
        self._written_out = WrittenOut(schema, work)

    def arguments(self) -> str:
        """Expression for the arguments of one call, in the schema's order."""
        flats = self._written_out.arguments()
        texts = _kinds_of_texts(flats).keys()
        return alternatives(self._alternative(flat, texts) for flat in flats)

    def _alternative(self, flat: Arguments, texts: Collection[str]) -> str:
        """Expression for one alternative. `texts`: names of the arguments that are plain text."""
        arguments = []
        for name, part in flat.schemas().items():
            begin = quoted(f"<parameter={name}>\n")
            argument = f"{begin} {self._text(part) if name in texts else self._json(part)}"
            arguments.append(argument if name in flat.required else f"({argument})?")
        if (others := flat.others) is not False:
            begin = r'"<parameter=" /[a-zA-Z0-9_.-]+/ ">\n"'
            arguments.append(f"({begin} {self._json(others)})*")
        return " ".join(arguments)

    def _json(self, schema: Any) -> str:
        root = self._schema
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        whole = {**definitions, **schema} if isinstance(schema, Mapping) else schema
        rule = json_rule(whole)
        self._work.charge(len(rule))
        return f"{rule} {_END}"

    def _text(self, schema: Any) -> str:
        """Expression for a string as plain text, with the tag that ends it."""
        limits = self._written_out.strings(schema)
        texts = [" & ".join(_expressions(together)) for together in limits]
        self._work.charge(sum(map(len, texts)))
        number, rules = len(self._rules), self._rules
        if not all(texts):  # any text is allowed, so "null" is too
            rules.append(f"value{number}[lazy]: {ANY_TEXT} {_END}")
            return f"value{number}"
        texts += [quoted("null")] if _allows_null(schema) else []
        inside = f"~({ANY_TEXT} {quoted(END)} {ANY_TEXT})"
        # One terminal, since the lexer cannot go back from one to another.
        rules.append(f"VALUE{number}: ({alternatives(dict.fromkeys(texts))} & {inside}) {_END}")
        return f"VALUE{number}"


def _allows_null(schema: Mapping[str, Any]) -> bool:
    return "null" in kinds_of(schema) and None in (list_of(schema, "enum") or [None])


def _expressions(limits: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Terminals that must all match the string, one for each of its limits."""
    for limit in limits:
        listed = [[limit["const"]]] if "const" in limit else []
        for values in [*listed, *([list_of(limit, "enum")] if "enum" in limit else [])]:
            texts = [text for text in values if isinstance(text, str)]
            yield alternatives(json.dumps(text, ensure_ascii=False) for text in texts)
        if "pattern" in limit:
            yield _pattern(limit["pattern"])
        if "format" in limit:
            yield _format(limit["format"])
        least, most = limit.get("minLength", 0), limit.get("maxLength", "")
        if least or most != "":
            yield f"/(?s:.{{{least},{most}}})/"


def _pattern(pattern: object) -> str:
    if not isinstance(pattern, str):
        raise GrammarError(f"{shown_json(pattern)} is no pattern; allowed: a string")
    return f"/{regex_to_lark(searched(pattern), 'dw')}/"


def _format(name: object) -> str:
    if not (isinstance(name, str) and name in _FORMATS):
        why, allowed = "is not implemented between tags", ", ".join(_FORMATS)
        raise GrammarError(f"{shown_json(name)} {why}; allowed: {allowed}")
    return f"/{regex_to_lark(_FORMATS[name], 'dw')}/"
