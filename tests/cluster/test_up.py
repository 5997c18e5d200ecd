"""When `make up` gives up on the sample service, and what it takes for done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.provider import Cluster
from e2e.cluster.providers.kind import KindCluster
from e2e.up import (
    NO_INDEX,
    SMALL_MODEL,
    ask_sample,
    await_sample,
    engines,
    is_final,
    is_stuck,
    with_released_model,
)


def _conditions(reason: str, stalled: str = "False") -> dict[str, dict[str, str]]:
    return {
        "Updated": {"status": "False", "reason": reason},
        "Stalled": {"status": stalled, "reason": reason if stalled == "True" else "NotStalled"},
    }


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "Unschedulable", "EngineDied"])
def test_a_service_that_was_broken_is_not_waited_for_like_a_new_one(reason: str) -> None:
    assert is_stuck(_conditions(reason), was_there=True)
    assert not is_stuck(_conditions(reason), was_there=False), "a new cluster may still settle"


@pytest.mark.parametrize("was_there", [True, False])
def test_a_service_that_starts_is_not_stuck_and_one_that_is_stalled_is(was_there: bool) -> None:
    assert not is_stuck({}, was_there)
    assert not is_stuck(_conditions("Starting"), was_there)
    assert is_stuck(_conditions("ModelLoadFailed", stalled="True"), was_there)


def test_only_a_refusal_is_final() -> None:
    assert is_final(_conditions("NotImplemented", stalled="True"))
    assert not is_final(_conditions("NotImplemented"))
    assert not is_final(_conditions("ModelLoadFailed", stalled="True"))


def test_a_service_that_does_not_come_up_has_one_line_for_each_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = {"status": "False", "reason": "InvalidSpec"}
    conditions = [
        {"type": "Ready", "message": "See Updated.", **refusal},
        {"type": "Updated", "message": "no such mode.", **refusal},
        {"type": "Stalled", "message": "no such mode.", **refusal, "status": "True"},
        {"type": "ModelAvailable", "status": "Unknown", "reason": "New", "message": "See none."},
    ]
    service = {
        "metadata": {"generation": 1},
        "status": {"observedGeneration": 1, "conditions": conditions},
    }
    monkeypatch.setattr("e2e.up._is_updated", lambda kubectl: False)
    monkeypatch.setattr("e2e.up._service", lambda kubectl: service)
    with pytest.raises(ClusterError) as raised:
        await_sample(None)  # type: ignore[arg-type]
    assert str(raised.value).splitlines()[1:] == [
        "  Ready=False, Updated=False, Stalled=True  InvalidSpec: no such mode.",
        "  ModelAvailable=Unknown  New: See none.",
    ]


def test_what_is_ready_of_all_pools_is_counted_without_a_surplus() -> None:
    counts = {"prefill": (3, 2), "decode": (1, 4)}
    pools = {
        role: {"readyReplicas": ready, "desiredReplicas": desired}
        for role, (ready, desired) in counts.items()
    }
    assert engines({"status": {"pools": pools}}) == (3, 6)
    assert engines({"metadata": {}}) == (0, 0)


def test_a_service_that_is_scaled_to_zero_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    cluster = KindCluster("sluice", "an engine that is not there")
    ask_sample(cluster, "m", _conditions("ScaledToZero"), started=0.0)
    assert "scale infsvc/chat --replicas=1" in capsys.readouterr().err


@pytest.mark.parametrize("said", [f"did not build:\n{NO_INDEX}", "no space left on device"])
def test_the_small_model_stands_in_only_where_the_index_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    def deliver(cluster: Cluster, names: Mapping[str, str]) -> Mapping[str, str]:
        raise ClusterError(said)

    monkeypatch.setattr("e2e.up.deliver", deliver)
    images = {"engine": "sluice-engine-sample:1"}
    if NO_INDEX in said:
        assert with_released_model(None, images) == (images, SMALL_MODEL)  # type: ignore[arg-type]
    else:
        with pytest.raises(ClusterError, match="space"):
            with_released_model(None, images)  # type: ignore[arg-type]
