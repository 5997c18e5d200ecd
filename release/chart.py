"""The Helm chart as it is released: manifests/chart with CRDs, alerts, dashboards and digests.

What is generated elsewhere is copied into the chart, so that the tree has it once.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from release.manifests import ROOT
from release.released import Released

NAME: Final = "sluice"
_REGISTRY: Final = 'registry: ""'
_RUNBOOKS: Final = "runbookUrlBase: null"
_IMAGE: Final = 'repository: {}, tag: "", digest: "{}"'


def write_chart(folder: Path, released: Released, root: Path = ROOT) -> None:
    """The chart's folder, replaced as a whole."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "manifests" / "chart", folder)
    if released.source:
        with (folder / "Chart.yaml").open("a") as chart:
            chart.write(f"home: {released.source}\nsources: [{released.source}]\n")
    values = folder / "values.yaml"
    values.write_text(released_values(values.read_text(), released))
    generated = root / "dashboards" / "generated"
    for target, sources in (
        ("definitions", sorted((root / "crds").glob("*.yaml"))),
        ("monitoring", [generated / "prometheus_rule.yaml", *sorted(generated.glob("*.json"))]),
    ):
        (folder / target).mkdir()
        for source in sources:
            shutil.copy(source, folder / target)


def released_values(values: str, released: Released) -> str:
    """`values`, the text of values.yaml, with what is known of the release."""
    changes = {_REGISTRY: f'registry: "{released.registry}"'} | {
        _IMAGE.format(repository, ""): _IMAGE.format(repository, digest)
        for repository, digest in released.digests.items()
    }
    if released.runbooks:
        changes[_RUNBOOKS] = f'runbookUrlBase: "{released.runbooks}"'
    for before, after in changes.items():
        assert values.count(before) == 1, f"values.yaml has no line with {before}"
        values = values.replace(before, after)
    return values
