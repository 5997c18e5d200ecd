"""The chart as the real Helm renders it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.command import run
from e2e.cluster.toolchain.helm import ensure_helm
from release.chart import write_chart
from release.released import Released

Objects = dict[tuple[str, str], dict[str, Any]]
Render = Callable[..., Objects]
NAMESPACE = "sluice-system"


def by_name(text: str) -> Objects:
    """The objects of YAML text, by kind and name."""
    found = [each for each in yaml.safe_load_all(text) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.fixture(scope="session")
def helm() -> Path:
    return ensure_helm()


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chart") / "sluice"
    write_chart(folder, Released())
    return folder


@pytest.fixture
def render(helm: Path, chart: Path, tmp_path: Path) -> Render:
    """`helm template` with these values; its tests left out."""

    def rendered(namespace: str = NAMESPACE, **values: Any) -> Objects:
        file = tmp_path / "values.json"
        file.write_text(json.dumps(values))
        words: list[str | Path] = ["--namespace", namespace, "--values", file, "--skip-tests"]
        return by_name(run([helm, "template", "sluice", chart, *words]))

    return rendered
