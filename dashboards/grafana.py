"""A dashboard of `model` as Grafana's JSON, through Grafana's own SDK.

Knows nothing of what is shown.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    StackingMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from sluice_operator.manifests.alerting import panel_id

from dashboards.model import Dashboard, Panel, Query, Row, Variable

TAG: Final = "sluice"
"""By which they find each other."""
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT: Final = 8
PanelBuilder = timeseries.Panel | stat.Panel | table.Panel


def to_json(page: Dashboard) -> str:
    """The file that Grafana imports."""
    built = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .description(page.meaning)
        .tags([TAG])
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(_to_others())
        .with_variable(_datasource())
    )
    for variable in page.variables:
        built = built.with_variable(_variable(variable))
    for row in page.rows:
        built = _with_row(built, page, row)
    return JSONEncoder(sort_keys=True, indent=1).encode(built.build()) + "\n"


def _with_row(built: dashboard.Dashboard, page: Dashboard, row: Row) -> dashboard.Dashboard:
    heading = dashboard.Row(row.title).id(panel_id(page.uid, f"row {row.title}"))
    built = built.with_row(heading)
    for panel in row.panels:
        built = built.with_panel(_panel(panel, page.id_of(panel)))
    return built


def _to_others() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("Sluice")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )


def _datasource() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _variable(variable: Variable) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.title)
        .datasource(SOURCE)
        .query(f"label_values({variable.of}, {variable.label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(variable.several)
        .include_all(variable.several)
    )


def _panel(panel: Panel, number: int) -> PanelBuilder:
    made = _empty(panel)
    made = made.id(number).title(panel.title).description(panel.meaning).datasource(SOURCE)
    made = made.unit(panel.unit).span(panel.width).height(HEIGHT).thresholds(_thresholds(panel))
    for query in panel.queries:
        made = made.with_target(_query(query, panel))
    return made


def _empty(panel: Panel) -> PanelBuilder:
    match panel.kind:
        case "stat":
            return stat.Panel().graph_mode(BigValueGraphMode.AREA)
        case "table":
            return table.Panel()
        case "timeseries":
            legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST)
            made = timeseries.Panel().legend(legend.show_legend(True)).fill_opacity(10)
            if panel.limit is not None:
                style = common.GraphThresholdsStyleConfig()
                made = made.thresholds_style(style.mode(GraphTresholdsStyleMode.LINE))
            stacking = StackingMode.NORMAL if panel.stacked else StackingMode.NONE
            return made.stacking(common.StackingConfig().mode(stacking))


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    steps = [Threshold(color="green", value=None)]
    if panel.limit is not None:
        steps.append(Threshold(color="red", value=panel.limit))
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _query(query: Query, panel: Panel) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
    made = made.ref_id(chr(ord("A") + panel.queries.index(query)))
    if panel.kind == "table":
        return made.instant().format(PromQueryFormat.TABLE)
    return made.range()
