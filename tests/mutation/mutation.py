"""One way to break one line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROPERTIES: Final = ("test_scheduler_properties",)
CACHE: Final = ("test_scheduler_prefix", "test_scheduler_properties")
FAILURES: Final = ("test_peers_failures", "test_scheduler_properties")


@dataclass(frozen=True)
class Mutation:
    """`before` stands once in the module and becomes `after`; one of `tests` must fail then."""

    what: str
    module: str
    before: str
    after: str
    tests: tuple[str, ...]
    package: str = "scheduler"
    """Folder of the module below `sluice_runtime`, and of its tests below `tests/runtime`."""

    @property
    def source(self) -> Path:
        """From the root of the tree, as all paths here."""
        return Path("runtime/sluice_runtime", self.package, f"{self.module}.py")

    @property
    def test_files(self) -> tuple[Path, ...]:
        return tuple(Path("tests/runtime", self.package, f"{test}.py") for test in self.tests)
