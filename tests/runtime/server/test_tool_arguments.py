"""Calls that are not written to the letter: their arguments are an object, or they stay text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.body import parse_request
from sluice_runtime.server.messages.events import MessageWriter
from sluice_runtime.server.messages.request import PromptFields
from sluice_runtime.server.response_writers import Envelope, Usage
from sluice_runtime.server.responses.events import ResponseWriter
from sluice_runtime.server.responses.request import ResponsesRequest
from sluice_runtime.server.tools.calls import CallParser, CallPart, whole_calls
from sluice_runtime.server.tools.formats import (
    FORMATS,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3_CODER,
    ToolFormat,
)

from tests.pairwise import matrix

SCHEMAS: dict[str, Any] = {
    "f": {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "string"},
            "n": {"type": "integer"},
            "flag": {"type": "boolean"},
            "items": {"type": "array"},
            "record": {"type": "object"},
            "any": {},
            "zip": {"$ref": "#/$defs/Zip"},
            "loop": {"$ref": "#/$defs/Loop"},
            "all": {"allOf": [{"$ref": "#/$defs/Zip"}, {"minLength": 1}]},
            "some": {"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]},
            "maybe": {"type": ["string", "null"]},
            "unit": {"enum": ["1", "2"]},
            "unit_or_none": {"enum": ["1", None]},
            "fixed": {"const": "7"},
            "tags": {"items": {"type": "string"}},
        },
        "$defs": {"Zip": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}},
    },
    "g": {"type": "object", "properties": {"a": {"type": "string"}, "c": {"type": "string"}}},
}

Read = tuple[str, list[tuple[str, str]]]


def read(
    form: ToolFormat, pieces: Sequence[str], schemas: Any = SCHEMAS, *, cut: bool = False
) -> Read:
    """The text, and each call's name and arguments."""
    parser = CallParser(form.read, schemas, lambda: "id")
    parts = [*(parser.push(piece) for piece in pieces), parser.finish(cut=cut)]
    assert cut or not parser.open
    calls = whole_calls(call for part in parts for call in part.calls)
    text = "".join(part.text for part in parts)
    return text, [(call.name or "", call.arguments) for call in calls]


def sent(form: ToolFormat, pieces: Sequence[str], schemas: Any = SCHEMAS) -> Iterator[Read]:
    """What has been passed on after each piece."""
    parser = CallParser(form.read, schemas, lambda: "id")
    text, calls = "", list[tuple[str, str]]()
    for piece in pieces:
        part = parser.push(piece)
        text += part.text
        for call in part.calls:
            if call.name is not None:
                calls.append((call.name, ""))
            calls[-1] = (calls[-1][0], calls[-1][1] + call.arguments)
        yield text, list(calls)


def objects(form: ToolFormat, text: str) -> tuple[str, list[tuple[str, Any]]]:
    """What is read of a text: at each place the same, however it came."""
    whole = read(form, [text])
    assert read(form, list(text)) == whole
    for end, passed in enumerate(sent(form, text), 1):
        assert next(sent(form, [text[:end]])) == passed
    return whole[0], [(name, json.loads(arguments)) for name, arguments in whole[1]]


WRAPPED: dict[ToolFormat, str] = {
    HERMES: '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>',
    LLAMA3: '{"name": "f", "parameters": %s}',
    MISTRAL: '[TOOL_CALLS][{"name": "f", "arguments": %s}]',
    MISTRAL_NAMED: "[TOOL_CALLS]f[ARGS]%s",
    QWEN3_CODER: "<tool_call>\n<function=f>\n<parameter=record>\n%s\n</parameter>\n</function>\n"
    "</tool_call>",
}
EVERY = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.families)
JSON_FORMATS = pytest.mark.parametrize(
    "form", [form for form in FORMATS if form is not QWEN3_CODER], ids=lambda form: form.families
)


def arguments_of(form: ToolFormat, spelled: str) -> Any:
    text, calls = objects(form, WRAPPED[form] % spelled)
    assert text == ""
    ((name, arguments),) = calls
    assert name == "f"
    return arguments["record"] if form is QWEN3_CODER else arguments


