"""From requests to what the engine is told: defaults, limits, seeds."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.errors import InvalidRequestError, ModelLoadError, UnsupportedFieldError
from sluice_runtime.model import files as model_files
from sluice_runtime.model.chat_template import load_chat_template
from sluice_runtime.model.tokenizer import ByteTokenizer
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.server.body import parse_request
from sluice_runtime.server.choice_plans import (
    ChoicePlan,
    RequestContext,
    plan_chat,
    plan_completion,
)
from sluice_runtime.server.prompts import ModelText, ServedModel, end_of, surely_exceeds
from sluice_runtime.server.protocol import ChatRequest, CompletionRequest
from sluice_runtime.server.sampling_plan import Defaults, defaults_from
from sluice_runtime.wire.messages import Sampling

from tests.examples import examples
from tests.runtime.server.test_answer_text import TOKENIZERS

SERVED = ServedModel(
    ModelText(ByteTokenizer(), None, Defaults((258,), 0.7, 0.8, 20)),
    Limits(context_length_tokens=100, kv_pool_tokens=64),
    vocabulary_size=259,
)
CONTEXT = RequestContext(seed=42, unix_seconds=0.0)


def plan(model: ServedModel = SERVED, **fields: Any) -> list[ChoicePlan]:
    body = json.dumps({"model": "m", "prompt": "abc", **fields}).encode()
    request = parse_request(CompletionRequest, body, strict=False).request
    return plan_completion(model, CONTEXT, request)


def test_the_models_sampling_is_the_default() -> None:
    assert plan()[0].sampling == Sampling(0.7, 0.8, 20, 42)
    assert plan(temperature=0, top_p=1, top_k=0, seed=5)[0].sampling == Sampling(0.0, 1.0, -1, 5)


def test_a_request_for_too_many_answers_is_refused_before_it_is_tokenised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(plan(prompt=["a"] * 16, n=16)) == 256
    assert len(plan(dataclasses.replace(SERVED, max_choices=512), prompt=["a"] * 32, n=16)) == 512
    monkeypatch.setattr(ByteTokenizer, "encode", None)
    with pytest.raises(
        InvalidRequestError,
        match=r"n: 16 for each of 256 prompts, 4096 answers, is not allowed; "
        r"allowed: at most 256 answers \(server\.maxChoicesPerRequest\)",
    ) as refused:
        plan(prompt=["a"] * 256, n=16)
    assert refused.value.param == "n"


def test_the_smaller_of_context_and_pool_bounds_the_answer() -> None:
    assert plan(prompt="a" * 60)[0].max_tokens == 4
    assert plan(max_tokens=61)[0].max_tokens == 61
    assert plan(max_tokens=62)[0].max_tokens == 61
    assert [one.max_tokens for one in plan(prompt=["a", "a" * 60], max_tokens=10**6)] == [63, 4]
    assert plan(max_tokens=2**63 - 1, logprobs=5)[0].max_tokens == 61
    strict = dataclasses.replace(SERVED, strict=True)
    with pytest.raises(InvalidRequestError, match=r"max_tokens: 62 .* at most 61") as refused:
        plan(strict, max_tokens=62)
    assert refused.value.param == "max_tokens"


def test_a_limit_that_leaves_no_room_for_a_truncated_prompt_is_refused() -> None:
    assert plan(max_tokens=63, truncate_prompt_tokens=-1)[0].prompt_ids == [ord("c")]
    with pytest.raises(InvalidRequestError, match=r"max_tokens: 64 leaves no .* at most 63"):
        plan(max_tokens=64, truncate_prompt_tokens=-1)


@pytest.mark.parametrize(
    ("length", "says"), [(64, "1 to 63 in a prompt.*KV pool of 64"), (100, "context length of 100")]
)
def test_a_prompt_that_can_never_fit_is_refused(length: int, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        plan(prompt="x" * length)


def test_a_prompt_that_is_far_too_long_is_refused_before_all_of_it_is_tokenised() -> None:
    read = 0

    class Counting(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            nonlocal read
            read += len(text)
            return super().encode(text, add_special_tokens=add_special_tokens)

    text = dataclasses.replace(SERVED.text, tokenizer=Counting())
    model = dataclasses.replace(SERVED, text=text)
    with pytest.raises(InvalidRequestError, match="prompt: more than 64 tokens are not"):
        plan(model, prompt="x" * 1_000_000)
    assert read < 20_000


@given(
    text=st.text("ab€ ", min_size=1).map(lambda part: part * 40),
    most=st.integers(1, 400),
    name=st.sampled_from(sorted(TOKENIZERS)),
)
def test_no_prompt_that_fits_is_judged_too_long(text: str, most: int, name: str) -> None:
    tokenizer, _ = TOKENIZERS[name]
    tokens = len(tokenizer.encode(text, add_special_tokens=False))
    if surely_exceeds(tokenizer, text, most):
        assert tokens > most


@examples(30)
@given(
    words=st.lists(st.sampled_from(["ab", "€", "b€a", "a" * 30]), min_size=1, max_size=5),
    kept=st.integers(1, 300),
    name=st.sampled_from(sorted(TOKENIZERS)),
)
def test_the_end_of_a_long_text_has_the_tokens_of_its_end(
    words: list[str], kept: int, name: str
) -> None:
    tokenizer, _ = TOKENIZERS[name]
    text = " ".join(words) * 700
    end = end_of(tokenizer, text, kept)
    whole, part = (tokenizer.encode(one, add_special_tokens=False) for one in (text, end))
    assert part[-kept:] == whole[-kept:]
    assert len(end) <= max(60_000, 128 * kept)


def test_of_a_long_text_only_the_end_is_tokenised_where_it_is_truncated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = 0
    encode = ByteTokenizer.encode

    def counted(self: ByteTokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
        nonlocal read
        read += len(text)
        return encode(self, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(ByteTokenizer, "encode", counted)
    text = "x" * 1_000_000 + "end"
    assert plan(prompt=text, truncate_prompt_tokens=4)[0].prompt_ids == [*b"xend"]
    with pytest.raises(InvalidRequestError, match="allowed: 1 to 63 in a prompt"):
        plan(prompt=text, truncate_prompt_tokens=10**9)
    assert read < 100_000


@pytest.mark.parametrize("prompt", ["abc", ["abc"], [97, 98, 99]])
def test_a_prompt_token_without_an_embedding_is_refused(
    prompt: object,
) -> None:
    small = dataclasses.replace(SERVED, vocabulary_size=99)
    with pytest.raises(InvalidRequestError, match="token id 99 is not allowed; allowed: 0 to 98"):
        plan(small, prompt=prompt)
    assert plan(small, prompt="ab")[0].prompt_ids == [97, 98]


def test_a_chat_whose_template_makes_an_unknown_token_is_refused() -> None:
    template = load_chat_template(model_files.resolve("dummy://qwen3-tiny"))
    text = dataclasses.replace(SERVED.text, template=template)
    small = dataclasses.replace(SERVED, text=text, vocabulary_size=99)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "z"}]}).encode()
    with pytest.raises(InvalidRequestError, match=r"messages: token id \d+ is not allowed"):
        plan_chat(small, CONTEXT, parse_request(ChatRequest, body, strict=False).request)


def test_values_for_the_template_are_in_the_prompt() -> None:
    template = load_chat_template(model_files.resolve("dummy://qwen3-tiny"))
    assert template is not None
    reading = dataclasses.replace(
        template,
        template=jinja2.Template("{{ messages[0].content }}{{ mood }}"),
        options=frozenset({"mood"}),
    )
    model = dataclasses.replace(SERVED, text=dataclasses.replace(SERVED.text, template=reading))
    fields = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    told = json.dumps({**fields, "chat_template_kwargs": {"mood": "b"}}).encode()
    request = parse_request(ChatRequest, told, strict=False).request
    assert plan_chat(model, CONTEXT, request)[0].prompt_ids == [97, 98]


def test_the_reasoning_effort_is_the_templates_where_it_reads_it() -> None:
    template = load_chat_template(model_files.resolve("dummy://qwen3-tiny"))
    assert template is not None
    reading = dataclasses.replace(
        template,
        template=jinja2.Template("{{ reasoning_effort }}"),
        options=frozenset({"reasoning_effort"}),
    )
    model = dataclasses.replace(SERVED, text=dataclasses.replace(SERVED.text, template=reading))
    fields: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    fields["reasoning_effort"] = "ab"
    for more, prompt in (({}, "ab"), ({"chat_template_kwargs": {"reasoning_effort": "c"}}, "c")):
        body = json.dumps({**fields, **more}).encode()
        request = parse_request(ChatRequest, body, strict=False).request
        assert bytes(plan_chat(model, CONTEXT, request)[0].prompt_ids) == prompt.encode()


class WithBos(ByteTokenizer):
    """Adds a special token where it is asked to."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [256] * add_special_tokens + super().encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("given", "completion", "chat"), [({}, True, False), (True, True, True), (False, False, False)]
)
def test_special_tokens_are_added_to_prompts_and_not_to_chats_unless_asked(
    given: Any, completion: bool, chat: bool
) -> None:
    template = load_chat_template(model_files.resolve("dummy://qwen3-tiny"))
    text = dataclasses.replace(SERVED.text, tokenizer=WithBos(), template=template)
    model = dataclasses.replace(SERVED, text=text)
    fields = {} if given == {} else {"add_special_tokens": given}
    assert (plan(model, **fields)[0].prompt_ids[0] == 256) == completion
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}
    request = parse_request(ChatRequest, json.dumps(body).encode(), strict=False).request
    assert (plan_chat(model, CONTEXT, request)[0].prompt_ids[0] == 256) == chat


