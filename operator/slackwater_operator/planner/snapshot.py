"""The snapshot of a group: everything that planning uses, as immutable values.

The controller builds it (`controller.snapshots`); the planner reads nothing else. A value that could not be
observed is None, never zero or empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.api.v1alpha1.spec.kafka import Kafka
from slackwater_operator.api.v1alpha1.status.group_status import GroupStatus
from slackwater_operator.api.v1alpha1.status.rollout import RESTART, Failed
from slackwater_operator.api.v1alpha1.status.scaling import ScalingStatus
from slackwater_operator.model import names
from slackwater_operator.model.group import GroupView, MemberView, Terms, terms, terms_of
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.model.statefulsets import (
    Arrangement,
    Manifest as Manifest,
    StatefulSetSnapshot as StatefulSetSnapshot,
    arrange,
    members,
)
from slackwater_operator.model.worker_status import WorkerStatus
from slackwater_operator.policies.job_runs import JobRun
from slackwater_operator.policies.membership.group_id import Contest, Sharing
from slackwater_operator.policies.resource_policies import rollout_policy
from slackwater_operator.policies.rollout.analysis import Measurement
from slackwater_operator.policies.rollout.preflight import PreflightView
from slackwater_operator.policies.rollout.restarts import RolloutPolicy
from slackwater_operator.policies.scaling.types import ScalingDecision
from slackwater_operator.policies.stalls import Stall
from slackwater_operator.policies.topics import TopicChange
from slackwater_operator.specs.statefulset import Revision

STATEFULSET_REVISION_LABEL = "controller-revision-hash"
APPLIED = "slackwater.dev/applied"
"""Annotation of the objects that the operator applies: the hash of the manifest."""

GROUP_ID_IN_USE = "GroupIdInUse"
"""The reason of the condition Degraded where another ConsumerGroup has the group.id."""


@dataclass(frozen=True)
class PodSnapshot:
    """A worker's pod.

    Attributes:
        name: its name.
        uid: its uid; a pod that is created again under the name has another one.
        member: its worker's group.instance.id, which a pod of another set may have as well; the pod's name
            if that is not one of the group's.
        suffix: the suffix (`names.SETS`) of its StatefulSet.
        ordinal: its ordinal; -1 if its name has none.
        revision: the StatefulSet's revision that it was created from (`controller-revision-hash`).
        template: the hash of its template (`slackwater.dev/revision`).
        phase: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        ready: its Ready condition.
        deleting: whether it has a deletionTimestamp.
        node_lost: whether the node controller reports its node as lost: its Ready condition is False
            although the kubelet last reported ready containers.
        deleted_ms: when it should be gone at the latest (its deletionTimestamp, which includes the grace
            period); None if it is not being deleted.
        evicted: whether it has the condition DisruptionTarget (an eviction, a drained node; Kubernetes
            1.26).
        started: whether the container `worker` runs.
        restarts: how often that container was restarted in this pod.
        held_up: why Kubernetes keeps that container, or its successor, from running, whatever the template
            (no node, no answer of the registry, an eviction, a finalizer); "" if it runs, or if nothing does.
        trouble: why the pod has no node, or that container waits (`CrashLoopBackOff`, `ImagePullBackOff`), or
            how it last ended; "" if neither.
        ended_ms: when that container last ended; None if it has not.
        ip: its address; "" before it has one.
        node: its node; "" before it is scheduled.
        can_hand_over: whether its template has the key with which it can be asked to hand over.
        port: the port of its worker's HTTP server.
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
    held_up: str = ""
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
        view: its progress or outcome.
        deleting: whether it has a deletionTimestamp.
        attempt: how many Jobs have tried its revision, including this one.
        retry: the value of the annotation slackwater.dev/retry when it was created.
        failure: why the previous Job failed; "" for the first one.
        ended_ms: when it failed; None if it has not, or if that is unknown.
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
class RevisionRecord:
    """A ConfigMap that keeps a revision's spec.

    Attributes:
        name: its name.
        uid: its uid.
        revision: the revision's hash.
        number: the revision's number; a later one has a larger number.
    """

    name: str
    uid: str
    revision: str
    number: int


