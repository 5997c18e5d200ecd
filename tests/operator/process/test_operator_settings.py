"""The operator's environment: defaults, and refusals that name the variable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sluice_contract.base import ConfigError
from sluice_contract.cluster.metrics import OPERATOR
from sluice_operator.process.settings import Settings, variable_of

IMAGES = {"SLUICE_ENGINE_IMAGE": "engine:1", "SLUICE_ROUTER_IMAGE": "router:1"}


def test_the_images_are_enough() -> None:
    settings = Settings.from_environment(IMAGES)
    assert settings.engine_image == "engine:1"
    assert settings.namespaces == ()
    assert (settings.metrics_port, settings.health_port) == (8080, 8081)


def test_identity_comes_from_the_downward_api() -> None:
    identity = {"POD_NAME": "op-1", "POD_NAMESPACE": "sluice-system", "POD_IP": "10.0.0.7"}
    settings = Settings.from_environment({**IMAGES, **identity})
    found = (settings.pod_name, settings.pod_namespace, settings.pod_ip)
    assert found == ("op-1", "sluice-system", "10.0.0.7")


def test_namespaces_are_a_list_and_empty_means_all() -> None:
    some = Settings.from_environment({**IMAGES, "SLUICE_NAMESPACES": "a, b,"})
    assert some.namespaces == ("a", "b")
    assert Settings.from_environment({**IMAGES, "SLUICE_NAMESPACES": ""}).namespaces == ()


def test_the_api_servers_ports_are_a_list() -> None:
    assert Settings.from_environment(IMAGES).api_server_ports == (443, 6443)
    some = Settings.from_environment({**IMAGES, "SLUICE_API_SERVER_PORTS": "8443, 16443"})
    assert some.api_server_ports == (8443, 16443)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SLUICE_WORKERS", "0"),
        ("SLUICE_WORKERS", "many"),
        ("SLUICE_RESYNC_SECONDS", "-1"),
        ("SLUICE_HEALTH_PORT", "70000"),
        ("SLUICE_LOG_LEVEL", "LOUD"),
        ("SLUICE_API_SERVER_PORTS", "443,https"),
        ("SLUICE_API_SERVER_PORTS", "0"),
        ("SLUICE_API_SERVER_PORTS", ","),
        ("SLUICE_RUNBOOK_URL_BASE", "docs/runbooks"),
        ("SLUICE_HUB_ENDPOINT", "https://hub.example:99999"),
        ("SLUICE_HUB_ENDPOINT", "https://user:word@hub.example"),
        ("SLUICE_BUCKET_ENDPOINT", "minio:9000"),
        ("SLUICE_HTTPS_PROXY", "http://user:word@proxy.example:3128"),
        ("SLUICE_HTTPS_PROXY", "proxy.example:3128"),
        ("SLUICE_HTTPS_PROXY", "https://proxy.example:3128"),
        ("SLUICE_HTTP_PROXY", "http://proxy.example:99999"),
        ("SLUICE_HUB_CA", "-----BEGIN CERTIFICATE-----"),
        ("SLUICE_HUB_CA", "none"),
        ("SLUICE_ENGINE_IMAGE", ""),
    ],
)
def test_a_bad_value_is_refused_by_the_variables_name(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        Settings.from_environment({**IMAGES, variable: value})


def test_a_refused_proxy_shows_what_is_allowed_and_no_password() -> None:
    asked = {**IMAGES, "SLUICE_HTTPS_PROXY": "http://user:word@proxy.example:3128"}
    with pytest.raises(ConfigError, match="allowed: http://host:port") as refused:
        Settings.from_environment(asked)
    assert "proxy.example" in str(refused.value)
    assert "word" not in str(refused.value)


def test_the_reference_names_every_variable_and_every_metric() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "operator.md").read_text()
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", text, re.MULTILINE))
    assert documented == {variable_of(field) for field in Settings.model_fields}
    metrics = set(re.findall(r"`(sluice_(?:operator|autoscaler)_[a-z_]+)", text))
    assert metrics == {metric.name for metric in OPERATOR}
    told = dict(re.findall(r"^\| `([A-Z_]+)` \| `?([^|`]*?)`? \|", text, re.MULTILINE))
    for name, default in Settings.from_environment(IMAGES).model_dump().items():
        if variable_of(name) not in IMAGES and name != "namespaces":
            plain = ",".join(map(str, default)) if isinstance(default, tuple) else default
            assert told[variable_of(name)] == (str(plain).removesuffix(".0")), name