CONTROLS = "y".join(map(chr, range(0x20))) + "y"
MENDED = [
    (f'{{"a": "{CONTROLS}"}}', {"a": CONTROLS}),
    ('{"a":\n\t"x"\r\n}', {"a": "x"}),
    ('{"a": "x\x00\\\ny"}', {"a": "x\x00\\\ny"}),
    ('{"a\tb": 1}', {"a\tb": 1}),
    ("{'a': 'x', 'b': \"it's\"}", {"a": "x", "b": "it's"}),
    ("{'a': 'say \"x\"', 'b': 'it's'}", {"a": 'say "x"', "b": "it's"}),
    ("{'flag': True, 'n': None, 'items': [False, (1, 2)]}",
     {"flag": True, "n": None, "items": [False, [1, 2]]}),
    ('{"a": NaN, "b": -Infinity, "n": [Infinity]}', {"a": None, "b": None, "n": [None]}),
    ('{"a": [1, 2, ], "b": {"x": 1,},}', {"a": [1, 2], "b": {"x": 1}}),
    ('{"a": [1,, 2], , "b": 2}', {"a": [1, 2], "b": 2}),
    ('{"a": 1, // one\n "b": /* two, } */ 2 # three\n}', {"a": 1, "b": 2}),
    ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
    ('{"a": "x" "b": "y"}', {"a": "x", "b": "y"}),
    ('{"a": "x",\n"b": ["y" "z"]}', {"a": "x", "b": ["y", "z"]}),
    ("{a: 1, b: x y, n: .5}", {"a": 1, "b": "x y", "n": 0.5}),
    ('{"a": https://x.org/a?b=1, "n": +1, "b": 007}',
     {"a": "https://x.org/a?b=1", "n": 1, "b": "007"}),
    ('{"a": 1, "a": 2}', {"a": 2}),
    ('{"a": , "b": }', {"a": None, "b": None}),
    ('{"a", "b" 1}', {"a": None, "b": None, "1": None}),
    ('{"a": "x\\d\\\'\\x41\\u00e9\\uZ"}', {"a": "x\\d'Aé\\uZ"}),
    ('{"a": "\\ud83d\\ude00 \\ud83d \\ude00 \\ud83dx"}', {"a": "😀 � � �x"}),
    ('{"a": "echo "hi" now", "b": "y"}', {"a": 'echo "hi" now', "b": "y"}),
    ('{"a": "echo "hi, you", now", "b": "y"}', {"a": 'echo "hi, you", now', "b": "y"}),
    ('{"a": ""x"", "b": ["the "x" y", "z"]}', {"a": '"x"', "b": ['the "x" y', "z"]}),
    ('{"a": "json {"city": "z"}", "n": 2}', {"a": 'json {"city": "z"}', "n": 2}),
    ('{"n": 2, "a": "{"k": "z", "x": [1, "y"]}"}', {"n": 2, "a": '{"k": "z", "x": [1, "y"]}'}),
    ('{"n": 2, "a": "see ["z", "y"]"}', {"n": 2, "a": 'see ["z", "y"]'}),
    ('{"b": ["json {"x": "z", "y": 1}", "z"]}', {"b": ['json {"x": "z", "y": 1}', "z"]}),
    ('{"a": "x {"k": []}}, {{ "z" [" now", "n": 1}', {"a": 'x {"k": []}}, {{ "z" [" now', "n": 1}),
    ("{'a': 'it's {x'}", {"a": "it's {x"}),
    ('{"a": "say {"x} now"}', {"a": 'say {"x} now'}),
    ('{"a": x", "n": 1}', {"a": "x", "n": 1}),
    ('{"a": [1, 2}', {"a": [1, 2]}),
    ('{"a": {"x": [1, {"y": "z"]}}', {"a": {"x": [1, {"y": "z"}]}}),
    ('{"a": 1]}', {"a": 1}),
    ('{"a": "x"}', {"a": "x"}),
    ("{}", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "mended"), matrix(FORMATS, MENDED, others=pytest.mark.full, together=1)
)
def test_arguments_are_made_an_object(form: ToolFormat, mended: tuple[str, Any]) -> None:
    spelled, arguments = mended
    if form is QWEN3_CODER or not (spelled.endswith(("[1, 2}", "]}}")) and "}}" not in spelled):
        assert arguments_of(form, spelled) == arguments


@JSON_FORMATS
def test_json_in_a_string_ends_before_the_next_parameter(form: ToolFormat) -> None:
    spelled = '{"a": "json {"city": "z"}, "n": 2}'
    assert arguments_of(form, spelled) == {"a": 'json {"city": "z"}', "n": 2}


LEFT_OVER = ['", "n": 2}', '", "n": {"x": [{"y": 1.5}, null]}}', '"', '", "b": "}"}', ', "zz": 2}']


@JSON_FORMATS
@pytest.mark.parametrize("rest", LEFT_OVER)
def test_the_rest_of_a_call_that_seemed_to_end_is_no_text(form: ToolFormat, rest: str) -> None:
    assert objects(form, WRAPPED[form] % ('{"a": "x"}' + rest)) == ("", [("f", {"a": "x"})])


