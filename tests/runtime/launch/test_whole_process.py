"""`python -m sluice_runtime --config engine.json` with a tiny random model: what clients see."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from sluice_contract.wire.load import LoadReport

from tests.runtime.launch.processes import CONTEXT_TOKENS, HANG_SECONDS, Process, get, until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("engine")]


def load(url: str) -> LoadReport:
    return LoadReport.model_validate_json(get(url, "/load").content)


def test_a_load_report_has_the_resolved_type_of_keys_and_values(
    engine: tuple[Process, str],
) -> None:
    fingerprint = load(engine[1]).kv_fingerprint
    assert fingerprint is not None
    assert fingerprint.kv_dtype in ("float32", "bfloat16")


def test_a_local_engine_says_how_to_ask_it(engine: tuple[Process, str]) -> None:
    command = shlex.split(engine[0].wait_for(r"try: (curl .*), or .*/ in a browser")[1])
    assert command[:3] == ["curl", "-N", f"{engine[1]}/v1/chat/completions"]
    answer = httpx.post(command[2], content=command[4], verify=False, timeout=HANG_SECONDS)
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")


def generated_tokens(url: str) -> float:
    found = re.search(r"^sluice_generated_tokens_total (\S+)$", get(url, "/metrics").text, re.M)
    assert found
    return float(found[1])


def runs(report: LoadReport, requests: int) -> bool:
    """Whether so many requests run and hold pages, or none of either; by one report."""
    figures = report.figures
    holds = figures.kv_pages_available < figures.kv_pages_total
    return figures.running_requests == requests and holds == (requests > 0)


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_the_openai_client_streams(engine: tuple[Process, str]) -> None:
    with client(engine[1]) as sdk:
        whole = sdk.completions.create(model="tiny", prompt="hello", max_tokens=32, temperature=0)
        stream = sdk.completions.create(
            model="tiny", prompt="hello", max_tokens=32, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
        chat = sdk.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4, n=2, seed=1
        )
        again = sdk.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4, n=2, seed=1
        )
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 5
    texts = [choice.message.content for choice in chat.choices]
    assert texts == [choice.message.content for choice in again.choices]


def test_a_client_that_goes_frees_its_pages(engine: tuple[Process, str]) -> None:
    url = engine[1]
    body: dict[str, Any] = {"model": "tiny", "prompt": "x" * 200, "stream": True, "n": 4}
    body |= {"max_tokens": CONTEXT_TOKENS - 200, "ignore_eos": True}
    before = generated_tokens(url)
    with (
        httpx.Client(verify=False, timeout=HANG_SECONDS) as http,
        http.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()  # kept: the connection closes with it
        next(lines)
        until(lambda: runs(load(url), 4))
    until(lambda: runs(load(url), 0))
    assert generated_tokens(url) - before < 4 * body["max_tokens"], "it was over, not aborted"


def test_prompts_that_can_never_fit_are_refused_with_the_numbers(
    engine: tuple[Process, str],
) -> None:
    response = httpx.post(
        f"{engine[1]}/v1/completions",
        json={"model": "tiny", "prompt": "x" * CONTEXT_TOKENS},
        verify=False,
        timeout=HANG_SECONDS,
    )
    assert response.status_code == 400
    assert str(CONTEXT_TOKENS) in response.json()["error"]["message"]


def test_the_api_process_is_small(engine: tuple[Process, str]) -> None:
    status = Path(f"/proc/{engine[0].child('sluice_runtime.server')}/status").read_text()
    resident_kib = int(status.partition("VmRSS:")[2].split()[0])
    assert resident_kib < 110 * 1024
