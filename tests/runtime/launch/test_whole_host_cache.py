"""A conversation that other requests have pushed out of the device comes back from the host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.runtime.launch.processes import get, program, running, write_config

pytestmark = pytest.mark.process

PROMPTS = ["".join(chr(97 + (i * step) % 23) for i in range(1800)) for step in (1, 3, 5, 7, 11)]
SETTINGS: dict[str, Any] = {
    "threads": 1,
    "dtype": "float32",
    "kvPoolTokens": 2048,
    "contextLength": 2048,
    "maxRunningRequests": 4,
}


def answers(folder: Path, **keys: Any) -> tuple[list[tuple[str, int]], str]:
    """Texts and cached tokens, and the metrics."""
    with running(program(write_config(folder, **SETTINGS, **keys))) as engine:
        url = engine.ready_url()
        found = [ask(url, prompt) for _ in range(2) for prompt in PROMPTS]
        return found, get(url, "/metrics").text


def ask(url: str, prompt: str) -> tuple[str, int]:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    whole = response.json()
    details = whole["usage"].get("prompt_tokens_details") or {}
    return whole["choices"][0]["text"], details.get("cached_tokens", 0)


def test_second_turns_find_their_prompts(tmp_path: Path) -> None:
    without, _ = answers(tmp_path)
    cache = {"memory": "64Mi", "disk": {"size": "64Mi"}}
    hosted, metrics = answers(tmp_path, hostCache=cache, hostCacheFolder=str(tmp_path))
    assert [text for text, _ in hosted] == [text for text, _ in without]
    assert not any(tokens for _, tokens in without)
    assert all(tokens >= 1700 for _, tokens in hosted[len(PROMPTS) :])
    hits = re.findall(r'^sluice_host_cache_hit_tokens_total\{tier="memory"\} (\S+)$', metrics, re.M)
    assert float(hits[0]) >= 8500