def test_a_call_behind_such_a_rest_is_read() -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}}, "n": 2}}, {"name": "g", "arguments": {}}]'
    assert objects(MISTRAL, text) == ("", [("f", {}), ("g", {})])
    between = '<function=f>{"a": "x"}", "n": 2}</function>'
    assert objects(QWEN3_CODER, between) == ("", [("f", {"a": "x"})])


@JSON_FORMATS
@pytest.mark.parametrize("text", ['"Done", he said.', "'t was done", "fine {1}", "[see below]"])
def test_text_behind_a_call_stays(form: ToolFormat, text: str) -> None:
    call = WRAPPED[form] % "{}"
    assert objects(form, f"{call} {text}") == (text, [("f", {})])


VALID = [
    '{ "a" :\t1 ,"b"\n:[ ] , "n":{ },"x" : [1.5e-3 , -0, "\\u00e9\\/\\ud83d\\ude00" ] }',
    '{"a": "x, ", "b": ": y", "": "\\"", "c:": ",\\"b\\": \'"}',
    '{"a": "</tool_call>\\n<tool_call>{\\"name\\": [TOOL_CALLS]f[ARGS]{} <|python_tag|>{", "b": 1}',
    '{"a": "<tool_call> {", "b": "<tool_call>{,", "c": "</tool_call>", "d": "[TOOL_CALLS]["}',
    '{"a": "x\\\\", "b": "\\\\\\"", "it\'s": "it\'s, \'b\': 1"}',
    '{"a": 12345678901234567890, "b": 1e400, "n": [[[]], {"a": {"a": "a"}}]}',
]


@JSON_FORMATS
@pytest.mark.parametrize("spelled", VALID)
def test_valid_arguments_come_out_as_they_are(form: ToolFormat, spelled: str) -> None:
    for pieces in ([WRAPPED[form] % spelled], list(WRAPPED[form] % spelled)):
        assert read(form, pieces) == ("", [("f", spelled)])


def test_strings_are_passed_on_as_they_come() -> None:
    parser = CallParser(HERMES.read, SCHEMAS, lambda: "id")
    begun = parser.push('<tool_call>{"name": "f", "arguments": {"a": "one\ntwo')
    assert begun.calls[0].arguments == '{"a": "one\\ntwo'
    assert parser.push(", ").calls == ()
    assert parser.push("three").calls[0].arguments == ", three"


