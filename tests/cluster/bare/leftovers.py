"""What a cluster could leave on a machine, as sets that can be subtracted from each other.

Other work may go on beside the tests, so processes count only if they are part of a cluster; the
rest (links, mounts, cgroups, rules, folders) is taken whole where a cluster could touch it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path

from e2e.cluster.bare import init
from e2e.cluster.bare.cgroups import hierarchies
from e2e.cluster.bare.state import state_directory
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


def look(node_file: Path) -> Traces:
    """All traces but the processes of clusters other than that of `node_file`."""
    mountinfo = Path("/proc/self/mountinfo").read_text()
    tops = [path for base in hierarchies(mountinfo) for path in base.iterdir() if path.is_dir()]
    links = json.loads(run(["ip", "-json", "link", "show"]))
    saved = COUNTERS.sub("", run(["iptables-save"]) + run(["ip6tables-save"]))
    return Traces(
        processes=frozenset(_processes(node_file)),
        cgroups=frozenset(map(str, tops)),
        namespaces=frozenset(run(["ip", "netns", "list"]).splitlines()),
        links=frozenset(link["ifname"] for link in links),
        routes=frozenset(run(["ip", "route", "show", "table", "all"]).splitlines()),
        mounts=frozenset(line.split(" ")[4] for line in mountinfo.splitlines()),
        rules=frozenset(saved.splitlines()),
        folders=frozenset(_folders()),
    )


def _processes(node_file: Path) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            arguments = _arguments(folder.name)
            if _of_a_cluster(arguments) and not _of_another(folder.name, node_file):
                found.append(f"{folder.name} {' '.join(arguments)}")
    return found


def _arguments(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def _of_a_cluster(arguments: list[str]) -> bool:
    """By the program's name, or for the node's PID 1 by its script."""
    named = bool(arguments) and any(program in arguments[0] for program in PROGRAMS)
    return named or init.__file__ in arguments


def _of_another(pid: str, node_file: Path) -> bool:
    """Whether it descends from the PID 1 of another node: the user's cluster may be running."""
    while pid not in ("", "0"):
        arguments = _arguments(pid)
        if init.__file__ in arguments:
            return arguments[-1] != str(node_file)
        pid = _parent(pid)
    return False


def _parent(pid: str) -> str:
    try:
        # Fields after the program's name, which is in parentheses: state, then the parent.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""


def _folders() -> list[str]:
    places = [state_directory(), *map(Path, (*FOLDERS, *OTHER_PLACES))]
    return [str(child) for place in places if place.is_dir() for child in place.iterdir()]
