"""Turns a request for `POST /v1/responses` into a chat request with the same answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.body import refusal_of
from sluice_runtime.server.choice_plans import ChoicePlan, RequestContext, plan_chat
from sluice_runtime.server.content import GAP, Unseen, text_of_parts
from sluice_runtime.server.fields import SamplingFields
from sluice_runtime.server.prompts import ServedModel
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.responses.request import (
    EarlierReasoning,
    FunctionOutput,
    InputMessage,
    MadeCustomCall,
    MadeFunctionCall,
    ResponsesRequest,
    TextFormat,
    unseen_role,
)
from sluice_runtime.server.responses.tools import (
    ChosenTool,
    arguments_of,
    earlier_name,
    function_name,
    functions,
)

_SAME: Final = (
    *SamplingFields.model_fields,
    "chat_template_kwargs", "model", "parallel_tool_calls", "priority", "cache_salt", "stream",
)  # fmt: skip
"""Fields that chats have under equal names."""
_NAMES: Final = (
    (re.compile(r"\bresponse_format(\.json_schema)?"), "text.format"),
    (re.compile(r"\btool_choice\.function\b"), "tool_choice"),
    (re.compile(r"\bmax_completion_tokens\b"), "max_output_tokens"),
    (re.compile(r"^messages\b"), "input"),
)
"""Field names of chats, each with its counterpart in this route."""


def plan_response(
    model: ServedModel, context: RequestContext, request: ResponsesRequest
) -> list[ChoicePlan]:
    """The plan of the one choice; raises like `plan_chat`, with this route's names."""
    plans = partial(plan_chat, model, context, chat_request(request))
    return [plan_under_other_names(plans, _NAMES)]


def chat_of(fields: dict[str, Any], names: Sequence[tuple[re.Pattern[str], str]]) -> ChatRequest:
    """The chat request for another route's request. Raises for fields that are valid on that route
    but not in a chat. `names`: a chat's field names, each with that route's name for messages."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        refused = refusal_of(ChatRequest, error)
    param = None if refused.param is None else _renamed(refused.param, names)
    raise InvalidRequestError(_renamed(str(refused), names), param)


def plan_under_other_names(
    plans: Callable[[], list[ChoicePlan]], names: Sequence[tuple[re.Pattern[str], str]]
) -> ChoicePlan:
    """The plan of the one choice, for another route; `names`: a chat's, and that route's."""
    try:
        (plan,) = plans()
    except InvalidRequestError as error:
        param = None if error.param is None else _renamed(error.param, names)
        raise type(error)(_renamed(str(error), names), param) from None
    changes = [_renamed(change, names) for change in plan.template_changes]
    plan = replace(plan, template_changes=changes)
    if plan.grammar is None:
        return plan
    named = msgspec.structs.replace(plan.grammar, field=_renamed(plan.grammar.field, names))
    left_out = [_renamed(place, names) for place in plan.left_out]
    return replace(plan, grammar=named, left_out=left_out)


def chat_request(request: ResponsesRequest) -> ChatRequest:
    """The chat with the same answer."""
    chat: dict[str, Any] = {name: getattr(request, name) for name in _SAME}
    chat |= {
        "messages": list(_messages(request)),
        "max_completion_tokens": request.max_output_tokens,
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
    }
    if request.wants_logprobs:
        chat |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.tools:
        seen = [function for function, _ in functions(request.tools)]
        chat["tools"] = [{"type": "function", "function": function} for function in seen] or None
    chat["tool_choice"] = choice = request.tool_choice
    if isinstance(choice, ChosenTool):
        named = {"name": function_name(choice.name, choice.namespace)}
        chat["tool_choice"] = {"type": "function", "function": named}
    if request.text is not None and request.text.format is not None:
        chat["response_format"] = _format(request.text.format)
    return chat_of(chat, _NAMES)


def _format(text_format: TextFormat) -> dict[str, Any]:
    if text_format.type != "json_schema":
        return {"type": text_format.type}
    schema = text_format.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"type": "json_schema", "json_schema": schema}


def _messages(request: ResponsesRequest) -> Iterator[dict[str, Any]]:
    """The request's items as messages of a chat. Calls join the assistant's message before them,
    and reasoning joins the message after it."""
    if request.instructions is not None:
        yield {"role": "system", "content": request.instructions}
    if isinstance(request.input, str):
        yield {"role": "user", "content": request.input}
        return
    turn: dict[str, Any] | None = None
    said = False
    for item in request.input:
        if isinstance(item, MadeFunctionCall | MadeCustomCall):
            turn = turn or {"role": "assistant", "content": ""}
            turn.setdefault("tool_calls", []).append(_call(item))
            continue
        if isinstance(item, EarlierReasoning) and not item.text:
            continue
        message = _message(item)
        if turn is not None and _continues(turn, item, said=said):
            turn |= _joined(turn, message)
        else:
            if turn is not None:
                yield turn
            turn, said = (message if message["role"] == "assistant" else None), False
            if turn is None:
                yield message
        said = said or isinstance(item, InputMessage)
    if turn is not None:
        yield turn


def _continues(turn: dict[str, Any], item: object, *, said: bool) -> bool:
    """Whether an item is part of the assistant's turn before it. An unseen item is if it is the
    assistant's or follows a call, so that nothing separates calls from results. Reasoning and
    messages are part of the turn only as long as it has no text (`said`) and no call."""
    if isinstance(item, Unseen):
        return unseen_role(item) == "assistant" or "tool_calls" in turn
    if said or "tool_calls" in turn:
        return False
    return isinstance(item, EarlierReasoning) or (
        isinstance(item, InputMessage) and item.role == "assistant"
    )


def _joined(turn: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """The texts and the reasoning of both turns, joined."""
    texts = {"content": GAP.join(filter(None, (turn["content"], message["content"])))}
    reasoning = [
        part["reasoning_content"] for part in (turn, message) if "reasoning_content" in part
    ]
    return texts | ({"reasoning_content": "".join(reasoning)} if reasoning else {})


def _call(item: MadeFunctionCall | MadeCustomCall) -> dict[str, Any]:
    arguments = arguments_of(item.input) if isinstance(item, MadeCustomCall) else item.arguments
    function = {"name": earlier_name(item.name, item.namespace), "arguments": arguments}
    return {"id": item.call_id, "type": "function", "function": function}


def _message(item: InputMessage | FunctionOutput | EarlierReasoning | Unseen) -> dict[str, Any]:
    match item:
        case EarlierReasoning():
            return {"role": "assistant", "content": "", "reasoning_content": item.text}
        case FunctionOutput():
            return {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
        case InputMessage():
            return {"role": item.role, "content": _text(item.content)}
        case Unseen():
            role = unseen_role(item)
            return {"role": "user" if role == "tool" else role, "content": item.text}


def _text(content: str | list[Any]) -> str:
    return content if isinstance(content, str) else text_of_parts(content)


def _renamed(text: str, names: Sequence[tuple[re.Pattern[str], str]]) -> str:
    for chat, other in names:
        text = chat.sub(other, text)
    return text
