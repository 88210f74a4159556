"""The demo's figures: what is printed at the end, what is kept in `report.json`, and whether it succeeded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from slackwater_operator.demo.verify import Accounting
from slackwater_operator.model.group import CLASSIC_TERMS, Terms

ROLLING_RESTART = "rolling restart"
"""The operation whose restarts are held against the takeovers."""

_PLOT_WIDTH = 72
_PLOT_HEIGHT = 8
_BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class OperationFigures:
    """What an operation cost. ``allowed_rebalances`` is the most that it may cost; where that is not 0, it
    must cost one."""

    name: str
    seconds: float
    rebalances: int
    allowed_rebalances: int
    generations: tuple[int, ...]
    longest_unowned_ms: int


@dataclass(frozen=True, slots=True)
class RestartFigures:
    """A worker's way back. ``gap_ms``: from its last commit to its first record; ``partition_gap_ms``: the
    longest of one of its partitions likewise. None if none came."""

    instance: str
    operation: str
    away_ms: int
    gap_ms: int | None
    session_timeout_ms: int
    same_generation: bool
    partition_gap_ms: int | None = None

    @property
    def session_share(self) -> float:
        """The share of the session timeout that the gap used up."""
        return (self.away_ms if self.gap_ms is None else self.gap_ms) / self.session_timeout_ms


@dataclass(frozen=True, slots=True)
class TakeoverFigures:
    """A member's way from one process to the next. ``pauses_ms``: of each partition, from the last rows of
    the one to the first of the other; ``forced``: the process before was not asked."""

    instance: str
    before: str
    after: str
    forced: bool
    same_generation: bool
    pauses_ms: Mapping[str, int]

    @property
    def outcome(self) -> str:
        """What became of the group's generation, and whether the process before had a say."""
        kept = "kept" if self.same_generation else "changed"
        return f"{kept}, by force" if self.forced else kept

    @property
    def longest_ms(self) -> int | None:
        """The longest pause of a partition; None if no record came."""
        return max(self.pauses_ms.values(), default=None)


