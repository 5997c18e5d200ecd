"""Every format of tool calls: calls found in growing text, however it is cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.server.tools.calls import CallParser, whole_calls
from sluice_runtime.server.tools.formats import (
    FORMATS,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    QWEN3_CODER,
    ToolFormat,
)
from sluice_runtime.server.tools.plan import CallReading

from tests.examples import examples

Arguments = dict[str, Any]
SCHEMAS: dict[str, Any] = {
    "weather": {
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "at": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "where": {"type": "object"},
        }
    },
    "now": {"properties": {}},
}


def xml(arguments: Arguments) -> str:
    def spelled(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    return "".join(
        f"<parameter={key}>\n{spelled(value)}\n</parameter>\n" for key, value in arguments.items()
    )


@dataclass(frozen=True)
class Spelling:
    """How a model of the family writes calls."""

    call: Callable[[str, Arguments], str]
    between: str = "\n"
    before: str = ""
    """What begins the calls of an answer that has text before them."""
    lead: str = ""
    after: str = ""

    def spelled(self, calls: Sequence[tuple[str, Arguments]], text: str = "") -> str:
        if not calls:
            return text
        begin = (self.before or self.lead) if text else self.lead
        return text + begin + self.between.join(self.call(*one) for one in calls) + self.after


SPELLINGS: dict[ToolFormat, Spelling] = {
    HERMES: Spelling(
        lambda name, given: (
            f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"
        )
    ),
    LLAMA3: Spelling(
        lambda name, given: json.dumps({"name": name, "parameters": given}),
        between="; ",
        before="<|python_tag|>",
    ),
    MISTRAL: Spelling(
        lambda name, given: json.dumps({"name": name, "arguments": given}, ensure_ascii=False),
        between=", ",
        lead="[TOOL_CALLS][",
        after="]",
    ),
    MISTRAL_NAMED: Spelling(
        lambda name, given: f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}", between=""
    ),
    QWEN3_CODER: Spelling(
        lambda name, given: f"<tool_call>\n<function={name}>\n{xml(given)}</function>\n</tool_call>"
    ),
}
IDS = [f"{form.name}-{type(form.grammar).__name__}" for form in FORMATS]
EVERY = pytest.mark.parametrize("form", FORMATS, ids=IDS)


def parsed(
    form: ToolFormat, parts: Sequence[str], *, calls_only: bool = False, cut: bool = False
) -> tuple[str, list[tuple[str, str]]]:
    """The text, and each call's name and arguments; ids are drawn once a call."""
    ids = count()
    parser = CallParser(form.read, SCHEMAS, lambda: f"id{next(ids)}", calls_only=calls_only)
    results = [*(parser.push(part) for part in parts), parser.finish(cut=cut)]
    calls = whole_calls(part for result in results for part in result.calls)
    assert [call.index for call in calls] == list(range(parser.calls))
    assert [call.call_id for call in calls] == [f"id{i}" for i in range(parser.calls)]
    return "".join(result.text for result in results), [
        (call.name or "", call.arguments) for call in calls
    ]


def read(form: ToolFormat, text: str) -> tuple[str, list[tuple[str, Any]]]:
    rest, calls = parsed(form, [text])
    return rest, [(name, json.loads(arguments)) for name, arguments in calls]


ROME = ("weather", {"city": "Rome", "days": 3})
ODD = ("weather", {"city": 'a "b" "}] </tool_call>\n\\ Kyōto', "at": None, "where": {"x": [1, {}]}})
NOW: tuple[str, Arguments] = ("now", {})

ANSWERS = [
    ([], "no call"),
    ([], "ends in a <"),
    ([], "  1 < 2, [ and { "),
    ([ROME], ""),
    ([ODD], ""),
    ([NOW], ""),
    ([ROME, ODD, NOW], ""),
    ([ROME], "Let me see."),
    ([ROME, NOW], "Let me see:\n[1] {"),
]


@EVERY
@pytest.mark.parametrize(("calls", "text"), ANSWERS)
def test_calls_are_taken_out_of_the_text(
    form: ToolFormat, calls: list[tuple[str, Arguments]], text: str
) -> None:
    spelled = SPELLINGS[form].spelled(calls, text)
    assert read(form, spelled) == (text, calls)
    assert read(form, SPELLINGS[form].spelled(calls, text) + "\n")[1] == calls


