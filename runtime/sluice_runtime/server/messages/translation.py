"""Turns a request for `POST /v1/messages` into a chat request with the same answer.

Text blocks are joined with an empty line between them; the assistant's blocks without one, because
it wrote them as one text. Texts of our own are added only at a conversation's end, so that its
successive prompts share cached prefixes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from sluice_runtime.errors import ContextLengthError, InvalidRequestError
from sluice_runtime.server.choice_plans import ChoicePlan, RequestContext, plan_chat
from sluice_runtime.server.content import GAP, Unseen
from sluice_runtime.server.fields import SamplingFields
from sluice_runtime.server.messages.request import (
    Block,
    MessagesRequest,
    MessagesTool,
    MessageText,
    MessageTurn,
    PromptFields,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from sluice_runtime.server.prompts import ServedModel
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.responses.translation import chat_of, plan_under_other_names
from sluice_runtime.server.turns import joined_turns

_SAME: Final = (*SamplingFields.model_fields, "model", "priority", "cache_salt", "stream")
"""Fields that chats have under equal names."""
_NAMES: Final = (
    (re.compile(r"\bresponse_format(\.json_schema)?"), "output_config.format"),
    (re.compile(r"\btool_choice\.function\b"), "tool_choice"),
    (re.compile(r"\bmax_completion_tokens\b"), "max_tokens"),
    (re.compile(r'"required"'), '"any"'),
)
"""Field names and values of chats, each with its counterpart in Anthropic's API."""
_MODES: Final = {"auto": "auto", "any": "required", "none": "none"}
_THINKING_OPTIONS: Final = ("enable_thinking", "thinking")
"""Variables by which chat templates turn reasoning on and off."""
_ATTRIBUTION: Final = "x-anthropic-billing-header"
"""Start of a block that Claude Code puts into the system prompt for Anthropic; the block differs in
every request."""


def plan_message(
    model: ServedModel, context: RequestContext, request: PromptFields
) -> list[ChoicePlan]:
    """The plan of the one choice; raises like `plan_chat`, with this route's names."""
    template = model.text.template
    read = template.chosen(with_tools=request.offers_tools).options if template else frozenset()
    try:
        plans = partial(plan_chat, model, context, chat_request(request, read))
        return [plan_under_other_names(plans, _NAMES)]
    except ContextLengthError as error:  # Claude Code looks for these words
        raise ContextLengthError(f"prompt is too long: {error}", error.param) from None


def chat_request(request: PromptFields, read_options: frozenset[str]) -> ChatRequest:
    """The chat with the same answer. `read_options`: variables that the chat template reads."""
    chat: dict[str, Any] = {name: getattr(request, name) for name in _SAME}
    chat["messages"] = _turns(request)
    chat["chat_template_kwargs"] = _template_options(request, read_options)
    chat |= _output(request)
    chat |= _tools(request.tools or (), request.tool_choice)
    if isinstance(request, MessagesRequest):
        chat |= {"max_completion_tokens": request.max_tokens, "stop": request.stop_sequences}
    return chat_of(chat, _NAMES)


def _turns(request: PromptFields) -> list[dict[str, Any]]:
    system = [] if request.system is None else [_joined(request.system)]
    turns: list[dict[str, Any]] = [{"role": "system", "content": text} for text in system]
    turns += (turn for message in request.messages for turn in _chat_turns(message))
    # The assistant wrote its blocks as one text.
    turns = joined_turns(turns, between_answers="")
    if not turns:
        raise InvalidRequestError("messages: all are empty; allowed: one with text", "messages")
    if turns[-1]["role"] == "assistant":
        own = [at for at, turn in enumerate(request.messages) if turn.role == "assistant"]
        field = f"messages[{own[-1]}].role"
        raise InvalidRequestError(
            f'{field}: "assistant" is not allowed at the end; allowed: "user" (an answer cannot be '
            "begun for the model)",
            field,
        )
    return turns


def _template_options(request: PromptFields, read_options: frozenset[str]) -> dict[str, Any] | None:
    own = request.chat_template_kwargs or {}
    if request.thinking is None:
        return request.chat_template_kwargs
    thinks = request.thinking.type != "disabled"
    return {name: thinks for name in _THINKING_OPTIONS if name in read_options} | own


def _output(request: PromptFields) -> dict[str, Any]:
    config = request.output_config
    if config is None:
        return {}
    output: dict[str, Any] = {"reasoning_effort": config.effort}
    if config.format is not None:
        schema = {"name": "output", "schema": config.format.schema_, "strict": True}
        output["response_format"] = {"type": "json_schema", "json_schema": schema}
    return output


def _tools(tools: Sequence[object], choice: ToolChoice | None) -> dict[str, Any]:
    functions = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": tool.strict,
        }
        for tool in tools
        if isinstance(tool, MessagesTool)
    ]
    chat: dict[str, Any] = {}
    if functions:
        chat["tools"] = [{"type": "function", "function": function} for function in functions]
    if choice is None:
        return chat
    if choice.disable_parallel_tool_use is not None:
        chat["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    named = {"type": "function", "function": {"name": choice.name}}
    chat["tool_choice"] = _MODES.get(choice.type, named)
    return chat


def _chat_turns(message: MessageTurn) -> Iterator[dict[str, Any]]:
    """The turns of a chat that correspond to one turn of Anthropic's API."""
    blocks, role = message.content, message.role
    if isinstance(blocks, str) or role == "system":
        yield {"role": role, "content": _joined(blocks) if role == "system" else blocks}
    elif role == "assistant":
        yield _assistant_turn(blocks)
    else:
        for block in blocks:
            if isinstance(block, ToolResult):
                content = _joined(block.content or "")
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
        texts = [block for block in blocks if isinstance(block, MessageText | Unseen)]
        if texts or not blocks:
            yield {"role": "user", "content": _joined(texts)}


def _assistant_turn(blocks: Sequence[Block]) -> dict[str, Any]:
    texts = [block.text for block in blocks if isinstance(block, MessageText | Unseen)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [_call(block) for block in blocks if isinstance(block, ToolUse)]
    turn: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        turn["reasoning_content"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _call(block: ToolUse) -> dict[str, Any]:
    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
    return {"id": block.id, "type": "function", "function": function}


def _joined(content: str | Sequence[object]) -> str:
    if isinstance(content, str):
        return "" if content.startswith(_ATTRIBUTION) else content
    texts = [block.text for block in content if isinstance(block, TextBlock | Unseen)]
    return GAP.join(text for text in texts if text and not text.startswith(_ATTRIBUTION))
