"""An application developer points the openai client at the Service and gets a right answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from openai.types.shared_params import FunctionDefinition

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.model.tasks import make_prompt
from e2e.reach import forwarded
from e2e.stories.service import MODEL, NAMESPACE, Service, chat_service

LENGTHS_BYTES = (32, 64, 128, 256, 512)


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def stream(client: openai.OpenAI, prompt: str) -> tuple[list[str], str | None]:
    """Pieces of text, and why the answer ended."""
    chunks = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=len(prompt) + 8, temperature=0, stream=True
    )
    pieces, reason = [], None
    for chunk in chunks:
        pieces.append(chunk.choices[0].text)
        reason = chunk.choices[0].finish_reason or reason
    return pieces, reason


@pytest.mark.parametrize("length", LENGTHS_BYTES)
def test_a_streamed_copy_of_the_prompt_is_right(client: openai.OpenAI, length: int) -> None:
    prompt, answer = make_prompt("copy", length, seed=length)
    pieces, reason = stream(client, prompt)
    assert "".join(pieces) == answer
    assert reason == "stop"
    assert len(pieces) > 1, "the answer came in one piece: it was not streamed"


def test_a_port_forwarded_by_kubectl_answers_too(cluster: Cluster, chat: Service) -> None:
    """The only way in where pods cannot be reached from the host, as on kind."""
    with forwarded(cluster, chat.namespace, chat.name) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
        assert [model.id for model in client.models.list()] == [MODEL]


def test_sluice_chat_answers_through_the_api_server(cluster: Cluster, chat: Service) -> None:
    prompt, answer = make_prompt("lookup", 128, seed=7)
    words = ["chat", chat.name, "-n", chat.namespace, prompt.removesuffix("\n")]
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    sluice = Path(sys.executable).with_name("sluice")
    shown = subprocess.check_output([sluice, *words], env=environment, text=True)
    assert shown == f"{answer}\n"


def test_chat_gives_the_same_answer_with_usage(client: openai.OpenAI) -> None:
    prompt, answer = make_prompt("lookup", 128, seed=7)
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt.removesuffix("\n")}],
        temperature=0,
        max_tokens=32,
    )
    assert completion.choices[0].message.content == answer
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == len(prompt)
    assert completion.usage.completion_tokens == len(answer) + 1


def test_tools_may_be_left_to_the_models_choice(client: openai.OpenAI) -> None:
    """The sample names a format of calls; its model, which is not shown tools, answers in text."""
    prompt, answer = make_prompt("lookup", 128, seed=8)
    function: FunctionDefinition = {"name": "look_up", "parameters": {"type": "object"}}
    completion = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt.removesuffix("\n")}],
        tools=[{"type": "function", "function": function}],
        tool_choice="auto",
        temperature=0,
        max_tokens=32,
    )
    message = completion.choices[0].message
    assert (message.content, message.tool_calls) == (answer, None)


def test_forty_at_once_are_all_right(client: openai.OpenAI) -> None:
    asked = [make_prompt("copy", LENGTHS_BYTES[n % 4], seed=100 + n) for n in range(40)]
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda pair: "".join(stream(client, pair[0])[0]), asked))
    assert answers == [answer for _, answer in asked]


def test_the_service_shows_itself(kubectl: Kubectl, chat: Service, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    status = chat.get()["status"]
    assert status["url"] == f"http://chat.{NAMESPACE}.svc"
    assert status["pools"]["mixed"]["readyReplicas"] == 2
    assert status["resolved"]["mixed"]["dtype"]["source"] == "User"
    table = kubectl.run("get", "infsvc", "chat", "-n", NAMESPACE)
    assert "True" in table
    assert "Mixed" in table


def test_applying_it_again_changes_nothing(kubectl: Kubectl, chat: Service) -> None:
    manifest = json.dumps(chat_service("chat", replicas=2))
    words = ("diff", "--server-side", "--field-manager=sluice-e2e", "-f", "-")
    assert kubectl.run(*words, stdin=manifest) == ""
