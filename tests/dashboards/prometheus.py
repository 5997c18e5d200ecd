"""A real Prometheus that scrapes processes of this machine, as it would scrape their pods."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from dashboards.promql import REVISION, ROLE, SERVICE
from e2e.cluster.ports import free_port
from e2e.cluster.toolchain.prerequisites import MONITORING_PACKAGES, require_packages
from tests.runtime.launch.processes import HANG_SECONDS, running, until

SCRAPE_SECONDS: Final = 0.5
NAMESPACE: Final = "default"
NAME: Final = "chat"
CHOSEN: Final = {
    "$namespace": NAMESPACE,
    "$service": NAME,
    "$pod": ".*",
    "$__rate_interval": "30s",
}
"""What Grafana would put into the expressions of panels."""


@dataclass(frozen=True)
class Target:
    """What is scraped, with the labels that a PodMonitor gives to a pod."""

    url: str
    pod: str
    role: str
    revision: str = ""
    service: str = NAME
    path: str = "/metrics"
    namespace: str = NAMESPACE

    def to_config(self, number: int) -> Mapping[str, Any]:
        labels = {
            "namespace": self.namespace,
            "pod": self.pod,
            SERVICE: self.service,
            ROLE: self.role,
            REVISION: self.revision,
        }
        address = self.url.removeprefix("http://")
        return {
            "job_name": f"{self.role}-{number}",
            "honor_labels": True,
            "metrics_path": self.path,
            "static_configs": [{"targets": [address], "labels": labels}],
        }


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    url: str
    chosen: Mapping[str, str] = field(default_factory=lambda: CHOSEN)
    """What stands for the variables of panels."""

    def now(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """The series of an instant query, with their values."""
        found = self._ask("query", query=self._filled(expr))
        return [(each["metric"], float(each["value"][1])) for each in found]

    def over(
        self, expr: str, start_seconds: float, end_seconds: float, step_seconds: float = 1.0
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """The series of a range query: Unix time and value of each point."""
        found = self._ask(
            "query_range",
            query=self._filled(expr),
            start=f"{start_seconds:.3f}",
            end=f"{end_seconds:.3f}",
            step=f"{step_seconds:g}",
        )
        return [
            (each["metric"], [(float(at), float(value)) for at, value in each["values"]])
            for each in found
        ]

    def shows(self, expr: str, start_seconds: float, end_seconds: float) -> bool:
        """Whether a series had a value that is a number, and not 0, in this time."""
        return any(
            value and math.isfinite(value)
            for _, points in self.over(expr, start_seconds, end_seconds)
            for _, value in points
        )

    def alerts(self) -> dict[str, dict[str, Any]]:
        """Those that are pending or firing, by name."""
        return {each["labels"]["alertname"]: each for each in self._ask("alerts")["alerts"]}

    def healthy(self, count: int) -> bool:
        """Whether so many targets answered their last scrape."""
        targets = self._ask("targets")["activeTargets"]
        return [target["health"] for target in targets].count("up") == count

    def until_scraped(self) -> None:
        """Returns once whatever is counted now has been seen twice, so that rates know of it."""
        now = time.time()
        until(lambda: all(at > now for at in self._second_last_scrapes()))

    def _second_last_scrapes(self) -> list[float]:
        found = self._ask("query", query=f"timestamp(up) - {2 * SCRAPE_SECONDS:g}")
        return [float(each["value"][1]) for each in found]

    def _filled(self, expr: str) -> str:
        for name, value in self.chosen.items():
            expr = expr.replace(name, value)
        return expr

    def _ask(self, route: str, **fields: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{route}", params=fields, timeout=HANG_SECONDS)
        body = answer.json()
        assert body["status"] == "success", f"{fields}: {body}"
        return body["data"].get("result", body["data"])


@contextmanager
def scraping(
    folder: Path,
    targets: Sequence[Target],
    rules: Mapping[str, Any] | None = None,
    chosen: Mapping[str, str] | None = None,
) -> Iterator[Prometheus]:
    """A Prometheus that has scraped every target once."""
    require_packages(MONITORING_PACKAGES, "make prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.json").write_text(json.dumps(rules or {"groups": []}))
    often = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config = {
        "global": often,
        "rule_files": ["rules.json"],
        "scrape_configs": [target.to_config(number) for number, target in enumerate(targets)],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = ["/usr/bin/prometheus", f"--config.file={folder / 'prometheus.yaml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with running(command) as process:
        process.wait_for("Server is ready")
        prometheus = Prometheus(url, {**CHOSEN, **(chosen or {})})
        until(lambda: prometheus.healthy(len(targets)))
        yield prometheus


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What it says of rules; never raises."""
    require_packages(MONITORING_PACKAGES, "make prometheus")
    return subprocess.run(
        ["/usr/bin/promtool", *arguments], capture_output=True, text=True, check=False
    )
