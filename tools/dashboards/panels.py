"""What a dashboard is made of, as plain values. `grafana.py` makes Grafana's JSON of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

WIDTH = 24
"""Of the grid."""


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


class Unit(StrEnum):
    """Grafana's ids of the units in use (all: tests/operator/unit/charts/grafana_units.txt)."""

    COUNT = "short"
    PLAIN = "none"
    SECONDS = "s"
    SHARE = "percentunit"
    RECORDS_PER_SECOND = "recps"
    OPERATIONS_PER_SECOND = "ops"
    PER_MINUTE = "cpm"
    BYTES = "bytes"
    BYTES_PER_SECOND = "Bps"
    AGE = "dateTimeFromNow"
    """Of a Unix time in ms."""


Steps = tuple[tuple[float | None, str], ...]
"""(from, colour) of thresholds; the first begins at nothing."""
Names = tuple[tuple[int, str, str], ...]
"""(number, text, colour) of values that stand for states."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression.

    Attributes:
        expr: with Grafana's variables, such as `$group`.
        legend: of a series.
    """

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: above it; of a column without an expression also the label that it shows.
        expr: PromQL of its values; empty: it shows a label of the other columns' series.
        unit: Grafana's unit.
        decimals: how many to show; None: as many as the value needs.
        steps: thresholds that colour the cell's text.
        names: texts and colours of the cell in place of numbers.
        link: URL of a click on the cell.
        width: in pixels; 0: what is left.
    """

    name: str
    expr: str = ""
    unit: Unit = Unit.COUNT
    decimals: int | None = None
    steps: Steps = ()
    names: Names = ()
    link: str = ""
    width: int = 0


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: above it.
        about: what it shows and what to do about it; behind the (i).
        kind: how it draws.
        queries: what it draws; of a TABLE: none, see `columns`.
        unit: Grafana's unit.
        span: its width of 24.
        height: in rows of the grid; 0: the usual one of its kind.
        decimals: how many to show; None: as many as the value needs. 0 also keeps an axis to whole numbers.
        steps: thresholds.
        names: number -> (text, colour) for states.
        colours: (name of a series, colour).
        least: lower end of the axis; None: what the data needs.
        limit: upper end of the axis; 0: what the data needs.
        columns: of a TABLE.
        sort: of a TABLE: the column to sort by, the greatest first.
        row: of a MATRIX: the label that gives the rows.
        column: of a MATRIX: the label that gives the columns.
        link: URL of a click on a series.
        empty: what a tile shows without a value, and another panel without series.
    """

    title: str
    about: str
    kind: Kind
    queries: tuple[Query, ...] = ()
    unit: Unit = Unit.COUNT
    span: int = 12
    height: int = 0
    decimals: int | None = None
    steps: Steps = ()
    names: Names = ()
    colours: tuple[tuple[str, str], ...] = ()
    least: float | None = 0
    limit: float = 0
    columns: tuple[Column, ...] = ()
    sort: str = ""
    row: str = ""
    column: str = ""
    link: str = ""
    empty: str = ""

    @property
    def rows(self) -> int:
        """Its height in rows of the grid."""
        return self.height or (4 if self.kind is Kind.STAT else 8)

    def asked(self) -> tuple[Query, ...]:
        """Its queries, and those of its columns."""
        return (*self.queries, *(Query(column.expr, column.name) for column in self.columns if column.expr))


@dataclass(frozen=True)
class Row:
    """Panels below each other. One with a title is collapsed; the one without stands open at the top."""

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
    """An annotation: a line at each step at which the expression is above 0, an area where that lasts.

    Attributes:
        name: of the switch above the board.
        expr: PromQL.
        colour: of the line.
        title: of its text; `{{label}}` stands for a label of the series.
    """

    name: str
    expr: str
    colour: str
    title: str


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
