"""Every format of tool calls, held to by an engine with random weights, and read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest
from sluice_runtime.engine.build import Engine
from sluice_runtime.grammar.vocabulary import _added, tokenizer_of
from sluice_runtime.model.tokenizer import ByteTokenizer
from sluice_runtime.server.answer_text import Detokenizer
from sluice_runtime.server.body import parse_request
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.tools.calls import whole_calls
from sluice_runtime.server.tools.formats import (
    FORMATS,
    LLAMA3,
    MISTRAL,
    MISTRAL_NAMED,
    ToolFormat,
)
from sluice_runtime.server.tools.plan import ToolPlan, plan_tools
from sluice_runtime.wire.messages import Grammar, Sampling

from tests.runtime.grammar import drawing
from tests.runtime.grammar.driving import ask, engine_of, grammar, run

pytestmark = pytest.mark.process

SPECIAL = {"[TOOL_CALLS]": 257, "[ARGS]": 256}
MARKED = (MISTRAL, MISTRAL_NAMED)
SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "pattern": "^[a-z]{1,8}$"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
EVERY = pytest.mark.parametrize(
    "form", FORMATS, ids=[f"{form.name}-{type(form.grammar).__name__}" for form in FORMATS]
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_of(max_queued_requests=256) as built:
        yield built


def planned(form: ToolFormat, special: dict[str, int], **fields: Any) -> tuple[ToolPlan, Grammar]:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in SCHEMAS.items()
    ]
    message = {"role": "user", "content": "a"}
    body = json.dumps({"model": "m", "messages": [message], "tools": tools, **fields})
    plan = plan_tools(
        parse_request(ChatRequest, body.encode(), strict=False).request, form, special.get
    )
    assert plan is not None
    assert plan.spec is not None
    return plan, grammar(plan.spec.kind, plan.spec.text)


def answers(engine: Engine, held: Grammar, plan: ToolPlan, runs: int) -> Iterator[list[Any]]:
    """The calls of each run that ended by itself; no call is unfinished."""
    return (calls for _, calls in read_answers(engine, held, plan, runs))


def read_answers(
    engine: Engine, held: Grammar, plan: ToolPlan, runs: int
) -> Iterator[tuple[str, list[Any]]]:
    """Text and calls of each run that ended by itself."""
    asked = [
        ask(f"run {n}", held, 300, sampling=Sampling(temperature=1.0, seed=n)) for n in range(runs)
    ]
    results = run(engine, asked)
    for one in asked:
        end = results.ends[one.request_id]
        assert end.finish_reason in ("stop", "length"), end.error
        stream = Detokenizer(ByteTokenizer(), plan.reading.shown_tokens)
        parser = plan.reading.parser("a")
        text = stream.push(results.tokens[one.request_id]) + stream.finish()
        found = [parser.push(text), parser.finish()]
        if end.finish_reason == "stop":
            calls = whole_calls(part for parsed in found for part in parsed.calls)
            yield "".join(parsed.text for parsed in found), [*calls]


@EVERY
def test_an_answer_that_must_call_is_calls(engine: Engine, form: ToolFormat) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for fields in (
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": named},
    ):
        plan, held = planned(form, {}, **fields)
        ended = list(answers(engine, held, plan, 6))
        assert ended
        for (call,) in ended:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
            assert "function" not in str(fields["tool_choice"]) or call.name == "weather"


@EVERY
def test_several_calls_may_be_required(engine: Engine, form: ToolFormat) -> None:
    plan, held = planned(form, {}, tool_choice="required")
    ended = list(answers(engine, held, plan, 12))
    assert any(len(calls) > 1 for calls in ended)
    for calls in ended:
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@EVERY
def test_calls_in_a_free_text_are_held_to_the_format(engine: Engine, form: ToolFormat) -> None:
    plan, held = planned(form, {}, parallel_tool_calls=False)
    for calls in answers(engine, held, plan, 6):
        assert len(calls) <= 1
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


FORM = {
    "type": "object",
    "properties": {"name": {"enum": ["Bob", "[TOOL_CALLS]now[ARGS]{}", "<function=now>"]}},
    "required": ["name"],
    "additionalProperties": False,
}


@EVERY
def test_beside_a_form_an_answer_is_json_or_calls(engine: Engine, form: ToolFormat) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": FORM}}
    plan, held = planned(form, {}, response_format=wanted, parallel_tool_calls=False)
    kinds = set()
    for text, calls in read_answers(engine, held, plan, 16):
        kinds.add(bool(calls))
        if calls:
            assert (text, len(calls)) == ("", 1)
            jsonschema.validate(json.loads(calls[0].arguments), SCHEMAS[calls[0].name])
        else:
            jsonschema.validate(json.loads(text), FORM)
    if form is LLAMA3:  # whose calls begin as the form does, so that few answers are one
        assert accepts(held, b'{"name": "now", "parameters": {}}')
        kinds.add(True)
    assert kinds == {True, False}


def accepts(held: Grammar, tokens: Sequence[int]) -> bool:
    """Whether an answer of these tokens, and its end, is one of the grammar's."""
    words = [bytes([value]) for value in range(256)]
    marked = [_added(name, special=True) for name in sorted(SPECIAL)]
    tokenizer = tokenizer_of([*words, *marked, b""])
    return drawing.accepts(drawing.matcher_of(held.kind, held.text, tokenizer), tokens)


@pytest.mark.parametrize("form", MARKED, ids=["list", "named"])
@pytest.mark.parametrize("free", [True, False])
def test_calls_begin_with_the_model_s_special_tokens(form: ToolFormat, free: bool) -> None:
    choice: dict[str, Any] = {"parallel_tool_calls": False} if free else {"tool_choice": "required"}
    _, held = planned(form, SPECIAL, **choice)
    begin, args = SPECIAL["[TOOL_CALLS]"], SPECIAL["[ARGS]"]
    spelled = {
        MISTRAL: [begin, *b'[{"name": "now", "arguments": {}}]'],
        MISTRAL_NAMED: [begin, *b"now", args, *b"{}"],
    }[form]
    assert accepts(held, spelled)
    assert accepts(held, [*b"So: ", *spelled]) is free
    assert not accepts(held, [begin, *spelled])
    assert not accepts(held, spelled[:-1])


@pytest.mark.parametrize("form", MARKED, ids=["list", "named"])
def test_beside_a_form_calls_begin_with_the_model_s_special_tokens(form: ToolFormat) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": FORM}}
    plan, held = planned(form, SPECIAL, response_format=wanted)
    begin, args = SPECIAL["[TOOL_CALLS]"], SPECIAL["[ARGS]"]
    spelled = {
        MISTRAL: [begin, *b'[{"name": "now", "arguments": {}}]'],
        MISTRAL_NAMED: [begin, *b"now", args, *b"{}"],
    }[form]
    said = b'{"name": "Bob"}'
    assert accepts(held, spelled)
    assert accepts(held, said)
    assert not accepts(held, [*said, *spelled])
    assert not accepts(held, [*spelled, *said])
    assert not accepts(held, b"So: ")
    stream = Detokenizer(ByteTokenizer(), plan.reading.shown_tokens)
    assert stream.push(list(said)) + stream.finish() == said.decode()
