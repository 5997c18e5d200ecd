"""What cannot be undone is decided by what the API server has, not by what is remembered of it."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.apply.plan import Plan, is_destructive
from sluice_operator.kube.kinds import DEPLOYMENT, Manifest, Reference


def deployment(replicas: int | None, name: str = "a") -> Manifest:
    spec = {} if replicas is None else {"replicas": replicas}
    return {"kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def pool(replicas: int | None, **shares: int) -> Manifest:
    revisions = [{"name": name, "replicas": count} for name, count in shares.items()]
    spec = {"revisions": revisions} | ({} if replicas is None else {"replicas": replicas})
    return {"kind": "EnginePool", "metadata": {"name": "a"}, "spec": spec}


POLICY = {"kind": "NetworkPolicy", "metadata": {"name": "a"}, "spec": {"ingress": []}}
BINDING = {"kind": "RoleBinding", "metadata": {"name": "a"}, "roleRef": {}}


@pytest.mark.parametrize(
    ("desired", "live", "takes"),
    [
        (deployment(2), [], False),
        (deployment(2), [deployment(2)], False),
        (deployment(3), [deployment(2)], False),
        (deployment(1), [deployment(2)], True),
        (deployment(1), [deployment(2, "b")], False),
        (deployment(None), [deployment(2)], False),
        (pool(2, new=2), [pool(2, new=1, old=1)], True),
        (pool(3, new=2, old=1), [pool(2, new=1, old=1)], False),
        (pool(3, new=3, old=0), [pool(2, new=1, old=1)], True),
        (pool(1), [pool(2)], True),
        (pool(None, new=2), [pool(2, new=2)], False),
        (pool(None, new=2), [pool(3, new=2, old=1)], True),
        (POLICY, [{**POLICY, "spec": {"ingress": [{}]}}], False),
        (BINDING, [BINDING], False),
    ],
)
def test_fewer_pods_are_a_loss(desired: Manifest, live: list[Manifest], takes: bool) -> None:
    assert is_destructive(Plan(apply=(desired,)), live) is takes


@pytest.mark.parametrize(
    "plan",
    [
        {"prune": (Reference(DEPLOYMENT, "x", "a"),)},
        {"take_over": (pool(1),)},
        {"let_go": (pool(1),)},
    ],
    ids=lambda plan: next(iter(plan)),
)
def test_so_are_deletions_and_changes_of_owner(plan: dict[str, Any]) -> None:
    assert is_destructive(Plan(**plan), ())
