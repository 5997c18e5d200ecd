"""A new user changes the sample and runs `make up` again: the change is still there."""

from __future__ import annotations

from e2e.kubectl import Kubectl
from e2e.stories.service import Service
from e2e.up import SERVICE, apply_sample


def test_a_sample_that_was_changed_stays_as_it_is(kubectl: Kubectl, chat: Service) -> None:
    assert chat.name == SERVICE
    before = chat.get()
    assert before["spec"]["replicas"] == 2, "the sample itself has one"
    apply_sample(kubectl)
    after = chat.get()
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
