"""Displays the demo while it runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.local.report.views import Notice, RunSnapshot

_PLAIN_EVERY_S = 2.0
_NOTICES = 6
_BAR_WIDTH = 24
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "bright_green")


class Display:
    """Shows snapshots and notices; a context manager, since a live display takes over the terminal."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._live: Live | None = None
        self._notices: list[str] = []
        self._produced = 0
        self._began = time.monotonic()
        self._shown = 0.0

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays: what is being done to whom."""
        line = f"{time.monotonic() - self._began:7.1f} s  {text}"
        self._notices.append(line)
        if self._live is None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def notice(self, notice: Notice) -> None:
        """A notice of the run."""
        self.say(notice.text)

    def produced(self, records: int) -> None:
        """How many records have been produced so far."""
        self._produced = records

    def update(self, snapshot: RunSnapshot) -> None:
        """Shows what is now; in plain lines only every two seconds."""
        if self._live is not None:
            self._live.update(self._page(snapshot), refresh=True)
        elif time.monotonic() - self._shown >= _PLAIN_EVERY_S:
            self._shown = time.monotonic()
            self.say(self._line(snapshot))

    def _line(self, snapshot: RunSnapshot) -> str:
        workers = " ".join(
            f"{row.pod}={row.phase}/{len(row.assignment)}{'*' if row.leader else ''}"
            for row in snapshot.workers
        )
        return (
            f"generation {snapshot.generation} {snapshot.group_state or '?'}  "
            f"produced {self._produced:,}  committed {sum(snapshot.positions.values()):,}  "
            f"lag {_number(snapshot.total_lag)}  {workers}"
        )

    def _page(self, snapshot: RunSnapshot) -> Group:
        colours = {row.name: _COLOURS[row.ordinal % len(_COLOURS)] for row in snapshot.workers}
        operation = snapshot.operation
        doing = f"{operation.text}: {operation.status}" if operation else "nothing to do"
        head = Text.assemble(
            (f" {snapshot.group_id} ", "bold reverse"),
            f"  generation {snapshot.generation}  {snapshot.group_state or 'unknown'}  ",
            (doing, "bold yellow" if operation else "dim"),
        )
        committed = sum(snapshot.positions.values())
        flow = Text(
            f" produced {self._produced:,} of {self._total:,}   committed {committed:,}"
            f"   dead-lettered {snapshot.dead:,}   lag {_number(snapshot.total_lag)}"
            f"   {_number(snapshot.consumed_per_s)} records/s"
        )
        return Group(
            head,
            flow,
            _workers(snapshot, colours),
            _partitions(snapshot, colours),
            *(Text(line, style="dim") for line in self._notices[-_NOTICES:]),
        )


def _workers(snapshot: RunSnapshot, colours: dict[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 1))
    for name in ("worker", "phase", "pid", "gen", "lag", "restarts", "partitions"):
        table.add_column(name, justify="right" if name in ("pid", "gen", "lag", "restarts") else "left")
    busy = snapshot.operation.subjects if snapshot.operation else ()
    for row in snapshot.workers:
        mark = " *" if row.leader else ""
        table.add_row(
            Text(row.pod + mark, style=colours[row.name]),
            Text(row.phase, style="bold yellow" if row.name in busy else ""),
            str(row.pid or "-"),
            str(row.generation) if row.generation >= 0 else "-",
            _number(row.lag),
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
            _number(lag),
            Text(bar, style=colours.get(owner or "", "red")),
        )
    return table


def _short(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"
