"""A service that follows the load: its numbers, and the events about them."""

from __future__ import annotations

from typing import Any

from sluice_contract.cluster.labels import Role

from e2e.kubectl import Kubectl
from e2e.stories.service import NAMESPACE, Service, unix_seconds


class Scaled:
    """A scaled service of a story."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.kubectl = kubectl
        self.service = Service(kubectl, name)

    def replicas(self) -> dict[str, int]:
        """Engines that each EnginePool is asked for."""
        pools = self.kubectl.get("enginepools", "-n", NAMESPACE, "-l", self._selector())["items"]
        return {pool["spec"]["role"]: pool["spec"]["replicas"] for pool in pools}

    def ready(self) -> dict[str, int]:
        """Engines of each pool that answer."""
        pools = self.service.get()["status"]["pools"]
        return {role: pool["readyReplicas"] for role, pool in pools.items()}

    def scaling(self) -> dict[str, Any]:
        """The last decision in the service's status."""
        return dict(self.service.get()["status"].get("scaling", {}))

    def decisions(self) -> list[tuple[float, str]]:
        """Times at which a pool was asked for another number of engines, and the reasons."""
        selector = f"regarding.name={self.service.name},reason=Scaled"
        found = self.kubectl.get(
            "events.events.k8s.io", "-n", NAMESPACE, f"--field-selector={selector}"
        )
        return sorted((unix_seconds(each["eventTime"]), each["note"]) for each in found["items"])

    def ready_times(self) -> list[float]:
        """Times at which each engine became ready."""
        pods = self.kubectl.get("pods", "-n", NAMESPACE, "-l", self._selector())["items"]
        return sorted(
            unix_seconds(condition["lastTransitionTime"])
            for pod in pods
            if pod["metadata"]["labels"]["serving.sluice.dev/role"] in set(Role)
            for condition in pod["status"].get("conditions", ())
            if (condition["type"], condition["status"]) == ("Ready", "True")
        )

    def start_seconds(self) -> list[float]:
        """Seconds from each decision to the first engine that was ready after it; decisions without
        one are left out."""
        ready = self.ready_times()
        after = ([at - when for at in ready if at >= int(when)] for when, _ in self.decisions())
        return [min(seconds) for seconds in after if seconds]

    def _selector(self) -> str:
        return f"serving.sluice.dev/service={self.service.name}"
