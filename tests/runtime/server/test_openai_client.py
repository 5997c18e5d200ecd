"""The real `openai` client against a real server over a fake engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import jsonschema
import openai
import pytest
from sluice_runtime.wire.endpoint import private_endpoint
from sluice_runtime.wire.messages import Abort, Generate

from tests.runtime.server.conftest import MODEL, Server, running_server, until
from tests.runtime.server.fake_engine import ADAPTER
from tests.runtime.server.test_client_fields import PAD
from tests.runtime.server.test_openapi import document

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_completion_is_whole(server: Server) -> None:
    answer = await server.openai.completions.create(model=MODEL, prompt="h€llo", max_tokens=20)
    assert answer.choices[0].text == "h€llo"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (7, 8)


async def test_a_completion_streams_whole_characters(server: Server) -> None:
    stream = await server.openai.completions.create(
        model=MODEL, prompt="a€b", stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [c.choices[0].text for c in chunks[:-1]] == ["a", "", "", "€", "b", ""]
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [*[None] * 5, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_a_chat_streams_and_says_its_role_once(server: Server) -> None:
    stream = await server.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    role, *deltas = [chunk.choices[0].delta async for chunk in stream]
    assert (role.role, role.content) == ("assistant", "")
    assert "".join(delta.content or "" for delta in deltas) == "user: hi\nassistant: "
    assert [delta.role for delta in deltas].count("assistant") == 0


async def test_every_token_has_a_chunk_also_without_text(server: Server) -> None:
    """`vllm bench serve` of 0.33 counts chunks with a content and without a role."""
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = await server.openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "€"}],
        stream=True,
        stream_options=options,
    )
    chunks = [chunk async for chunk in stream]
    (role, *tokens), usage = [chunk.choices[0] for chunk in chunks[:-1]], chunks[-1].usage
    assert (role.delta.role, role.delta.content) == ("assistant", "")
    texts = [choice.delta.content for choice in tokens if choice.delta.role is None]
    assert texts == [*"user: ", "", "", "€", *"\nassistant: ", ""]
    assert usage is not None
    assert usage.completion_tokens == len(texts)
    counted = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert counted == [*range(len(texts) + 1), len(texts)]


async def test_an_answer_of_special_tokens_alone_has_chunks(server: Server) -> None:
    stream = await server.openai.completions.create(
        model=MODEL, prompt=[PAD] * 3, stream=True, max_tokens=3, extra_body={"ignore_eos": True}
    )
    assert [chunk.choices[0].text async for chunk in stream] == [""] * 3


async def test_a_chat_takes_parts_of_text(server: Server) -> None:
    answer = await server.openai.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "s"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ],
        max_completion_tokens=100,
    )
    assert answer.choices[0].message.content == "system: s\nuser: ab\nassistant: "
    assert answer.choices[0].message.role == "assistant"


async def test_length_ends_an_answer(server: Server) -> None:
    answer = await server.openai.completions.create(model=MODEL, prompt="hello", max_tokens=2)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("he", "length")


@pytest.mark.parametrize("strict", [False, True])
async def test_a_limit_beyond_what_is_left_is_what_is_left(
    server: Server, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    identity = replace(server.service.identity, strict_requests=strict)
    monkeypatch.setattr(server.service, "identity", identity)
    sdk, most = server.openai, 512 - len("user: a\nassistant: ")
    message: Any = {"role": "user", "content": "a"}
    asked: Any = {"model": MODEL, "messages": [message], "extra_body": {"ignore_eos": True}}
    if strict:
        with pytest.raises(openai.BadRequestError, match=f"at most {most} after a .*strictReq"):
            await sdk.chat.completions.create(**asked, max_completion_tokens=10_000)
        return
    answer = await sdk.chat.completions.create(**asked, max_completion_tokens=10_000)
    assert answer.choices[0].finish_reason == "length"
    (heard,) = server.engine.of(Generate)
    assert isinstance(heard, Generate)
    assert heard.max_tokens == most
    response = await sdk.responses.create(model=MODEL, input=[message], max_output_tokens=9_999)
    assert (response.status, response.max_output_tokens) == ("completed", 9_999)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_stop_string_over_token_borders_ends_it_and_frees_the_engine(
    server: Server, streamed: bool
) -> None:
    prompt = "abcd" * 50
    text = ""
    if streamed:
        async for chunk in await server.openai.completions.create(
            model=MODEL, prompt=prompt, stop=["dab", "zz"], stream=True
        ):
            text += chunk.choices[0].text
            reason = chunk.choices[0].finish_reason
    else:
        answer = await server.openai.completions.create(model=MODEL, prompt=prompt, stop="dab")
        text, reason = answer.choices[0].text, answer.choices[0].finish_reason
    assert (text, reason) == ("abc", "stop")
    await until(lambda: len(server.engine.of(Abort)) == 1 and not server.engine.running)


async def test_a_stop_string_wins_over_the_length(server: Server) -> None:
    answer = await server.openai.completions.create(
        model=MODEL, prompt="abcdef", stop="cd", max_tokens=4
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("ab", "stop")


async def test_text_held_back_for_a_stop_string_is_not_lost(server: Server) -> None:
    answer = await server.openai.completions.create(
        model=MODEL, prompt="abc", stop="cX", max_tokens=3
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("abc", "length")


async def test_a_stop_token_is_counted_and_is_not_text(server: Server) -> None:
    answer = await server.openai.completions.create(
        model=MODEL, prompt="hij", extra_body={"stop_token_ids": [105]}
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("h", "stop")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


async def test_ignore_eos_goes_on_to_the_length(server: Server) -> None:
    answer = await server.openai.completions.create(
        model=MODEL, prompt=[104, 258, 105], max_tokens=3, extra_body={"ignore_eos": True}
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("hi", "length")
    generate = server.engine.of(Generate)[0]
    assert isinstance(generate, Generate)
    assert (generate.stop_token_ids, generate.ignore_eos) == ([], True)


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([104, 105], ["hi"]),
        ([[104], [105]], ["h", "i"]),
    ],
)
async def test_prompts_of_every_kind(
    server: Server, prompt: str | list[str] | list[int] | list[list[int]], texts: list[str]
) -> None:
    answer = await server.openai.completions.create(model=MODEL, prompt=prompt, n=2)
    assert [choice.text for choice in answer.choices] == [text for text in texts for _ in "12"]
    assert [choice.index for choice in answer.choices] == list(range(2 * len(texts)))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, texts))


async def test_without_a_seed_each_replica_and_each_start_of_one_draws_its_own() -> None:
    drawn = []
    for _ in range(2):
        with private_endpoint() as endpoint:
            async with running_server(endpoint) as replica:
                await replica.openai.completions.create(model=MODEL, prompt="a")
                (asked,) = (g for g in replica.engine.of(Generate) if isinstance(g, Generate))
                drawn.append(asked.sampling.seed)
    assert drawn[0] != drawn[1]
    assert all(0 <= seed < 2**63 for seed in drawn)


async def test_each_choice_has_its_own_seed_and_the_first_has_the_requests(
    server: Server,
) -> None:
    for _ in range(2):
        await server.openai.completions.create(model=MODEL, prompt="a", n=3, seed=7)
    seeds = [g.sampling.seed for g in server.engine.of(Generate) if isinstance(g, Generate)]
    assert seeds[:3] == seeds[3:]
    assert seeds[0] == 7
    assert len(set(seeds[:3])) == 3


async def test_choices_stream_side_by_side(server: Server) -> None:
    server.engine.paused.set()
    asked = asyncio.create_task(
        server.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x" * 40}], n=2, stream=True
        )
    )
    await until(lambda: len(server.engine.of(Generate)) == 2)
    server.engine.paused.clear()
    stream = await asked
    texts = {0: "", 1: ""}
    order = []
    async for chunk in stream:
        order.append(chunk.choices[0].index)
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts[0] == texts[1] == "user: " + "x" * 40 + "\nassistant: "
    assert set(order[:6]) == {0, 1}


async def test_sampling_reaches_the_engine(server: Server) -> None:
    await server.openai.completions.create(
        model=MODEL,
        prompt="a",
        temperature=0.5,
        top_p=0.25,
        seed=-1,
        max_tokens=9,
        extra_body={"top_k": 3, "stop_token_ids": [5]},
    )
    generate = server.engine.of(Generate)[0]
    assert isinstance(generate, Generate)
    sampling = generate.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 3)
    assert sampling.seed == 2**63 - 1
    assert (generate.max_tokens, generate.stop_token_ids) == (9, [5, 258])


async def test_an_omitted_max_tokens_is_16_in_completions_and_all_there_is_room_for_in_chats(
    server: Server,
) -> None:
    await server.openai.completions.create(model=MODEL, prompt="abc")
    await server.openai.completions.create(model=MODEL, prompt="a" * 505)
    await server.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "abc"}]
    )
    asked = [message for message in server.engine.heard if isinstance(message, Generate)]
    chat_prompt = len("user: abc\nassistant: ")
    assert [message.max_tokens for message in asked] == [16, 512 - 505, 512 - chat_prompt]


async def test_models_are_listed(server: Server) -> None:
    models = await server.openai.models.list()
    assert [model.id for model in models.data] == [MODEL, ADAPTER]
    assert (await server.openai.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await server.openai.models.retrieve("other")


async def test_errors_have_openais_classes(server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await server.openai.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await server.openai.completions.create(model=MODEL, prompt="a", logprobs=6)
    assert bad.value.param == "logprobs"


async def test_the_openai_client_can_send_an_answer_back(server: Server) -> None:
    """With all of the fields that OpenAI's answers may have, null where there are none."""
    messages: list[Any] = [{"role": "user", "content": "a"}]
    answer = await server.openai.chat.completions.create(model=MODEL, messages=messages)
    said = answer.choices[0].message.model_dump()
    assert {"annotations", "audio", "function_call", "refusal", "tool_calls"} <= said.keys()
    messages += [said, {"role": "user", "content": "b"}]
    again = await server.openai.chat.completions.create(model=MODEL, messages=messages)
    assert said["content"] in (again.choices[0].message.content or "")
    body = {"model": MODEL, "messages": messages}
    jsonschema.validate(body, {**document(), "$ref": "#/components/schemas/ChatRequest"})


@pytest.mark.parametrize("value", [False, 0, ""])
async def test_audio_of_a_message_that_is_no_object_is_refused(
    server: Server, value: object
) -> None:
    message: Any = {"role": "assistant", "content": "a", "audio": value}
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\].audio: .* is not allowed"):
        await server.openai.chat.completions.create(model=MODEL, messages=[message])
