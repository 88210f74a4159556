"""Dashboards: as the script makes them, in PromQL that parses, asking for metrics and labels that exist."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.api.v1alpha1.status import rollout
from slackwater_operator.policies import conditions
from slackwater_operator.telemetry import metrics as operator_metrics
from tests.support.operator import chart, exported_metrics
from tests.support.operator.exported_metrics import known
from tools import dashboards
from tools.dashboards.conditions import OK, PENDING, PROBLEM, level

HERE = Path(__file__).parent

BOARDS = sorted((chart.CHART / "dashboards").glob("*.json"))
# What a scrape adds to each series (the PodMonitors' relabelling).


def test_the_scrape_for_checking_names_is_complete() -> None:
    fields = {field.name for field in dataclasses.fields(operator_metrics.GroupFigures)}
    assert len(fields) == 29, "add the new figure to operator_text()"
    assert all(f"slackwater_{name}" in known() for name in operator_metrics._GAUGES)


@pytest.mark.parametrize("name", sorted(dashboards.BOARDS))
def test_the_chart_has_the_dashboards_of_the_script(name: str) -> None:
    made = dashboards.render(dashboards.BOARDS[name])
    assert made == dashboards.render(dashboards.BOARDS[name])
    stored = (chart.CHART / "dashboards" / name).read_text(encoding="utf-8")
    assert stored == made, "run `python -m tools.chart`"


def test_no_dashboard_is_left_over() -> None:
    assert [path.name for path in BOARDS] == sorted(dashboards.BOARDS)


@pytest.mark.parametrize(
    "asked",
    [asked for board in BOARDS for asked in chart.dashboard_expressions(board)],
    ids=lambda asked: asked.where,
)
def test_an_expression_uses_only_exported_metrics(asked: chart.Asked) -> None:
    exported_metrics.check(asked)


def loaded(path: Path) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return board


each_board = pytest.mark.parametrize(
    "board", [loaded(path) for path in BOARDS], ids=lambda board: board["uid"]
)


@each_board
def test_each_panel_has_a_title_a_description_and_a_query(board: dict[str, Any]) -> None:
    shown = list(chart.panels(board))
    ids = [panel["id"] for panel in (*shown, *(row for row in board["panels"] if row["type"] == "row"))]
    assert len(set(ids)) == len(ids)
    for panel in shown:
        assert panel["title"]
        assert panel["description"]
        assert panel["targets"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def cells(panel: Mapping[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    return {
        (x, y)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    }


@each_board
def test_no_panel_covers_another(board: dict[str, Any]) -> None:
    """A row's own panels, too: they begin below its title."""
    open_panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    for group in ([*open_panels, *rows], *([row, *row["panels"]] for row in rows)):
        taken: set[tuple[int, int]] = set()
        for panel in group:
            assert not taken & cells(panel), panel["title"]
            taken |= cells(panel)
        assert max(x for x, _ in taken) < 24
    assert all(panel["gridPos"]["y"] > row["gridPos"]["y"] for row in rows for panel in row["panels"])


@each_board
def test_the_first_screen_is_one_screen_and_all_below_is_collapsed(board: dict[str, Any]) -> None:
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    first = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in first) <= 24
    assert rows
    assert all(row["collapsed"] and row["panels"] for row in rows)
    tiles = [panel["gridPos"]["h"] for panel in chart.panels(board) if panel["type"] == "stat"]
    assert max(tiles) <= 4


def settings(panel: Mapping[str, Any], name: str) -> list[Any]:
    """The values of a setting of the panel's fields: its default, and those of single fields."""
    config = panel["fieldConfig"]
    overridden = [p["value"] for o in config["overrides"] for p in o["properties"] if p["id"] == name]
    return [*([config["defaults"][name]] if name in config["defaults"] else []), *overridden]


