"""The chart's values: each has a default that its schema allows, and unknown ones are refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml
from sluice_operator.process.settings import Settings, variable_of

from release.chart import chart_files
from release.released import Released
from release.values import SETTINGS

FILES = chart_files(Released())
DEFAULTS = yaml.safe_load(FILES["values.yaml"])
CHECKER = jsonschema.Draft7Validator(json.loads(FILES["values.schema.json"]))


def refused(values: dict[str, Any]) -> list[str]:
    return [error.json_path for error in CHECKER.iter_errors(values)]


def test_the_defaults_are_allowed() -> None:
    assert refused(DEFAULTS) == []
    assert refused(DEFAULTS | {"global": {"of": "a parent chart"}}) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("scope", "Nowhere"),
        ("replicas", 0),
        ("settings.logLevel", "LOUD"),
        ("settings.workers", 0),
        ("settings.apiServerPorts", [0]),
        ("images.engine.digest", "sha256:short"),
        ("images.engine.repository", ""),
        ("monitoring.enabled", "yes"),
    ],
)
def test_what_is_not_allowed_is_refused_by_its_path(path: str, value: object) -> None:
    values: dict[str, Any] = {}
    inner, (*parents, last) = values, path.split(".")
    for name in parents:
        inner = inner.setdefault(name, {})
    inner[last] = value
    (found,) = refused(values)
    assert found.startswith(f"$.{path}")


def test_unknown_values_are_refused() -> None:
    assert refused({"replica": 2}) == ["$"]
    assert refused({"settings": {"logLevels": "INFO"}}) == ["$.settings"]


def test_every_image_of_the_manifests_has_values() -> None:
    assert {"operator", "engine", "gpuEngine", "router"} <= DEFAULTS["images"].keys()
    assert DEFAULTS["images"]["gpuEngine"]["repository"] == "sluice/engine-cuda"


def test_every_setting_says_its_default_unless_that_is_empty() -> None:
    assert {setting.name for setting in SETTINGS} >= {"logLevel", "apiServerPorts"}
    defaults = {variable_of(name): f.get_default() for name, f in Settings.model_fields.items()}
    for setting in SETTINGS:
        default = defaults[setting.variable]
        assert ("Default: " in setting.value.meaning) == (default != ""), setting.name
