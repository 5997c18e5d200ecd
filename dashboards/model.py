"""What a dashboard is, as values: rows of panels, each with its queries and its unit.

Knows nothing of Grafana's JSON, nor what any query is about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from sluice_operator.manifests.alerting import panel_id

Unit = Literal[
    "short", "s", "bytes", "Bps", "percentunit", "reqps", "ops", "percent", "celsius", "watt"
]
"""Of Grafana's identifiers those that are used; each names a base unit."""
COLUMNS: Final = 24
"""Of Grafana's grid."""


@dataclass(frozen=True)
class Query:
    """PromQL, and how a series is named: text with `{{label}}`."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One diagram, one number or one table."""

    title: str
    unit: Unit
    queries: tuple[Query, ...]
    meaning: str
    """Shown beside the title: what is seen, and what to make of it."""
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    width: int = 8
    """Of `COLUMNS`."""
    stacked: bool = False
    limit: float | None = None
    """From which value on it is red: that of the alert that points here."""


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """What a person chooses at the top: a value of `label` among the series of `of`."""

    name: str
    title: str
    label: str
    of: str
    several: bool = False


@dataclass(frozen=True)
class Dashboard:
    """One page of Grafana. `uid` is in its address and never changes."""

    uid: str
    title: str
    meaning: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    def panels(self) -> Iterator[Panel]:
        """All of them, in their order."""
        return (panel for row in self.rows for panel in row.panels)

    def id_of(self, panel: Panel) -> int:
        """The same as long as the panel's title is: links stay valid when others come and go."""
        return panel_id(self.uid, panel.title)
