"""The examples of the pages are accepted as they stand; what is said of metrics is so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import pytest
import yaml
from sluice_contract.cluster import metrics
from sluice_contract.cluster.labels import API_VERSION
from sluice_contract.wire.load import EngineCondition
from sluice_operator.cli.image_options import DEFAULT_IMAGES
from sluice_operator.cli.preview import as_text, preview
from sluice_operator.manifests.network import MONITORING_LABEL
from sluice_operator.process.metrics import STATES
from sluice_router.errors import RetryReason
from sluice_runtime.scheduler.batch import ForwardMode
from sluice_runtime.server.metrics import HANDOVER_FAILURES

from e2e.stories.test_walkthroughs import PAGES, WALKED, commands

ROOT: Final = Path(__file__).resolve().parents[2]
MONITOR: Final = (ROOT / "docs/how-to/monitor.md").read_text()
WHOLE: Final[dict[str, Any]] = {
    "apiVersion": API_VERSION, "kind": "InferenceService", "metadata": {"name": "chat"},
}  # fmt: skip
MODEL: Final = {"uri": "hf://Qwen/Qwen3-8B"}
FENCED: Final = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def services() -> Iterator[tuple[str, dict[str, Any]]]:
    """Whole examples, and those that are a part of a spec, with a model."""
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        for place, block in enumerate(FENCED.findall(page.read_text())):
            document = yaml.safe_load(block)
            if document.keys() == {"spec"}:
                document = WHOLE | {"spec": {"model": MODEL} | document["spec"]}
            if document.get("kind") == "InferenceService":
                yield f"{page.name}-{place}", document


SERVICES: Final = dict(services())


@pytest.mark.parametrize("document", SERVICES.values(), ids=SERVICES)
def test_an_example_of_a_service_would_be_carried_out(document: dict[str, Any]) -> None:
    assert preview(document, DEFAULT_IMAGES).plan.refusal is None


@pytest.mark.parametrize(("page", "section"), WALKED)
def test_each_block_of_a_walkthrough_has_a_command(page: str, section: str | None) -> None:
    assert commands(PAGES / page, section)


def test_the_readme_shows_what_plan_prints() -> None:
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(
        r"sluice plan -f service.yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    printed = iter(as_text(preview(SERVICES["README.md-0"], DEFAULT_IMAGES)).splitlines())
    assert [line for line in block.splitlines() if line not in printed] == []


def test_there_are_examples() -> None:
    assert len(SERVICES) >= 4


def test_the_pod_monitor_finds_the_operator() -> None:
    monitor = yaml.safe_load((ROOT / "manifests/monitoring/pod_monitor.yaml").read_text())
    install = ROOT / "manifests/operator"
    deployment = yaml.safe_load((install / "deployment.yaml").read_text())
    (common,) = yaml.safe_load((install / "kustomization.yaml").read_text())["labels"]
    labels = deployment["spec"]["template"]["metadata"]["labels"] | common["pairs"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports
    assert f"{MONITORING_LABEL}=true" in MONITOR


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("sluice_steps_total", {mode.value for mode in ForwardMode}),
        ("sluice_router_engines", set(get_args(EngineCondition))),
        ("sluice_router_retries_total", set(get_args(RetryReason))),
        ("sluice_operator_pool_replicas", set(STATES)),
        ("sluice_handover_failures_total", set(HANDOVER_FAILURES)),
    ],
)
def test_a_labels_values_are_all_told(metric: str, values: set[str]) -> None:
    row = next(line for line in MONITOR.splitlines() if line.startswith(f"| `{metric}`"))
    assert set(re.findall(r"`([A-Za-z_]+)`", row.split("|")[3])) == values


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/how-to/*.md")), ids=lambda page: page.name)
def test_a_page_names_metrics_that_there_are(page: Path) -> None:
    known = {metric.name for metric in (*metrics.ENGINE, *metrics.ROUTER, *metrics.OPERATOR)}
    text = page.read_text().replace("serving_sluice_dev", "")
    named = re.findall(r"sluice_(?!dev|kernels)[a-z_]+", text)
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in named} <= known


def test_a_query_selects_by_labels_that_the_metric_has() -> None:
    labels = {
        metric.name: set(metric.labels)
        for metric in (*metrics.ENGINE, *metrics.ROUTER, *metrics.OPERATOR)
    }
    selectors = re.findall(r"(sluice_[a-z_]+)\{([^}]*)\}", MONITOR)
    assert selectors
    for name, selector in selectors:
        assert set(re.findall(r"(\w+)(?:=|!=)", selector)) <= labels[name], name
