"""`POST /generate` as SGLang's clients ask: what limits or constrains an answer is not lost."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.body import parse_request
from sluice_runtime.server.choice_plans import ChoicePlan
from sluice_runtime.server.generate_request import GenerateRequest, plan_generate
from sluice_runtime.server.sampling_plan import Defaults

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.test_prompts import CONTEXT, SERVED
from tests.runtime.server.test_structured import CITY

LONG = dataclasses.replace(
    SERVED,
    limits=dataclasses.replace(SERVED.limits, context_length_tokens=1000, kv_pool_tokens=1000),
)
"""Its model's own temperature is 0.7."""


def asked(**fields: Any) -> tuple[ChoicePlan, list[str]]:
    body = json.dumps({"text": "abc", **fields}).encode()
    parsed = parse_request(GenerateRequest, body, strict=False)
    (plan,) = plan_generate(LONG, CONTEXT, parsed.request)
    return plan, parsed.ignored


def plan(**sampling_params: Any) -> ChoicePlan:
    planned, ignored = asked(sampling_params=sampling_params)
    assert not ignored
    return planned


def test_without_sglang_s_object_the_defaults_are_the_model_s() -> None:
    planned, _ = asked()
    assert (planned.max_tokens, planned.sampling.temperature) == (997, 0.7)


@pytest.mark.parametrize("nothing", [{}, {"temperature": None, "top_p": None, "top_k": None}])
def test_with_it_they_are_sglang_s(nothing: dict[str, Any]) -> None:
    planned = plan(**nothing)
    sampling = planned.sampling
    assert planned.max_tokens == 128
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1, 1, -1, 0)


def test_every_value_of_it_is_done() -> None:
    planned = plan(
        max_new_tokens=20, min_new_tokens=3, temperature=0.5, top_p=0.9, top_k=5, min_p=0.1,
        frequency_penalty=0.2, presence_penalty=0.3, repetition_penalty=1.1, sampling_seed=9,
        stop=["x", "y"], stop_token_ids=[7], no_stop_trim=True, skip_special_tokens=False,
        logit_bias={"5": 2.0}, spaces_between_special_tokens=False, n=1,
    )  # fmt: skip
    sampling = planned.sampling
    assert (planned.max_tokens, planned.min_tokens) == (20, 3)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        0.5, 0.9, 5, 0.1,
    )  # fmt: skip
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.2, 0.3)
    assert (sampling.repetition_penalty, sampling.seed) == (1.1, 9)
    assert (planned.stops, planned.stop_token_ids) == (["x", "y"], [7, 258])
    assert planned.keeps_stop
    assert planned.special_texts
    assert sampling.logit_bias == [(5, 2.0)]
    assert plan(ignore_eos=True).stop_token_ids == []
    assert plan(stop="x").stops == ["x"]
    assert plan(max_new_tokens=None).max_tokens == 997
    assert plan(max_new_tokens=0).max_tokens == 0
    assert plan(top_k=1 << 30).sampling.top_k == 1 << 30


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"json_schema": json.dumps(CITY)}, "json_schema"),
        ({"regex": "a+"}, "regex"),
        ({"ebnf": 'root ::= "a"'}, "ebnf"),
    ],
)
def test_a_form_holds(fields: dict[str, Any], kind: str) -> None:
    grammar = plan(**fields).grammar
    assert grammar is not None
    assert (grammar.kind, grammar.field) == (kind, f"sampling_params.{next(iter(fields))}")


def test_logprobs_are_sglang_s() -> None:
    def scores(**fields: Any) -> tuple[int, int]:
        planned, ignored = asked(**fields)
        assert not ignored
        return planned.logprobs, planned.prompt_logprobs

    assert scores(top_logprobs_num=5, logprob_start_len=0) == (-1, -1)
    assert scores(return_logprob=True) == (0, -1)
    assert scores(return_logprob=True, top_logprobs_num=5) == (5, -1)
    assert scores(return_logprob=True, logprob_start_len=-1) == (0, -1)
    scored = scores(
        return_logprob=True, top_logprobs_num=2, logprob_start_len=0,
        return_text_in_logprobs=True, sampling_params={"max_new_tokens": 0},
    )  # fmt: skip
    assert scored == (2, 2)


def test_names_of_its_own_are_ours() -> None:
    body = b'{"text": "a", "rid": "mine", "extra_key": "k", "stream": false}'
    request = parse_request(GenerateRequest, body, strict=False).request
    assert (request.request_id, request.cache_salt) == ("mine", "k")


def test_what_does_not_change_the_answer_is_named() -> None:
    _, ignored = asked(
        sampling_params={"custom_params": {"a": 1}, "stream_interval": 2}, bootstrap_room=3
    )
    assert sorted(ignored) == [
        "bootstrap_room", "sampling_params.custom_params", "sampling_params.stream_interval",
    ]  # fmt: skip


@pytest.mark.parametrize(("stop", "path"), [("", ""), ([""], "[]"), (["a", ""], "[]")])
def test_empty_stop_strings_are_named_where_they_stand(stop: Any, path: str) -> None:
    assert asked(sampling_params={"stop": stop})[1] == [f"sampling_params.stop{path}"]
    assert asked(stop=stop)[1] == [f"stop{path}"]


