"""What a turn wants done, in order. Each action may be done twice without harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater_operator.model.names import PORT
from slackwater_operator.planner.snapshot import Manifest
from slackwater_operator.policies.scaling.decision import ScalingDecision


@dataclass(frozen=True)
class ApplyObject:
    """Server-side apply. A StatefulSet's manifest always carries `replicas`: left out, they become 1."""

    manifest: Manifest


@dataclass(frozen=True)
class SetReplicas:
    """Sets spec.replicas of a StatefulSet alone (and spec.ordinals.start), while its template must stay as it
    is.

    Attributes:
        name: the StatefulSet.
        uid: its uid: another one of the name is not touched.
        replicas: how many.
        start: the first pod's ordinal, in the same patch, so that no pod comes or goes but the one meant;
            None: it stays as it is.
    """

    name: str
    uid: str
    replicas: int
    start: int | None = None


@dataclass(frozen=True)
class CreateSecret:
    """Makes the group's takeover Secret with random bytes, if there is none. One that is there is never
    written, since pods may have its key.

    Attributes:
        name: the Secret.
    """

    name: str


@dataclass(frozen=True)
class TellTakeover:
    """Tells a standby to take over (POST /takeover, signed with the key of the group's takeover Secret).

    Attributes:
        pod: the standby's pod.
        uid: its uid: where the pod at hand is another by now, nobody is told.
        ip: its address.
        predecessor: "host:port" of the pod that it asks for the handover; "": there is nobody to ask.
        port: where the standby answers.
    """

    pod: str
    uid: str
    ip: str
    predecessor: str = ""
    port: int = PORT


@dataclass(frozen=True)
class DeleteObject:
    """Deletes an object, if it is still the one of that uid."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class DeletePod:
    """Deletes a worker's pod, if it is still the one of that uid.

    Attributes:
        name: the pod.
        uid: its uid.
        reason: why, for the log.
        grace_s: how long its process may take to end; None: as long as its template says.
    """

    name: str
    uid: str
    reason: str = ""
    grace_s: int | None = None


@dataclass(frozen=True)
class WriteStatus:
    """Writes the whole status. Where it fails, nothing that comes after it is done (write-ahead)."""

    status: Mapping[str, Any]


@dataclass(frozen=True)
class OpenGate:
    """Lets warm workers join, all together: (pod name, address, port)."""

    pods: tuple[tuple[str, str, int], ...]


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
    """Puts the ConsumerGroup's finalizers in place of those that it has."""

    finalizers: tuple[str, ...]


@dataclass(frozen=True)
class FillReplicas:
    """Writes the ConsumerGroup's spec.replicas where it has none: the API server answers a read of the scale
    subresource with an error as long as there is none, and so no HPA and no KEDA could begin.

    Attributes:
        replicas: how many.
    """

    replicas: int


@dataclass(frozen=True)
class EmitEvent:
    """Tells people, by a Kubernetes Event about the ConsumerGroup.

    Attributes:
        reason: one word in CamelCase.
        message: a sentence.
        warning: whether a person is needed.
    """

    reason: str
    message: str
    warning: bool = False


Action = (
    ApplyObject
    | SetReplicas
    | CreateSecret
    | TellTakeover
    | DeleteObject
    | DeletePod
    | WriteStatus
    | OpenGate
    | RemoveMembers
    | DeleteKafkaGroup
    | SetFinalizers
    | FillReplicas
    | EmitEvent
)


@dataclass(frozen=True)
class Plan:
    """What a turn wants done.

    Attributes:
        actions: in this order; one that fails ends the turn.
        status: the status as it should be then.
        needs_fresh: more would be done, but on a snapshot that was looked at for this very turn only.
        busy: something is under way: look at the workers, and again soon.
        settled: the group is as it should be, as far as this observation tells.
        unsettled: what keeps it from being settled, in words.
        step: the scaling step that begins, as (before, after).
        decision: the scaling decision.
        replicas: how many workers that decision was made from.
        unplanned: why the group rebalanced during a restart, without that being to blame; "".
        taken_over: how each takeover that is over by now went: `asked`, `forced` (nobody was there to ask, or
            did not answer), `restarted`; `fallback` for one that goes on by a restart; `stopped`.
        orphans: our own members of the group that no worker should be.
        wake_ms: when to look again at the latest (wall clock).
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
    orphans: tuple[str, ...] = ()
    wake_ms: int = 0
