"""Grafana's dashboards, made from Python. `python -m tools.dashboards` writes them into the chart.

Grafana itself is not needed: the JSON is what Grafana's own SDK writes.
tests/e2e/chart/test_prometheus_expressions.py asks a real Prometheus what each panel asks, and has Grafana's
components draw the answers.
"""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tools.dashboards import fleet, group
from tools.dashboards.grafana import build
from tools.dashboards.panels import Board

FOLDER = Path(__file__).resolve().parents[2] / "charts" / "slackwater" / "dashboards"
BOARDS: dict[str, Board] = {"fleet.json": fleet.BOARD, "group.json": group.BOARD}


def render(board: Board) -> str:
    """The dashboard as JSON, the same each time."""
    return json.dumps(build(board), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def write(folder: Path = FOLDER) -> None:
    """Writes all dashboards into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, board in BOARDS.items():
        (folder / name).write_text(render(board), encoding="utf-8")
