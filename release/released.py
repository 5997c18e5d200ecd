"""The images that a release names: where they were pushed to, and their digests."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from sluice_contract.base import ConfigError
from sluice_contract.version import VERSION

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Released:
    """`digests`: by the repository in the manifests (`sluice/engine`), of those that are known."""

    version: str = VERSION
    registry: str = ""
    source: str = ""
    """URL of the repository."""
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(
        cls, registry: str, digests: Path | None, repositories: Collection[str], source: str = ""
    ) -> Self:
        """Of a file that holds a JSON object from each of `repositories` to its digest.

        Raises:
            ConfigError: names what is not a digest, or the repositories if others have one.
        """
        registry = registry.rstrip("/")
        if digests is None:
            return cls(registry=registry, source=source)
        found = json.loads(digests.read_text())
        if found.keys() != set(repositories):
            raise ConfigError(
                f"{digests}", ", ".join(sorted(found)), f"each of {', '.join(repositories)}"
            )
        for repository, digest in found.items():
            if not _DIGEST.fullmatch(str(digest)):
                raise ConfigError(f"{digests}: {repository}", digest, "sha256: and 64 hex digits")
        return cls(registry=registry, source=source, digests=found)

    @property
    def runbooks(self) -> str:
        """Where docs/runbooks of this version is served; "" if not known."""
        return f"{self.source}/blob/v{self.version}/docs/runbooks" if self.source else ""

    def reference(self, repository: str) -> str:
        """REGISTRY/REPOSITORY:VERSION@DIGEST, without what is not known."""
        prefix = f"{self.registry}/" if self.registry else ""
        digest = f"@{self.digests[repository]}" if repository in self.digests else ""
        return f"{prefix}{repository}:{self.version}{digest}"
