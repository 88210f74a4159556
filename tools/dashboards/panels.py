"""What a dashboard is made of, as plain values, and how the SDK makes Grafana's JSON of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common as common_builders,
    dashboard as dashboards,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common, dashboard, heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT = 8


class Kind(Enum):
    """How a panel draws its series."""

    LINES = "lines"
    STACKED = "stacked"
    BARS = "bars"
    HEATMAP = "heatmap"
    STAT = "stat"
    GAUGES = "gauges"
    MATRIX = "matrix"
    STATES = "states"
    TABLE = "table"


@dataclass(frozen=True)
class Query:
    """One PromQL expression.

    Attributes:
        expr: with Grafana's variables, such as `$group`.
        legend: of a series; in a table the column's name.
    """

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: above it.
        about: what it shows and what to do about it; behind the (i).
        kind: how it draws.
        queries: what it draws.
        unit: Grafana's name of a unit.
        span: its width of 24.
        steps: (from, colour) of thresholds; the first begins at nothing.
        names: number -> (text, colour) for states.
        limit: upper end of the axis; 0: what the data needs.
        row: of a MATRIX: the label that gives the rows; of a TABLE: the labels that join the queries.
        column: of a MATRIX: the label that gives the columns.
    """

    title: str
    about: str
    kind: Kind
    queries: tuple[Query, ...]
    unit: str = "short"
    span: int = 12
    steps: tuple[tuple[float | None, str], ...] = ()
    names: tuple[tuple[int, str, str], ...] = ()
    limit: float = 0
    row: str = ""
    column: str = ""


@dataclass(frozen=True)
class Row:
    """A titled row of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A variable that a person chooses: values of a label of a metric."""

    name: str
    label: str
    query: str
    many: bool = False


@dataclass(frozen=True)
class Mark:
    """A vertical line wherever the expression has a value."""

    name: str
    expr: str
    colour: str


