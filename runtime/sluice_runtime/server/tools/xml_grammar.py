"""Grammars for calls that write each argument between tags, as Qwen3-Coder does. Pure.

Strings stand there as they are, so their limits become expressions of the text; all else is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llguidance import regex_to_lark
from sluice_contract.http_errors import shown_json

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.constraint import json_rule
from sluice_runtime.grammar.patterns import searched
from sluice_runtime.grammar.schema_keywords import at, dict_of, list_of, refused, target_of
from sluice_runtime.server.tools.call_grammars import (
    ANY_TEXT,
    Rules,
    Schemas,
    Tokens,
    alternatives,
    quoted,
    separated,
    triggered,
)
from sluice_runtime.server.tools.xml_values import END, kinds_of

LeaveOut = Callable[[str, GrammarError], None]
"""Notes the place of a keyword that is left out, or raises the error."""

_END: Final = quoted(f"\n{END}\n")
_MAX_ALTERNATIVES: Final = 64
"""Of the arguments of one function, written out."""
_LIMITS: Final = frozenset({"const", "enum", "format", "maxLength", "minLength", "pattern"})
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
"""Formats of strings, in their shape."""


@dataclass(frozen=True)
class XmlTag:
    """A tag for the function, with a tag for each argument inside."""

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
"""What the grammar reads of a schema of arguments itself: whether a value has the right type."""


def adapt_to_text(schema: dict[str, Any], leave_out: LeaveOut) -> None:
    """Takes out of a function's schema what text between tags cannot be held to.

    Raises:
        GrammarError: as `leave_out` does.
    """
    for part in _in_place(schema, schema):
        for key, (is_right, allowed) in _TYPES.items():
            if key in part and not is_right(part[key]):
                leave_out(key, refused(key, part[key], allowed))
                del part[key]
                if key == "properties" and part.get("additionalProperties") is False:
                    del part["additionalProperties"]  # else there would be no arguments
        for key in ("patternProperties", "minProperties", "maxProperties"):
            if part.get(key):
                error = refused(key, part[key], "leaving it out", "is not implemented between tags")
                leave_out(key, error)
                del part[key]
        for name, value in dict_of(part, "properties").items():
            if "string" in kinds_of(value):
                for limits in _in_place(value, schema):
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


def _in_place(schema: Any, root: Any, seen: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """The schema, and all that are about the same value."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key in ("anyOf", "oneOf", "allOf"):
        for part in list_of(schema, key):
            yield from _in_place(part, root, seen)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        yield from _in_place(target_of(reference, root), root, (*seen, reference))


