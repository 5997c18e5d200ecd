"""A platform engineer gives teams API keys; requests that people wait for go before nightly
ones."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.model.tasks import make_prompt
from e2e.reach import reach
from e2e.stories.service import MODEL, NAMESPACE, Service, chat_service

SECRET = "team-keys"
KEYS = {"search": "key-of-search", "nightly": "key-of-nightly"}
TENANTS = [{"name": "search", "defaultPriority": 20}, {"name": "nightly", "maxPriority": -10}]


@pytest.fixture(scope="module")
def url(cluster: Cluster, kubectl: Kubectl) -> Iterator[str]:
    """URL of a service that asks for keys."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": NAMESPACE},
        "stringData": KEYS,
    }
    kubectl.apply(json.dumps(secret))
    service = Service(kubectl, "tenants")
    auth = {"secretRef": {"name": SECRET}, "tenants": TENANTS}
    service.apply(chat_service("tenants", router={"replicas": 1, "auth": auth}))
    service.wait_for("Updated", "True")
    with reach(cluster, NAMESPACE, service.name) as found:
        yield found
    service.delete()
    kubectl.run("delete", "secret", SECRET, "-n", NAMESPACE)


def ask(url: str, key: str, priority: int | None = None) -> openai.types.Completion:
    prompt, _ = make_prompt("copy", 256, seed=5)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)
    more = None if priority is None else {"priority": priority}
    return client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=300, temperature=0, extra_body=more
    )


def test_no_other_key_opens_the_door(url: str) -> None:
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
        ask(url, "key-of-nobody")


def test_each_tenant_asks_for_what_it_may_and_learns_nothing_of_others(url: str) -> None:
    _, answer = make_prompt("copy", 256, seed=5)
    cached = []
    for tenant, priority in (("search", 1000), ("search", None), ("nightly", -10)):
        told = ask(url, KEYS[tenant], priority)
        assert told.choices[0].text == answer
        assert told.usage is not None
        assert told.usage.prompt_tokens_details is not None
        cached.append(told.usage.prompt_tokens_details.cached_tokens or 0)
    assert cached[0] == cached[2] == 0, "a tenant's prompt was cached for another"
    assert cached[1] > 0
    with pytest.raises(openai.BadRequestError, match="0 is not allowed; allowed: at most -10"):
        ask(url, KEYS["nightly"], 0)
