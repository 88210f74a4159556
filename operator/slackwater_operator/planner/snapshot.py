"""Everything that a turn of a group looks at, as immutable values.

`gather` fills it; `turn` reads nothing else. What could not be found out is None, never zero or empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.api.v1alpha1.kafka import Kafka
from slackwater_operator.model import names
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.model.statefulsets import (
    Arrangement,
    Manifest as Manifest,
    StatefulSetSnapshot as StatefulSetSnapshot,
    arrange,
    members,
)
from slackwater_operator.model.worker_status import WorkerStatus
from slackwater_operator.planner.status_memory import Failed, Memory
from slackwater_operator.policies.membership.group_id import Contest, Sharing
from slackwater_operator.policies.resource_policies import rollout_policy
from slackwater_operator.policies.rollout.preflight import PreflightView
from slackwater_operator.policies.rollout.restarts import RolloutPolicy
from slackwater_operator.policies.scaling.decision import ScalingDecision
from slackwater_operator.policies.stalls import Stall
from slackwater_operator.policies.takeover.types import RESTART
from slackwater_operator.policies.topics import TopicChange
from slackwater_operator.specs.statefulset import Revision

STATEFULSET_REVISION_LABEL = "controller-revision-hash"
APPLIED = "slackwater.dev/applied"
"""Annotation of the objects that we apply: the hash of what we applied."""

GROUP_ID_IN_USE = "GroupIdInUse"
"""The reason of the condition Degraded where another ConsumerGroup has the group.id."""


@dataclass(frozen=True)
class PodSnapshot:
    """A worker's pod.

    Attributes:
        name: its name.
        uid: its uid: a pod that comes back under the name has another.
        member: its worker's group.instance.id, which a pod of another set may have, too; its own name where
            that is none of the group's.
        suffix: which of the group's sets (`names.SETS`) it is of.
        ordinal: its ordinal, -1 where its name has none.
        revision: the StatefulSet's revision it was made from (`controller-revision-hash`).
        template: the template's HASH (`slackwater.dev/revision`).
        phase: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        ready: its Ready condition.
        deleting: whether it has a deletionTimestamp.
        node_lost: whether the node controller says that nobody hears of its node: its Ready condition is
            False although the kubelet said last that its containers are ready.
        deleted_ms: when it should be gone at the latest (its deletionTimestamp, grace period included); None
            where it is not being deleted.
        evicted: whether it has the condition DisruptionTarget (an eviction, a drained node; Kubernetes 1.26).
        started: whether the container `worker` runs.
        restarts: how many times that container was started again in this pod.
        trouble: why that container waits (`CrashLoopBackOff`, `ImagePullBackOff`), or how it ended last; "".
        ended_ms: when that container ended last, None when it has not.
        ip: the pod's address, "" before it has one.
        node: where it is, "" before it is scheduled.
        can_hand_over: whether its template has the key with which it can be asked to hand over.
        port: where its worker answers.
    """

    name: str
    uid: str
    member: str = ""
    suffix: str = ""
    ordinal: int = -1
    revision: str = ""
    template: str = ""
    phase: str = "Pending"
    ready: bool = False
    deleting: bool = False
    node_lost: bool = False
    deleted_ms: int | None = None
    evicted: bool = False
    started: bool = False
    restarts: int = 0
    trouble: str = ""
    ended_ms: int | None = None
    ip: str = ""
    node: str = ""
    can_hand_over: bool = False
    port: int = names.PORT


@dataclass(frozen=True)
class JobSnapshot:
    """A preflight Job.

    Attributes:
        name: its name.
        uid: its uid.
        view: how far it is.
        deleting: whether it has a deletionTimestamp.
        attempt: how many Jobs have tried its revision, this one among them.
        retry: the value that the annotation slackwater.dev/retry had when it was made.
        failure: why the Job before it failed; "" where there was none.
        ended_ms: when it failed; None: it has not, or that is not known.
    """

    name: str
    uid: str
    view: PreflightView
    deleting: bool = False
    attempt: int = 1
    retry: str = ""
    failure: str = ""
    ended_ms: int | None = None


@dataclass(frozen=True)
class Measured:
    """What it takes several observations to tell; kept in memory by the controller.

    Attributes:
        scaling: what the automatic scaling decided on this observation; None where scaling is manual.
        scaling_memory: what of that must outlive the operator (`Autoscaler.dump`).
        produced_per_s: records produced to all partitions a second, None when not known.
        consumed_per_s: records committed a second, None when not known.
        capacity_per_s: what one worker can do a second, None when not known.
        stalls: what does not move.
        forced: why the broker may have made the group rebalance since the oldest restart under way began.
        sessions_since_ms: when the broker began all sessions anew, as far as was seen.
        topics_changed: what has changed about the topics since the oldest restart under way began; "".
        topic_changes: what has changed about the topics, and has not been told yet.
        unplanned: why the group rebalanced lately without us, a line each.
        kafka_away_ms: for how long the cluster has not answered; 0 when it does.
        kafka_problem: why it did not answer when it was asked last; "" when it did.
        unstable_for_ms: for how long the group has not been Stable; 0 when it is.
        settled_since_ms: since when the group has been settled, None when it is not.
        contest: which other ConsumerGroups have workers in the group, or had lately; None: none.
        alone_ms: for how long the group has had workers of this ConsumerGroup only; 0 when it has others.
    """

    scaling: ScalingDecision | None = None
    scaling_memory: Mapping[str, Any] = field(default_factory=dict)
    produced_per_s: float | None = None
    consumed_per_s: float | None = None
    capacity_per_s: float | None = None
    stalls: tuple[Stall, ...] = ()
    forced: str = ""
    sessions_since_ms: int = 0
    topics_changed: str = ""
    topic_changes: tuple[TopicChange, ...] = ()
    unplanned: tuple[str, ...] = ()
    kafka_away_ms: int = 0
    kafka_problem: str = ""
    unstable_for_ms: int = 0
    settled_since_ms: int | None = None
    contest: Contest | None = None
    alone_ms: int = 0


@dataclass(frozen=True)
class GroupSnapshot:
    """What a turn looks at.

    Attributes:
        now_ms: the time, wall clock.
        namespace: the group's namespace.
        name: the ConsumerGroup's name.
        uid: its uid.
        generation: its metadata.generation.
        annotations: its annotations.
        finalizers: its finalizers.
        deleting: whether it has a deletionTimestamp.
        deleted_ms: when that is; 0 where it has none.
        status: its status as it is now.
        memory: what that says of turns before.
        group: the resource, None when it cannot be read; `error` says why then.
        revision: what its workers should be started from; None when `group` is.
        pod_monitors: whether a PodMonitor is wanted and the API server knows the kind.
        live: by (kind, name) the objects that are there of those that are wanted, whoever owns them; of a
            ConfigMap only metadata. Also a StatefulSet under a name that is not wanted now, but may be.
        rivals: the ConsumerGroups of the namespace that are older, and may have a StatefulSet of the same
            name as this one may (`names.rivals`).
        running: what the workers reach Kafka with, which the group is looked at with, too: spec.kafka, or
            what it was as long as a pod or a StatefulSet has that.
        sharing: the other ConsumerGroups that name the same group.id on the same Kafka.
        cluster_id: Kafka's id of the cluster that they are on; "" when it is not known.
        next_id: Kafka's id of the cluster that spec.kafka leads to, where that is not `running`; "": it has
            not told.
        sharing_next: the same on the Kafka that spec.kafka leads to, where that is another than the workers
            have.
        sets: the group's StatefulSets by their suffix, without foreign ones: one at rest, two while its
            members are being taken over.
        secret: the resourceVersion of the takeover Secret; empty: there is none; None: not known, or not
            asked for.
        pods: its pods, in whatever state.
        not_created: by name the pods that a StatefulSet lacks, and why they cannot be created, where that is
            known.
        jobs: its preflight Jobs.
        configmaps: the names and uids of its ConfigMaps.
        workers: what its pods' workers said last, by pod name; None or absent: no answer.
        kafka: the newest observation; None when there is none that is new enough to go by.
        good_template: the pod template of the ControllerRevision that `status.rollout.good` names, if needed.
        measured: what several observations tell.
        unchanged: by (kind, name) the resourceVersion that applying left as it was, and what was applied (its
            hash): it looks different from what was applied, but applying it again would change nothing.
        fresh: whether pods, workers and Kafka were asked for this very turn. Who is stopped, or removed from
            the group, is decided on a fresh snapshot only.
        figures_due: whether figures in the status that change all the time may be written again.
        problems: what failed in the last turn's acts, as (reason, message).
    """

    now_ms: int
    namespace: str
    name: str
    uid: str
    generation: int
    memory: Memory
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    deleting: bool = False
    deleted_ms: int = 0
    status: Mapping[str, Any] = field(default_factory=dict)
    group: ConsumerGroup | None = None
    error: str = ""
    revision: Revision | None = None
    pod_monitors: bool = False
    live: Mapping[tuple[str, str], Manifest] = field(default_factory=dict)
    rivals: tuple[str, ...] = ()
    running: Kafka | None = None
    sharing: Sharing = field(default_factory=Sharing)
    cluster_id: str = ""
    next_id: str = ""
    sharing_next: Sharing = field(default_factory=Sharing)
    sets: Mapping[str, StatefulSetSnapshot] = field(default_factory=dict)
    secret: str | None = None
    pods: tuple[PodSnapshot, ...] = ()
    not_created: Mapping[str, str] = field(default_factory=dict)
    jobs: tuple[JobSnapshot, ...] = ()
    configmaps: Mapping[str, str] = field(default_factory=dict)
    workers: Mapping[str, WorkerStatus | None] = field(default_factory=dict)
    kafka: KafkaSnapshot | None = None
    good_template: Manifest | None = None
    measured: Measured = field(default_factory=lambda: Measured())
    unchanged: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    fresh: bool = False
    figures_due: bool = True
    problems: tuple[tuple[str, str], ...] = ()

    def jobs_of(self, revision: str) -> tuple[JobSnapshot, ...]:
        """The preflight Jobs that try a revision, by its template's hash; the newest last."""
        jobs = [job for job in self.jobs if job.name == names.preflight_job(self.name, revision, job.attempt)]
        return tuple(sorted(jobs, key=lambda job: job.attempt))

    @property
    def kafka_group(self) -> GroupView | None:
        """The group as the broker told it, None when it did not."""
        return self.kafka.group if self.kafka is not None else None

    @property
    def has_group_id(self) -> bool:
        """Whether this ConsumerGroup has used its group.id, and has not left it to another one.

        A CustomResourceDefinition of an older version keeps no status.kafka: there a rollout that went well
        and the last condition say it.
        """
        left = self.memory.conditions.get("Degraded", {}).get("reason") == GROUP_ID_IN_USE
        return self.memory.kafka is not None or (bool(self.memory.rollout.good) and not left)

    @property
    def own_members(self) -> frozenset[str]:
        """The instance ids of the group's members that are known to be workers of this ConsumerGroup."""
        return self._called_ours({self.uid})

    def member_ids(self, instance_ids: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """(instance id, observed member id) of those that are in Kafka's group."""
        group = self.kafka_group
        members = [group.member(instance_id) for instance_id in instance_ids] if group is not None else []
        return tuple((member.instance_id or "", member.member_id) for member in members if member is not None)

    @property
    def doubtful_members(self) -> frozenset[str]:
        """Those that are called as workers of this ConsumerGroup, but of which it is not known whose they
        are: of a version that does not say it, or seen in a rebalance only."""
        return self._called_ours({""})

    def _called_ours(self, owners: set[str]) -> frozenset[str]:
        assert self.group is not None
        members = self.kafka_group.members if self.kafka_group is not None else ()
        return frozenset(
            member.instance_id
            for member in members
            if member.instance_id is not None
            and member.owner in owners
            and self.group.ordinal(member.instance_id) is not None
        )

    @property
    def foreign_members(self) -> tuple[MemberView, ...]:
        """The Kafka group's members that are no workers of this ConsumerGroup, by their names or marks."""
        assert self.group is not None
        members = self.kafka_group.members if self.kafka_group is not None else ()
        ours = self.own_members | self.doubtful_members
        return tuple(
            member for member in members if member.instance_id is None or member.instance_id not in ours
        )

    @property
    def rollout_policy(self) -> RolloutPolicy:
        """spec.rollout; the annotation that pauses does so like spec.rollout.paused."""
        assert self.group is not None
        return rollout_policy(
            self.group, paused=str(self.annotations.get(names.PAUSED, "")).lower() == "true"
        )

    @cached_property
    def failed(self) -> Failed | None:
        """The template that failed, if that still counts.

        It counts while it is the wanted one and nobody has asked for another try; and while one of two sets
        has it, since the way back from it comes before all else.
        """
        failed = self.memory.rollout.failed
        if failed is None or self.revision is None:
            return None
        if failed.template == self.revision.hash:
            return failed if failed.retry == str(self.annotations.get(names.RETRY, "")) else None
        left = [statefulset.template for statefulset in self.sets.values()]
        return failed if len(left) > 1 and failed.template in left else None

    @cached_property
    def arrangement(self) -> Arrangement:
        """Which of the sets is filled (or at rest), and which is left."""
        moving = self.memory.rollout.moving
        return arrange(
            self.sets,
            wanted=self.revision.hash if self.revision is not None else "",
            failed=self.failed.template if self.failed is not None else "",
            filled=moving.to if moving is not None and moving.told_ms else "",
        )

    @property
    def statefulset(self) -> StatefulSetSnapshot | None:
        """The set at rest, or of two the one that is filled; None when there is none."""
        return self.arrangement.filled

    @property
    def replicas(self) -> int:
        """How many members there are to be now, whichever sets their pods are in."""
        count = members(self.sets)
        moving = self.memory.rollout.moving
        # The highest member is in neither set while it moves by a restart.
        away = moving is not None and moving.by == RESTART and moving.ordinal == count and len(self.sets) > 1
        return count + 1 if away else count

    def member_of(self, pod_name: str) -> str:
        """The member of one of the group's pods, by its name."""
        return names.member_of(self.name, pod_name)

    def pod_named(self, name: str) -> PodSnapshot | None:
        """The pod of this name."""
        return next((pod for pod in self.pods if pod.name == name), None)

    def pods_of(self, member: str) -> tuple[PodSnapshot, ...]:
        """The pods of this member, the one that serves it first."""
        return self._by_member.get(member, ())

    def pod(self, member: str) -> PodSnapshot | None:
        """The pod that serves this member, or should: there may be another one beside it."""
        return next(iter(self.pods_of(member)), None)

    def successor(self, member: str) -> PodSnapshot | None:
        """The other pod of this member: one that stands by, is on its way there, or was fenced."""
        return next(iter(self.pods_of(member)[1:]), None)

    @cached_property
    def _by_member(self) -> Mapping[str, tuple[PodSnapshot, ...]]:
        result: dict[str, list[PodSnapshot]] = {}
        for pod in self.pods:
            result.setdefault(pod.member, []).append(pod)
        return {member: self._serving_first(pods) for member, pods in result.items()}

    def _serving_first(self, pods: list[PodSnapshot]) -> tuple[PodSnapshot, ...]:
        """Who serves: who runs in the group (of two whom the broker knows, else who began to run later); else
        who is in it; else whom a standby calls so; else the pod of the set that is left."""
        if len(pods) == 1:
            return (pods[0],)
        statuses = {pod.name: self.worker(pod) for pod in pods}
        holders = {status.holder for status in statuses.values() if status is not None}
        held = self.kafka_group.member(pods[0].member) if self.kafka_group is not None else None
        if held is not None and not any(holders):
            holders.add(held.client_id)  # the first joiner's: it may have been taken over from since
        id_ = held.member_id if held is not None else ""
        left = self.arrangement.left

        def rank(pod: PodSnapshot) -> tuple[int, ...]:
            worker = statuses[pod.name]
            running = worker is not None and worker.running
            since = worker.running_since_ms or 0 if worker is not None and running else 0
            return (
                not running,
                not (id_ and worker is not None and worker.member_id == id_),
                -since,
                not (worker is not None and worker.is_member),
                pod.name not in holders,
                not (left is not None and pod.suffix == left.suffix),
            )

        return tuple(sorted(pods, key=rank))

    def silent(self, pod: PodSnapshot) -> bool:
        """Whether the worker in this pod was asked last for its status, and did not answer."""
        return pod.name in self.workers and self.workers[pod.name] is None

    def worker(self, pod: PodSnapshot) -> WorkerStatus | None:
        """What the worker in this pod said last; not what one before it under the name said."""
        status = self.workers.get(pod.name)
        return status if status is not None and status.uid == pod.uid else None


def time_ms(text: object) -> int | None:
    """A Kubernetes time (RFC 3339) in ms since 1970; None for anything else."""
    if not isinstance(text, str):
        return None
    try:
        return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        return None
