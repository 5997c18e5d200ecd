"""How a hub or bucket is reached from inside the cluster: address, proxies, private authorities.

One operator setting for all services; it is passed to their fetching containers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from sluice_operator.api.environment import HUB_CA_VOLUME
from sluice_operator.api.pool import HubNetwork
from sluice_operator.kube.kinds import CONFIG_MAP, Manifest
from sluice_operator.manifests.metadata import Owner

HUB_ENDPOINT: Final = "https://huggingface.co"
HTTPS: Final = 443
"""Port of the stores in which hubs keep large files, whatever port the hub itself has."""
CA_FOLDER: Final = "/etc/sluice/hub-ca"
CA_FILE: Final = "ca.crt"


@dataclass(frozen=True)
class HubAccess:
    """The operator's settings; empty ones are not used."""

    endpoint: str = HUB_ENDPOINT
    """The hub, or a mirror of it."""
    http_proxy: str = ""
    https_proxy: str = ""
    """URL of the proxy for requests to https addresses; `http_proxy` is the one for http
    addresses."""
    no_proxy: str = ""
    """Hosts that are asked directly, separated by commas."""
    certificates: str = ""
    """PEM of authorities that are trusted in addition to the public ones."""
    bucket_endpoint: str = ""
    """A store that speaks S3, in place of Amazon's; a Secret may name another."""

    @property
    def ports(self) -> frozenset[int]:
        """See `hub_ports`."""
        return hub_ports(self.endpoint, self.http_proxy, self.https_proxy, self.bucket_endpoint)

    def endpoint_of(self, uri: str) -> str:
        """Where the model at `uri` is asked for; empty: at the provider's own address."""
        return {"hf": self.endpoint, "s3": self.bucket_endpoint}.get(uri.partition("://")[0], "")

    def network(self, service: str) -> HubNetwork | None:
        """The part that fetching containers of a service get; None if nothing is needed."""
        network = HubNetwork(
            http_proxy=self.http_proxy or None,
            https_proxy=self.https_proxy or None,
            no_proxy=self.no_proxy or None,
            ca_config_map=ca_name(service) if self.certificates else None,
        )
        return network if network.to_json_dict() else None


PUBLIC_HUB: Final = HubAccess()


def hub_ports(endpoint: str, *proxies: str | None) -> frozenset[int]:
    """Ports of the hub, of its file store, and of proxies. A NetworkPolicy cannot name their
    addresses. Raises ValueError for an invalid port."""
    return frozenset({HTTPS, _port(endpoint), *map(_port, filter(None, proxies))})


def ca_name(service: str) -> str:
    """Name of the ConfigMap with certificates; it keeps its name when they change, so that nothing
    restarts."""
    return f"{service}-hub-ca"


def ca_config_maps(owner: Owner, certificates: str, component: str) -> tuple[Manifest, ...]:
    """The ConfigMap with certificates; none where there are none."""
    if not certificates:
        return ()
    head = owner.child(CONFIG_MAP, ca_name(owner.service), component, component)
    return (head | {"data": {CA_FILE: certificates}},)


def network_arguments(network: HubNetwork | None) -> list[str]:
    """Arguments of a fetching container."""
    has_ca = network is not None and network.ca_config_map
    return ["--ca-file", f"{CA_FOLDER}/{CA_FILE}"] if has_ca else []


def network_variables(network: HubNetwork | None) -> list[Manifest]:
    """Environment variables of a fetching container: its proxies."""
    if network is None:
        return []
    values = {
        "HTTP_PROXY": network.http_proxy,
        "HTTPS_PROXY": network.https_proxy,
        "NO_PROXY": network.no_proxy,
    }
    return [{"name": name, "value": value} for name, value in values.items() if value]


def network_mounts(network: HubNetwork | None) -> list[Manifest]:
    """Mounts of the certificates in a fetching container."""
    if network is None or network.ca_config_map is None:
        return []
    return [{"name": HUB_CA_VOLUME, "mountPath": CA_FOLDER, "readOnly": True}]


def network_volumes(network: HubNetwork | None) -> list[Manifest]:
    """Volumes with the certificates for a fetching pod."""
    if network is None or network.ca_config_map is None:
        return []
    return [{"name": HUB_CA_VOLUME, "configMap": {"name": network.ca_config_map}}]


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (HTTPS if parts.scheme == "https" else 80)
