"""A run's state as rich's tables, for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.local.report.views import RunSnapshot

_BAR_WIDTH = 24
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "bright_green")


def head(snapshot: RunSnapshot) -> Text:
    """The group, its state, and what is being done."""
    operation = snapshot.operation
    doing = f"{operation.text}: {operation.status}" if operation else "nothing to do"
    return Text.assemble(
        (f" {snapshot.group_id} ", "bold reverse"),
        f"  {f'{snapshot.terms.generation} {snapshot.generation}  ' if snapshot.generation >= 0 else ''}"
        f"{snapshot.group_state or 'unknown'}  ",
        (doing, "bold yellow" if operation else "dim"),
    )


def tables(snapshot: RunSnapshot) -> tuple[Table, Table]:
    """The workers, and the partitions in the colours of their workers."""
    colours = {row.name: _COLOURS[row.ordinal % len(_COLOURS)] for row in snapshot.workers}
    return _workers(snapshot, colours), _partitions(snapshot, colours)


def number(value: float | None) -> str:
    """A whole number; None: not known."""
    return "unknown" if value is None else f"{value:,.0f}"


def _workers(snapshot: RunSnapshot, colours: dict[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 1))
    term = snapshot.terms.generation
    for name in ("worker", "phase", "pid", term, "lag", "restarts", "partitions"):
        table.add_column(name, justify="right" if name in ("pid", term, "lag", "restarts") else "left")
    busy = snapshot.operation.subjects if snapshot.operation else ()
    for row in snapshot.workers:
        mark = " *" if row.leader else ""
        table.add_row(
            Text(row.pod + mark, style=colours[row.name]),
            Text(row.phase, style="bold yellow" if row.name in busy else ""),
            str(row.pid or "-"),
            str(row.generation) if row.generation >= 0 else "-",
            number(row.lag),
            str(row.restarts),
            " ".join(str(assigned.partition) for assigned in row.assignment),
        )
    return table


def _partitions(snapshot: RunSnapshot, colours: dict[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 1))
    for name in ("partition", "owner", "lag", ""):
        table.add_column(name, justify="right" if name in ("partition", "lag") else "left")
    most = max((lag for lag in snapshot.lag.values() if lag is not None), default=0) or 1
    for partition in snapshot.partitions:
        owner = snapshot.owners.get(partition)
        lag = snapshot.lag.get(partition)
        bar = "█" * round((lag or 0) / most * _BAR_WIDTH)
        table.add_row(
            _short(partition),
            Text(owner or "none", style=colours.get(owner or "", "bold red")),
            number(lag),
            Text(bar, style=colours.get(owner or "", "red")),
        )
    return table


def _short(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
