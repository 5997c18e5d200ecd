"""The version, which is sluice_contract/version.py's, in each place that has to repeat it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.version import VERSION

_PROJECT: Final = 'name = "sluice"\nversion = "({})"'
_IMAGE: Final = r"sluice/[A-Za-z-]+:({})"
PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "runtime/sluice_contract/version.py": ('VERSION: Final = "({})"',),
    "pyproject.toml": (_PROJECT,),
    "uv.lock": (_PROJECT,),
    "manifests/chart/Chart.yaml": (r"\nversion: ({})", "appVersion: ({})"),
    "manifests/operator/deployment.yaml": (_IMAGE,),
    "manifests/admission/self-signed/jobs.yaml": (_IMAGE,),
    "manifests/overlays/gitops/kustomization.yaml": (_IMAGE, "newTag: ({})"),
    "manifests/argocd/applications.yaml": ("targetRevision: v({})",),
    "docs/how-to/refuse-at-apply.md": ("ref=v({})", "newTag: ({})"),
    "docs/how-to/gitops.md": ("ref=v({})", "newTag: ({})"),
    "docs/how-to/install.md": ("download/v({})/", "--version ({})", "ref=v({})", _IMAGE),
}
"""File → where the version stands in it."""
_ANY: Final = r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?"


def versions(root: Path) -> Iterator[tuple[str, str]]:
    """Each place that has a version: file and version."""
    for name, patterns in PLACES.items():
        for pattern in patterns:
            for found in re.finditer(pattern.format(_ANY), (root / name).read_text()):
                yield name, found[1]


def write_version(root: Path, version: str) -> None:
    """Writes it everywhere.

    Raises:
        ConfigError: it is not a version.
    """
    if not re.fullmatch(_ANY, version):
        raise ConfigError("version", version, "MAJOR.MINOR.PATCH, and -PRERELEASE if it is one")
    for name, patterns in PLACES.items():
        text = (root / name).read_text()
        for pattern in patterns:
            text = re.sub(
                pattern.format(_ANY), lambda found: found[0].replace(found[1], version), text
            )
        (root / name).write_text(text)


def check_tag(tag: str, version: str = VERSION) -> None:
    """Raises ConfigError where a Git tag is not that of this version."""
    if tag != f"v{version}":
        raise ConfigError("tag", tag, f"v{version}, the version in {next(iter(PLACES))}")
