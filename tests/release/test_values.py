"""The chart's values: each has a default that its schema allows, and unknown ones are refused."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import jsonschema
import pytest
import yaml
from sluice_operator.process.settings import Settings, variable_of

from release.chart import released_values
from release.manifests import ROOT, image_variables
from release.released import Released

CHART: Final = ROOT / "manifests" / "chart"
TEXT: Final = (CHART / "values.yaml").read_text()
DEFAULTS: Final = yaml.safe_load(TEXT)
SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text())
CHECKER: Final = jsonschema.Draft7Validator(SCHEMA)
SET_ELSEWHERE: Final = {
    "namespaces", "lease_name", "metrics_port", "health_port", "pod_name", "pod_namespace",
    "pod_ip", "hub_ca", "admission_port", "admission_folder",
}  # fmt: skip
"""Settings of the operator that the templates set, or that are a value of their own."""
SETTINGS: Final = {
    variable_of(name).removeprefix("SLUICE_").lower(): field
    for name, field in Settings.model_fields.items()
    if name not in SET_ELSEWHERE and not name.endswith("_image")
}


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def refused(values: dict[str, Any]) -> list[str]:
    return [error.json_path for error in CHECKER.iter_errors(values)]


def paths(values: Any, path: str = "") -> set[str]:
    """Of mappings that have no values of their own choice, all the way down."""
    if not isinstance(values, dict) or not values:
        return {path}
    return {each for key, inner in values.items() for each in paths(inner, f"{path}/{key}")}


def test_the_defaults_are_allowed() -> None:
    assert refused(DEFAULTS) == []
    assert refused(DEFAULTS | {"global": {"of": "a parent chart"}}) == []


def test_every_value_of_the_schema_has_a_default() -> None:
    def values(schema: dict[str, Any]) -> Any:
        schema = (
            SCHEMA["definitions"][schema["$ref"].split("/")[-1]] if "$ref" in schema else schema
        )
        return {name: values(inner) for name, inner in schema.get("properties", {}).items()}

    known = paths(values(SCHEMA)) - {"/global"}
    assert paths(DEFAULTS | {"resources": {}}) == known


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
    repositories = {
        each["repository"] for name, each in DEFAULTS["images"].items() if name != "registry"
    }
    assert repositories == set(image_variables(ROOT).values())
    assert DEFAULTS["images"]["gpuEngine"]["repository"] == "sluice/engine-cuda"


def test_settings_are_the_operators_with_what_it_allows() -> None:
    properties = Settings.model_json_schema()["properties"]
    known = {}
    for name in SETTINGS:
        schema = {
            key: value
            for key, value in properties[name].items()
            if key not in {"title", "description", "default", "minLength"}
        }
        if "enum" in schema:
            known[camel(name)] = {"enum": [*schema["enum"], None]}
        else:
            known[camel(name)] = schema | {"type": [schema["type"], "null"]}
    assert SCHEMA["properties"]["settings"]["properties"] == known


def test_every_setting_says_its_default_unless_that_is_empty() -> None:
    for name, field in SETTINGS.items():
        default = field.get_default()
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        comment = re.search(rf"((?:  # .*\n)+)  {camel(name)}: null\n", TEXT)
        assert comment, name
        expected = f"Default: {shown}." if shown else ""
        assert re.findall(r"Default: .*", comment[1]) == ([expected] if shown else []), name


def test_a_release_names_its_registry_and_its_digests() -> None:
    digests = dict.fromkeys(image_variables(ROOT).values(), f"sha256:{'a' * 64}")
    released = Released(registry="registry.example.com/team", digests=digests)
    values = yaml.safe_load(released_values(TEXT, released))
    images = values["images"]
    assert images.pop("registry") == "registry.example.com/team"
    assert {each["repository"]: each["digest"] for each in images.values()} == digests
    assert released_values(TEXT, Released()) == TEXT
