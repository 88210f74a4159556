"""What a LocalRun knows and wants: shared by its operations, its reconciliation and its face."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.local.events import WorkerEvent
from slackwater_operator.local.pool import WorkerPool
from slackwater_operator.local.processes import wall_ms
from slackwater_operator.local.sets import Sets
from slackwater_operator.local.settings import RunSettings
from slackwater_operator.local.timeline import Timeline
from slackwater_operator.local.views import DecisionView, Notice, Operation, RunError
from slackwater_operator.local.worker import Worker
from slackwater_operator.model.group import GroupView, WorkerView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.policies.ownership import Owners
from slackwater_operator.policies.rollout.restarts import RestartView, RolloutDecision, RolloutPolicy
from slackwater_operator.policies.rollout.stability import unsettled
from slackwater_operator.policies.rollout.subscription import expected_rebalance
from slackwater_operator.policies.takeover.decision import Moving, TakeoverDecision, TakeoverPolicy
from slackwater_operator.policies.topics import TopicWatch

# Events that change nothing that is decided on: they come too often to decide anew after each.
_QUIET_EVENTS = frozenset({"batch", "committed", "first_records"})


OURS = "this run"
"""The owner of the members that the run's workers are."""


@dataclass(kw_only=True)
class Expecting:
    """A rollout that may make the group rebalance by itself.

    Attributes:
        expected: why it does; "" if it does not. Kept until the rollout is over: the members that have the
            new configuration do not show it any more.
    """

    expected: str = ""

    def expect(self, group: ConsumerGroup, seen: GroupView | None, topics_changed: str) -> None:
        """Looks whether members of Kafka's group still read other topics than the resource says, or use
        another assignor. `topics_changed` says what has happened to the topics meanwhile, or ""."""
        expected = expected_rebalance(seen, group.spec.topics, group.assignors)
        self.expected = expected or topics_changed or self.expected


@dataclass
class Rollout(Expecting):
    """A rolling restart under way: the restarts that are not over, and the last decision."""

    policy: RolloutPolicy
    under_way: dict[str, RestartView] = field(default_factory=dict)
    decision: RolloutDecision | None = None


@dataclass
class TakeoverRoll(Expecting):
    """A rollout by takeover under way: the one takeover that is not over, and the last decision.

    Attributes:
        policy: what the user allows.
        back: whether it is the way back from a configuration that failed.
        moving: the takeover under way.
        decision: the last decision.
    """

    policy: TakeoverPolicy
    back: bool = False
    moving: Moving | None = None
    decision: TakeoverDecision | None = None


