"""Displays the demo while it runs: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from slackwater_operator.local.report.tables import head, number, tables
from slackwater_operator.local.report.views import Notice, RunSnapshot

_PLAIN_EVERY_S = 2.0
_NOTICES = 6


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
            f"{snapshot.terms.generation} {snapshot.generation} {snapshot.group_state or '?'}  "
            f"produced {self._produced:,}  committed {sum(snapshot.positions.values()):,}  "
            f"lag {number(snapshot.total_lag)}  {workers}"
        )

    def _page(self, snapshot: RunSnapshot) -> Group:
        committed = sum(snapshot.positions.values())
        flow = Text(
            f" produced {self._produced:,} of {self._total:,}   committed {committed:,}"
            f"   dead-lettered {snapshot.dead:,}   lag {number(snapshot.total_lag)}"
            f"   {number(snapshot.consumed_per_s)} records/s"
        )
        return Group(
            head(snapshot),
            flow,
            *tables(snapshot),
            *(Text(line, style="dim") for line in self._notices[-_NOTICES:]),
        )