def types_between_tags(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema by which arguments that keep to the grammar are read: what is plain text."""
    kinds = _kinds_of_texts(_flat(schema, schema))
    return {"properties": {name: {"type": sorted(types)} for name, types in kinds.items()}}


def _kinds_of_texts(flats: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Types of the arguments that are plain text, which are strings in all alternatives."""
    kinds: dict[str, list[set[str]]] = {}
    for flat in flats:
        for name, part in dict_of(flat, "properties").items():
            kinds.setdefault(name, []).append(kinds_of(part))
    return {
        name: set.union(*types)
        for name, types in kinds.items()
        if all("string" in part for part in types)
    }


def _bodies(schemas: Schemas, begin: str) -> Rules:
    rules: list[str] = []
    bodies = []
    for name, schema in schemas.items():
        flats = _flat(schema, schema)
        texts = _kinds_of_texts(flats).keys()
        arguments = alternatives(_arguments(flat, schema, texts, rules) for flat in flats)
        begins, ends = quoted(f"{begin}\n<function={name}>\n"), quoted("</function>\n</tool_call>")
        bodies.append(f"{begins} {arguments} {ends}")
    return Rules(alternatives(bodies), tuple(rules))


def _flat(schema: Any, root: Any, seen: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Alternatives of a schema of objects, each without others in it. `seen`: references that led
    here.

    Raises:
        GrammarError: a reference leads nowhere, or to itself; or there are too many alternatives.
    """
    if not isinstance(schema, Mapping):
        return [{}] if schema is True else []
    own = {key: schema[key] for key in schema.keys() & _OF_OBJECTS}
    products = [] if "properties" in own else [[own]]
    for key, value in schema.items():  # the order of arguments is the schema's
        if key == "properties":
            products.append([own])
        elif key == "$ref":
            target = target_of(value, root)
            if value in seen or not isinstance(target, Mapping):
                raise refused("$ref", value, "a reference to a schema that is there")
            products.append(_flat(target, root, (*seen, value)))
        elif key in ("anyOf", "oneOf"):
            parts = list_of(schema, key)
            products.append([flat for part in parts for flat in _flat(part, root, seen)])
        elif key == "allOf":
            products += [_flat(part, root, seen) for part in list_of(schema, key)]
    result: list[dict[str, Any]] = [{}]
    for options in products:
        result = [_both(first, second) for first in result for second in options]
        if len(result) > _MAX_ALTERNATIVES:
            raise GrammarError(f"more than {_MAX_ALTERNATIVES} alternatives of arguments")
    return result


_OF_OBJECTS: Final = frozenset({"properties", "required", "additionalProperties"})


def _both(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two schemas of objects as one."""
    ours, theirs = dict_of(first, "properties"), dict_of(second, "properties")
    names = dict.fromkeys([*ours, *theirs])
    rest = [_rest(first), _rest(second)]
    properties = {
        name: _all_of([ours.get(name, rest[0]), theirs.get(name, rest[1])]) for name in names
    }
    return {
        "properties": {name: part for name, part in properties.items() if part is not False},
        "required": [*list_of(first, "required"), *list_of(second, "required")],
        "additionalProperties": _all_of(rest),
    }


def _rest(schema: Mapping[str, Any]) -> Any:
    return schema.get("additionalProperties", True)


def _all_of(parts: Sequence[Any]) -> Any:
    if False in parts:
        return False
    limits = [part for part in parts if part is not True and part != {}]
    return limits[0] if len(limits) == 1 else {"allOf": limits} if limits else True


def _arguments(
    schema: Mapping[str, Any], root: Any, texts: Collection[str], rules: list[str]
) -> str:
    """The arguments of one call, in the schema's order; adds the rules that they need. `texts`: the
    arguments that are plain text."""
    required, arguments = list_of(schema, "required"), []
    for name, part in dict_of(schema, "properties").items():
        begin, write = quoted(f"<parameter={name}>\n"), _text if name in texts else _json
        argument = f"{begin} {write(part, root, rules)}"
        arguments.append(argument if name in required else f"({argument})?")
    others = _rest(schema)
    if others is not False:
        begin = r'"<parameter=" /[a-zA-Z0-9_.-]+/ ">\n"'
        arguments.append(f"({begin} {_json(others, root, rules)})*")
    return " ".join(arguments)


def _json(schema: Any, root: Any, _: list[str]) -> str:
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    whole = {**definitions, **schema} if isinstance(schema, Mapping) else schema
    return f"{json_rule(whole)} {_END}"


def _text(schema: Any, root: Any, rules: list[str]) -> str:
    """A string as plain text, up to the tag that ends it."""
    texts = [" & ".join(_expressions(limits)) for limits in _string_limits(schema, root)]
    number = len(rules)
    if not all(texts):  # any text, which "null" is too
        rules.append(f"value{number}[lazy]: {ANY_TEXT} {_END}")
        return f"value{number}"
    texts += [quoted("null")] if _allows_null(schema) else []
    inside = f"~({ANY_TEXT} {quoted(END)} {ANY_TEXT})"
    # One terminal, since the lexer cannot go back from one to another.
    rules.append(f"VALUE{number}: ({alternatives(dict.fromkeys(texts))} & {inside}) {_END}")
    return f"VALUE{number}"


def _allows_null(schema: Mapping[str, Any]) -> bool:
    return "null" in kinds_of(schema) and None in (list_of(schema, "enum") or [None])


def _string_limits(
    schema: Any, root: Any, seen: tuple[str, ...] = ()
) -> list[list[Mapping[str, Any]]]:
    """What is said of strings: for each alternative, the limits that hold together."""
    if not isinstance(schema, Mapping):
        return [[]] if schema is True else []
    kinds = schema.get("type", "string")
    if "string" not in (kinds if isinstance(kinds, list) else [kinds]):
        return []
    own = {key: schema[key] for key in schema.keys() & _LIMITS}
    products: list[list[list[Mapping[str, Any]]]] = [[[own] if own else []]]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            parts = [_string_limits(part, root, seen) for part in list_of(schema, key)]
            products.append([limits for part in parts for limits in part])
    products += [_string_limits(part, root, seen) for part in list_of(schema, "allOf")]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        products.append(_string_limits(target_of(reference, root), root, (*seen, reference)))
    result: list[list[Mapping[str, Any]]] = [[]]
    for options in products:
        result = [[*first, *second] for first in result for second in options]
        if len(result) > _MAX_ALTERNATIVES:
            raise GrammarError(f"more than {_MAX_ALTERNATIVES} alternatives of a string")
    return result


def _expressions(limits: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Terminals that all match a string within the limits."""
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