@each_board
def test_units_are_those_of_grafana(board: dict[str, Any]) -> None:
    known_units = set((HERE / "grafana_units.txt").read_text(encoding="utf-8").split())
    for panel in chart.panels(board):
        assert settings(panel, "unit"), panel["title"]
        assert set(settings(panel, "unit")) <= known_units, panel["title"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_all_is_asked_of_one_kubernetes_cluster(path: Path) -> None:
    """One Prometheus or Thanos may hold several clusters with namespaces and groups of the same names."""
    for asked in chart.dashboard_expressions(path):
        if asked.where.endswith("variable cluster"):
            continue
        for selected in chart.selectors(chart.substituted(asked.expr)):
            assert "cluster" in selected.labels, asked.where


@each_board
def test_the_unit_of_a_panel_is_that_of_its_metrics(board: dict[str, Any]) -> None:
    """Grafana shows `rps` as reads a second; records are `recps`."""
    for panel in chart.panels(board):
        if panel["type"] == "table":
            continue
        (unit,) = settings(panel, "unit")
        for target in panel["targets"]:
            metrics = {s.metric for s in chart.selectors(chart.substituted(target["expr"]))}
            if "/" in target["expr"] or "_unowned_" in target["expr"]:
                continue  # a share, or partitions
            if any(re.search(r"_per_second$|records_\w+_total$", name) for name in metrics):
                assert unit == "recps", panel["title"]
            if all(re.search(r"_bytes(_total)?$", name) for name in metrics):
                assert unit in ("bytes", "Bps"), panel["title"]
            if all(re.search(r"_seconds(_bucket)?$", name) for name in metrics):
                assert unit == "s", panel["title"]


@each_board
def test_an_axis_begins_at_zero_and_counts_have_no_decimals(board: dict[str, Any]) -> None:
    counts = re.compile(
        r"slackwater_(group_(members|partitions|pods|orphaned_members|rebalances_total)|rollout_(pods|steps|steps_completed)|"
        r"assigned_partitions|leader|decisions_total|(operator_)?takeovers_total|condition)$"
    )
    assert [p["title"] for p in chart.panels(board) if not settings(p, "min")] in (
        [],
        ["Generation or epoch"],
    )
    for panel in chart.panels(board):
        if panel["type"] == "table" or settings(panel, "mappings"):
            continue
        metrics = {s.metric for t in panel["targets"] for s in chart.selectors(chart.substituted(t["expr"]))}
        if all(counts.match(name) for name in metrics):
            assert settings(panel, "decimals") == [0], panel["title"]


@each_board
def test_a_tile_shows_the_present(board: dict[str, Any]) -> None:
    """Of a range it would show the last value of a series that has ended, such as an unknown lag."""
    tiles = [panel for panel in chart.panels(board) if panel["type"] in ("stat", "bargauge", "table")]
    assert tiles
    for panel in tiles:
        assert all(t.get("instant") and not t.get("range") for t in panel["targets"]), panel["title"]


def test_each_condition_has_a_level_for_each_status() -> None:
    expr = level("type", 'group="g"')
    levels: dict[tuple[str, str], int] = {}
    for types, status, number in re.findall(r'type=~"([^"]+)", status="(\w+)"\} \* (\d)', expr):
        for kind in types.split("|"):
            assert (kind, status) not in levels
            levels[kind, status] = int(number)
    assert set(levels) == set(itertools.product(conditions.TYPES, ("True", "False", "Unknown")))
    assert levels["Degraded", "True"] == levels["LagKnown", "False"] == PROBLEM
    assert levels["Ready", "False"] == PENDING
    assert levels["Ready", "True"] == levels["Degraded", "False"] == OK


def test_the_rollouts_phases_are_those_of_the_operator() -> None:
    (panel,) = (
        p for p in chart.panels(loaded(chart.CHART / "dashboards" / "group.json")) if p["title"] == "Rollout"
    )
    named = {
        text["text"] for made in settings(panel, "mappings") for m in made for text in m["options"].values()
    }
    asked = set(re.findall(r'phase=\\?"(\w+)', panel["targets"][0]["expr"]))
    assert named == asked == set(rollout.PHASES)


def test_the_group_board_shows_the_important_figures() -> None:
    """The most important panels are there, found by the metric that they query."""
    board = loaded(chart.CHART / "dashboards" / "group.json")
    by_type: dict[str, set[str]] = {}
    for panel in chart.panels(board):
        for target in panel["targets"]:
            names = {s.metric for s in chart.selectors(chart.substituted(target["expr"]))}
            by_type.setdefault(panel["type"], set()).update(names)
    assert {"slackwater_group_lag_records", "slackwater_group_lag_seconds"} <= by_type["heatmap"]
    assert {
        "slackwater_group_state", "slackwater_group_rebalances_total", "slackwater_condition",
        "slackwater_rollout_phase", "slackwater_rollout_analysis",
    } <= by_type["state-timeline"]  # fmt: skip
    assert {"slackwater_restart_phase_seconds", "slackwater_session_timeout_seconds"} <= by_type["barchart"]
    assert "slackwater_takeover_phase_seconds" in by_type["barchart"]
    assert {"slackwater_condition", "slackwater_condition_transition_time_seconds"} <= by_type["table"]
    lines = by_type["timeseries"]
    for name in (
        "group_predicted_drain_seconds", "group_rebalance_seconds_bucket",
        "group_unowned_partition_seconds_total",
        "scale_workers", "scale_held", "group_members", "group_pods", "group_partitions", "rollout_pods",
        "rollout_steps", "rollout_steps_completed",
        "batch_phase_seconds_bucket", "group_produced_per_second", "group_consumed_per_second",
        "takeover_pause_seconds", "operator_takeovers_total", "takeovers_total",
    ):  # fmt: skip
        assert f"slackwater_{name}" in lines


def test_the_first_screen_of_a_group_says_whether_it_is_well_why_not_and_since_when() -> None:
    board = loaded(chart.CHART / "dashboards" / "group.json")
    first = {panel["title"]: panel for panel in board["panels"] if panel["type"] != "row"}
    assert first["State"]["gridPos"] == {"h": 4, "w": 3, "x": 0, "y": 0}
    assert first["State"]["options"]["colorMode"] == "background"
    table = first["Conditions"]
    assert table["options"]["sortBy"] == [{"desc": True, "displayName": "state"}]
    order = table["transformations"][1]["options"]["indexByName"]
    assert sorted(order, key=order.__getitem__) == ["type", "Value #A", "status", "reason", "Value #B"]
    assert "slackwater_condition_transition_time_seconds" in table["targets"][1]["expr"]
    assert first["Conditions over time"]["type"] == "state-timeline"


def test_what_happens_to_a_group_is_annotated() -> None:
    marks = loaded(chart.CHART / "dashboards" / "group.json")["annotations"]["list"]
    assert {mark["name"] for mark in marks} == {
        "unplanned rebalances", "planned rebalances", "rollouts", "scale steps",
    }  # fmt: skip
    for mark in marks:
        assert mark["enable"]
        assert mark["datasource"]["uid"] == "${datasource}"
        # A label that the title names is left over by the expression.
        for label in re.findall(r"\{\{(\w+)\}\}", mark["titleFormat"]):
            assert f"by ({label})" in mark["expr"] or f'count_values("{label}"' in mark["expr"]


def links(board: dict[str, Any]) -> list[str]:
    fields = [link for p in chart.panels(board) for made in settings(p, "links") for link in made]
    return [link["url"] for link in (*board.get("links", []), *fields)]


def test_the_boards_link_to_each_other() -> None:
    fleet, group = (loaded(chart.CHART / "dashboards" / f"{name}.json") for name in ("fleet", "group"))
    kept = "${datasource:queryparam}&${cluster:queryparam}"
    assert f"/d/{fleet['uid']}?{kept}" in links(group)
    variables = {variable["name"] for variable in group["templating"]["list"]}
    assert links(fleet)
    for url in links(fleet):
        page, _, query = url.partition("?")
        assert page == f"/d/{group['uid']}"
        assert set(re.findall(r"var-(\w+)=", query)) == variables - {"datasource", "cluster"}
        assert query.startswith(f"{kept}&")
    (table,) = (panel for panel in chart.panels(fleet) if panel["type"] == "table")
    overrides = table["fieldConfig"]["overrides"]
    linked = [o["matcher"]["options"] for o in overrides for p in o["properties"] if p["id"] == "links"]
    assert linked == ["group"]