@EVERY
@examples(50)
@given(answer=st.sampled_from(ANSWERS), data=st.data())
def test_it_does_not_matter_how_the_text_is_cut(
    form: ToolFormat, answer: Any, data: st.DataObject
) -> None:
    """Also where it ends before its end."""
    spelled = SPELLINGS[form].spelled(*answer)
    text = spelled[: data.draw(st.integers(0, len(spelled)))]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    parts = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    for cut in (True, False):
        whole = parsed(form, [text], cut=cut)
        assert parsed(form, parts, cut=cut) == whole == parsed(form, list(text), cut=cut)


@EVERY
@given(
    words=st.lists(
        st.sampled_from(
            [
                *'{}[]"\\:,;<>/= \n', "name", "a", "<tool_call>", "</tool_call>", "<function=f>",
                "<parameter=p>", "</parameter>", "</function>", "[TOOL_CALLS]", "[ARGS]",
                "<|python_tag|>", '{"name": "now"', '"arguments": {', '"parameters": {',
            ]
        ),
        max_size=12,
    ),
    size=st.integers(1, 7),
)  # fmt: skip
def test_random_text_parses_the_same_however_it_is_cut(
    form: ToolFormat, words: list[str], size: int
) -> None:
    text = "".join(words)
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    assert parsed(form, parts) == parsed(form, [text])


@EVERY
def test_arguments_are_passed_on_as_they_come(form: ToolFormat) -> None:
    parser = CallParser(form.read, SCHEMAS, lambda: "id")
    spelled = SPELLINGS[form].spelled([ROME])
    told = [part for character in spelled for part in parser.push(character).calls]
    assert told[0].name == "weather"
    assert told[0].call_id == "id"
    assert all(part.name is None and part.call_id is None for part in told[1:])
    assert json.loads("".join(part.arguments for part in told)) == ROME[1]
    assert len(told) > 6
    first = spelled[: spelled.index("Ro") + 2]
    parser = CallParser(form.read, SCHEMAS, lambda: "id")
    (early,) = parser.push(first).calls
    assert early.arguments == '{"city": "Ro'


@EVERY
def test_a_call_that_is_cut_off_is_sent_as_far_as_it_came(form: ToolFormat) -> None:
    spelled = SPELLINGS[form].spelled([ROME])
    for end in range(len(spelled)):
        text, calls = parsed(form, [spelled[:end]], calls_only=True, cut=True)
        assert text == ""
        assert len(calls) <= 1
        for name, arguments in calls:
            assert name == "weather"
            assert json.dumps(ROME[1]).startswith(arguments.removesuffix("}"))


@EVERY
def test_a_second_call_that_never_began_is_dropped(form: ToolFormat) -> None:
    spelling = SPELLINGS[form]
    spelled = spelling.spelled([ROME, ROME])
    begun = spelled.rindex("weather") + 3
    assert parsed(form, [spelled[:begun]], cut=True) == ("", [("weather", json.dumps(ROME[1]))])