@dataclass(frozen=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    about: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


def build(board: Board) -> dashboard.Dashboard:
    """Grafana's model of the dashboard."""
    built = (
        dashboards.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["slackwater"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboards.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in board.variables:
        built.with_variable(_variable(variable))
    for mark in board.marks:
        built.annotation(
            dashboards.AnnotationQuery()
            .name(mark.name)
            .datasource(DATASOURCE)
            .enable(True)
            .icon_color(mark.colour)
            .expr(mark.expr)
        )
    for title, url in board.links:
        built.link(
            dashboards.DashboardLink(title)
            .type(dashboard.DashboardLinkType.LINK)
            .url(url)
            .include_vars(True)
            .keep_time(True)
        )
    ids = itertools.count(1)
    for row in board.rows:
        built.with_row(dashboards.Row(row.title).id(next(ids)))
        for panel in row.panels:
            built.with_panel(_panel(panel).id(next(ids)))
    return built.build()


def _variable(variable: Variable) -> dashboards.QueryVariable:
    built = (
        dashboards.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(DATASOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )
    if variable.many:
        built.multi(True).include_all(True).all_value(".+")
    return built


def _panel(panel: Panel) -> Any:
    # The SDK's panels share their methods but no common type.
    built: Any = _MAKERS[panel.kind](panel)
    built.title(panel.title).description(panel.about).datasource(DATASOURCE)
    built.span(panel.span).height(HEIGHT).unit(panel.unit)
    for at, query in enumerate(panel.queries):
        built.with_target(_target(panel.kind, query, chr(ord("A") + at)))
    if panel.steps:
        steps = [dashboard.Threshold(value=value, color=colour) for value, colour in panel.steps]
        built.thresholds(dashboards.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
    if panel.names:
        texts = {
            str(number): dashboard.ValueMappingResult(text=text, color=colour, index=at)
            for at, (number, text, colour) in enumerate(panel.names)
        }
        built.mappings([dashboard.ValueMap(options=texts)])
    if panel.limit:
        built.min(0).max(panel.limit)
    return built


def _target(kind: Kind, query: Query, ref: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(ref).datasource(DATASOURCE)
    if kind in (Kind.TABLE, Kind.MATRIX):
        return target.format(PromQueryFormat.TABLE).instant()
    target.format(PromQueryFormat.TIME_SERIES).legend_format(query.legend or "__auto")
    return target.instant() if kind is Kind.GAUGES else target.range()


# --- one maker per kind ------------------------------------------------------------------------------


def _legend() -> common_builders.VizLegendOptions:
    return (
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _tooltip() -> common_builders.VizTooltipOptions:
    return (
        common_builders.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )


def _last() -> common_builders.ReduceDataOptions:
    return common_builders.ReduceDataOptions().calcs(["lastNotNull"])


def _lines(panel: Panel) -> timeseries.Panel:
    # Gaps stay gaps: what is not known must not look like a steady value.
    return timeseries.Panel().legend(_legend()).tooltip(_tooltip()).line_width(1).span_nulls(False)


def _stacked(panel: Panel) -> timeseries.Panel:
    stacking = common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
    return _lines(panel).fill_opacity(40).stacking(stacking)


def _bars(panel: Panel) -> timeseries.Panel:
    return _stacked(panel).draw_style(common.GraphDrawStyle.BARS).fill_opacity(80)


def _heatmap(panel: Panel) -> heatmap.Panel:
    colours = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_models.HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .scale(heatmap_models.HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .steps(64)
    )
    return (
        heatmap.Panel()
        .calculate(False)  # each series is a row, not samples to be counted
        .color(colours)
        .cell_gap(1)
        .cell_values(heatmap.CellValues().unit(panel.unit))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(common.HeatmapCellLayout.UNKNOWN))
        .show_legend()
        .show_tooltip()
    )


def _stat(panel: Panel) -> stat.Panel:
    return (
        stat.Panel()
        .reduce_options(_last())
        .graph_mode(common.BigValueGraphMode.AREA)
        .color_mode(common.BigValueColorMode.VALUE if panel.steps else common.BigValueColorMode.NONE)
    )


def _gauges(panel: Panel) -> bargauge.Panel:
    return (
        bargauge.Panel()
        .reduce_options(_last())
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
    )


def _matrix(panel: Panel) -> barchart.Panel:
    options = {"rowField": panel.row, "columnField": panel.column, "valueField": "Value"}
    return (
        barchart.Panel()
        .with_transformation(dashboard.DataTransformerConfig("groupingToMatrix", options=options))
        .x_field(f"{panel.row}\\{panel.column}")
        .stacking(common.StackingMode.NORMAL)
        .orientation(common.VizOrientation.HORIZONTAL)
        .legend(_legend())
        .tooltip(_tooltip())
    )


def _states(panel: Panel) -> statetimeline.Panel:
    return (
        statetimeline.Panel()
        .merge_values(True)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.9)
        .legend(_legend())
    )


def _table(panel: Panel) -> table.Panel:
    # One query a column: joined on the labels, which "merge" does, then named.
    columns = {f"Value #{chr(ord('A') + at)}": query.legend for at, query in enumerate(panel.queries)}
    hidden = {"Time": True}
    order = {name: at for at, name in enumerate([*panel.row.split(","), *columns])}
    organize = {"excludeByName": hidden, "renameByName": columns, "indexByName": order}
    return (
        table.Panel()
        .with_transformation(dashboard.DataTransformerConfig("merge", options={}))
        .with_transformation(dashboard.DataTransformerConfig("organize", options=organize))
    )


_MAKERS = {
    Kind.LINES: _lines,
    Kind.STACKED: _stacked,
    Kind.BARS: _bars,
    Kind.HEATMAP: _heatmap,
    Kind.STAT: _stat,
    Kind.GAUGES: _gauges,
    Kind.MATRIX: _matrix,
    Kind.STATES: _states,
    Kind.TABLE: _table,
}


def expressions(board: Board) -> Sequence[tuple[str, str]]:
    """(where, expression) of everything the dashboard asks."""
    panel_expressions = [
        (f"{board.title} / {panel.title} / {query.legend or at}", query.expr)
        for row in board.rows
        for panel in row.panels
        for at, query in enumerate(panel.queries)
    ]
    return [*panel_expressions, *((f"{board.title} / mark {mark.name}", mark.expr) for mark in board.marks)]
