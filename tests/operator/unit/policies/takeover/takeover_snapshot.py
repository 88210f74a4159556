"""A small world for the takeover decision: a group coordinator, two sets of pods, in virtual time.

It does what a broker, the StatefulSet controller and the workers do as far as the decision can tell: a static
member that joins a Stable group keeps the generation and fences its predecessor, a session that ends
rebalances the group, a standby takes over when told, and a predecessor that handed over takes back when its
successor is gone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from slackwater_operator.model.group import GroupView, MemberView, WorkerView
from slackwater_operator.model.statefulsets import Ordinals
from slackwater_operator.policies.takeover.decision import SetView, TakeoverMember

TICK_MS = 500
SESSION_MS = 45_000
REBALANCE_MS = 2_000
DEADLINE_MS = 20_000
TAKE_BACK_MS = 11_000
DRAIN_MS = 1_500


@dataclass(frozen=True)
class Revision:
    """What a set's pods are made from.

    Attributes:
        kind: `good`; `crashes` while it warms up; `fails` soon after it runs; `slow`: is never warm; `stuck`:
            its image cannot be pulled.
        keyed: whether it has the key for takeovers.
        warm_ms: how long it warms up.
    """

    kind: str = "good"
    keyed: bool = True
    warm_ms: int = 4_000


@dataclass
class Member:
    """A static member as the coordinator has it.

    `client` is the pod that is it, which workers find in the commit notes; DescribeGroups shows `first`, the
    one that joined before all others.
    """

    id: int
    client: str
    heartbeat_ms: int
    first: str


@dataclass
class Pod:
    """A pod and the worker in it; `member_id` is what it believes to be."""

    name: str
    set_name: str
    ordinal: int
    revision: Revision
    uid: int
    alive: bool = False
    phase: str = ""
    until_ms: int = 0
    member_id: int | None = None
    generation: int = -1
    knows: str = ""
    predecessor: str | None = None
    handed_over: bool = False
    answered: bool = False
    failures: int = 0
    ended_ms: int | None = None
    running_since_ms: int | None = None
    standby_since_ms: int | None = None
    ending_ms: int | None = None
    hung_until_ms: int = 0
    peer_gone_ms: int | None = None

    @property
    def serves(self) -> bool:
        """Whether it is a member, as far as it knows, and handles records."""
        return self.holds and self.phase != "draining"

    @property
    def holds(self) -> bool:
        """Whether it is a member, as far as it knows, and has records in its hands."""
        busy = ("running", "handing-over", "draining")
        return self.alive and self.member_id is not None and self.phase in busy


@dataclass
class Group:
    """The coordinator."""

    now_ms: int = 0
    generation: int = 1
    members: dict[str, Member] = field(default_factory=dict)
    stable_at_ms: int = 0
    rebalances: int = 0
    ids: int = 0

    @property
    def stable(self) -> bool:
        return self.now_ms >= self.stable_at_ms

    def join(self, name: str, client: str) -> int:
        """A static member joins with an empty member id: its predecessor is fenced at once."""
        self.ids += 1
        known = name in self.members
        first = self.members[name].first if known else client
        self.members[name] = Member(self.ids, client, self.now_ms, first)
        if not known:
            self.rebalance()
        return self.ids

    def rebalance(self) -> None:
        if self.stable:
            self.generation += 1
            self.rebalances += 1
        self.stable_at_ms = self.now_ms + REBALANCE_MS

    def tick(self) -> None:
        late = [
            name for name, member in self.members.items() if self.now_ms - member.heartbeat_ms > SESSION_MS
        ]
        for name in late:
            del self.members[name]
        if late:
            self.rebalance()


class World:
    """The sets, their pods and the group.

    Attributes:
        sets: by name; who takes the steps changes them as it would patch StatefulSets.
        revisions: by set's name.
        room: how many pods there is room for.
        unserved_ms: by member, for how long nobody has served it.
        worst_ms: by member, the longest such time.
    """

    def __init__(self, rng: random.Random, members: int, old: Revision, new: Revision, *, room: int) -> None:
        self.rng, self.members, self.room = rng, members, room
        self.now_ms, self._uid = 1_000_000, 0
        self.sets = {"f-a": SetView("f-a", Ordinals(0, members)), "f-b": SetView("f-b")}
        self.revisions = {"f-a": old, "f-b": new}
        self.group = Group(now_ms=self.now_ms)
        self.pods: dict[str, Pod] = {}
        self.unserved_ms: dict[str, int] = {}
        self.worst_ms: dict[str, int] = {}
        for ordinal in range(members):
            pod = self._create("f-a", ordinal)
            pod.alive, pod.phase, pod.generation = True, "running", 1
            pod.running_since_ms, pod.member_id = self.now_ms, self.group.join(f"f-{ordinal}", pod.name)
        self.group.generation, self.group.stable_at_ms, self.group.rebalances = 1, 0, 0

    # -- as others see it

    def takeover_members(self, old: str, new: str, blind: float = 0.0) -> list[TakeoverMember]:
        """The members; each pod's answer is missing with the probability `blind`."""
        return [
            TakeoverMember(
                number, f"f-{number}", self._view(old, number, blind), self._view(new, number, blind)
            )
            for number in range(self.members)
        ]

    def group_view(self) -> GroupView:
        """What DescribeGroups says."""
        state = "Stable" if self.group.stable else "PreparingRebalance"
        synced = self.group.stable
        views = [
            MemberView(str(member.id), name, frozenset(), synced, member.first)
            for name, member in self.group.members.items()
        ]
        return GroupView(state if views else "Empty", tuple(views))

    def server(self, name: str) -> Pod | None:
        """The pod that serves a member in truth: it is the member, and works."""
        holder = self.holder(name)
        return holder if holder is not None and holder.serves else None

    def holder(self, name: str) -> Pod | None:
        """The pod that is a member in truth, and has records in its hands."""
        member = self.group.members.get(name)
        pods = (self.pods.get(f"{set_name}-{name[2:]}") for set_name in self.sets)
        return next(
            (pod for pod in pods if pod and pod.holds and member and pod.member_id == member.id), None
        )

    def _view(self, set_name: str, ordinal: int, blind: float) -> WorkerView | None:
        pod = self.pods.get(f"{set_name}-{ordinal}")
        if pod is None:
            return None
        silent = pod.hung_until_ms > self.now_ms or (blind > 0 and self.rng.random() < blind)
        known = pod.alive and not silent
        trouble = "" if pod.alive else "exit code 1" if pod.ended_ms else self._waits(pod)
        return WorkerView(
            f"f-{ordinal}",
            pod.alive,
            pod.phase if known else "",
            generation=pod.generation if known and pod.member_id is not None else -1,
            ended_ms=pod.ended_ms,
            running_since_ms=pod.running_since_ms if known and pod.phase == "running" else None,
            lag=0 if known else None,
            failures=pod.failures,
            uid=str(pod.uid),
            terminating=pod.ending_ms is not None,
            trouble=trouble,
            pod=pod.name,
            standby_since_ms=pod.standby_since_ms if known and pod.phase == "standby" else None,
            handed_over=pod.handed_over,
            can_hand_over=pod.revision.keyed,
            member_id=str(pod.member_id) if known and pod.member_id is not None else "",
        )

    def _waits(self, pod: Pod) -> str:
        return (
            "ImagePullBackOff" if pod.revision.kind == "stuck" else "Unschedulable: 0/3 nodes are available"
        )

    # -- what happens to it

    def tell(self, pod: Pod, predecessor: str) -> None:
        """POST /takeover."""
        if pod.alive and pod.hung_until_ms <= self.now_ms and pod.phase in ("warming", "standby"):
            pod.predecessor = predecessor

    def crash(self, pod: Pod, *, failed: bool = True) -> None:
        """Its process ends, and is started again in a while."""
        pod.alive, pod.phase, pod.member_id, pod.generation = False, "", None, -1
        pod.predecessor, pod.handed_over, pod.answered = None, False, False
        pod.failures += failed
        pod.ended_ms, pod.until_ms = self.now_ms, self.now_ms + min(1_000 * 2**pod.failures, 8_000)

    def forget_member(self, name: str) -> None:
        """A coordinator that moved knows the former incarnation again: the wrongful fence."""
        member = self.group.members.get(name)
        if member is not None:
            other = [
                pod for pod in self.pods.values() if f"f-{pod.ordinal}" == name and pod.name != member.client
            ]
            member.id -= 1
            member.client = other[0].name if other else member.client

    def tick(self) -> None:
        """Half a second."""
        self.now_ms += TICK_MS
        self.group.now_ms = self.now_ms
        self._controller()
        for pod in list(self.pods.values()):
            if pod.ending_ms is not None:
                self._end(pod)
            elif not pod.alive:
                self._start(pod)
            elif pod.hung_until_ms <= self.now_ms:
                self._heartbeat(pod)
                if pod.alive:
                    self._work(pod)
        self.group.tick()
        for number in range(self.members):
            name = f"f-{number}"
            unserved = 0 if self.server(name) else self.unserved_ms.get(name, 0) + TICK_MS
            self.unserved_ms[name] = unserved
            self.worst_ms[name] = max(unserved, self.worst_ms.get(name, 0))

    # -- the StatefulSet controller and the kubelet

    def _controller(self) -> None:
        for name, view in self.sets.items():
            for ordinal in view.ordinals:
                if f"{name}-{ordinal}" not in self.pods and self.rng.random() < 0.8:
                    self._create(name, ordinal)
        for pod in self.pods.values():
            if pod.ordinal not in self.sets[pod.set_name].ordinals and pod.ending_ms is None:
                pod.ending_ms = self.now_ms

    def _create(self, set_name: str, ordinal: int) -> Pod:
        self._uid += 1
        pod = Pod(f"{set_name}-{ordinal}", set_name, ordinal, self.revisions[set_name], self._uid)
        self.pods[pod.name] = pod
        return pod

    def _start(self, pod: Pod) -> None:
        taken = sum(pod.alive or pod.ended_ms is not None for pod in self.pods.values())
        fits = pod.ended_ms is not None or taken < self.room
        if pod.revision.kind != "stuck" and fits and self.now_ms >= pod.until_ms:
            pod.alive, pod.phase, pod.knows = True, "starting", ""
            pod.until_ms = self.now_ms + 500 * self.rng.randint(1, 4)

    def _end(self, pod: Pod) -> None:
        """SIGTERM: a member drains first; nobody leaves the group."""
        if pod.member_id is not None and pod.alive and pod.phase != "draining":
            pod.phase, pod.until_ms = "draining", self.now_ms + DRAIN_MS
        if pod.phase == "draining" and self.now_ms < pod.until_ms:
            return
        del self.pods[pod.name]

    # -- the worker

    def _heartbeat(self, pod: Pod) -> None:
        if pod.member_id is None:
            return
        name = f"f-{pod.ordinal}"
        member = self.group.members.get(name)
        if member is None:
            self._join(pod)  # its session had ended
        elif member.id != pod.member_id:
            pod.member_id, pod.generation, pod.running_since_ms = None, -1, None
            if pod.revision.keyed and pod.phase != "warming":
                pod.phase, pod.handed_over, pod.knows = "standby", True, "successor"
                pod.standby_since_ms, pod.peer_gone_ms, pod.predecessor = self.now_ms, None, None
            else:
                self.crash(pod, failed=False)
        else:
            member.heartbeat_ms = self.now_ms
            if self.group.stable:
                pod.generation = self.group.generation

    def _join(self, pod: Pod) -> None:
        pod.member_id = self.group.join(f"f-{pod.ordinal}", pod.name)
        pod.predecessor, pod.handed_over, pod.answered = None, False, False
        if pod.phase != "warming":
            pod.phase = "joining"

    def _work(self, pod: Pod) -> None:
        kind = pod.revision.kind
        if pod.phase == "starting" and self.now_ms >= pod.until_ms:
            self._find_place(pod)
        elif pod.phase == "warming":
            if pod.predecessor == "" and pod.member_id is None:
                self._join(pod)  # nobody is there to ask: it warms up after
            if self.now_ms >= pod.until_ms and kind == "crashes":
                self.crash(pod)
            elif self.now_ms >= pod.until_ms and kind != "slow":
                self._warm(pod)
        elif pod.phase == "warm" and self.group.stable:
            self._join(pod)  # the gate
        elif pod.phase == "standby":
            self._stand_by(pod)
        elif pod.phase == "taking-over":
            self._take_over(pod)
        elif pod.phase == "joining" and self.group.stable:
            pod.phase, pod.running_since_ms = "running", self.now_ms
        elif pod.phase == "handing-over":
            self._hand_over(pod)
        elif pod.serves and kind == "fails" and self.now_ms - (pod.running_since_ms or 0) >= 2_000:
            self.crash(pod)

    def _find_place(self, pod: Pod) -> None:
        member = self.group.members.get(f"f-{pod.ordinal}")
        pod.phase, pod.until_ms = "warming", self.now_ms + pod.revision.warm_ms
        if member is None:
            pod.knows = "new"
        elif member.client == pod.name or not pod.revision.keyed:
            pod.knows = "returning"
            self._join(pod)
        else:
            pod.knows = "successor"

    def _warm(self, pod: Pod) -> None:
        if pod.member_id is not None:
            pod.phase = "joining"
        elif pod.knows == "new":
            pod.phase = "warm"
        else:
            pod.phase, pod.standby_since_ms = "standby", self.now_ms

    def _peer(self, pod: Pod) -> Pod | None:
        other = "f-b" if pod.set_name == "f-a" else "f-a"
        return self.pods.get(f"{other}-{pod.ordinal}")

    def _stand_by(self, pod: Pod) -> None:
        peer = self._peer(pod)
        if f"f-{pod.ordinal}" not in self.group.members:
            pod.phase, pod.knows = "warm", "new"
        elif pod.predecessor == "":
            self._join(pod)
        elif pod.predecessor:
            pod.phase, pod.until_ms = "taking-over", self.now_ms + DEADLINE_MS
        elif pod.handed_over and (peer is None or not peer.alive or peer.hung_until_ms > self.now_ms):
            pod.peer_gone_ms = pod.peer_gone_ms or self.now_ms
            if self.now_ms - pod.peer_gone_ms >= TAKE_BACK_MS:
                self._join(pod)
        else:
            pod.peer_gone_ms = None

    def _take_over(self, pod: Pod) -> None:
        peer = self._peer(pod)
        if not self.group.stable:
            if self.now_ms >= pod.until_ms:
                pod.phase, pod.predecessor, pod.standby_since_ms = "standby", None, self.now_ms
        elif peer is None or not peer.alive or self.now_ms >= pod.until_ms:
            self._join(pod)
        elif peer.hung_until_ms > self.now_ms:
            pass
        elif peer.phase == "running":
            peer.phase, peer.until_ms, peer.answered = "handing-over", self.now_ms + DRAIN_MS, False
        elif peer.phase == "handing-over":
            if peer.answered:
                self._join(pod)
        else:
            pod.phase, pod.predecessor, pod.standby_since_ms = "standby", None, self.now_ms  # 409

    def _hand_over(self, pod: Pod) -> None:
        peer = self._peer(pod)
        if self.now_ms >= pod.until_ms:
            pod.answered = True
        asks = peer is not None and peer.alive and peer.phase in ("taking-over", "joining")
        if not asks and self.now_ms >= pod.until_ms + 3_000:
            pod.phase, pod.answered, pod.running_since_ms = "running", False, self.now_ms
