"""Clients of an engine that speculates get the answers of one that does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.runtime import eagle_folder
from tests.runtime.eagle_folder import HEAD
from tests.runtime.launch.processes import get, program, running, write_config

pytestmark = pytest.mark.process

PROMPT: Final = "one two three one two three one two three one two"
REQUESTS: Final[list[dict[str, Any]]] = [
    {"temperature": 0, "max_tokens": 60},
    {"temperature": 0.3, "seed": 5, "max_tokens": 60, "n": 3},
    {"temperature": 0, "max_tokens": 60, "logprobs": 2},
    {"temperature": 0, "max_tokens": 60, "frequency_penalty": 0.5},
    {"temperature": 0.3, "seed": 6, "max_tokens": 40, "response_format": {"type": "json_object"}},
    {"temperature": 0.05, "seed": 7, "max_tokens": 60, "stream": True},
]


def answers(folder: Path, **keys: Any) -> tuple[list[Any], str]:
    """What clients get, and the metrics."""
    settings = {"threads": 1, "dtype": "float32", **keys}
    with running(program(write_config(folder, **settings))) as engine:
        url = engine.ready_url()
        found = [ask(url, request) for request in REQUESTS]
        text = next(choice["text"] for choice in found[0]["choices"])
        stopped = ask(url, REQUESTS[0] | {"stop": [text[20:22]]})
        assert stopped["choices"][0]["finish_reason"] == "stop"
        return [*found, stopped], get(url, "/metrics").text


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Answers of an engine that does not speculate."""
    return answers(tmp_path_factory.mktemp("without"))[0]


def ask(url: str, request: dict[str, Any]) -> Any:
    body = {"model": "tiny", "prompt": PROMPT, **request}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    if not request.get("stream"):
        whole = response.json()
        return {"choices": [without_scores(c) for c in whole["choices"]], "usage": whole["usage"]}
    events = re.findall(r"^data: (\{.*)$", response.text, re.MULTILINE)
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


def without_scores(choice: dict[str, Any]) -> dict[str, Any]:
    """Logprobs of the tokens, rounded: they depend on the batch by rounding."""
    logprobs = choice.get("logprobs") or {}
    scores = [round(value, 3) for value in logprobs.get("token_logprobs", [])]
    return {**choice, "logprobs": scores, "tokens": logprobs.get("tokens")}


def figure(metrics: str, name: str) -> float:
    (value,) = re.findall(rf"^{name} (\S+)$", metrics, re.MULTILINE)
    return float(value)


def test_clients_get_the_answers_of_an_engine_that_does_not_speculate(
    without: list[Any], tmp_path: Path
) -> None:
    model = {"method": "Draft", "draft": {"uri": "dummy://llama-tiny"}}
    for speculation in ({"method": "NGram"}, model):
        drafting, metrics = answers(tmp_path, speculation=speculation)
        assert drafting == without
        accepted = figure(metrics, "sluice_accepted_tokens_total")
        assert accepted > 5, "how many depends on how long steps take"
        first = figure(metrics, "sluice_time_to_first_token_seconds_count")
        later = figure(metrics, "sluice_generated_tokens_total") - first
        assert figure(metrics, "sluice_inter_token_seconds_count") == later - accepted


def test_clients_get_the_same_answers_where_a_head_drafts(
    without: list[Any], tmp_path: Path
) -> None:
    """One that was never trained, so that most drafts are wrong."""
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}
    head = eagle_folder.write(tmp_path / "head", HEAD | layers, eagle_folder.random_head())
    speculation = {"method": "Eagle", "draft": {"uri": f"file://{head}"}}
    drafting, metrics = answers(tmp_path, speculation=speculation)
    assert drafting == without
    assert figure(metrics, "sluice_drafted_tokens_total") > 0
