"""Measures a group's own figures for the analysis of a rollout, from what the workers report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slackwater_operator.api.v1alpha1.spec.rollout_steps import (
    DEAD_LETTER_RATE,
    HANDLER_FAILURES,
    LAG,
    LAG_SECONDS,
)
from slackwater_operator.model.worker_status import WorkerCounts
from slackwater_operator.policies.rollout.analysis import MetricValue


@dataclass(frozen=True)
class FiguresInput:
    """An observation.

    Attributes:
        step: what the measurement is for (`StepState.key`).
        interval_ms: how often it is measured.
        counts: what the workers with the new revision have counted, by process.
        lag: the group's lag, in records; None if unknown.
        lag_s: the age of the oldest record that is not committed, in seconds; None if unknown.
        now_ms: the time.
    """

    step: str
    interval_ms: int
    counts: Mapping[str, WorkerCounts]
    lag: int | None
    lag_s: float | None
    now_ms: int


class FigureWatch:
    """Compares the workers' counts with those of the measurement before.

    An operator that starts begins with the next interval: what was counted in between is not measured.
    """

    def __init__(self) -> None:
        self._step = ""
        self._since_ms = 0
        self._before: dict[str, WorkerCounts] = {}

    def observe(self, observed: FiguresInput) -> dict[str, MetricValue] | None:
        """Takes an observation. Returns the figures where an interval is over, else None."""
        if observed.step != self._step:
            self._step, self._before = observed.step, dict(observed.counts)
            self._since_ms = observed.now_ms
            return None
        if observed.now_ms - self._since_ms < observed.interval_ms:
            return None
        records = dead_letters = failures = 0
        for process, counts in observed.counts.items():
            gained = counts.since(self._before.get(process, WorkerCounts()))
            records += gained.records
            dead_letters += gained.dead_letters
            failures += gained.handler_failures
        self._before |= observed.counts
        self._since_ms = observed.now_ms
        silent = "" if observed.counts else "no worker of the new revision reports its counts"
        idle = (
            silent or "the workers of the new revision have committed no records since the last measurement"
        )
        return {
            DEAD_LETTER_RATE: MetricValue(dead_letters / records) if records else MetricValue(None, idle),
            HANDLER_FAILURES: MetricValue(None, silent) if silent else MetricValue(float(failures)),
            LAG: _known(observed.lag, "the lag is not known"),
            LAG_SECONDS: _known(observed.lag_s, "the age of the oldest record is not known"),
        }


def _known(value: float | None, problem: str) -> MetricValue:
    return MetricValue(None, problem) if value is None else MetricValue(float(value))
