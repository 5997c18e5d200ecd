"""Fields of SGLang and llama.cpp: what constrains an answer is done, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from sluice_contract.http_heads import IGNORED_FIELDS_HEADER
from sluice_runtime.wire.messages import Generate, Grammar

from tests.runtime.grammar.drawing import accepts, matcher_of
from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.test_structured import CITY, told

pytestmark = pytest.mark.asyncio(loop_scope="module")

EBNF = 'root ::= "a"'
TAG = {
    "type": "structural_tag",
    "triggers": ["<function="],
    "structures": [
        {"begin": "<function=city>", "schema": CITY, "end": "</function>"},
        {"begin": "<function=now>", "schema": {"type": "object"}, "end": "</function>"},
    ],
}


@pytest.mark.parametrize(
    ("fields", "kind", "text", "field"),
    [
        ({"regex": "a+"}, "regex", "a+", "regex"),
        ({"ebnf": EBNF}, "ebnf", EBNF, "ebnf"),
        ({"grammar": EBNF}, "ebnf", EBNF, "grammar"),
        ({"json_schema": json.dumps(CITY)}, "json_schema", CITY, "json_schema"),
        ({"json_schema": CITY}, "json_schema", CITY, "json_schema"),
        (
            {"response_format": {"type": "json_object", "schema": CITY}},
            "json_schema",
            CITY,
            "response_format.schema",
        ),
    ],
)
async def test_they_constrain_the_answer(
    fields: dict[str, Any], kind: str, text: Any, field: str
) -> None:
    assert told(**fields) == (kind, text, field)


async def heard(server: Server, **fields: Any) -> tuple[Generate, str | None]:
    """What the engine is asked, and the header of ignored fields."""
    raw = await server.openai.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], extra_body=fields
    )
    (asked,) = server.engine.of(Generate)
    assert isinstance(asked, Generate)
    return asked, raw.headers.get(IGNORED_FIELDS_HEADER)


@pytest.mark.parametrize(
    "fields",
    [
        {"structural_tag": TAG},
        {"structural_tag": json.dumps(TAG)},
        {"structured_outputs": {"structural_tag": TAG}},
        {"response_format": TAG},
    ],
)
async def test_a_structural_tag_is_text_with_structures(
    server: Server, fields: dict[str, Any]
) -> None:
    asked, ignored = await heard(server, **fields)
    grammar = asked.grammar
    assert ignored is None
    assert isinstance(grammar, Grammar)

    def fits(text: str) -> bool:
        return accepts(matcher_of(grammar.kind, grammar.text), list(text.encode()))

    assert fits("So: nothing")
    assert fits('So: <function=city>{"city": "Rome"}</function> and <function=now>{}</function>!')
    assert not fits('<function=city>{"city": 1}</function>')
    assert not fits("<function=other>")


async def test_a_tag_beside_its_trigger_is_refused(server: Server) -> None:
    place = "structural_tag.structures[0].begin"
    structure = {"begin": "<tool>", "schema": {}, "end": ""}
    cases: list[tuple[Any, str, str]] = [
        ({**TAG, "structures": [structure]}, place, 'begins with the trigger "<function="'),
        ({**TAG, "triggers": ["a", "b"]}, "structural_tag.triggers", "at most 1 item"),
        ({"format": {"type": "json_schema"}}, "structural_tag.structures", "required"),
        ("{", "structural_tag", "allowed: a structural tag, as an object or as text"),
    ]
    for tag, param, says in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            await heard(server, structural_tag=tag)
        assert refused.value.param == param
        assert says in refused.value.message


async def test_sglangs_names_are_ours(server: Server) -> None:
    asked, ignored = await heard(server, min_new_tokens=3, sampling_seed=7, no_stop_trim=True)
    assert (asked.sampling.min_tokens, asked.sampling.seed, ignored) == (3, 7, None)
    with pytest.raises(openai.BadRequestError) as refused:
        await heard(server, min_new_tokens=3, min_tokens=4)
    assert refused.value.param == "min_new_tokens"
    assert "3 beside min_tokens 4 is not allowed" in refused.value.message


async def test_a_stop_string_is_kept_as_sglang_says_it(server: Server) -> None:
    answer = await server.openai.completions.create(
        model=MODEL, prompt="abc", stop="b", extra_body={"no_stop_trim": True}
    )
    assert answer.choices[0].text == "ab"


CONSTRAINTS: dict[str, Any] = {
    "choice": ["a", "b"],
    "custom_logit_processor": "x",
    "guided_whitespace_pattern": " ",
    "include_reasoning": False,
    "json": {"type": "object"},
    "separate_reasoning": False,
    "stop_regex": "a+",
    "stream_reasoning": False,
    "thinking_token_budget": 9,
    "truncation_side": "right",
}


@pytest.mark.parametrize("field", CONSTRAINTS)
async def test_what_is_not_implemented_is_refused_by_name(server: Server, field: str) -> None:
    with pytest.raises(openai.BadRequestError, match="not implemented yet") as refused:
        await heard(server, **{field: CONSTRAINTS[field]})
    assert refused.value.param == field


MESSAGE = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("responses", {"input": "a"}, "regex ebnf grammar guided_json json"),
    *(
        (route, MESSAGE, "response_format structured_outputs ebnf regex json guided_choice")
        for route in ("messages", "messages/count_tokens")
    ),
]


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [(route, body, field) for route, body, fields in OTHERS for field in fields.split()],
)
async def test_a_route_never_ignores_a_constraint_of_others(
    server: Server, route: str, body: dict[str, Any], field: str
) -> None:
    fields = {"model": MODEL, field: {"type": "a"}}
    response = await server.http.post(f"/v1/{route}", json=body | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field)
    assert "not implemented yet" in error["message"]


async def test_a_grammar_in_lark_is_refused_with_a_hint(server: Server) -> None:
    for grammar, hinted in (('start: "a" | "b"', True), ("root ::= (", False)):
        with pytest.raises(openai.BadRequestError) as refused:
            await heard(server, structured_outputs={"grammar": grammar})
        assert refused.value.param == "structured_outputs.grammar"
        assert ("is it Lark? allowed: EBNF" in refused.value.message) == hinted
