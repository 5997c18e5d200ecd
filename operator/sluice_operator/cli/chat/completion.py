"""Chat completions of a service, through the API server's proxy of Services.

The API server takes the header Authorization for itself, so the service's key is in X-Api-Key.
Keeps no conversation and prints nothing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from sluice_contract.cluster.ports import SERVICE_HTTP

from sluice_operator.cli.top.snapshot import missing_right
from sluice_operator.kube.client import path
from sluice_operator.kube.connection import Connection, Request
from sluice_operator.kube.errors import (
    FORBIDDEN,
    NOT_FOUND,
    UNAUTHORIZED,
    OperatorError,
)
from sluice_operator.kube.kinds import SERVICE

UNAVAILABLE: Final = 503
EVENT: Final = b"data: "
DONE: Final = b"[DONE]"
KEY_NEEDED: Final = "give a key of the service: SLUICE_API_KEY, or a file in --key-file"

Message = Mapping[str, str]
"""A message of a conversation: `role` and `content`."""


class ChatRefusedError(OperatorError):
    """There is no such service, or it gives no whole answer."""


class TextPiece(NamedTuple):
    """A piece of an answer."""

    text: str = ""
    reasoning: str = ""
    """What the model writes before its answer."""
    tokens: int | None = None
    """Tokens of the whole answer; only in the last piece."""
    is_cut: bool = False
    """Whether the answer ends here because it has as many tokens as were asked for."""


class ChatClient:
    """Requests to one service with the rights of the connection's user."""

    def __init__(
        self, connection: Connection, namespace: str, name: str, key: str | None = None
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._name = name
        self._headers = {"X-Api-Key": key} if key else {}

    async def base_model(self) -> str:
        """Name of the service's model, which it lists before adapters.

        Raises:
            ChatRefusedError: says what to do.
            OperatorError: the API server does not answer, or a right is missing.
        """
        request = Request("GET", self._path("models"), headers=self._headers)
        async with self._connection.stream(request) as answer:
            body = _json(await answer.read())
            if answer.status != 200:
                raise self._refusal(request, answer.status, body)
            models = [str(model["id"]) for model in body.get("data", ())]
        if not models:
            raise ChatRefusedError(f"{self._name} lists no model{self._hint(UNAVAILABLE)}")
        return models[0]

    async def answer(
        self, model: str, messages: Iterable[Message], max_tokens: int
    ) -> AsyncGenerator[TextPiece, None]:
        """The answer to a conversation, as it is generated.

        Raises:
            ChatRefusedError: says what to do.
            OperatorError: the API server does not answer, or a right is missing.
        """
        body = {
            "model": model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        address = self._path("chat/completions")
        request = Request("POST", address, body=body, headers=self._headers)
        async with self._connection.stream(request) as answer:
            if answer.status != 200:
                raise self._refusal(request, answer.status, _json(await answer.read()))
            async for event in _events(request, answer.content):
                if "error" in event:
                    raise ChatRefusedError(str(event["error"].get("message")))
                yield _piece(event)

    def _path(self, route: str) -> str:
        return path(SERVICE, self._namespace, f"{self._name}:{SERVICE_HTTP}", f"proxy/v1/{route}")

    def _refusal(self, request: Request, status: int, body: Mapping[str, Any]) -> OperatorError:
        """Names who refused, why, and what to do. A body of kind Status is the API server's."""
        where = f"namespace {self._namespace}"
        if body.get("kind") == "Status":
            if status == FORBIDDEN:
                verb = "get" if request.method == "GET" else "create"
                return OperatorError(missing_right(verb, "", "services/proxy", where))
            if status == NOT_FOUND:
                listed = "`kubectl get infsvc -A` lists them"
                text = f"InferenceService {self._name} is not in {where}; {listed}"
                return ChatRefusedError(text)
            cause, status = f"{status} {body.get('message', '')}".strip(), UNAVAILABLE
        else:
            error = body.get("error") or {}
            cause = f"{status} {error.get('message', 'without a reason')}"
        return ChatRefusedError(f"{cause}{self._hint(status)}")

    def _hint(self, status: int) -> str:
        """What to do about a status."""
        if status == UNAUTHORIZED:
            return f"; {KEY_NEEDED}"
        if status == UNAVAILABLE:
            return f"; `sluice top {self._name} -n {self._namespace}` shows its engines"
        return ""


async def _events(
    request: Request, lines: AsyncIterable[bytes]
) -> AsyncGenerator[dict[str, Any], None]:
    """Events of an answer up to `[DONE]`, without which it is not whole."""
    async for line in lines:
        data = line.strip().removeprefix(EVENT)
        if data == DONE:
            return
        if line.startswith(EVENT):
            yield json.loads(data)
    raise ChatRefusedError(f"{request}: the answer broke off")


def _piece(event: Mapping[str, Any]) -> TextPiece:
    choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
    delta, is_cut = choice.get("delta") or {}, choice.get("finish_reason") == "length"
    reasoning = delta.get("reasoning_content") or ""
    tokens = (event.get("usage") or {}).get("completion_tokens")
    return TextPiece(delta.get("content") or "", reasoning, tokens, is_cut)


def _json(text: bytes) -> dict[str, Any]:
    """The object in a body; an empty one where it has another content."""
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