def test_every_field_of_sampling_reaches_it() -> None:
    fields = {
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100, "007": 1.5},
        "min_tokens": 3,
    }
    wanted = Sampling(0.7, 0.8, 20, 42, 0.1, 0.5, -0.5, 1.1, [(5, -100.0), (7, 1.5)], 3)
    assert plan(SERVED, **fields)[0].sampling == wanted
    second = plan(SERVED, **fields, n=2)[1].sampling
    assert second.seed != 42
    assert second.logit_bias == wanted.logit_bias


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_a_token_without_a_logit_is_refused_by_field(field: str) -> None:
    value: object = {"259": 1} if field == "logit_bias" else [259]
    with pytest.raises(InvalidRequestError, match=f"{field}: token id 259 is not allowed"):
        plan(SERVED, **{field: value})


def test_no_more_tokens_can_be_demanded_than_allowed() -> None:
    assert plan(min_tokens=5, max_tokens=5)[0].sampling.min_tokens == 5
    with pytest.raises(InvalidRequestError, match=r"min_tokens: 6 .* at most 5 \(max_tokens\)"):
        plan(min_tokens=6, max_tokens=5)
    with pytest.raises(InvalidRequestError, match=r"min_tokens: 17 .* at most 16"):
        plan(min_tokens=17)


