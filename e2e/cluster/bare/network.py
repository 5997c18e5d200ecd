"""The node's link to the host: a veth pair and the host's routes to pods and services.

Everything here ends with the node's network namespace; nothing is routed beyond this machine.
"""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path

from e2e.cluster.bare.layout import Layout
from e2e.cluster.command import run, succeeds

NODE_LINK = "eth0"


def connect(layout: Layout, node_pid: int) -> None:
    """Links the host with the network namespace of `node_pid`, and adds the routes."""
    link = layout.link
    peer = ["peer", "name", NODE_LINK, "netns", str(node_pid)]
    run(["ip", "link", "add", link, "type", "veth", *peer])
    run(["ip", "address", "add", f"{layout.host_address}/30", "dev", link])
    run(["ip", "link", "set", link, "up"])
    inside = ["nsenter", "--net", f"--target={node_pid}", "ip"]
    run([*inside, "link", "set", "lo", "up"])
    run([*inside, "address", "add", f"{layout.node_address}/30", "dev", NODE_LINK])
    run([*inside, "link", "set", NODE_LINK, "up"])
    for subnet in (layout.pod_subnet, layout.service_subnet):
        run(["ip", "route", "add", subnet, "via", layout.node_address, "dev", link])


def disconnect(layout: Layout) -> None:
    """Removes the host's end, and with it the other end and the routes, if it is there."""
    if succeeds(["ip", "link", "show", layout.link]):
        # The link may vanish at this moment: the kernel removes it with the namespace.
        succeeds(["ip", "link", "delete", layout.link])


def is_routed(network: str) -> bool:
    """Whether the host has a route into this network already, apart from the default route."""
    wanted = ip_network(network)
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]))
    destinations = (route["dst"] for route in routes if route["dst"] != "default")
    return any(ip_network(known, strict=False).overlaps(wanted) for known in destinations)


def namespace_of(pid: int) -> Path:
    """The network namespace, as a path for `nsenter --net=`."""
    return Path(f"/proc/{pid}/ns/net")