@dataclass(frozen=True, slots=True)
class Pauses:
    """What a member's restart and its takeover cost; None where there was none. A gap is from its last commit
    to its first record, a pause the longest of one of its partitions: in a restart from commit to record, in
    a takeover from rows to rows."""

    name: str
    restart_gap_ms: int | None
    restart_pause_ms: int | None
    takeover_pause_ms: int | None

    @property
    def ms(self) -> tuple[int | None, int | None, int | None]:
        """The three figures."""
        return self.restart_gap_ms, self.restart_pause_ms, self.takeover_pause_ms


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold for the demo to succeed."""

    name: str
    passed: bool
    detail: str


@dataclass(slots=True)
class Report:
    """All figures of a run."""

    broker: str
    engine: str
    accounting: Accounting
    poison: int
    operations: Sequence[OperationFigures]
    restarts: Sequence[RestartFigures]
    takeovers: Sequence[TakeoverFigures]
    seconds: float
    lag: Sequence[tuple[float, int]]
    """Seconds since the start, and the group's lag in records."""
    differences: Sequence[str]
    """Carriers and days whose totals differ from the source's."""
    terms: Terms = CLASSIC_TERMS
    """What the group's numbers are called."""
    random_kill: str | None = None
    """Who was killed at a random moment, and when. Where it falls into a rebalance, it costs another."""

    @property
    def records_per_second(self) -> float:
        """Records handled over the time in which there were some to handle."""
        handled = self.accounting.records_out + self.accounting.dead_lettered
        return handled / self.seconds if self.seconds else 0.0

    def checks(self) -> list[Check]:
        """Everything that decides the exit code."""
        accounting = self.accounting
        made = [
            Check(
                "nothing lost",
                accounting.lost == 0,
                f"{accounting.lost} records; {'; '.join(accounting.examples)}",
            ),
            Check("nothing duplicated", accounting.duplicated == 0, f"{accounting.duplicated} records"),
            Check(
                "every poison record dead-lettered",
                accounting.dead_lettered == self.poison,
                f"{accounting.dead_lettered} of {self.poison}",
            ),
            Check(
                "totals equal the source's, by carrier and by day",
                not self.differences,
                f"{len(self.differences)} differ; first: {next(iter(self.differences), '')}",
            ),
        ]
        if self.random_kill is None:
            made += [_rebalance_check(operation, self.terms) for operation in self.operations]
        return made

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks())

    def to_json(self) -> dict[str, Any]:
        """All figures, for `report.json`."""
        return {
            "passed": self.passed,
            "broker": self.broker,
            "engine": self.engine,
            "unit": self.terms.rebalance,
            "random_kill": self.random_kill,
            "records": {
                "in": self.accounting.records_in,
                "out": self.accounting.records_out,
                "dead_lettered": self.accounting.dead_lettered,
                "lost": self.accounting.lost,
                "duplicated": self.accounting.duplicated,
                "per_second": round(self.records_per_second, 1),
            },
            "seconds": round(self.seconds, 3),
            "operations": [asdict(operation) for operation in self.operations],
            "restarts": [
                {**asdict(restart), "session_share": round(restart.session_share, 4)}
                for restart in self.restarts
            ],
            "takeovers": [
                {**asdict(takeover), "longest_ms": takeover.longest_ms} for takeover in self.takeovers
            ],
            "pauses": [asdict(pause) for pause in self.pauses()],
            "lag": [[round(at, 1), lag] for at, lag in self.lag],
            "checks": [asdict(check) for check in self.checks()],
        }

    def pauses(self) -> list[Pauses]:
        """The pauses of each member that was rolled, then the median and the worst of each column."""
        restarts = {
            restart.instance: restart for restart in self.restarts if restart.operation == ROLLING_RESTART
        }
        takeovers = {takeover.instance: takeover for takeover in self.takeovers}
        rows = []
        for name in sorted({*restarts, *takeovers}):
            restart, takeover = restarts.get(name), takeovers.get(name)
            rows.append(
                Pauses(
                    name,
                    restart.gap_ms if restart else None,
                    restart.partition_gap_ms if restart else None,
                    takeover.longest_ms if takeover else None,
                )
            )
        if not rows:
            return []
        figures = zip(*(row.ms for row in rows), strict=True)
        columns = [[ms for ms in column if ms is not None] for column in figures]
        middle = [round(median(column)) if column else None for column in columns]
        worst = [max(column, default=None) for column in columns]
        return [*rows, Pauses("median", *middle), Pauses("worst", *worst)]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    def text(self) -> str:
        """The report as a person reads it."""
        return "\n".join(
            ["", *self._records(), "", *self._operations(), "", *self._restarts(), "", *self._pauses(), ""]
            + [*self._lag(), ""]
            + [f"  {'ok  ' if check.passed else 'FAIL'}  {_said(check)}" for check in self.checks()]
        )

    def _records(self) -> list[str]:
        accounting = self.accounting
        return [
            f"Records   in {accounting.records_in:,}   out {accounting.records_out:,}   "
            f"dead-lettered {accounting.dead_lettered:,}   lost {accounting.lost:,}   "
            f"duplicated {accounting.duplicated:,}",
            f"          {self.records_per_second:,.0f} a second over {self.seconds:.1f} s "
            f"({self.engine}, {self.broker})",
        ]

    def _operations(self) -> list[str]:
        lines = [f"{'Operation':<28}{'took':>9}{f'{self.terms.rebalance}s':>12}{'longest unowned':>18}"]
        lines += [
            f"{operation.name:<28}{operation.seconds:>7.1f} s{operation.rebalances:>12}"
            f"{operation.longest_unowned_ms / 1000:>16.2f} s"
            for operation in self.operations
        ]
        if self.random_kill:
            lines.append(f"Killed at a random moment: {self.random_kill}")
        return lines

    def _restarts(self) -> list[str]:
        lines = [f"{'Restart':<14}{'in':<28}{'away':>9}{'gap':>9}{'of session':>12}  {self.terms.generation}"]
        for restart in self.restarts:
            gap = "-" if restart.gap_ms is None else f"{restart.gap_ms / 1000:.2f} s"
            kept = "kept" if restart.same_generation else "changed"
            lines.append(
                f"{restart.instance:<14}{restart.operation:<28}{restart.away_ms / 1000:>7.2f} s{gap:>9}"
                f"{restart.session_share:>12.1%}  {kept}"
            )
        return lines

    def _pauses(self) -> list[str]:
        outcomes = {takeover.instance: takeover.outcome for takeover in self.takeovers}
        lines = [
            f"{'Pauses':<14}{'by restart':>20}{'by takeover':>14}",
            f"{'':<14}{'gap':>9}{'longest':>11}{'longest':>14}  {self.terms.generation}",
        ]
        for pause in self.pauses():
            widths = zip(pause.ms, (9, 11, 14), strict=True)
            figures = "".join(f"{_seconds(ms):>{width}}" for ms, width in widths)
            lines.append(f"{pause.name:<14}{figures}  {outcomes.get(pause.name, '')}".rstrip())
        return [
            *lines,
            "(longest: of a partition, by takeover from rows to rows; with a backlog they are read by turns)",
        ]

    def _lag(self) -> list[str]:
        return plot(self.lag)


def _seconds(ms: int | None) -> str:
    return "-" if ms is None else f"{ms / 1000:.3f} s"


def _said(check: Check) -> str:
    return check.name if check.passed else f"{check.name}: {check.detail}"


def _rebalance_check(operation: OperationFigures, terms: Terms) -> Check:
    cost, allowed = operation.rebalances, operation.allowed_rebalances
    return Check(
        f"{operation.name}: {_times(allowed, terms.rebalance)}",
        cost <= allowed and bool(cost) is bool(allowed),
        f"it cost {operation.rebalances}, {terms.generation}s {list(operation.generations)}",
    )


def _times(most: int, unit: str) -> str:
    return f"{most} {unit}{'' if most == 1 else 's'}" if most < 2 else f"1 to {most} {unit}s"


def plot(series: Sequence[tuple[float, int]]) -> list[str]:
    """Lag over time as a small plot in block characters: the last that was seen in each slice of time."""
    if not series:
        return ["Lag       (nothing was measured)"]
    end = max(series[-1][0], 0.001)
    columns = [0] * _PLOT_WIDTH
    for at, lag in series:
        index = min(int(at / end * _PLOT_WIDTH), _PLOT_WIDTH - 1)
        columns[index] = lag
    top = max(max(columns), 1)
    lines = []
    for level in range(_PLOT_HEIGHT - 1, -1, -1):
        heights = [column / top * _PLOT_HEIGHT - level for column in columns]
        cells = "".join(_BLOCKS[round(min(max(height, 0.0), 1.0) * (len(_BLOCKS) - 1))] for height in heights)
        label = f"{top:,}" if level == _PLOT_HEIGHT - 1 else "0" if level == 0 else ""
        lines.append(f"{label:>9} |{cells}")
    return [
        "Lag, records, over time",
        *lines,
        f"{'':>9} +{'-' * _PLOT_WIDTH}",
        f"{'':>9}  0 s{f'{end:.0f} s':>{_PLOT_WIDTH - 3}}",
    ]
