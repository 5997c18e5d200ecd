"""The operator's settings, read once from its environment.

Nothing else reads the environment.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from sluice_contract.base import ConfigError
from sluice_contract.cluster import ports

from sluice_operator.log import Format
from sluice_operator.manifests.hub import HUB_ENDPOINT, HubAccess
from sluice_operator.service.observe import API_SERVER_PORTS

PROXY: Final = r"^(http://[^/\s@]+/?)?$"
_USER: Final = re.compile(r"(?<=//)[^/@]*(?=@)")
PREFIX: Final = "SLUICE_"
IDENTITY: Final = {"pod_name": "POD_NAME", "pod_namespace": "POD_NAMESPACE", "pod_ip": "POD_IP"}


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _with_port(url: str) -> str:
    """`url`. Raises ValueError for an invalid port, because NetworkPolicies name the port."""
    _ = urlsplit(url).port
    return url


def _certificates(pem: str) -> str:
    """Raises ValueError where there is no certificate in `pem`."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"certificates as PEM ({error})") from None
    return pem


def _proxy(url: str) -> str:
    """`url`. Raises ValueError if it is no proxy, or contains a user, who would be visible in every
    Job."""
    if not re.fullmatch(PROXY, url):
        raise ValueError("http://host:port, without a user")
    return _with_port(url)


ProxyUrl = Annotated[str, AfterValidator(_proxy), Field(json_schema_extra={"pattern": PROXY})]
Port = Annotated[int, Field(ge=1, le=65535)]


class Settings(BaseModel):
    """Each field is read from `SLUICE_<FIELD>`; identity comes from the Downward API."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    engine_image: str = Field(min_length=1)
    router_image: str = Field(min_length=1)
    gpu_engine_image: str = ""
    """Engine image of pools with NVIDIA's GPUs; without it, these have to name their image."""
    fetch_image: str = ""
    """Image of the fetcher, which brings models into the cluster; without it, models that need it
    are refused."""
    namespaces: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Namespaces to serve; none: the whole cluster."""
    api_server_ports: Annotated[tuple[Port, ...], BeforeValidator(_split), Field(min_length=1)] = (
        API_SERVER_PORTS
    )
    """Ports at which the routers' NetworkPolicy lets them reach the API server: the ports that it
    listens on itself, not those of its Service."""
    runbook_url_base: str = Field(default="", pattern=r"^https?://[^\s/]\S*$")
    """Base URL of docs/runbooks: `runbook_url` of alerts is this and the file's name. Empty: alerts
    have none."""
    hub_endpoint: Annotated[str, AfterValidator(_with_port)] = Field(
        default=HUB_ENDPOINT, pattern=r"^https?://[^/\s@]+(/[^\s?#]*)?$"
    )
    """The hub of `hf://` models, or a mirror of it."""
    bucket_endpoint: Annotated[str, AfterValidator(_with_port)] = Field(
        default="", pattern=r"^(https?://[^/\s@]+)?$"
    )
    """The store of `s3://` models, in place of Amazon's."""
    http_proxy: ProxyUrl = ""
    """Proxy of containers that fetch models, for requests to http addresses."""
    https_proxy: ProxyUrl = ""
    """Proxy of containers that fetch models, for requests to https addresses."""
    no_proxy: str = Field(default="", max_length=4096)
    """Hosts that fetching containers ask without a proxy, separated by commas."""
    hub_ca: Annotated[str, AfterValidator(_certificates)] = Field(default="", max_length=65536)
    """PEM certificates of authorities that fetching containers trust in addition to the public
    ones."""
    workers: int = Field(default=8, ge=1, le=256)
    """How many reconciles may run at once."""
    resync_seconds: float = Field(default=600.0, ge=0.1)
    """How often every object is reconciled again, in case an event was missed."""
    request_timeout_seconds: float = Field(default=10.0, gt=0)
    lease_name: str = Field(default="sluice-operator", min_length=1)
    lease_seconds: int = Field(default=15, ge=1)
    """How long a leader may be silent before a standby takes over."""
    metrics_port: int = Field(default=ports.OPERATOR_METRICS, ge=0, le=65535)
    health_port: int = Field(default=ports.OPERATOR_HEALTH, ge=0, le=65535)
    admission_port: int = Field(default=0, ge=0, le=65535)
    """Port at which changes of InferenceServices are validated before they are stored; 0: none."""
    admission_folder: str = Field(default="/etc/sluice/admission", min_length=1)
    """Folder with the certificate of that port: tls.crt and tls.key, which are read again when they
    change."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_format: Format = "text"
    """`text`: key=value pairs; `json`: an object a line."""
    pod_name: str = Field(default="sluice-operator", min_length=1)
    """Our name in the Lease: replicas must differ in it."""
    pod_namespace: str = Field(default="default", min_length=1)
    pod_ip: str = Field(default="127.0.0.1", min_length=1)
    """The address to listen on."""

    @property
    def is_in_pod(self) -> bool:
        """Whether there is an address at which pods of the cluster see us."""
        return not ipaddress.ip_address(self.pod_ip).is_loopback

    @property
    def hub(self) -> HubAccess:
        """How a hub is reached."""
        return HubAccess(
            self.hub_endpoint,
            self.http_proxy,
            self.https_proxy,
            self.no_proxy,
            self.hub_ca,
            self.bucket_endpoint,
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Reads the variables.

        Raises:
            ConfigError: one is missing or not allowed; it names the variable.
        """
        variables = {name: variable_of(name) for name in cls.model_fields}
        values = {
            name: environment[variable]
            for name, variable in variables.items()
            if environment.get(variable)
        }
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            finding = error.errors(include_url=False)[0]
            name = str(finding["loc"][0])
            value = environment.get(variables[name])
            allowed = finding["msg"].removeprefix("Value error, ")
            raise ConfigError(variables[name], value and _USER.sub("…", value), allowed) from None


def variable_of(field: str) -> str:
    """The environment variable of a field."""
    return IDENTITY.get(field, PREFIX + field.upper())
