"""What the decisions look at: the group as the broker describes it, and the workers."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.kafka.group_states import DEAD, EMPTY, REBALANCING, STABLE
from slackwater.kafka.structs import TopicPartition


@dataclass(frozen=True)
class MemberView:
    """A member of the group.

    Attributes:
        member_id: Kafka's id of this incarnation: another one with each process that joins anew.
        instance_id: group.instance.id, None for a dynamic member.
        partitions: what the leader assigned it.
        synced: whether it has its assignment of the current generation; only Stable says so for sure.
        client_id: the client.id of the first process that joined under this instance id (of a worker its
            pod's name); "" when not known. Whoever takes over keeps it, as long as the group knows the member
            (seen with Kafka 4.3): it names the predecessor then. So it says who is the member only while
            nobody else says anything; `member_id` tells it for sure.
        host: the address that it last joined from, as the broker shows it (`/10.1.2.3`); "" when not known.
        owner: the uid of the ConsumerGroup that started it (`membership.ownership`); "" when not known.
        topics: the topics that it has subscribed to; None when not known (during a rebalance, for instance).
    """

    member_id: str
    instance_id: str | None
    partitions: frozenset[TopicPartition]
    synced: bool
    client_id: str = ""
    host: str = ""
    owner: str = ""
    topics: frozenset[str] | None = None


@dataclass(frozen=True)
class GroupView:
    """The group as DescribeGroups shows it.

    Attributes:
        state: `Stable`, `PreparingRebalance`, `CompletingRebalance`, `Empty` or `Dead`.
        members: its members.
        assignor: the assignor that the members have agreed on (`cooperative-sticky`); "" when not known.
    """

    state: str
    members: tuple[MemberView, ...] = ()
    assignor: str = ""

    @property
    def stable(self) -> bool:
        """Whether it has members, and no rebalance is going on."""
        return self.state == STABLE

    @property
    def rebalancing(self) -> bool:
        """Whether a rebalance is going on."""
        return self.state in REBALANCING

    @property
    def memberless(self) -> bool:
        """Whether nobody is in it."""
        return self.state in (EMPTY, DEAD)

    @property
    def instance_ids(self) -> frozenset[str]:
        """The static members' instance ids."""
        return frozenset(member.instance_id for member in self.members if member.instance_id is not None)

    def member(self, instance_id: str) -> MemberView | None:
        """The static member of this instance id."""
        return next((member for member in self.members if member.instance_id == instance_id), None)


@dataclass(frozen=True)
class WorkerView:
    """A worker: a process here, a pod on Kubernetes.

    Attributes:
        name: its group.instance.id.
        alive: whether its process runs.
        phase: as it says itself (docs/worker.md, "HTTP"); "" when it has said nothing yet.
        revision: the revision that it was started with: a number here, a template's hash on Kubernetes; "":
            not known.
        generation: the group generation that it joined last, -1 before.
        leader: whether it leads the group, as far as it knows.
        ended_ms: when its last process ended, None before that.
        running_since_ms: since when its process has been running (in the group), None when it is not.
        lag: how many records its partitions are behind, None when that is not known.
        waiting_since_ms: since when it has been warm and waiting to join, None when it is not.
        failures: how many times in a row it ended without having committed anything.
        uid: which incarnation this is: the pod's uid; "" where there is none to tell by.
        terminating: whether it has been asked to end (on Kubernetes: its pod has a deletionTimestamp).
        trouble: why it does not run or how it ended last, in words (`Unschedulable: ...`, `ImagePullBackOff`,
            `exit code 2: no module named flights`); "".
        pod: its pod's name, `flights-b-3`; "" when not known.
        holder: the pod that it sees as the member: its own when it is in the group, else its predecessor;
            "" when it has not said.
        standby_since_ms: since when it has been ready to take over, None when it is not.
        handed_over: whether it is in standby because its successor took over from it.
        can_hand_over: whether it has the key that requests to hand over are signed with.
        member_id: Kafka's id of it as it joined last, as it says itself; "" when it has not said.
    """

    name: str
    alive: bool
    phase: str
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

    @property
    def running(self) -> bool:
        """Whether it is in the group and handles records."""
        return self.alive and self.phase == "running"
