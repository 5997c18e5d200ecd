"""What a cluster could leave on a machine, as sets that can be subtracted from each other.

Other work may go on beside the tests, so processes count only if they are part of a cluster; the
rest (links, mounts, cgroups, rules, folders) is taken whole where a cluster could touch it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path

from e2e.cluster.cgroups import hierarchies
from e2e.cluster.command import run

FOLDERS = ("/etc", "/opt", "/run", "/var/lib", "/var/log", "/var/run", "/var/tmp", "/mnt")
# Made by a cluster's programs where they are not told otherwise.
OTHER_PLACES = ("/etc/cni/net.d", "/run/netns", "/run/containerd", "/var/lib/cni")
PROGRAMS = ("/run/sluice/", "containerd", "runc", "/pause", "/probe")
COUNTERS = re.compile(r"^#.*$|\[\d+:\d+\]", re.MULTILINE)


@dataclass(frozen=True)
class Traces:
    """One look at the machine."""

    processes: frozenset[str]
    cgroups: frozenset[str]
    namespaces: frozenset[str]
    links: frozenset[str]
    routes: frozenset[str]
    mounts: frozenset[str]
    rules: frozenset[str]
    folders: frozenset[str]

    def added_since(self, before: Traces) -> dict[str, list[str]]:
        """What is here now and was not then, by kind; empty when nothing was left."""
        kinds = [field.name for field in fields(self)]
        added = {kind: getattr(self, kind) - getattr(before, kind) for kind in kinds}
        return {kind: sorted(found) for kind, found in added.items() if found}


def look() -> Traces:
    mountinfo = Path("/proc/self/mountinfo").read_text()
    tops = [path for base in hierarchies(mountinfo) for path in base.iterdir() if path.is_dir()]
    links = json.loads(run(["ip", "-json", "link", "show"]))
    saved = COUNTERS.sub("", run(["iptables-save"]) + run(["ip6tables-save"]))
    return Traces(
        processes=frozenset(_processes()),
        cgroups=frozenset(map(str, tops)),
        namespaces=frozenset(run(["ip", "netns", "list"]).splitlines()),
        links=frozenset(link["ifname"] for link in links),
        routes=frozenset(run(["ip", "route", "show", "table", "all"]).splitlines()),
        mounts=frozenset(line.split(" ")[4] for line in mountinfo.splitlines()),
        rules=frozenset(saved.splitlines()),
        folders=frozenset(_folders()),
    )


def _processes() -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                arguments = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if _of_a_cluster(arguments):
                found.append(f"{folder.name} {' '.join(arguments)}")
    return found


def _of_a_cluster(arguments: list[str]) -> bool:
    """By the program's name, or for the node's PID 1 by its script."""
    named = any(program in arguments[0] for program in PROGRAMS)
    return named or any(word.endswith("e2e/cluster/init.py") for word in arguments)


def _folders() -> list[str]:
    places = [Path(place) for place in (*FOLDERS, *OTHER_PLACES)]
    return [str(child) for place in places if place.is_dir() for child in place.iterdir()]
