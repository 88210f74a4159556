"""Grafana's model of a dashboard, made with Grafana's SDK."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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

from tools.dashboards.panels import WIDTH, Board, Column, Kind, Mark, Names, Panel, Query, Steps, Variable

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
STEP = "15s"
"""The least distance between two evaluations of an annotation."""


class _Annotation(dashboard.AnnotationQuery):
    """With the fields of Prometheus' annotations, which the SDK lacks."""

    title = ""

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), "titleFormat": self.title, "step": STEP}


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
    for title, url in board.links:
        built.link(
            dashboards.DashboardLink(title).type(dashboard.DashboardLinkType.LINK).url(url).keep_time(True)
        )
    ids, y = itertools.count(1), 0
    for row in board.rows:
        if not row.title:
            for panel, place in _placed(row.panels, y):
                built.with_panel(_panel(panel).id(next(ids)).grid_pos(place))
                y = max(y, place.y + place.h)
            continue
        header = dashboards.Row(row.title).id(next(ids)).grid_pos(dashboard.GridPos(h=1, w=WIDTH, x=0, y=y))
        y += 1
        # As Grafana does it: the panels of a collapsed row have the places that they take when it is opened.
        for panel, place in _placed(row.panels, y):
            header.with_panel(_panel(panel).id(next(ids)).grid_pos(place))
        built.with_row(header)
    result = built.build()
    result.annotations = dashboard.AnnotationContainer(list_val=[_annotation(mark) for mark in board.marks])
    return result


def _placed(panels: Sequence[Panel], y: int) -> Iterator[tuple[Panel, dashboard.GridPos]]:
    """Each panel with its place: from left to right, then below the highest of those before."""
    x = highest = 0
    for panel in panels:
        if x + panel.span > WIDTH:
            x, y, highest = 0, y + highest, 0
        yield panel, dashboard.GridPos(h=panel.rows, w=panel.span, x=x, y=y)
        x, highest = x + panel.span, max(highest, panel.rows)


def _annotation(mark: Mark) -> _Annotation:
    annotation = _Annotation(
        name=mark.name, datasource=DATASOURCE, enable=True, icon_color=mark.colour, expr=mark.expr
    )
    annotation.title = mark.title
    return annotation


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
    built.title(panel.title).description(panel.about).datasource(DATASOURCE).unit(panel.unit)
    for at, query in enumerate(panel.asked()):
        built.with_target(_target(panel.kind, query, _ref(at)))
    if panel.steps:
        built.thresholds(_thresholds(panel.steps))
    if panel.names:
        built.mappings([_mapping(panel.names)])
    if panel.decimals is not None:
        built.decimals(panel.decimals)
    if panel.least is not None:
        built.min(panel.least)
    if panel.limit:
        built.max(panel.limit)
    if panel.link:
        built.data_links([dashboards.DashboardLink(panel.title).url(panel.link)])
    if panel.empty:
        built.no_value(panel.empty)
    for name, colour in panel.colours:
        fixed = {"mode": "fixed", "fixedColor": colour}
        built.override_by_name(name, [dashboard.DynamicConfigValue("color", fixed)])
    return built


def _ref(at: int) -> str:
    return chr(ord("A") + at)


def _thresholds(steps: Steps) -> dashboards.ThresholdsConfig:
    made = [dashboard.Threshold(value=value, color=colour) for value, colour in steps]
    return dashboards.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(made)


def _mappings(names: Names) -> list[dashboard.ValueMapping]:
    none = dashboard.ValueMappingResult(text="-", color="transparent", index=len(names))
    options = dashboard.DashboardSpecialValueMapOptions(
        match=dashboard.SpecialValueMatch.NULL_AND_NAN, result=none
    )
    return [_mapping(names), dashboard.SpecialValueMap(options=options)]


def _mapping(names: Names) -> dashboard.ValueMap:
    texts = {
        str(number): dashboard.ValueMappingResult(text=text, color=colour, index=at)
        for at, (number, text, colour) in enumerate(names)
    }
    return dashboard.ValueMap(options=texts)


def _target(kind: Kind, query: Query, ref: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(ref).datasource(DATASOURCE)
    if kind in (Kind.TABLE, Kind.MATRIX):
        return target.format(PromQueryFormat.TABLE).instant()
    target.format(PromQueryFormat.TIME_SERIES).legend_format(query.legend or "__auto")
    # A tile of a range would go on showing the last value of a series that has ended.
    return target.instant() if kind in (Kind.GAUGES, Kind.STAT) else target.range()


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
    return _stacked(panel).draw_style(common.GraphDrawStyle.BARS).fill_opacity(80).line_width(0)


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
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(_tile_colour(panel))
    )


def _tile_colour(panel: Panel) -> common.BigValueColorMode:
    if panel.names:
        return common.BigValueColorMode.BACKGROUND
    return common.BigValueColorMode.VALUE if panel.steps else common.BigValueColorMode.NONE


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
    # One query a column: joined on the labels, which "merge" does, then named and put in order.
    queried = [column for column in panel.columns if column.expr]
    renamed = {f"Value #{_ref(at)}": column.name for at, column in enumerate(queried)}
    values = {name: value for value, name in renamed.items()}
    order = {values.get(column.name, column.name): at for at, column in enumerate(panel.columns)}
    organize = {"excludeByName": {"Time": True}, "renameByName": renamed, "indexByName": order}
    built = (
        table.Panel()
        .cell_height(common.TableCellHeight.SM)
        .with_transformation(dashboard.DataTransformerConfig("merge", options={}))
        .with_transformation(dashboard.DataTransformerConfig("organize", options=organize))
    )
    for column in panel.columns:
        if properties := list(_properties(column)):
            built.override_by_name(column.name, properties)
    if panel.sort:
        by = common_builders.TableSortByFieldState().display_name(panel.sort).desc(True)
        built.sort_by([by])
    return built


def _properties(column: Column) -> Iterator[dashboard.DynamicConfigValue]:
    made = dashboard.DynamicConfigValue
    if column.expr:
        yield made("unit", column.unit)
        yield made("custom.align", "right")
    if column.decimals is not None:
        yield made("decimals", column.decimals)
    if column.steps:
        yield made("thresholds", _thresholds(column.steps).build())
        yield made("custom.cellOptions", {"type": "color-text"})
    if column.names:
        yield made("mappings", _mappings(column.names))
        yield made("custom.cellOptions", {"type": "color-background", "mode": "basic"})
        yield made("custom.align", "center")
    if column.link:
        yield made("links", [{"title": "Open the group's dashboard", "url": column.link}])
    if column.width:
        yield made("custom.width", column.width)


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