NO_CALLS = [
    (HERMES, "<tool_call>not json</tool_call> so"),
    (HERMES, '<tool_call>{"name": 7}</tool_call>'),
    (HERMES, r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'),
    (HERMES, "<tool_call>" + "[" * 5000),
    (HERMES, '<tool_call>{"name": "f"'),
    (HERMES, "<tool_call><tool_call>"),
    (LLAMA3, '{"name": "Bob", "parameters": {}}'),
    (LLAMA3, '{"answer": 42}'),
    (LLAMA3, 'say {"name": "Bob", "parameters": {}}'),
    (LLAMA3, 'so: {"tools": [{"name": "now", "parameters": {}}]} and {"name": "now"}'),
    (LLAMA3, '[{"name": "now", "description": "the time", "parameters": {}}]'),
    (MISTRAL, "[TOOL_CALLS] and so"),
    (MISTRAL, "[TOOL_CALLS][1]"),
    (MISTRAL, "[TOOL_CALLS]now"),
    (QWEN3_CODER, "<tool_call>{}</tool_call>"),
    (QWEN3_CODER, "<function=>"),
]


@pytest.mark.parametrize(("form", "text"), NO_CALLS)
def test_what_is_no_call_stays_text(form: ToolFormat, text: str) -> None:
    assert parsed(form, [text]) == (text, [])


LOOSE = [
    (HERMES, '<tool_call>{"arguments": {"x": 1}, "name": "now"}</tool_call>', {"x": 1}),
    (HERMES, '<tool_call>{"id": [1, "]"], "name": "now", "n": 1.5}</tool_call>', {}),
    (HERMES, '<tool_call>{"name": "now", "arguments": {}}}</tool_call>', {}),
    (LLAMA3, '<|python_tag|> {"name": "now", "parameters": {}}', {}),
    (MISTRAL, '[TOOL_CALLS] [{"name": "now", "arguments": {"x": "]"}, "id": "a"}]', {"x": "]"}),
    (MISTRAL_NAMED, "[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{}", {}),
    (MISTRAL_NAMED, '[TOOL_CALLS]now{"x": 1}', {"x": 1}),
    (QWEN3_CODER, "<function=now>\n</function>", {}),
    (QWEN3_CODER, "<tool_call><function=now><parameter=x>1</parameter></tool_call>", {"x": 1}),
    (QWEN3_CODER, "<function=now><parameter=x>\nTrue\n</parameter></function>", {"x": True}),
    (QWEN3_CODER, "<function=now><parameter=x>\na b\n</parameter></function>", {"x": "a b"}),
    (QWEN3_CODER, "<function=now><parameter=x>NaN</parameter></function>", {"x": "NaN"}),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "arguments"), LOOSE)
def test_models_spell_loosely(form: ToolFormat, text: str, arguments: Arguments) -> None:
    assert read(form, text) == ("", [("now", arguments)])


def test_text_is_sent_as_soon_as_it_is_surely_no_call() -> None:
    parser = CallParser(HERMES.read, {}, lambda: "id")
    assert parser.push("a <tool").text == "a"
    assert parser.push("box").text == " <toolbox"
    assert parser.push(" and  ").text == " and"
    assert parser.push("more").text == "  more"


def test_values_have_the_type_of_their_schema() -> None:
    text = (
        "<function=weather><parameter=city>\n12\n</parameter><parameter=days>\n12\n</parameter>"
        "<parameter=at>\nnull\n</parameter></function>"
    )
    assert read(QWEN3_CODER, text) == ("", [("weather", {"city": "12", "days": 12, "at": None})])


def test_mistrals_templates_take_its_ids() -> None:
    for form in (MISTRAL, MISTRAL_NAMED):
        ids = {form.id_of(f"chatcmpl-1/0/{number}") for number in range(99)}
        assert len(ids) == 99
        assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert HERMES.id_of("chatcmpl-1/0/0").startswith("call_")


def read_beside_form(form: ToolFormat, said: str, *, whole: bool) -> tuple[str, list[Any]]:
    parser = CallReading(form, SCHEMAS, calls_or_format=True).parser("a")
    found = [parser.push(part) for part in ([said] if whole else said)] + [parser.finish()]
    calls = whole_calls(part for one in found for part in one.calls)
    return "".join(one.text for one in found), [
        (call.name, json.loads(call.arguments)) for call in calls
    ]


@EVERY
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "value",
    [
        {"note": "<tool_call><function=now></function></tool_call> [TOOL_CALLS]now{} now"},
        {"name": "now"},
        {"name": "now", "days": 3},
        {"name": "Bob", "parameters": {}},
        ["[TOOL_CALLS]", {"name": "now", "arguments": {}}, "<|python_tag|>{}"],
        "<function=now>",
        None,
    ],
)
def test_json_of_the_requested_format_is_text_whatever_is_in_it(
    form: ToolFormat, value: Any, whole: bool
) -> None:
    for said in (json.dumps(value), json.dumps(value, indent=2), json.dumps(value)[:-1]):
        assert read_beside_form(form, said, whole=whole) == (said, [])


@EVERY
@pytest.mark.parametrize("whole", [True, False])
def test_calls_in_place_of_the_format_are_calls(form: ToolFormat, whole: bool) -> None:
    made: list[tuple[str, Arguments]] = [("weather", {"city": "Rome", "days": 3}), ("now", {})]
    said = SPELLINGS[form].spelled(made)
    assert read_beside_form(form, said, whole=whole) == ("", made)
