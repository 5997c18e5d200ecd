"""One way to break one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROPERTIES: Final = ("test_scheduler_properties",)
CACHE: Final = ("test_scheduler_prefix", "test_scheduler_properties")
FAILURES: Final = ("test_peers_failures", "test_scheduler_properties")

SOURCES: Final[Mapping[str, str]] = {
    "router": "runtime/sluice_router",
    "autoscaler": "runtime/sluice_autoscaler",
    "operator": "operator/sluice_operator",
}
"""Folders of packages beside the engine's, by name; their tests are in a folder of this name."""


@dataclass(frozen=True)
class Mutation:
    """`before` stands once in the module and becomes `after`; one of `tests` must fail then."""

    what: str
    module: str
    before: str
    after: str
    tests: tuple[str, ...]
    package: str = "scheduler"
    """Folder of the module, and of its tests: one of `SOURCES`, or below it, or one of the
    engine's."""

    @property
    def source(self) -> Path:
        """From the root of the tree, as all paths here."""
        folder, _, below = self.package.partition("/")
        return Path(SOURCES.get(folder, f"runtime/sluice_runtime/{folder}"), below, self._file)

    @property
    def test_files(self) -> tuple[Path, ...]:
        beside = "tests" if self.area in SOURCES else "tests/runtime"
        return tuple(Path(beside, self.package, f"{test}.py") for test in self.tests)

    @property
    def area(self) -> str:
        """The package that it counts for."""
        return self.package.partition("/")[0]

    @property
    def _file(self) -> str:
        return f"{self.module}.py"
