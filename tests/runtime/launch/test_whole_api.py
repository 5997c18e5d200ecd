"""What schemathesis makes of the OpenAPI document breaks nothing: the whole program, at length."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.launch.processes import program, running, status, write_config

EXAMPLES = 150


@pytest.mark.full
def test_no_request_gets_a_5xx_or_an_answer_that_is_not_described(tmp_path: Path) -> None:
    from tests.runtime.server.api_fuzz import fuzz

    config = write_config(tmp_path, threads=1, kvPoolTokens=64)
    with running(program(config)) as process:
        url = process.ready_url()
        seen = fuzz(url, "tiny", EXAMPLES)
        assert status(url, "/health_generate") == 200
    for path in ("/v1/completions", "/v1/chat/completions", "/generate"):
        assert seen[path, 200] > EXAMPLES // 10
        assert seen[path, 400] > EXAMPLES // 10
