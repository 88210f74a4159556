"""What the controller keeps of a group in memory. All of it can be lost, and is observed again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.api.v1alpha1.spec.kafka import Kafka
from slackwater_operator.controller.analysis_watch import AnalysisWatch
from slackwater_operator.controller.rebalances import RebalanceWatch
from slackwater_operator.kafka.clusters import ClusterIdentity, GroupWanted
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.model.worker_status import WorkerStatus
from slackwater_operator.planner.actions import Plan
from slackwater_operator.planner.snapshot import GroupSnapshot, Manifest
from slackwater_operator.policies.backoff import Refusals
from slackwater_operator.policies.membership.group_id import ContestWatch
from slackwater_operator.policies.membership.ownership import Owners
from slackwater_operator.policies.object_events import ObjectEvent
from slackwater_operator.policies.rollout.rebalance_causes import ForcedWatch
from slackwater_operator.policies.scaling.autoscaler import Autoscaler
from slackwater_operator.policies.scaling.types import ScalingPolicy
from slackwater_operator.policies.stalls import Stall, StallWatch
from slackwater_operator.policies.topics import TopicWatch
from slackwater_operator.specs.statefulset import Revision


@dataclass(frozen=True)
class Resource:
    """The ConsumerGroup as it was read; `error` says why it could not be.

    Attributes:
        version: what it was read from: uid, generation and annotations.
        group: the resource.
        revision: what its workers should be started from.
        error: why there is neither.
    """

    version: tuple[Any, ...]
    group: ConsumerGroup | None = None
    revision: Revision | None = None
    error: str = ""


@dataclass
class Session:
    """A group as the controller knows it.

    Attributes:
        key: namespace and name.
        began_ms: when it began (wall clock).
        resource: the ConsumerGroup as it was read last.
        cluster: where its Kafka group is.
        running: what its workers reach Kafka with.
        cluster_id: Kafka's id of the cluster that they are on; "" when it is not known.
        next_cluster: where spec.kafka leads to, where that is another than `cluster`.
        next_id: Kafka's id of that; None while it does not answer.
        moved: that of it which is looked at, since the workers' own does not answer any more.
        wanted: what is asked of that cluster.
        analysis: the measurements of the rollout's analysis.
        contest: which other ConsumerGroups have members in it.
        owners: whose the members of its Kafka group are, as far as they have said.
        kafka: the newest observation; None where the cluster did not answer.
        unanswered: whether the cluster did not answer when it was asked last.
        kafka_problem: why it did not.
        kafka_since_ms: when the cluster answered last (or the session began).
        workers: what the workers said last, by pod name.
        workers_ms: when they were asked.
        plan: the last plan.
        problems: what failed in the last reconciliation.
        troubles: the reasons of Degraded as of the last reconciliation; None before the first.
        refusals: what the API server refuses, and when each is tried again.
        act_failures: what Kafka or a worker did not carry out, and when each is tried again.
        foreign: objects of our names that the Store does not know, and when they were looked for.
        good: the last ControllerRevision looked up: its name and its template.
        settled_since_ms: since when the group has been settled.
        settled_at_ms: the observation that found it settled first.
        unstable_since_ms: since when the group has not been Stable.
        figures_ms: when figures were written into the status last.
        written: the last status written, and the resourceVersion that this gave.
        step_ms: when the scaling step under way began; None: there is none.
        reported_stalls: the stalls as of the last reconciliation.
        snapshot: the last reconciliation's.
        unowned_ms: until when partitions without an owner have been counted.
        unchanged: by (kind, name) the resourceVersion that an apply left as it was, and what was applied.
        missing_ms: by pod, since when a StatefulSet has lacked it.
        object_events: by (kind, name) the Events about an object that does not come up, and when they were
            asked for.
        failures: how many reconciliations in a row failed, or were not completed.
        failed: whether the last reconciliation failed, although the API server answers.
    """

    key: tuple[str, str]
    autoscaler: Autoscaler
    began_ms: int = 0
    stalls: StallWatch = field(default_factory=StallWatch)
    forced: ForcedWatch = field(default_factory=ForcedWatch)
    topics: TopicWatch = field(default_factory=TopicWatch)
    rebalances: RebalanceWatch = field(default_factory=RebalanceWatch)
    refusals: Refusals = field(default_factory=Refusals)
    act_failures: Refusals = field(default_factory=Refusals)
    owners: Owners = field(default_factory=Owners)
    contest: ContestWatch = field(default_factory=ContestWatch)
    analysis: AnalysisWatch = field(default_factory=AnalysisWatch)
    resource: Resource | None = None
    cluster: ClusterIdentity | None = None
    running: Kafka | None = None
    cluster_id: str = ""
    next_cluster: ClusterIdentity | None = None
    next_id: str | None = None
    moved: ClusterIdentity | None = None
    wanted: GroupWanted[tuple[str, str]] | None = None
    kafka: KafkaSnapshot | None = None
    kafka_since_ms: int = 0
    workers: dict[str, WorkerStatus | None] = field(default_factory=dict)
    workers_ms: int = 0
    unanswered: bool = False
    kafka_problem: str = ""
    plan: Plan | None = None
    problems: tuple[tuple[str, str], ...] = ()
    troubles: frozenset[str] | None = None
    foreign: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    looked_ms: dict[tuple[str, str], int] = field(default_factory=dict)
    good: tuple[str, Manifest | None] = ("", None)
    settled_since_ms: int | None = None
    settled_at_ms: int | None = None
    unstable_since_ms: int | None = None
    figures_ms: int = 0
    written: tuple[Mapping[str, Any], str] | None = None
    step_ms: int | None = None
    reported_stalls: tuple[Stall, ...] = ()
    snapshot: GroupSnapshot | None = None
    unowned_ms: int = 0
    unchanged: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    missing_ms: dict[str, int] = field(default_factory=dict)
    object_events: dict[tuple[str, str], tuple[int, tuple[ObjectEvent, ...]]] = field(default_factory=dict)
    restored: bool = False
    failures: int = 0
    failed: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def busy(self) -> bool:
        """Whether an operation is in progress, so that observations must be frequent."""
        if self.plan is None or self.plan.busy:
            return True
        return self.plan.settled and self.settled_since_ms is None  # another look has to confirm it

    @property
    def shown_failures(self) -> tuple[tuple[str, str], ...]:
        """The requests to the API server, Kafka and workers whose failure a condition shows, as (reason,
        message)."""
        return (*self.refusals.problems, *self.act_failures.problems)

    @property
    def calm(self) -> bool:
        """Whether the next observation only updates figures: no operation, no scaling by lag."""
        return not (self.busy or self.unanswered or self.autoscaler.automatic)


def new_session(
    key: tuple[str, str],
    *,
    now_ms: int,
    window_ms: int,
    down_window_ms: int,
    settle_ms: int,
    up_window_ms: int = 0,
) -> Session:
    """A session that knows nothing yet."""
    autoscaler = Autoscaler(
        ScalingPolicy(),
        window_ms=window_ms,
        down_window_ms=down_window_ms,
        settle_ms=settle_ms,
        up_window_ms=up_window_ms,
    )
    return Session(key, autoscaler, began_ms=now_ms, kafka_since_ms=now_ms)