def test_end_tokens_join_the_clients_own() -> None:
    assert plan()[0].stop_token_ids == [258]
    assert plan(stop_token_ids=[7, 258])[0].stop_token_ids == [7, 258]
    assert plan(ignore_eos=True, stop_token_ids=[7])[0].stop_token_ids == [7]


def test_end_tokens_without_a_logit_end_nothing() -> None:
    text = dataclasses.replace(SERVED.text, defaults=Defaults((-1, 258, 259)))
    assert plan(dataclasses.replace(SERVED, text=text))[0].stop_token_ids == [258]


def test_a_grammar_knows_min_tokens_and_end_tokens() -> None:
    (asked,) = plan(guided_regex="a+", min_tokens=5, max_tokens=9)
    assert asked.grammar is not None
    assert (asked.grammar.min_tokens, asked.grammar.ends_late) == (5, False)
    assert (asked.min_tokens, asked.sampling.min_tokens) == (5, 0)
    (late,) = plan(guided_regex="a+", ignore_eos=True, stop_token_ids=[7])
    assert late.grammar is not None
    assert late.grammar.ends_late
    assert late.grammar.end_token_ids == [258]
    assert late.stop_token_ids == [7, 258]


def test_choices_are_numbered_prompt_by_prompt() -> None:
    plans = plan(prompt=["a", "b"], n=2, seed=9)
    assert [p.index for p in plans] == [0, 1, 2, 3]
    assert [p.prompt_ids for p in plans] == [[97], [97], [98], [98]]
    assert plans[0].sampling == plans[2].sampling
    assert plans[1].sampling.seed == plans[3].sampling.seed != 9
    assert all(0 <= p.sampling.seed < 2**63 for p in plans)


def test_a_chat_needs_a_template() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}]}).encode()
    with pytest.raises(UnsupportedFieldError, match="no chat template; allowed: /v1/comp"):
        plan_chat(SERVED, CONTEXT, parse_request(ChatRequest, body, strict=False).request)


@pytest.mark.parametrize(
    ("generation", "expected", "left_out"),
    [
        ({}, Defaults((1,)), []),
        (
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": True},
            Defaults((1,), 0.6, 0.95, 20),
            [],
        ),
        (
            {"top_k": 0, "repetition_penalty": 1.05, "min_p": 0.1, "no_repeat_ngram_size": 3},
            Defaults((1,), min_p=0.1, repetition_penalty=1.05),
            ["no_repeat_ngram_size"],
        ),
        ({"repetition_penalty": None, "no_repeat_ngram_size": 0}, Defaults((1,)), []),
        ({"temperature": 0.0}, Defaults((1,), temperature=0.0), []),
        ({"do_sample": False, "temperature": 0.6}, Defaults((1,), 0.6), ["do_sample"]),
    ],
)
def test_generation_config_is_honoured_and_what_is_not_is_named(
    generation: dict[str, Any], expected: Defaults, left_out: list[str]
) -> None:
    defaults, names = defaults_from(generation, (1,))
    assert (defaults, names) == (expected, left_out)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("temperature", value) for value in ("warm", [1], {"a": 1}, -1, math.nan)),
        *(("top_k", value) for value in (-7, math.inf, 2**70)),
        ("top_p", 0),
        ("min_p", 1.5),
        ("repetition_penalty", 0),
    ],
)
def test_a_generation_config_that_no_request_could_ask_for_is_refused(
    key: str, value: object
) -> None:
    with pytest.raises(
        ModelLoadError, match=rf"generation_config\.json: {key}: .* is not allowed; allowed: "
    ):
        defaults_from({key: value}, ())
