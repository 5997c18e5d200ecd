"""LlamaIndex's cases. Annotations are not postponed: its tools read them."""

from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

from tests.clients.cases import ANSWER, CONTEXT, KEY, LOOKED_UP, MODEL, QUESTION, VALUE, run


class City(BaseModel):
    """A city."""

    kind: Literal["town", "city"]
    founded: int = Field(ge=0, le=2100)


def key(name: Literal["which"]) -> str:
    """Tells the key."""
    return f"{name}: {LOOKED_UP}"


MESSAGES = [ChatMessage(role="user", content=QUESTION)]
TOOL = FunctionTool.from_defaults(key)


def model(url: str, *, is_chat: bool = True) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=url,
        api_key=KEY,
        context_window=4096,
        max_tokens=None if is_chat else 64,
        max_retries=0,
        is_chat_model=is_chat,
        is_function_calling_model=is_chat,
    )


def completes(url: str) -> None:
    assert model(url).complete(QUESTION).text == ANSWER
    assert model(url, is_chat=False).complete(QUESTION + "\n").text == ANSWER


def chats(url: str) -> None:
    assert model(url).chat(MESSAGES).message.content == ANSWER


def streams(url: str) -> None:
    *before, last = model(url).stream_chat(MESSAGES)
    assert "".join(each.delta or "" for each in (*before, last)) == ANSWER
    assert last.message.content == ANSWER
    completing = model(url, is_chat=False).stream_complete(QUESTION + "\n")
    assert "".join(each.delta or "" for each in completing) == ANSWER


def structures_output(url: str) -> None:
    assert isinstance(model(url).as_structured_llm(City).complete("Where?").raw, City)


def calls_tools(url: str) -> None:
    asked = ChatMessage(role="user", content=CONTEXT)
    answer = model(url).chat_with_tools([TOOL], chat_history=[asked], tool_required=True)
    (call,) = model(url).get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("key", {"name": "which"})
    called = {"tool_call_id": call.tool_id, "name": "key"}
    result = ChatMessage(role="tool", content=LOOKED_UP, additional_kwargs=called)
    again = model(url).chat_with_tools([TOOL], chat_history=[asked, answer.message, result])
    assert again.message.content == VALUE


run("LlamaIndex", [completes, chats, streams, structures_output, calls_tools])
