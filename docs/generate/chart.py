"""The page of the Helm chart: every value, from the table that values.yaml is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from docs.generate.markdown import GENERATED, table
from release.chart import OLDEST_KUBERNETES, values_of
from release.released import Released
from release.values import rows

HEAD: Final = f"""\
# Values of the Helm chart

`helm show values CHART` shows them, too; [how to install it](../how-to/install.md#with-helm).
Unknown values, and those that are not allowed, are refused by Helm, which names them. The chart
wants Kubernetes {OLDEST_KUBERNETES} or newer. In a release `images.registry` and the digests are
those of the images that were built with it.

Objects have fixed names, as those of `manifests/` have: a cluster has one release with
`scope: Cluster`, or one with `scope: Namespace` in each namespace that is to have its own operator.
"""


def chart_page() -> str:
    """docs/reference/chart.md."""
    return (
        "\n".join([GENERATED, HEAD, *table(("value", "default", "what it does"), _rows())]) + "\n"
    )


def _rows() -> Iterator[tuple[str, str, str]]:
    for path, value in rows(values_of(Released())):
        default = "" if value.default is None else f"`{json.dumps(value.default)}`"
        yield f"`{path}`", default, value.meaning