@dataclass(frozen=True)
class Measured:
    """What the controller derives from several observations; kept in memory.

    Attributes:
        scaling: the automatic scaling's decision on this observation; None where scaling is manual.
        scaling_status: the part of its state that must outlive the operator (`Autoscaler.status`).
        produced_per_s: records produced to all partitions a second; None if unknown.
        consumed_per_s: records committed a second; None if unknown.
        capacity_per_s: records that one worker can process a second; None if unknown.
        lag_s: the age of the oldest record that is not committed, in seconds; None if unknown.
        stalls: lack of progress (`policies.stalls`).
        forced: why the broker may have caused a rebalance since the oldest restart in progress began.
        sessions_since_ms: when the broker was last observed to begin all sessions anew.
        topics_changed: changes of the topics since the oldest restart in progress began; "" without any.
        topic_changes: changes of the topics that have not been reported yet.
        unplanned: the causes of recent unplanned rebalances.
        kafka_away_ms: for how long the cluster has not responded; 0 when it does.
        kafka_problem: why it did not respond to the last request; "" when it did.
        unstable_for_ms: for how long the group has not been Stable; 0 when it is.
        settled_since_ms: since when the group has been settled; None when it is not.
        contest: other ConsumerGroups with workers in the group, now or recently; None without any.
        alone_ms: for how long the group has had workers of this ConsumerGroup only; 0 when it has others.
        analysis: the last measurement of the rollout's analysis; None without one.
    """

    scaling: ScalingDecision | None = None
    scaling_status: ScalingStatus = field(default_factory=ScalingStatus)
    produced_per_s: float | None = None
    consumed_per_s: float | None = None
    capacity_per_s: float | None = None
    lag_s: float | None = None
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
    analysis: Measurement | None = None


