"""What schemathesis makes of an engine's OpenAPI document, sent to a router: it breaks nothing
there either, and the document describes the answers, whoever gives them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sluice_contract.cluster.labels import Role
from sluice_runtime.wire.endpoint import private_endpoint

from tests.router.fakes import running_router
from tests.runtime.server.conftest import MODEL, running_server

pytestmark = pytest.mark.process
KEY = b"k" * 32


@pytest.mark.parametrize("examples", [16, pytest.param(150, marks=pytest.mark.full)])
async def test_no_request_gets_a_5xx_or_an_answer_that_is_not_described(
    tmp_path: Path, examples: int
) -> None:
    from tests.runtime.server.api_fuzz import fuzz

    key = tmp_path / "key"
    key.write_bytes(KEY)
    with private_endpoint() as endpoint:
        async with (
            running_server(endpoint, Role.MIXED, KEY) as engine,
            running_router(engine.url, handover_key_file=str(key)) as router,
        ):
            # From another thread: this one serves.
            seen = await asyncio.to_thread(fuzz, engine.url, MODEL, examples, router=router.url)
    routes = ("completions", "chat/completions", "responses", "messages", "messages/count_tokens")
    for path in [f"/v1/{route}" for route in routes]:
        assert seen[path, 200] > 0, "no request was served"
        assert seen[path, 400] > 0, "no request was refused"
