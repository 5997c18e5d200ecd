"""A platform engineer splits prefill from decode with one `kubectl apply`; the application
developer gets the same answers. The KV cache goes from pod to pod by Mooncake's ports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from sluice_contract.cluster.labels import Role
from sluice_contract.http_heads import REQUEST_ID_HEADER

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.model.tasks import as_chat, make_prompt
from e2e.reach import reach
from e2e.stories.pods import (
    KV_PORTS,
    Pod,
    load_report,
    metric,
    pods,
    routed_seconds,
    rule,
    wait_until_idle,
)
from e2e.stories.service import DISAGGREGATED, MODEL, NAMESPACE, Service

IDLE_SECONDS = 30
FAILED_WITHIN_SECONDS = 40
KV_BYTES_PER_TOKEN = 4096
"""KV bytes per token of the sample's model; see e2e/model/README.md."""
NEW_EACH_TIME = {"id", "created", "request_id", "prompt_tokens_details"}

COPY, COPIED = make_prompt("copy", 256, seed=21)
LOOKUP, FOUND = make_prompt("lookup", 128, seed=7)
SAMPLED = {"temperature": 1.5, "max_tokens": 24}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("completions", {"prompt": COPY, "max_tokens": 300, "temperature": 0}),
    "chat": ("chat/completions", {"messages": as_chat(LOOKUP), "temperature": 0}),
    "several chunks": (
        "completions",
        {"prompt": make_prompt("copy", 1300, seed=3)[0], "max_tokens": 40, "temperature": 0},
    ),
    "n=2, seed": ("completions", {"prompt": COPY, "n": 2, "seed": 11, **SAMPLED}),
    "chat, logprobs, seed": (
        "chat/completions",
        {"messages": as_chat(COPY), "logprobs": True, "top_logprobs": 3, "seed": 5, **SAMPLED},
    ),
    "logprobs": (
        "completions",
        {"prompt": LOOKUP, "logprobs": 2, "max_tokens": 8, "temperature": 0},
    ),
    "penalties": (
        "completions",
        {"prompt": COPY, "frequency_penalty": 1.0, "presence_penalty": 0.5, "seed": 1, **SAMPLED},
    ),
    "json": (
        "chat/completions",
        {
            "messages": as_chat(LOOKUP),
            "response_format": {"type": "json_object"},
            "seed": 2,
            **SAMPLED,
        },
    ),
}


@pytest.fixture(scope="module")
def service(kubectl: Kubectl) -> Iterator[Service]:
    """The sample as it is."""
    sample = Service(kubectl, "disaggregated")
    kubectl.apply(DISAGGREGATED.read_text())
    sample.wait_for("Ready", "True")
    yield sample
    sample.delete()


@pytest.fixture
def pair_url(cluster: Cluster, service: Service) -> Iterator[str]:
    with reach(cluster, NAMESPACE, service.name) as found:
        yield found


@pytest.fixture(scope="module")
def prefill(kubectl: Kubectl, service: Service) -> Pod:
    (engine,) = pods(kubectl, service, Role.PREFILL)
    return engine


@pytest.fixture(scope="module")
def decode(kubectl: Kubectl, service: Service) -> Pod:
    (engine,) = pods(kubectl, service, Role.DECODE)
    return engine


def complete(url: str, prompt: str, **more: Any) -> httpx.Response:
    """The answer to a prompt."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 600, "temperature": 0, **more}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=120, trust_env=False)


@pytest.mark.parametrize("name", REQUESTS)
def test_answers_are_those_of_an_engine_that_does_both(name: str, url: str, pair_url: str) -> None:
    path, body = REQUESTS[name]
    of_one, of_pair = (
        httpx.post(f"{base}/v1/{path}", json={"model": MODEL, **body}, timeout=60, trust_env=False)
        for base in (url, pair_url)
    )
    assert of_pair.status_code == 200, of_pair.text
    assert comparable(of_pair.json()) == comparable(of_one.json())


def comparable(value: Any) -> Any:
    """`value` without parts that differ each time, and with floats rounded to the accuracy of sums
    in another order."""
    if isinstance(value, dict):
        return {key: comparable(v) for key, v in value.items() if key not in NEW_EACH_TIME}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return pytest.approx(value, abs=1e-3) if isinstance(value, float) else value


@pytest.mark.parametrize("length", [32, 64, 128, 256, 512])
def test_streamed_answers_are_right(length: int, pair_url: str) -> None:
    client = openai.OpenAI(base_url=f"{pair_url}/v1", api_key="none", max_retries=0, timeout=60)
    prompt, answer = make_prompt("copy", length, seed=length)
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt.removesuffix("\n")}],
        temperature=0,
        stream=True,
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == answer
    assert len(pieces) > 2, "the answer came in one piece: it was not streamed"


def test_the_kernel_counts_the_kv_cache_on_mooncakes_ports(
    kubectl: Kubectl, prefill: Pod, decode: Pod, pair_url: str
) -> None:
    """What arrives there is the KV cache of the prompts' pages and little else."""
    asked = [make_prompt("copy", 512, seed) for seed in range(40, 42)]
    before = metric(kubectl, decode, "sluice_handover_read_bytes_total")
    comes_in = ("INPUT", "-p", "tcp", "-s", prefill.address, "--sport", KV_PORTS)
    with rule(decode, *comes_in) as met_bytes:
        for prompt, answer in asked:
            assert complete(pair_url, prompt).json()["choices"][0]["text"] == answer
        arrived = met_bytes()
    counted = metric(kubectl, decode, "sluice_handover_read_bytes_total") - before
    page_bytes = KV_BYTES_PER_TOKEN * load_report(kubectl, decode).page_size_tokens
    expected = sum(len(prompt) * KV_BYTES_PER_TOKEN for prompt, _ in asked)
    # A prompt's first page, "copy: …", may be in the cache of an earlier one; its last is not full.
    slack = len(asked) * page_bytes
    assert expected - slack <= counted <= expected + slack
    assert counted <= arrived <= counted * 1.05, "headers of packets are a twentieth at most"


def test_blocked_ports_are_an_error_with_a_name_and_nothing_is_kept(
    kubectl: Kubectl, service: Service, prefill: Pod, decode: Pod, pair_url: str
) -> None:
    prompt, answer = make_prompt("copy", 512, seed=77)
    block = ("-s", prefill.address, "-p", "tcp", "--sport", KV_PORTS, "-j", "DROP")
    with rule(decode, "INPUT", *block) as met_bytes:
        refused = complete(pair_url, prompt)
        assert met_bytes() > 0, "nothing was blocked"
    assert refused.status_code == 503, refused.text
    assert refused.json()["error"]["code"] == "prefill_failed"
    assert re.search(rf"\b{re.escape(prefill.name)}\b", refused.text), "no engine is named"
    request_id = refused.headers[REQUEST_ID_HEADER]
    assert routed_seconds(kubectl, service, request_id) < FAILED_WITHIN_SECONDS
    wait_until_idle(kubectl, [prefill, decode], IDLE_SECONDS)
    answered = complete(pair_url, prompt)
    assert answered.json()["choices"][0]["text"] == answer
