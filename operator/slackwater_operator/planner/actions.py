"""The actions of a plan, in the order in which they are carried out. Each is idempotent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater_operator.model.names import PORT
from slackwater_operator.planner.snapshot import Manifest
from slackwater_operator.policies.scaling.types import ScalingDecision


@dataclass(frozen=True)
class ApplyObject:
    """Server-side apply. A StatefulSet's manifest always contains `replicas`: an apply without it resets it
    to 1."""

    manifest: Manifest


@dataclass(frozen=True)
class SetReplicas:
    """Sets only spec.replicas (and spec.ordinals.start) of a StatefulSet whose template must not change.

    Attributes:
        name: the StatefulSet.
        uid: its uid; a StatefulSet of that name with another uid is not changed.
        replicas: the number of pods.
        start: the first pod's ordinal, in the same patch, so that only the intended pod starts or stops; None
            leaves it as it is.
    """

    name: str
    uid: str
    replicas: int
    start: int | None = None


@dataclass(frozen=True)
class CreateSecret:
    """Creates the group's takeover Secret with random bytes, unless it exists. An existing one is never
    written, since pods may have its key.

    Attributes:
        name: the Secret.
    """

    name: str


@dataclass(frozen=True)
class RequestTakeover:
    """Tells a standby to take over (POST /takeover, signed with the key of the group's takeover Secret).

    Attributes:
        pod: the standby's pod.
        uid: its uid; if the pod of that name has another uid by now, no request is sent.
        ip: its address.
        predecessor: "host:port" of the pod that the standby asks to hand over; "" if there is none to ask.
        port: the port of the standby's HTTP server.
    """

    pod: str
    uid: str
    ip: str
    predecessor: str = ""
    port: int = PORT


@dataclass(frozen=True)
class DeleteObject:
    """Deletes an object, if its uid is still the same."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class DeletePod:
    """Deletes a worker's pod, if its uid is still the same.

    Attributes:
        name: the pod.
        uid: its uid.
        reason: the reason, for the log.
        grace_s: how long its process may take to end, in seconds; None for the template's grace period.
    """

    name: str
    uid: str
    reason: str = ""
    grace_s: int | None = None


@dataclass(frozen=True)
class WriteStatus:
    """Writes the whole status. If that fails, the later actions are not carried out (write-ahead)."""

    status: Mapping[str, Any]


@dataclass(frozen=True)
class OpenGate:
    """Permits warm workers to join, all at once: (pod name, address, port) of each."""

    pods: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class AnnounceRebalance:
    """Announces to members of the consumer protocol that others join or leave now: they hear of it with their
    next heartbeats, which are close together from then on.

    Attributes:
        pods: (pod name, address, port) of each member that stays.
        leaving: the same of those whose pods a smaller number of workers removes. They leave the group when
            they have drained, and not only when their pods are gone.
    """

    pods: tuple[tuple[str, str, int], ...]
    leaving: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True)
class RemoveMembers:
    """Removes static members from Kafka's group by one LeaveGroup.

    Attributes:
        instance_ids: their group.instance.ids.
        member_ids: (group.instance.id, member id) as observed. A process that has joined since under the same
            group.instance.id has another member id and is not removed.
    """

    instance_ids: tuple[str, ...]
    member_ids: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DeleteKafkaGroup:
    """Deletes Kafka's group with its offsets (spec.deletionPolicy: Delete)."""


@dataclass(frozen=True)
class SetFinalizers:
    """Replaces the ConsumerGroup's finalizers."""

    finalizers: tuple[str, ...]


@dataclass(frozen=True)
class AdoptObject:
    """Makes the ConsumerGroup the owner of an object that a deleted one of the same name has left over.

    Attributes:
        api_version: of the object.
        kind: of the object.
        name: of the object.
        uid: of the object.
        former: the deleted ConsumerGroup's uid, which the object's workers tell Kafka; "" where it has none.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    former: str = ""


@dataclass(frozen=True)
class FillReplicas:
    """Writes the ConsumerGroup's spec.replicas where it is not set.

    Without it the API server answers a read of the scale subresource with an error, and neither an HPA nor
    KEDA can start. The number stays nobody's (`ReleaseSpec`).

    Attributes:
        replicas: the number of workers.
    """

    replicas: int


@dataclass(frozen=True)
class ReleaseSpec:
    """Gives up the operator's part in managing the ConsumerGroup's spec.

    A field that has a manager is a conflict for a server-side apply of another value.
    """


@dataclass(frozen=True)
class EmitEvent:
    """Emits a Kubernetes Event about the ConsumerGroup.

    Attributes:
        reason: one word in CamelCase.
        message: a sentence.
        warning: whether somebody has to act.
    """

    reason: str
    message: str
    warning: bool = False


Action = (
    ApplyObject
    | AdoptObject
    | SetReplicas
    | CreateSecret
    | RequestTakeover
    | DeleteObject
    | DeletePod
    | WriteStatus
    | OpenGate
    | AnnounceRebalance
    | RemoveMembers
    | DeleteKafkaGroup
    | SetFinalizers
    | FillReplicas
    | ReleaseSpec
    | EmitEvent
)


@dataclass(frozen=True)
class Plan:
    """The result of planning one group.

    Attributes:
        actions: what to do, in this order; an action that fails ends the reconciliation.
        status: the status to write.
        needs_fresh: whether more would be done on a snapshot that was read for this reconciliation.
        busy: whether something is in progress, so that workers are polled and the group is planned again
            soon.
        settled: whether the group is settled, as far as this observation shows.
        unsettled: why it is not, in words; "" when it is.
        step: the scaling step that begins, as (before, after).
        decision: the scaling decision.
        replicas: the number of workers that the decision started from.
        unplanned: why the group rebalanced during a restart without the restart being the cause; "" if it did
            not.
        taken_over: the result of each takeover that has ended: `asked`, `forced` (there was no predecessor to
            ask, or it did not respond), `restarted`, `fallback` for one that continues by a restart, or
            `stopped`.
        troubles: the reasons of Degraded.
        orphans: members of the group that belong to this ConsumerGroup but to none of its wanted workers.
        away: which worker does not respond or fails, and what is known of it, in words; "" if none does.
        wake_ms: when to plan again at the latest (wall clock, ms).
    """

    actions: tuple[Action, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    needs_fresh: bool = False
    busy: bool = False
    settled: bool = False
    unsettled: str = ""
    step: tuple[int, int] | None = None
    decision: ScalingDecision | None = None
    replicas: int | None = None
    unplanned: str = ""
    taken_over: tuple[str, ...] = ()
    troubles: frozenset[str] = frozenset()
    orphans: tuple[str, ...] = ()
    away: str = ""
    wake_ms: int = 0
