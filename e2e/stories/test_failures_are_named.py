"""An SRE at night reads the reason of Ready, and in Updated which pod it is and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from e2e.cluster.errors import ClusterError
from e2e.kubectl import Kubectl
from e2e.stories.service import MODEL, Service, chat_service
from e2e.stories.volume import claimed_volume

Make = Callable[..., Service]
NUMBERS = count(1)


@pytest.fixture
def make(kubectl: Kubectl) -> Iterator[Make]:
    """Applies a service of the story's own, deleted afterwards. Its name is unique, so nobody waits
    for the end of its pods."""
    service = Service(kubectl, f"broken-{next(NUMBERS)}")

    def applied(**spec: Any) -> Service:
        service.apply(chat_service(service.name, **spec))
        return service

    yield applied
    service.delete()


def test_a_missing_model_is_named_and_mending_it_is_enough(make: Make) -> None:
    service = make(model={"uri": "file:///models/nowhere", "name": MODEL})
    condition = service.wait_for_reason("Updated", "ModelLoadFailed")
    assert f"{service.name}-mixed-" in condition["message"], "the pod is not named"
    assert "/models/nowhere" in condition["message"]
    make()
    service.wait_for("Ready", "True")


def test_a_claim_that_is_not_there(make: Make) -> None:
    service = make(model={"uri": "pvc://nowhere/chat", "name": MODEL})
    condition = service.wait_for_reason("Updated", "Unschedulable")
    assert 'persistentvolumeclaim "nowhere" not found' in condition["message"]


def test_a_folder_of_a_claim_without_a_model(
    make: Make, kubectl: Kubectl, installed_images: dict[str, str]
) -> None:
    with claimed_volume(kubectl, "empty", installed_images["SLUICE_FETCH_IMAGE"]):
        service = make(model={"uri": "pvc://empty/chat/v1", "name": MODEL})
        condition = service.wait_for_reason("Updated", "ModelLoadFailed")
        assert "/mnt/model/chat/v1" in condition["message"]
        make()
        service.wait_for("Updated", "True")


def test_an_image_that_cannot_be_pulled(make: Make) -> None:
    service = make(engine={"image": "localhost/no-such-image:1"})
    path = service.wait_for_reason("Updated", "ImagePullBackOff")
    assert "localhost/no-such-image:1" in path["message"]


def test_more_memory_than_any_node_has(make: Make) -> None:
    huge = {"memory": "900Gi"}
    resources = {"requests": huge, "limits": huge}
    service = make(resources=resources)
    condition = service.wait_for_reason("Updated", "Unschedulable")
    assert "memory" in condition["message"]


def test_what_is_not_implemented_is_refused_by_name(make: Make) -> None:
    service = make(engine={"tensorParallelSize": 2})
    condition = service.wait_for_reason("Updated", "NotImplemented")
    assert "tensorParallelSize" in condition["message"]
    assert service.children() == []


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"engine": {"pageSize": 0}}, "pageSize"),
        ({"engine": {"chunkSizes": 1}}, "chunkSizes"),
        ({"rollout": {"strategy": "Both"}}, "strategy"),
    ],
)
def test_the_api_server_refuses_and_names_the_field(
    make: Make, spec: dict[str, Any], field: str
) -> None:
    with pytest.raises(ClusterError, match=field):
        make(**spec)
