"""The group as the broker describes it, and its workers, as the decisions use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from slackwater.kafka.group_states import DEAD, EMPTY, REBALANCING, STABLE, EpochProgress
from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.wording import enumerated

GROUP_UNKNOWN = "the group's state is unknown: the broker did not describe it"
"""What is said where there is no :class:`GroupView`."""
SESSION_CONFIG = "consumer.session.timeout.ms"
"""The group's config that has its members' session, by the consumer protocol (KIP-848)."""
INTERVAL_CONFIG = "consumer.assignment.interval.ms"
"""The group's config by which brokers assign at most once in that time (KIP-1263, Kafka 4.3)."""
_NAMED = 3


class Terms(NamedTuple):
    """What the numbers of a group are called.

    Attributes:
        generation: the number that all its members are to have.
        rebalance: what is counted when that number grows.
    """

    generation: str
    rebalance: str


CLASSIC_TERMS = Terms("generation", "rebalance")


def terms(*, consumer_protocol: bool) -> Terms:
    """The terms for a group of the classic or of the consumer protocol (KIP-848)."""
    return Terms("epoch", "epoch") if consumer_protocol else CLASSIC_TERMS


_PROGRESS = {
    EpochProgress.BEHIND: "not yet in the newest epoch",
    EpochProgress.WAITING: "waiting for partitions",
    EpochProgress.AWAY: "away",
}


@dataclass(frozen=True)
class MemberView:
    """A member of the group.

    Attributes:
        member_id: the id that Kafka assigned at its join; each process that joins anew gets another one.
        instance_id: group.instance.id; None for a dynamic member.
        partitions: the partitions that the leader assigned to it.
        synced: whether it has its assignment of the current generation; known for certain only while Stable.
        client_id: the client.id of the first process that joined under this instance id (a worker's pod); ""
            if unknown. A successor keeps it as long as the group knows the member (observed with Kafka 4.3),
            so it may name the predecessor. It identifies the member only if nothing else does; `member_id`
            is certain.
        host: the address that it last joined from, as the broker reports it (`/10.1.2.3`); "" if unknown.
        owner: the uid of the ConsumerGroup that started it (`membership.ownership`); "" if unknown.
        topics: the topics that it has subscribed to; None if unknown (during a rebalance, for instance).
        protocol: `classic` or `consumer`, in a group that may have members of both; else "".
        progress: how far it is with the group's epoch; None in a group of the classic protocol.
    """

    member_id: str
    instance_id: str | None
    partitions: frozenset[TopicPartition]
    synced: bool
    client_id: str = ""
    host: str = ""
    owner: str = ""
    topics: frozenset[str] | None = None
    protocol: str = ""
    progress: EpochProgress | None = None


@dataclass(frozen=True)
class GroupView:
    """The group as its coordinator reports it, whichever protocol its members speak.

    Attributes:
        state: `Stable`, `PreparingRebalance`, `CompletingRebalance`, `Assigning`, `Reconciling`, `Empty` or
            `Dead` (there is no such group).
        members: its members. A group that is not of consumers (a share or streams group) has a single one,
            which stands for all of them.
        assignor: the assignor that the members have agreed on (`cooperative-sticky`); "" if unknown.
        consumer_protocol: whether it has epochs: a member of the consumer protocol (KIP-848) has joined it.
    """

    state: str
    members: tuple[MemberView, ...] = ()
    assignor: str = ""
    consumer_protocol: bool = False

    @property
    def situation(self) -> str:
        """Its state in words; of one with epochs that is not Stable, with the members that it waits for."""
        waits = "; ".join(self._progress()) if not self.stable else ""
        return f"the group is {self.state}{f' ({waits})' if waits else ''}"

    def _progress(self) -> Iterator[str]:
        for progress, what in _PROGRESS.items():
            names = sorted(m.instance_id or m.member_id for m in self.members if m.progress is progress)
            if names:
                yield f"{what}: {enumerated(names, _NAMED)}"

    @property
    def stable(self) -> bool:
        """Whether it has members, and no rebalance is in progress."""
        return self.state == STABLE

    @property
    def rebalancing(self) -> bool:
        """Whether a rebalance is in progress."""
        return self.state in REBALANCING

    @property
    def memberless(self) -> bool:
        """Whether it has no members."""
        return self.state in (EMPTY, DEAD)

    @property
    def instance_ids(self) -> frozenset[str]:
        """The static members' instance ids."""
        return frozenset(member.instance_id for member in self.members if member.instance_id is not None)

    def member(self, instance_id: str) -> MemberView | None:
        """The static member with this instance id; None without one."""
        return next((member for member in self.members if member.instance_id == instance_id), None)


def terms_of(group: GroupView | None) -> Terms:
    """The terms for an observed group; the classic protocol's where the broker did not describe it."""
    return terms(consumer_protocol=group is not None and group.consumer_protocol)


@dataclass(frozen=True)
class WorkerView:
    """A worker: a process locally, a pod on Kubernetes.

    Attributes:
        name: its group.instance.id.
        alive: whether its process runs.
        phase: the phase that it reports (docs/reference/worker.md, "HTTP"); "" before it has reported one.
        revision: the revision that it was started with: a number locally, a template's hash on Kubernetes;
            "" if unknown.
        generation: the group generation that it joined last; -1 before.
        leader: whether it leads the group, as far as it knows.
        ended_ms: when its last process ended; None before that.
        running_since_ms: since when its process has been in the group and running; None if it is not.
        lag: the lag of its partitions, in records; None if unknown.
        waiting_since_ms: since when it has been warm and waiting to join; None if it is not.
        failures: how often in a row it ended without having committed.
        uid: its pod's uid; "" if unknown.
        terminating: whether it has been asked to end (on Kubernetes: its pod has a deletionTimestamp).
        trouble: why it does not run or how it last ended, in words (`Unschedulable: ...`,
            `ImagePullBackOff`, `exit code 2: no module named flights`); "" if neither.
        pod: its pod's name, `flights-b-3`; "" if unknown.
        holder: the pod that it regards as the member: its own when it is in the group, else its predecessor;
            "" before it has reported one.
        standby_since_ms: since when it has been ready to take over; None if it is not.
        handed_over: whether it is in standby because its successor took over from it.
        can_hand_over: whether it has the key that signs requests to hand over.
        member_id: the member id of its last join, as it reports; "" before that.
        unwritten: how many partitions that it took over have no rows of it in the sink yet.
    """

    name: str
    alive: bool = False
    phase: str = ""
    revision: str = ""
    generation: int = -1
    leader: bool = False
    ended_ms: int | None = None
    running_since_ms: int | None = None
    lag: int | None = None
    waiting_since_ms: int | None = None
    failures: int = 0
    uid: str = ""
    terminating: bool = False
    trouble: str = ""
    pod: str = ""
    holder: str = ""
    standby_since_ms: int | None = None
    handed_over: bool = False
    can_hand_over: bool = True
    member_id: str = ""
    unwritten: int = 0

    @property
    def running(self) -> bool:
        """Whether it is in the group and processes records."""
        return self.alive and self.phase == "running"