@dataclass(frozen=True)
class GroupSnapshot:
    """A group as it was observed.

    Attributes:
        now_ms: the time (wall clock, ms).
        namespace: the group's namespace.
        name: the ConsumerGroup's name.
        uid: its uid.
        generation: its metadata.generation.
        memory: what its status has stored (`parse_status`).
        annotations: its annotations.
        finalizers: its finalizers.
        owns_spec: whether the operator is a manager of fields of its spec.
        deleting: whether it has a deletionTimestamp.
        deleted_ms: its deletionTimestamp; 0 without one.
        status: its status.
        group: the resource; None if it is invalid, and `error` then has the reason.
        error: why the resource is invalid; "" if it is valid.
        revision: the revision that the spec asks for; None if `group` is None.
        pod_monitors: whether a PodMonitor is wanted and the API server has the kind.
        live: by (kind, name), the existing ones of the wanted objects, whoever owns them; of a ConfigMap
            only the metadata. Includes StatefulSets under names that may be wanted later.
        rivals: older ConsumerGroups of the namespace that may have a StatefulSet of the same name
            (`names.rivals`).
        running: the running workers' connection, which observations use as well: spec.kafka, or an earlier
            one as long as a pod or StatefulSet has it.
        sharing: the other ConsumerGroups that name the same group.id on the same Kafka cluster.
        cluster_id: the id of the workers' Kafka cluster; "" if unknown.
        next_id: the id of the Kafka cluster that spec.kafka names, where that is not `running`; "" if
            unknown.
        sharing_next: `sharing` on the cluster that spec.kafka names, where that is not the workers'.
        sets: the group's own StatefulSets by suffix: one, or two while members are being taken over.
        secret: the resourceVersion of the takeover Secret; "" if it does not exist; None if unknown or not
            requested.
        pods: its pods, in any state.
        not_created: by name, the pods that a StatefulSet lacks, and why they cannot be created, if known.
        jobs: its preflight Jobs.
        rewind_jobs: its Jobs of rewinds.
        rewind_pods: the names of the pods of these that have not ended, also where the Job is gone.
        maintenance_jobs: its Jobs of maintenance.
        maintenance_pods: as `rewind_pods`, of these.
        configmaps: the names and uids of its workers' ConfigMaps.
        revisions: the ConfigMaps that keep its revisions.
        workers: by pod name, the workers' last status; None or absent without a response.
        kafka: the newest observation; None if there is none that is recent enough.
        good_template: the pod template of the ControllerRevision that `status.rollout.good` names, if
            needed.
        measured: what several observations show.
        unchanged: by (kind, name), the resourceVersion that an apply did not change, and the hash of what
            was applied: the object differs from the manifest, but another apply would change nothing.
        fresh: whether pods, workers and Kafka were read for this reconciliation. Only a fresh snapshot
            permits to stop a worker or to remove a member.
        figures_due: whether figures in the status that change all the time may be written again.
        problems: what failed in the last reconciliation's actions, as (reason, message). Who executed them
            has posted an Event of each.
        troubles: the reasons of Degraded of the last reconciliation; None: there was none since the start.
    """

    now_ms: int
    namespace: str
    name: str
    uid: str
    generation: int
    memory: GroupStatus
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owns_spec: bool = False
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
    rewind_jobs: tuple[JobRun, ...] = ()
    rewind_pods: tuple[str, ...] = ()
    maintenance_jobs: tuple[JobRun, ...] = ()
    maintenance_pods: tuple[str, ...] = ()
    configmaps: Mapping[str, str] = field(default_factory=dict)
    revisions: tuple[RevisionRecord, ...] = ()
    workers: Mapping[str, WorkerStatus | None] = field(default_factory=dict)
    kafka: KafkaSnapshot | None = None
    good_template: Manifest | None = None
    measured: Measured = field(default_factory=lambda: Measured())
    unchanged: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    fresh: bool = False
    figures_due: bool = True
    problems: tuple[tuple[str, str], ...] = ()
    troubles: frozenset[str] | None = None

    def jobs_of(self, revision: str) -> tuple[JobSnapshot, ...]:
        """The preflight Jobs of a revision, by its template's hash; the newest last."""
        jobs = [job for job in self.jobs if job.name == names.preflight_job(self.name, revision, job.attempt)]
        return tuple(sorted(jobs, key=lambda job: job.attempt))

    @property
    def kafka_group(self) -> GroupView | None:
        """The group as the broker reported it; None if it did not respond."""
        return self.kafka.group if self.kafka is not None else None

    @property
    def terms(self) -> Terms:
        """What the group's numbers are called: as the broker described it, else by the spec."""
        if self.kafka_group is None and self.group is not None:
            return terms(consumer_protocol=self.group.spec.kafka.consumer_protocol)
        return terms_of(self.kafka_group)

    @property
    def session_timeout_ms(self) -> int:
        """The workers' session: session.timeout.ms; by the consumer protocol that of the group's configs, and
        Kafka's default where that is not known."""
        assert self.group is not None
        if self.group.spec.kafka.consumer_protocol and self.kafka is not None:
            return self.kafka.session_timeout_ms or self.group.session_timeout_ms
        return self.group.session_timeout_ms

    @property
    def has_group_id(self) -> bool:
        """Whether this ConsumerGroup has used its group.id, and has not left it to another one.

        The CustomResourceDefinition of an older version does not keep status.kafka. A completed rollout and
        the last condition show it there.
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
        """Instance ids that have the form of this ConsumerGroup's, of members whose owner is unknown.

        Workers of older versions do not report their owner, and DescribeGroups does not show it during a
        rebalance.
        """
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
        """The Kafka group's members that are not workers of this ConsumerGroup, by their names or owners."""
        assert self.group is not None
        members = self.kafka_group.members if self.kafka_group is not None else ()
        ours = self.own_members | self.doubtful_members
        return tuple(
            member for member in members if member.instance_id is None or member.instance_id not in ours
        )

    @property
    def rollout_policy(self) -> RolloutPolicy:
        """spec.rollout; the annotation slackwater.dev/paused has the effect of spec.rollout.paused."""
        assert self.group is not None
        return rollout_policy(
            self.group,
            paused=str(self.annotations.get(names.PAUSED, "")).lower() == "true",
            session_timeout_ms=self.session_timeout_ms,
        )

    @cached_property
    def failed(self) -> Failed | None:
        """The failed template, while the failure still counts.

        It counts while that template is the wanted one and no retry was requested, and while one of two
        StatefulSets has it, since the rollback comes first.
        """
        failed = self.memory.rollout.failed
        if failed is None or self.revision is None:
            return None
        if failed.template == self.revision.hash:
            return failed if failed.retry == str(self.annotations.get(names.RETRY, "")) else None
        templates = [statefulset.template for statefulset in self.sets.values()]
        return failed if len(templates) > 1 and failed.template in templates else None

    @cached_property
    def arrangement(self) -> Arrangement:
        """Which StatefulSet is the target (or the only one), and which is the source."""
        moving = self.memory.rollout.moving
        return arrange(
            self.sets,
            wanted=self.revision.hash if self.revision is not None else "",
            failed=self.failed.template if self.failed is not None else "",
            taking_over=moving.to if moving is not None and moving.told_ms else "",
        )

    @property
    def statefulset(self) -> StatefulSetSnapshot | None:
        """The only StatefulSet, or of two the target; None without any."""
        return self.arrangement.target

    @property
    def replicas(self) -> int:
        """The number of members that the StatefulSets have now."""
        count = members(self.sets)
        moving = self.memory.rollout.moving
        # The highest member is in neither set while it moves by a restart.
        away = moving is not None and moving.by == RESTART and moving.ordinal == count and len(self.sets) > 1
        return count + 1 if away else count

    def member_of(self, pod_name: str) -> str:
        """The member of one of the group's pods, by the pod's name."""
        return names.member_of(self.name, pod_name)

    def pod_named(self, name: str) -> PodSnapshot | None:
        """The pod of this name."""
        return next((pod for pod in self.pods if pod.name == name), None)

    def pods_of(self, member: str) -> tuple[PodSnapshot, ...]:
        """The pods of this member; the one that serves it comes first."""
        return self._by_member.get(member, ())

    def pod(self, member: str) -> PodSnapshot | None:
        """The pod that serves this member, or should; a second one may exist."""
        return next(iter(self.pods_of(member)), None)

    def successor(self, member: str) -> PodSnapshot | None:
        """The second pod of this member: it stands by, is about to, or was fenced."""
        return next(iter(self.pods_of(member)[1:]), None)

    @cached_property
    def _by_member(self) -> Mapping[str, tuple[PodSnapshot, ...]]:
        result: dict[str, list[PodSnapshot]] = {}
        for pod in self.pods:
            result.setdefault(pod.member, []).append(pod)
        return {member: self._serving_first(pods) for member, pods in result.items()}

    def _serving_first(self, pods: list[PodSnapshot]) -> tuple[PodSnapshot, ...]:
        """The pods in this order: running in the group (of two, the one that the broker knows, else the one
        that began to run later); in the group; named as the holder by a standby; waiting to join as a new
        member, since only the first is let in; the pod of the source StatefulSet."""
        if len(pods) == 1:
            return (pods[0],)
        statuses = {pod.name: self.worker(pod) for pod in pods}
        holders = {status.holder for status in statuses.values() if status is not None}
        held = self.kafka_group.member(pods[0].member) if self.kafka_group is not None else None
        if held is not None and not any(holders):
            holders.add(held.client_id)  # the first joiner's: it may have been taken over from since
        id_ = held.member_id if held is not None else ""
        source = self.arrangement.source

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
                not (worker is not None and worker.waiting_since_ms is not None),
                not (source is not None and pod.suffix == source.suffix),
            )

        return tuple(sorted(pods, key=rank))

    def silent(self, pod: PodSnapshot) -> bool:
        """Whether the worker in this pod did not respond to the last request for its status."""
        return pod.name in self.workers and self.workers[pod.name] is None

    def worker(self, pod: PodSnapshot) -> WorkerStatus | None:
        """The last status of the worker in this pod; not that of an earlier pod of the same name."""
        status = self.workers.get(pod.name)
        return status if status is not None and status.uid == pod.uid else None