@pytest.mark.parametrize(
    ("field", "own", "theirs"),
    [
        ("stop", "a", ["a"]),
        ("stop", ["a"], "a"),
        ("json_schema", '{"type": "object"}', {"type": "object"}),
        ("json_schema", {"type": "object"}, '{"type":"object"}'),
    ],
)
def test_the_same_in_another_spelling_is_no_conflict(field: str, own: Any, theirs: Any) -> None:
    body = {"text": "a", field: own, "sampling_params": {field: theirs}}
    assert not parse_request(GenerateRequest, json.dumps(body).encode(), strict=False).ignored
    body[field] = ["b"] if field == "stop" else {"type": "array"}
    with pytest.raises(InvalidRequestError, match=f"beside sampling_params.{field}"):
        parse_request(GenerateRequest, json.dumps(body).encode(), strict=False)


P = "sampling_params."


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"sampling_params": {"n": 2}}, P + "n", "2 is not allowed; allowed: 1"),
        ({"sampling_params": {"stop_regex": "a+"}}, P + "stop_regex", "not implemented yet"),
        ({"sampling_params": {"thinking_budget": 5}}, P + "thinking_budget", "not implemented yet"),
        ({"sampling_params": {"max_tokens": 5}}, P + "max_tokens", "allowed: max_new_tokens inst"),
        ({"sampling_params": {"min_tokens": 5}}, P + "min_tokens", "allowed: min_new_tokens inst"),
        ({"sampling_params": {"temperature": "0"}}, P + "temperature", "a number from 0 to 2"),
        ({"sampling_params": {"max_new_tokens": -1}}, P + "max_new_tokens", "number from 0"),
        ({"sampling_params": {"min_new_tokens": 200}}, P + "min_new_tokens",
         "at most 128 (sampling_params.max_new_tokens)"),
        ({"sampling_params": {"stop_token_ids": [999]}}, P + "stop_token_ids", "999"),
        ({"sampling_params": {"logit_bias": {"999": 1}}}, P + "logit_bias", "999"),
        ({"sampling_params": {"stop": ["a"] * 65}}, P + "stop", "at most 64"),
        ({"sampling_params": {"json_schema": "{"}}, P + "json_schema", "JSON"),
        ({"sampling_params": {"regex": "a", "ebnf": "b"}}, P + "ebnf",
         "given beside sampling_params.regex"),
        ({"sampling_params": [{}, {}]}, "sampling_params", "object"),
        ({"sampling_params": {"temperature": 0}, "temperature": 1}, "temperature",
         "1.0 beside sampling_params.temperature 0.0"),
        ({"sampling_params": {"max_new_tokens": 9}, "max_tokens": 8}, "max_tokens",
         "8 beside sampling_params.max_new_tokens 9"),
        ({"return_logprob": True, "logprobs": 2}, "logprobs", "2 beside top_logprobs_num 0"),
        ({"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num", "20"),
        ({"logprob_start_len": 5}, "logprob_start_len", "5 is not allowed; allowed: -1 or 0"),
        ({"text": ["a", "b"]}, "text", "a string"),
        ({"text": None, "input_ids": [[1], [2]]}, "input_ids[0]", "a whole number"),
        ({"image_data": "x.png"}, "image_data", "not implemented yet"),
        ({"image_data": ["x.png"]}, "image_data", "not implemented yet"),
        ({"input_embeds": [[0.5]]}, "input_embeds", "not implemented yet"),
        ({"lora_path": "x"}, "lora_path", "not implemented yet"),
        ({"session_params": {"id": "x"}}, "session_params", "not implemented yet"),
        ({"token_ids_logprob": [1]}, "token_ids_logprob", "not implemented yet"),
        ({"return_hidden_states": True}, "return_hidden_states", "not implemented yet"),
        ({"custom_logit_processor": "x"}, "custom_logit_processor", "not implemented yet"),
        ({"rid": ["a", "b"]}, "request_id", "a string"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        asked(**fields)
    assert refused.value.param == param
    assert str(refused.value).startswith(f"{param}: ")
    assert says in str(refused.value)


def test_null_and_empty_siblings_ask_for_nothing() -> None:
    siblings = dict.fromkeys(
        ("input_ids", "image_data", "sampling_params", "rid", "lora_path", "lora_id")
    )
    planned, ignored = asked(**siblings, audio_data=[], return_hidden_states=False)
    assert (planned.max_tokens, ignored) == (997, [])


def test_the_model_s_defaults_are_not_sglang_s() -> None:
    text = dataclasses.replace(SERVED.text, defaults=Defaults((258,), 0.1, 0.2, 3, 0.4, 1.5))
    model = dataclasses.replace(LONG, text=text)
    request = GenerateRequest.model_validate({"text": "a", "sampling_params": {"top_k": 7}})
    sampling = plan_generate(model, CONTEXT, request)[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1, 1, 7, 0)
    assert sampling.repetition_penalty == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_sglang_s_limit_is_that_of_the_answer(server: Server) -> None:
    body = {"text": "abcdef", "sampling_params": {"max_new_tokens": 2, "temperature": 0}}
    response = await server.http.post("/generate", json={"model": MODEL, **body})
    (choice,) = response.json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert "x-sluice-ignored-fields" not in response.headers
    response = await server.http.post(
        "/generate", json={"text": "abcdef", "sampling_params": {"stop": "d"}}
    )
    assert response.json()["choices"][0]["text"] == "abc"
