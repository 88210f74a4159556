"""Makes the measurements of a rollout's analysis: the group's own figures, and queries beside the planner."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence

from slackwater.clock import Clock
from slackwater_operator.api.v1alpha1.spec.prometheus import PrometheusSecurity
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.resource_policies import steps_policy
from slackwater_operator.policies.rollout.analysis import Measurement, MetricRule, MetricValue
from slackwater_operator.policies.rollout.figures import FiguresInput, FigureWatch

Ask = Callable[[str, PrometheusSecurity | None, Sequence[str]], Awaitable[Sequence[MetricValue]]]
"""Sends queries to Prometheus, for a namespace and with the settings of its group. Raises nothing, and ends
within a limited time."""


class AnalysisWatch:
    """The analysis of one group. What it has in memory can be lost: the next interval begins anew."""

    def __init__(self) -> None:
        self._figures = FigureWatch()
        self._latest: Measurement | None = None
        self._asking: asyncio.Task[None] | None = None

    def observe(
        self,
        snapshot: GroupSnapshot,
        *,
        lag_s: float | None,
        ask: Ask,
        clock: Clock,
        changed: Callable[[], None],
    ) -> Measurement | None:
        """Takes a snapshot. Returns the latest measurement of the step that the status notes.

        Args:
            snapshot: the group.
            lag_s: the age of the oldest record that is not committed, in seconds; None if unknown.
            ask: asks Prometheus, in a task of its own.
            clock: the time.
            changed: called when a measurement with queries is complete.
        """
        group, state = snapshot.group, snapshot.memory.rollout.step
        if group is None or state is None:
            self.close()
            return None
        policy = steps_policy(group)
        analyses = state.index < len(policy.steps) and policy.steps[state.index].analyses
        if not analyses or state.version != policy.version:
            self.close()
            return None
        counts = {
            f"{status.uid}/{status.started_ms}": status.counts
            for pod in snapshot.pods
            if pod.template == state.revision
            and (status := snapshot.worker(pod)) is not None
            and status.counts is not None
        }
        lags = list(snapshot.kafka.lag.values()) if snapshot.kafka is not None else [None]
        known = [lag for lag in lags if lag is not None]
        lag = sum(known) if len(known) == len(lags) else None
        if self._latest is not None and self._latest.step != state.key:
            self.close()
        observed = FiguresInput(state.key, policy.interval_ms, counts, lag, lag_s, snapshot.now_ms)
        figures = None if self._asking is not None else self._figures.observe(observed)
        if figures is not None:
            values = {metric.name: figures[metric.figure] for metric in policy.metrics if metric.figure}
            queries = [metric for metric in policy.metrics if metric.query]
            if queries:
                security = group.spec.rollout.analysis.prometheus
                send = functools.partial(ask, snapshot.namespace, security, [rule.query for rule in queries])
                asking = self._ask(state.key, values, queries, send, clock, changed)
                self._asking = asyncio.create_task(asking, name=f"analysis of {snapshot.name}")
            else:
                self._latest = Measurement(state.key, snapshot.now_ms, values)
        return self._latest

    async def _ask(
        self,
        step: str,
        values: dict[str, MetricValue],
        queries: Sequence[MetricRule],
        send: Callable[[], Awaitable[Sequence[MetricValue]]],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        answers = await send()
        asked = {metric.name: answer for metric, answer in zip(queries, answers, strict=True)}
        self._latest = Measurement(step, clock.wall_ms(), {**values, **asked})
        self._asking = None
        changed()

    def close(self) -> None:
        """Forgets the measurement, and ends what is in progress."""
        self._latest = None
        if self._asking is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._asking.cancel()
            self._asking = None
