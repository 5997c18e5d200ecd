"""What the API server says it was asked: its audit log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True)
class Call:
    """One request that has been answered."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    user: str
    code: int

    @property
    def is_write(self) -> bool:
        return self.verb in WRITES


class AuditLog:
    """Reads on from where it was opened."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = log.stat().st_size if log.exists() else 0

    def calls(self) -> Iterator[Call]:
        """Every call since then, by anyone."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            yield from _calls(log)

    def next_calls(self) -> Iterator[Call]:
        """Every call since the last time that this was asked, by anyone."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            lines = [line for line in log if line.endswith(b"\n")]
        self._offset += sum(map(len, lines))
        yield from _calls(lines)

    def writes_by(self, user: str, namespace: str) -> list[Call]:
        """Write requests of `user` since then, but for the Lease, which is the leader's pulse."""
        mine = (call for call in self.calls() if (call.user, call.namespace) == (user, namespace))
        return [call for call in mine if call.is_write and call.resource != "leases"]


def _calls(lines: Iterable[bytes]) -> Iterator[Call]:
    for line in lines:
        entry = json.loads(line)
        if target := entry.get("objectRef"):
            yield _call(entry, target)


def _call(entry: dict[str, Any], target: dict[str, str]) -> Call:
    resource = target["resource"]
    if target.get("subresource"):
        resource += f"/{target['subresource']}"
    return Call(
        verb=entry["verb"],
        group=target.get("apiGroup", ""),
        resource=resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        user=entry["user"]["username"],
        code=entry["responseStatus"]["code"],
    )
