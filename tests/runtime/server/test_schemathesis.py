"""What schemathesis makes of the OpenAPI document breaks nothing: over a fake engine, briefly."""

from __future__ import annotations

import asyncio

import pytest

from tests.runtime.server.conftest import MODEL, Server

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]


async def test_no_request_gets_a_5xx_or_an_answer_that_is_not_described(server: Server) -> None:
    # Here: it takes a quarter of a second, which only the worker that runs this test need pay.
    from tests.runtime.server.api_fuzz import fuzz

    seen = await asyncio.to_thread(fuzz, server.url, MODEL, 10)
    routes = ("completions", "chat/completions", "responses", "messages", "messages/count_tokens")
    for path in (*(f"/v1/{route}" for route in routes), "/generate"):
        assert seen[path, 200] > 0, "no request was served"
        assert seen[path, 400] > 0, "no request was refused"
