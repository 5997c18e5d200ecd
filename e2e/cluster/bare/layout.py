"""Names, addresses and paths of one bare cluster. Pure: computed from its name and number.

Every cluster has three /24s of 198.18.0.0/15 (set aside for tests of network devices, so nobody
routes them): its link to the host, its pods, its services.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from e2e.cluster.errors import ClusterError

MAXIMUM_CLUSTERS = 64
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
# Where the node sees its state directory. Its /var is a folder of it, its /run is memory.
IN_NODE = PurePosixPath("/run/sluice")
# sun_path holds 108 bytes, and containerd adds a suffix to its socket's path.
MAXIMUM_SOCKET_PATH = 100


@dataclass(frozen=True)
class Layout:
    """One cluster: `number` picks its networks, `state` is the one directory it lives in."""

    name: str
    number: int
    state: Path

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ClusterError(
                f"SLUICE_CLUSTER={self.name}: allowed are up to 32 lower-case letters, digits and "
                "hyphens, no hyphen at either end"
            )
        if len(str(self.containerd_socket)) > MAXIMUM_SOCKET_PATH:
            raise ClusterError(
                f"{self.containerd_socket} is too long for a socket: set SLUICE_STATE to a shorter "
                "directory"
            )
        assert 0 <= self.number < MAXIMUM_CLUSTERS, f"no networks for cluster {self.number}"

    @property
    def link(self) -> str:
        """The host's end of the veth pair; the node's end is eth0. The name follows from the path
        of `state` alone, so remains of a cluster are found without its number."""
        return f"sluice-{zlib.crc32(str(self.state).encode()):08x}"

    @property
    def cgroup(self) -> str:
        return self.link

    @property
    def host_address(self) -> str:
        return self._address(0, 1)

    @property
    def node_address(self) -> str:
        return self._address(0, 2)

    @property
    def network(self) -> str:
        """The network with all of the cluster's addresses."""
        return self._address(0, 0) + "/22"

    @property
    def pod_subnet(self) -> str:
        return self._address(1, 0) + "/24"

    @property
    def service_subnet(self) -> str:
        return self._address(2, 0) + "/24"

    @property
    def kubernetes_service(self) -> str:
        """Address of the Service `kubernetes`: the first one of the service subnet."""
        return self._address(2, 1)

    @property
    def api_url(self) -> str:
        return f"https://{self.node_address}:6443"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    @property
    def node_file(self) -> Path:
        """The file that the node's PID 1 reads; see `init.py`."""
        return self.state / "node.json"

    @property
    def audit_log(self) -> Path:
        return self.state / "audit.log"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def programs(self) -> Path:
        """The folder of the node's programs."""
        return self.state / "bin"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd.sock"

    def in_node(self, path: Path) -> str:
        """A path below the state directory as the node's processes see it."""
        return str(IN_NODE / path.relative_to(self.state))

    def _address(self, block: int, host: int) -> str:
        return f"198.{18 + self.number * 4 // 256}.{self.number * 4 % 256 + block}.{host}"