class RunState:
    """What should be (the group, `replicas`, `sets`) and what is (the last observation, the workers)."""

    def __init__(self, group: ConsumerGroup, settings: RunSettings) -> None:
        self.group = group
        self.settings = settings
        self.replicas = group.initial_replicas
        self.sets = Sets(group.name, self.replicas, 1, takeover=group.spec.rollout.takes_over)
        self.pool: WorkerPool
        self.timeline = Timeline()
        self.seen: KafkaSnapshot | None = None
        self.topics = TopicWatch()
        self.decisions: dict[str, DecisionView] = {}
        self.operation: Operation | None = None
        self.rollout: Rollout | None = None
        self.takeover: TakeoverRoll | None = None
        self.failure: RunError | None = None
        self.stopping = False
        self.settled_since_ms: int | None = None
        self.counts = {"records": 0, "out": 0, "dead": 0}
        self.owners = Owners()
        self.notices: list[Notice] = []
        self.lag_history: list[tuple[int, int | None]] = []
        self.subscribers: list[Callable[[WorkerEvent], None]] = []
        self.notice_subscribers: list[Callable[[Notice], None]] = []
        self.wake = asyncio.Event()
        self.turned = asyncio.Condition()

    # -- what is ---------------------------------------------------------------------------------------

    def fresh(self) -> KafkaSnapshot | None:
        """The last observation, None when it is too old to go by."""
        seen = self.seen
        return seen if seen and wall_ms() - seen.at_ms <= self.settings.stale_ms else None

    def group_view(self) -> GroupView | None:
        """The group as the broker told it last, None when that is too old."""
        seen = self.fresh()
        return seen.group if seen else None

    def own_members(self, group: GroupView | None) -> list[str]:
        """The instance ids of a group's members that are workers of this run, as these have told: others of
        the same names may be another run's."""
        members = self.owners.fill_in(group, OURS).members if group is not None else ()
        return sorted(one.instance_id for one in members if one.instance_id and one.owner == OURS)

    @property
    def revision(self) -> int:
        """What workers are started with; during a takeover those of the set that is left."""
        return self.sets.old.revision

    @property
    def wanted(self) -> list[Worker]:
        """The workers that should be, as far as they have been made: for each member the one that is it."""
        found = [self.serving(self.group.instance_id(ordinal)) for ordinal in range(self.replicas)]
        return [one for one in found if one is not None]

    def serving(self, name: str) -> Worker | None:
        """The worker that is the member `name`, or is to be it; None: none has been made yet.

        Of two processes that both think that they are it, the one that joined last is: the broker has fenced
        the other. If none does, it is the one in the set that is left: that one's successor waits for it.
        """
        places = [one for one in self.pool.of_member(name) if self.sets.has(one.set_name, one.ordinal)]
        members = [one for one in places if one.process is not None and one.progress.member]
        if members:
            return max(members, key=lambda one: one.progress.joined_ms)
        return min(places, key=lambda one: one.set_name != self.sets.old.name, default=None)

    def views(self) -> list[WorkerView]:
        """The workers that should be, as the decisions look at them."""
        lag = self.lag()
        return [one.view(lag) for one in self.wanted]

    def lag(self) -> Mapping[TopicPartition, int | None]:
        """Each partition's lag; empty when that is not known."""
        seen = self.fresh()
        return seen.lag if seen else {}

    def unsettled(self) -> str:
        """What keeps the group from being settled; "" when it is."""
        workers = self.wanted
        if len(workers) < self.replicas:
            return f"{self.replicas - len(workers)} workers are not started"
        leaving = [one.pod for one in self.pool.workers if not self.sets.has(one.set_name, one.ordinal)]
        if leaving:
            return f"{', '.join(leaving)} is ending"
        seen = self.fresh()
        if seen is None:
            return "the broker did not say how the group is"
        held = {one.name: one.progress.assignment for one in workers}
        missing = unsettled(seen.group, self.views(), held, seen.partitions)
        changed_ms = max((one.progress.changed_ms for one in workers), default=0)
        if not missing and seen.at_ms < changed_ms:
            return "the last observation is older than the last change"
        return missing

    def check(self) -> None:
        """Raises RunError when the run cannot go on."""
        if self.failure is not None:
            raise self.failure
        if self.stopping:
            raise RunError("the run is being stopped")

    # -- what happens ----------------------------------------------------------------------------------

    def take(self, event: WorkerEvent) -> None:
        """Takes a worker's event in."""
        self.timeline.take(event)
        if event.event == "joined":
            self.owners.told([str(event.data.get("member_id") or "")], OURS)
        if event.event == "batch":
            for name in self.counts:
                value = event.data.get(name, 0)
                self.counts[name] += value if isinstance(value, int) else 0
        for callback in list(self.subscribers):
            callback(event)
        if event.event == "exited":
            self._tell_exit(event)
        if event.event == "partition_stopped":
            self.notify(f"{event.process}: {event.data.get('message', '')}")
        if event.event == "skipped":
            self._tell_skipped(event)
        if event.event not in _QUIET_EVENTS:
            self.wake.set()

    def _tell_skipped(self, event: WorkerEvent) -> None:
        """Says that records were gone from the log before a worker read them."""
        told = {name: event.data.get(name) for name in ("partition", "records", "from", "to")}
        self.notify(
            f"{event.process} skips {told['records']} records of {told['partition']}, from offset "
            f"{told['from']} to where the log begins now, {told['to']}: they were deleted (retention, or "
            "DeleteRecords)"
        )

    def _tell_exit(self, event: WorkerEvent) -> None:
        """Says at once that a worker has ended which nobody asked to, and why."""
        worker = self.pool.find(event.process)
        if worker is None or worker.stopping or self.stopping:
            return
        code = int(event.data.get("code", -1))
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        self.notify(f"{worker.pod} {how}{': ' if worker.last_error else ''}{worker.last_error}")

    def observed(self, seen: KafkaSnapshot) -> None:
        """Takes an observation in."""
        self.seen = seen
        lags = list(seen.lag.values())
        known = [one for one in lags if one is not None]
        self.lag_history.append((seen.at_ms, sum(known) if known and len(known) == len(lags) else None))
        self.wake.set()

    def decided(self, kind: str, reason: str, decision: object) -> None:
        """Keeps the last decision of a kind; it is new only when it differs from the one before."""
        last = self.decisions.get(kind)
        if last is None or last.decision != decision:
            self.decisions[kind] = DecisionView(kind, wall_ms(), reason, decision)

    def notify(self, text: str) -> None:
        """Tells people something."""
        notice = Notice(wall_ms(), text)
        self.notices.append(notice)
        for callback in list(self.notice_subscribers):
            callback(notice)

    def fail(self, error: RunError) -> None:
        """Ends what can still be waited for with `error`; the first one counts."""
        if self.failure is None:
            self.failure = error
            self.notify(f"given up: {error}")

    async def turn(self) -> None:
        """Lets those who wait look again."""
        async with self.turned:
            self.turned.notify_all()
