"""Cases of client libraries that no page shows, each in an environment that has no other:
`more_clients NAME URL` runs those of one.

Annotations are not postponed: the libraries read those of tools.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Literal
from urllib.request import Request, urlopen

from pydantic import BaseModel, ConfigDict, Field

from tests.clients.cases import (
    ANSWER,
    CONTEXT,
    KEY,
    LOOKED_UP,
    MODEL,
    PARAMETERS,
    QUESTION,
    TOOL,
    VALUE,
    Case,
    named,
    run_cases,
)


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["town", "city"]
    founded: int = Field(ge=0, le=2100)


MESSAGES: Final[list[Any]] = [{"role": "user", "content": QUESTION}]
ASKED: Final[list[Any]] = [{"role": "user", "content": CONTEXT}]
ONE_CALL: Final[Any] = {"parallel_tool_calls": False, "temperature": 0}
"""The small model, which has to call, knows no end of it."""
GRAMMAR: Final = 'root ::= "yes" | "no"'
LARK: Final = 'start: "yes" | "no"'


def key(name: Literal["which"]) -> str:
    """Tells the key.

    Args:
        name: of the key
    """
    return f"{name}: {LOOKED_UP}"


def openai_clients(url: str) -> Any:
    import openai

    settings: Any = {"base_url": url, "api_key": KEY, "max_retries": 0}
    return openai, openai.OpenAI(**settings), openai.AsyncOpenAI(**settings)


def of_openai(url: str) -> Iterator[Case]:
    openai, client, _ = openai_clients(url)

    def chats(url: str) -> None:
        chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True)
        assert chat.choices[0].message.content == ANSWER
        assert chat.choices[0].logprobs.content
        with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
            assert stream.get_final_completion().choices[0].message.content == ANSWER

    def completes(url: str) -> None:
        given: Any = {"model": MODEL, "prompt": QUESTION + "\n", "max_tokens": 64, "echo": True}
        assert client.completions.create(**given).choices[0].text.endswith(ANSWER)

    def parses(url: str) -> None:
        chat = client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=City)
        assert isinstance(chat.choices[0].message.parsed, City)
        response = client.responses.parse(model=MODEL, input=QUESTION, text_format=City)
        assert isinstance(response.output_parsed, City)

    def responds(url: str) -> None:
        with client.responses.stream(model=MODEL, input=QUESTION) as stream:
            assert stream.get_final_response().output_text == ANSWER

    def calls_tools(url: str) -> None:
        tools: Any = {"model": MODEL, "tools": [{"type": "function", "function": TOOL}]}
        with client.chat.completions.stream(
            messages=ASKED, tool_choice="required", parallel_tool_calls=False, **tools
        ) as stream:
            message = stream.get_final_completion().choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": LOOKED_UP}
        again = client.chat.completions.create(messages=[*ASKED, message, result], **tools)
        assert again.choices[0].message.content == VALUE

    def is_told_of_stored_responses(url: str) -> None:
        with suppress(openai.NotFoundError):
            raise AssertionError(client.responses.retrieve("resp_1"))

    yield from (chats, completes, parses, responds, calls_tools, is_told_of_stored_responses)


def of_open_webui(url: str) -> Iterator[Case]:
    def asked(path: str, body: Any = None) -> str:
        content = json.dumps(body).encode() if body else None
        headers = {"content-type": "application/json"}
        with urlopen(Request(url + path, content, headers)) as answer:
            return str(answer.read().decode())

    def lists_models(url: str) -> None:
        assert json.loads(asked("/models"))["data"][0]["id"] == MODEL

    def chats(url: str) -> None:
        more = {"stream": True, "stream_options": {"include_usage": True}}
        body = {"model": MODEL, "messages": MESSAGES, **more, "metadata": {"chat_id": "1"}}
        events = asked("/chat/completions", body).split("\n\n")
        chunks = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == ANSWER
        assert chunks[-1]["usage"]["completion_tokens"]

    def makes_titles(url: str) -> None:
        body = {"model": MODEL, "messages": MESSAGES, "stream": False, "max_completion_tokens": 99}
        answer = json.loads(asked("/chat/completions", body))
        assert answer["choices"][0]["message"]["content"] == ANSWER

    yield from (lists_models, chats, makes_titles)


def of_anthropic(url: str) -> Iterator[Case]:
    import anthropic

    base = url.removesuffix("/v1")
    client = anthropic.Anthropic(base_url=base, api_key=KEY, max_retries=0)
    tool: Any = {"name": "key", "description": "Tells the key.", "input_schema": PARAMETERS}

    def text_of(message: Any) -> str:
        return "".join(block.text for block in message.content if block.type == "text")

    def creates(url: str) -> None:
        message = client.messages.create(model=MODEL, max_tokens=64, messages=MESSAGES)
        assert (text_of(message), message.stop_reason) == (ANSWER, "end_turn")

    def streams(url: str) -> None:
        with client.messages.stream(model=MODEL, max_tokens=64, messages=MESSAGES) as stream:
            assert "".join(stream.text_stream) == ANSWER
            assert stream.get_final_message().usage.output_tokens > len(ANSWER)

    def calls_tools(url: str) -> None:
        given: Any = {"model": MODEL, "max_tokens": 200, "tools": [tool]}
        with client.messages.stream(
            messages=ASKED, tool_choice={"type": "tool", "name": "key"}, **given
        ) as stream:
            message = stream.get_final_message()
        (call,) = (block for block in message.content if block.type == "tool_use")
        assert call.input == {"name": "which"}
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": LOOKED_UP}
        turns: list[Any] = [{"role": "assistant", "content": message.content}]
        turns += [{"role": "user", "content": [result]}]
        again = client.messages.create(messages=[*ASKED, *turns], **given)
        assert text_of(again) == VALUE

    def counts_tokens(url: str) -> None:
        assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 0

    def lists_models(url: str) -> None:
        assert [model.id for model in client.models.list()][:1] == [MODEL]

    yield from (creates, streams, calls_tools, counts_tokens, lists_models)


def of_pydantic_ai(url: str) -> Iterator[Case]:
    from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key=KEY)

    def cases(kind: str, model: Any) -> Iterator[Case]:
        def runs(url: str) -> None:
            assert Agent(model).run_sync(QUESTION).output == ANSWER

        def streams(url: str) -> None:
            async def asked() -> str:
                async with Agent(model).run_stream(QUESTION) as result:
                    return "".join([text async for text in result.stream_text(delta=True)])

            assert asyncio.run(asked()) == ANSWER

        def has_an_output_type(url: str) -> None:
            for output in (NativeOutput(City), ToolOutput(City)):
                agent: Any = Agent(model, output_type=output)
                assert isinstance(agent.run_sync("Where?").output, City)

        def calls_a_tool(url: str) -> None:
            output: Any = [ToolOutput(key, name="key")]
            agent: Any = Agent(model, output_type=output)
            assert LOOKED_UP in agent.run_sync(CONTEXT).output

        def has_a_prompted_output(url: str) -> None:
            own: Any = {"max_tokens": 200}
            agent: Any = Agent(model, output_type=PromptedOutput(City), model_settings=own)
            assert isinstance(agent.run_sync("Where?").output, City)

        of_kind = (runs, streams, has_an_output_type, calls_a_tool, has_a_prompted_output)
        yield from (named(f"{kind}: {case.__name__}", case) for case in of_kind)

    yield from cases("chat", OpenAIChatModel(MODEL, provider=provider))
    yield from cases("responses", OpenAIResponsesModel(MODEL, provider=provider))


def of_openai_agents(url: str) -> Iterator[Case]:
    import agents

    agents.set_tracing_disabled(True)
    models = {
        "chat": agents.OpenAIChatCompletionsModel,
        "responses": agents.OpenAIResponsesModel,
    }

    def cases(kind: str, model: Any) -> Iterator[Case]:
        def agent_with(**settings: Any) -> Any:
            client = openai_clients(url)[2]  # of this case's event loop
            return agents.Agent("a", model=model(MODEL, client), **settings)

        def run(agent: Any, question: str) -> Any:
            return asyncio.run(agents.Runner.run(agent, question))

        def runs(url: str) -> None:
            assert run(agent_with(), QUESTION).final_output == ANSWER

        def streams(url: str) -> None:
            async def asked() -> Any:
                result = agents.Runner.run_streamed(agent_with(), QUESTION)
                events = [event async for event in result.stream_events()]
                return len(events), result.final_output

            events, answer = asyncio.run(asked())
            assert (events > 3, answer) == (True, ANSWER)

        def has_an_output_type(url: str) -> None:
            assert isinstance(run(agent_with(output_type=City), "Where?").final_output, City)

        def calls_a_tool(url: str) -> None:
            settings = agents.ModelSettings(tool_choice="required", **ONE_CALL)
            own = {"tools": [agents.function_tool(key)], "model_settings": settings}
            agent = agent_with(**own, tool_use_behavior="stop_on_first_tool")
            result = run(agent, CONTEXT)
            assert any(LOOKED_UP in str(getattr(item, "output", "")) for item in result.new_items)

        of_kind = (runs, streams, has_an_output_type, calls_a_tool)
        yield from (named(f"{kind}: {case.__name__}", case) for case in of_kind)

    for kind, model in models.items():
        yield from cases(kind, model)


def of_haystack(url: str) -> Iterator[Case]:
    from haystack.components.generators import chat as generators
    from haystack.dataclasses import ChatMessage
    from haystack.tools import Tool
    from haystack.utils import Secret

    own: Any = {"api_key": Secret.from_token(KEY), "api_base_url": url, "model": MODEL}
    question = [ChatMessage.from_user(QUESTION)]
    tool = Tool("key", "Tells the key.", PARAMETERS, key)

    def cases(kind: str, generator: Any, forced: Any, structured: str) -> Iterator[Case]:
        def runs(url: str) -> None:
            assert generator(**own).run(question)["replies"][0].text == ANSWER

        def streams(url: str) -> None:
            chunks: list[str] = []
            model = generator(**own, streaming_callback=lambda chunk: chunks.append(chunk.content))
            assert model.run(question)["replies"][0].text == ANSWER
            assert "".join(chunks) == ANSWER

        def structures_output(url: str) -> None:
            model = generator(**own, generation_kwargs={structured: City})
            City.model_validate_json(model.run(question)["replies"][0].text)

        def calls_a_tool(url: str) -> None:
            given = {"tool_choice": forced, **ONE_CALL}
            model = generator(**own, tools=[tool], generation_kwargs=given)
            reply = model.run([ChatMessage.from_user(CONTEXT)])["replies"][0]
            assert reply.tool_calls[0].arguments == {"name": "which"}

        of_kind = (runs, streams, structures_output, calls_a_tool)
        yield from (named(f"{kind}: {case.__name__}", case) for case in of_kind)

    yield from cases("chat", generators.OpenAIChatGenerator, "required", "response_format")
    yield from cases(
        "responses", generators.OpenAIResponsesChatGenerator, "required", "text_format"
    )


def of_semantic_kernel(url: str) -> Iterator[Case]:
    from semantic_kernel import Kernel
    from semantic_kernel.connectors.ai import open_ai
    from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
    from semantic_kernel.contents import ChatHistory
    from semantic_kernel.functions import kernel_function

    settings: Any = open_ai.OpenAIChatPromptExecutionSettings

    def model() -> Any:
        return open_ai.OpenAIChatCompletion(MODEL, async_client=openai_clients(url)[2])

    def history(content: str) -> Any:
        chat = ChatHistory()
        chat.add_user_message(content)
        return chat

    def ask(content: str, given: Any, **more: Any) -> Any:
        return asyncio.run(model().get_chat_message_content(history(content), given, **more))

    def chats(url: str) -> None:
        assert str(ask(QUESTION, settings())) == ANSWER

    def streams(url: str) -> None:
        async def asked() -> str:
            pieces = model().get_streaming_chat_message_content(history(QUESTION), settings())
            return "".join([str(piece) async for piece in pieces])

        assert asyncio.run(asked()) == ANSWER

    def structures_output(url: str) -> None:
        City.model_validate_json(str(ask("Where?", settings(response_format=City))))

    def calls_a_tool(url: str) -> None:
        kernel = Kernel()
        kernel.add_function("keys", kernel_function(key, name="key"))
        forced = FunctionChoiceBehavior.Required(auto_invoke=False)
        given = settings(function_choice_behavior=forced, **ONE_CALL)
        answer = ask(CONTEXT, given, kernel=kernel)
        assert [item.name for item in answer.items if hasattr(item, "arguments")] == ["keys-key"]

    def completes(url: str) -> None:
        text = open_ai.OpenAITextCompletion(MODEL, async_client=openai_clients(url)[2])
        given = open_ai.OpenAITextPromptExecutionSettings(max_tokens=64)
        assert str(asyncio.run(text.get_text_content(QUESTION + "\n", given))) == ANSWER

    yield from (chats, streams, structures_output, calls_a_tool, completes)


def of_smolagents(url: str) -> Iterator[Case]:
    import smolagents

    model = smolagents.OpenAIServerModel(MODEL, api_base=url, api_key=KEY)

    def generates(url: str) -> None:
        assert model.generate(MESSAGES).content == ANSWER

    def streams(url: str) -> None:
        assert "".join(delta.content or "" for delta in model.generate_stream(MESSAGES)) == ANSWER

    def calls_a_tool(url: str) -> None:
        answer = model.generate(ASKED, tools_to_call_from=[smolagents.tool(key)], max_tokens=200)
        assert answer.tool_calls[0].function.name == "key"

    def structures_output(url: str) -> None:
        form = {"name": "city", "strict": True, "schema": City.model_json_schema()}
        asked: Any = {"type": "json_schema", "json_schema": form}
        City.model_validate_json(model.generate(ASKED, response_format=asked).content)

    yield from (generates, streams, calls_a_tool, structures_output)


def of_dspy(url: str) -> Iterator[Case]:
    import dspy

    def model(kind: str) -> Any:
        own: Any = {"api_base": url, "api_key": KEY, "cache": False, "max_tokens": 400}
        return dspy.LM(f"openai/{MODEL}", model_type=kind, num_retries=0, **own)

    def first(answers: Any) -> str:
        return str(answers[0]["text"] if isinstance(answers[0], dict) else answers[0])

    def chats(url: str) -> None:
        assert first(model("chat")(messages=MESSAGES)) == ANSWER

    def responds(url: str) -> None:
        assert first(model("responses")(messages=MESSAGES)) == ANSWER

    def completes(url: str) -> None:
        assert ANSWER in first(model("text")(prompt=QUESTION + "\n"))

    def predicts(url: str) -> None:
        with dspy.context(lm=model("chat"), adapter=dspy.JSONAdapter()):
            assert dspy.Predict("question -> answer: bool")(question="?").answer in (True, False)

    yield from (chats, responds, completes, predicts)


def of_outlines(url: str) -> Iterator[Case]:
    import outlines

    client = openai_clients(url)[1]

    def cases(kind: str, model: Any, *, grammar: str | None) -> Iterator[Case]:
        def answers(url: str) -> None:
            assert model(QUESTION) == ANSWER

        def streams(url: str) -> None:
            assert "".join(model.stream(QUESTION)) == ANSWER

        def fills_models(url: str) -> None:
            City.model_validate_json(model("Where?", City))

        def keeps_to_choices(url: str) -> None:
            assert model("Where?", Literal["Rome", "Oslo"]) in ("Rome", "Oslo")

        def keeps_to_a_pattern(url: str) -> None:
            assert len(str(int(model("How many?", outlines.regex("[1-9][0-9]{2}"))))) == 3

        def keeps_to_a_grammar(url: str) -> None:
            assert model("Is it?", outlines.cfg(str(grammar))) in ("yes", "no")

        of_kind: list[Case] = [answers, streams, fills_models]
        if grammar is not None:
            of_kind += [keeps_to_choices, keeps_to_a_pattern, keeps_to_a_grammar]
        yield from (named(f"{kind}: {case.__name__}", case) for case in of_kind)

    yield from cases("from_vllm", outlines.from_vllm(client, MODEL), grammar=GRAMMAR)
    yield from cases("from_sglang", outlines.from_sglang(client, MODEL), grammar=GRAMMAR)
    yield from cases("from_openai", outlines.from_openai(client, MODEL), grammar=None)

    def takes_lark(url: str) -> None:
        assert outlines.from_vllm(client, MODEL)("Is it?", outlines.cfg(LARK)) in ("yes", "no")

    yield takes_lark


LIBRARIES: Final[dict[str, Callable[[str], Iterator[Case]]]] = {
    "openai": of_openai,
    "open-webui": of_open_webui,
    "anthropic": of_anthropic,
    "pydantic-ai": of_pydantic_ai,
    "openai-agents": of_openai_agents,
    "haystack": of_haystack,
    "semantic-kernel": of_semantic_kernel,
    "smolagents": of_smolagents,
    "dspy": of_dspy,
    "outlines": of_outlines,
}


if __name__ == "__main__":
    os.environ.setdefault("OPENAI_API_KEY", KEY)
    library, at = sys.argv[1:]
    run_cases(LIBRARIES[library](at), at)