CLOSED = [
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x"}'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x"'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x"</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": x</tool_call>'),
    (HERMES, '<tool_call>{"arguments": {"a": "x"}, "name": "f"</tool_call>'),
    (HERMES, '<tool_call>\n```json\n[{"name": "f", "arguments": {"a": "x"}}]\n```\n</tool_call>'),
    (HERMES, "<tool_call>{'name': 'f', 'arguments': {'a': 'x'}}</tool_call>"),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"x\\"}"}</tool_call>'),
    (HERMES, '<tool_call>{"arguments": "{\'a\': \'x\'}", "name": "f"}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{"a": "x"}"}</tool_call>'),
    (LLAMA3, '{"name": "f", "parameters": {"a": "x"'),
    (LLAMA3, '{"name": "f", "parameters": "{\\"a\\": \\"x\\"}"}'),
    (LLAMA3, '```json\n{"name": "f", "parameters": {"a": "x"}}\n```'),
    (LLAMA3, '```\n{"type": "function", "name": "f", "parameters": {"a": "x"}}```'),
    (LLAMA3, '[{"name": "f", "parameters": {"a": "x"}}]'),
    (LLAMA3, '<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": "x"}}'),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"a": "x"'),
    (MISTRAL, '[TOOL_CALLS]{"name": "f", "arguments": {"a": "x"}}'),
    (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": "{\\"a\\": \\"x\\"}"}]'),
    (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"a": "x'),
    (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]"{\\"a\\": \\"x\\"}"'),
    (QWEN3_CODER, "<tool_call><function=f><parameter=a>x"),
    (QWEN3_CODER, "<tool_call><function=f><parameter=a>x</para"),
    (QWEN3_CODER, "<tool_call><function=f><parameter=a>x</parameter>"),
    (QWEN3_CODER, "<tool_call><function=f><parameter=a>x</parameter></parameter></function>"),
    (QWEN3_CODER, "<tool_call><function=f><parameter=a>x</parameter><parameter="),
    (QWEN3_CODER, "<tool_call><function=f><parameter=a>\nx\n</function>\n</tool_call>"),
    (QWEN3_CODER, "<tool_call><function=f><parameter=a>\nx\n</tool_call>"),
    (QWEN3_CODER, "<function=f\n<parameter=a\nx</parameter></function></tool_call>"),
    (QWEN3_CODER, '<tool_call><function=f>{"a": "x"}</function></tool_call>'),
    (QWEN3_CODER, '<tool_call><function=f>{"a": "x"</function></tool_call>'),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text"), CLOSED)
def test_what_a_call_lacks_is_added(form: ToolFormat, text: str) -> None:
    assert objects(form, text) == ("", [("f", {"a": "x"})])


NO_ARGUMENTS = [
    (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": ""}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f"</tool_call>'),
    (LLAMA3, '{"name": "f", "parameters": null}'),
    (LLAMA3, '{"name": "f", "parameters": "null"}'),
    (MISTRAL_NAMED, "[TOOL_CALLS]f[ARGS]null"),
    (QWEN3_CODER, "<tool_call><function=f></function></tool_call>"),
    (QWEN3_CODER, "<tool_call><function=f></tool_call>"),
    (QWEN3_CODER, "<function=f>"),
]


@pytest.mark.parametrize(("form", "text"), NO_ARGUMENTS)
def test_no_arguments_are_an_empty_object(form: ToolFormat, text: str) -> None:
    assert objects(form, text) == ("", [("f", {})])


@pytest.mark.parametrize("value", ["[]", '[{"a": 1}]', '"x"', "1", "true", '"[1]"', "[[", '"{} x"'])
@JSON_FORMATS
def test_arguments_that_are_no_object_stay_text(form: ToolFormat, value: str) -> None:
    text = WRAPPED[form] % value
    assert objects(form, text) == (text, [])
    first = WRAPPED[form] % "{}"
    if form in (HERMES, MISTRAL_NAMED):
        assert objects(form, first + text) == (text, [("f", {})])


SEVERAL = [
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x"}}{"name": "g", "arguments": {"c": '
     '"y"}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x"}}\n<tool_call>{"name": "g", '
     '"arguments": {"c": "y"}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x"</tool_call><tool_call>{"name": "g", '
     '"arguments": {"c": "y"}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x</tool_call>\n<tool_call>\n{"name": '
     '"g", "arguments": {"c": "y"}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "x<tool_call>{"name": "g", "arguments": '
     '{"c": "y"}}</tool_call>'),
    (LLAMA3, '{"name": "f", "parameters": {"a": "x"}}{"name": "g", "parameters": {"c": "y"}}'),
    (LLAMA3, '{"name": "f", "parameters": {"a": "x"}}\n\n{"name": "g", "parameters": {"c": "y"}}'),
    (LLAMA3, '{"name": "f", "parameters": {"a": "x"<|python_tag|>{"name": "g", "parameters": {"c": '
     '"y"}}'),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"a": "x"}} {"name": "g", "arguments": {"c":'
     ' "y"}}'),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"a": "x"}}][TOOL_CALLS][{"name": "g", '
     '"arguments": {"c": "y"}}]'),
    (MISTRAL_NAMED, '[TOOL_CALLS]f[ARGS]{"a": "x[TOOL_CALLS]g[ARGS]{"c": "y"}'),
    (MISTRAL_NAMED, '[TOOL_CALLS]f{"a": "x"[TOOL_CALLS]g{"c": "y"}'),
    (QWEN3_CODER, "<tool_call><function=f><parameter=a>x</function></tool_call>\n<tool_call>"
     "<function=g><parameter=c>y</parameter></function></tool_call>"),
    (QWEN3_CODER, "<tool_call><function=f><parameter=a>x<tool_call><function=g><parameter=c>y"),
    (QWEN3_CODER, "<function=f><parameter=a>x<function=g><parameter=c>y</function></tool_call>"),
    (QWEN3_CODER, "<tool_call><function=f><parameter=a>x</parameter></function><function=g>"
     "<parameter=c>y</parameter></function></tool_call>"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text"), SEVERAL)
def test_calls_without_what_separates_them(form: ToolFormat, text: str) -> None:
    assert objects(form, text) == ("", [("f", {"a": "x"}), ("g", {"c": "y"})])


def xml(*values: str) -> str:
    return "<tool_call>\n<function=f>\n" + "\n".join(values) + "\n</function>\n</tool_call>"


def value(name: str, text: str) -> str:
    return f"<parameter={name}>\n{text}\n</parameter>"


PREFACED = [
    ('Sure. {"name": "f", "parameters": {"a": "x"}}', "Sure."),
    ('Sure:\n```json\n{"name": "f", "parameters": {"a": "x"}}\n```\nDone {1}.', "Sure:\nDone {1}."),
    ('I use [1] { so\n[{"name": "f", "parameters": {"a": "x"}}]', "I use [1] { so"),
    ('{"x": 1}\n{"type": "function", "name": "f", "arguments": {"a": "x"}}', '{"x": 1}'),
    ('Sure {"name": "f", "parameters": {"a": "x"}} ok', "Sure ok"),
    ('Sure\n[{"name": "f", "parameters": {"a": "x"}}]\n\nok', "Sure\n\nok"),
    ('{"name": "f", "parameters": {"a": "x"}}\n\nDone', "Done"),
]


@pytest.mark.parametrize(("text", "rest"), PREFACED)
def test_llamas_calls_may_stand_in_a_text(text: str, rest: str) -> None:
    assert objects(LLAMA3, text) == (rest, [("f", {"a": "x"})])


TEXTS = [
    (LLAMA3, '```json\n{"name": "Bob", "parameters": {}}\n```'),
    (LLAMA3, 'So:\n```json\n{"f": [{"name": "f", "parameters": {}}]}\n```'),
    (LLAMA3, 'So: [{"name": "f", "description": "d", "parameters": {"type": "object"}}]'),
    (LLAMA3, 'Use {"type": "object", "name": "f", "parameters": {}}  {  "x"'),
    (LLAMA3, 'Use  { name } and  [ "x" ] or {"name": "f"}.'),
    (HERMES, 'a  <tool_call>  {"name": 1}  </tool_call>'),
    (HERMES, '<tool_call>{"name": "f", '),
    (HERMES, '<tool_call>{"name": "f", <tool_call>{"name": "f"'),
    (QWEN3_CODER, "a  <tool_call>\n f"),
]


@pytest.mark.parametrize(("form", "text"), TEXTS)
def test_what_is_no_call_is_passed_on_whole(form: ToolFormat, text: str) -> None:
    assert objects(form, text) == (text, [])


@EVERY
def test_an_answer_that_was_cut_is_not_completed(form: ToolFormat) -> None:
    spelled = xml(value("a", "x y z")) if form is QWEN3_CODER else WRAPPED[form] % '{"a": "x y z"}'
    cut = spelled[: spelled.index(" z")]
    assert read(form, [cut], cut=True) == ("", [("f", '{"a": "x y')])
    assert read(form, [cut]) == ("", [("f", '{"a": "x y"}')])


ESCAPES = ["\\u00e9", "\\ud83d\\ude00", "\\x41", "\\n"]


@JSON_FORMATS
@pytest.mark.parametrize("escape", ESCAPES)
def test_an_escape_that_is_cut_is_left_out(form: ToolFormat, escape: str) -> None:
    begin = (WRAPPED[form] % '{"a": "foo').partition("foo")[0] + "foo"
    for end in range(1, len(escape)):
        for pieces in ([begin + escape[:end]], [*begin, *escape[:end]]):
            assert read(form, pieces, cut=True) == ("", [("f", '{"a": "foo')])
    assert read(form, [begin + "\\uZ1"], cut=True) == ("", [("f", '{"a": "foo\\\\uZ1')])


@pytest.mark.parametrize("route", ["messages", "responses"])
def test_text_behind_a_call_does_not_part_it(route: str) -> None:
    """Also where a step has several tokens, so that the call's end and text come together."""
    envelope, usage, request = Envelope("id", 1, "m"), Usage([2], 1), {"model": "m", "input": "a"}
    asked = parse_request(ResponsesRequest, json.dumps(request).encode(), strict=False).request
    writer: Any = ResponseWriter(asked, envelope, usage)
    if route == "messages":
        writer = MessageWriter(
            PromptFields.model_construct(model="m", messages=[]), envelope, usage
        )
    begun = CallPart(0, '{"a": ', "c", "f")
    pieces = [
        Piece(0, "", 1, calls=(begun,)),
        Piece(0, "Done", 4, calls=(CallPart(0, "1}"), CallPart(1, "{}", "d", "g", 4))),
    ]
    events = [event for piece in pieces for event in writer.chunk(piece).events]
    kinds = [event["type"].removeprefix("response.") for event in events]
    if route == "messages":
        blocks = [event["content_block"] for event in events if "content_block" in event]
        deltas = [event["delta"] for event in events if "delta" in event]
        assert [block["type"] for block in blocks] == ["tool_use", "text", "tool_use"]
        assert [delta.get("partial_json") for delta in deltas] == ['{"a": ', "1}", None, "{}"]
    else:
        done = next(event for event in events if event["type"].endswith("arguments.done"))
        assert done["arguments"] == '{"a": 1}'
        assert kinds.count("output_item.added") == 3
