"""State that the ConsumerGroup's status stores between reconciliations, and that outlives the operator.

Users with permission may write anything into a status. `parse` therefore takes valid values, ignores invalid
ones, and raises nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.status_schema import SKIPS_KEPT
from slackwater_operator.model.status_values import mapping, objects, text, whole
from slackwater_operator.model.worker_status import Skip
from slackwater_operator.planner.rewind.memory import RewindMemory, parse_rewind
from slackwater_operator.planner.rollout.step_memory import dump_step, parse_step
from slackwater_operator.policies.rollout.steps import StepState
from slackwater_operator.policies.takeover.types import RESTART, TAKEOVER, Moving

PHASES = ("Idle", "Preflight", "Rolling", "Paused", "Refused", "Stopped", "RollingBack")
IDLE, PREFLIGHT, ROLLING, PAUSED, REFUSED, STOPPED, ROLLING_BACK = PHASES

STEPS = ("up", "down")
"""The actions of a scaling step."""
UP, DOWN = STEPS

GAPS_KEPT = 20
DECISIONS_KEPT = 20


@dataclass(frozen=True)
class UnderWay:
    """A restart in progress. It is noted before the pod is deleted.

    Attributes:
        name: the pod.
        uid: the uid of the pod to delete; while a pod of that uid is alive, nothing has been done yet.
        generation: the group's generation at that time; -1 if the worker was not in the group.
        lag: the lag of its partitions at that time; None if unknown.
        since_ms: when the restart was decided.
        ended_ms: when the old pod was gone; None while it exists.
    """

    name: str
    uid: str
    generation: int = -1
    lag: int | None = None
    since_ms: int = 0
    ended_ms: int | None = None

    def dump(self) -> dict[str, Any]:
        """The form in the status."""
        return _without_none(
            {
                "name": self.name,
                "uid": self.uid,
                "generation": self.generation,
                "lag": self.lag,
                "sinceMs": self.since_ms,
                "endedMs": self.ended_ms,
            }
        )


@dataclass(frozen=True)
class Failed:
    """A template that failed, and is not tried again.

    Attributes:
        template: its hash.
        reason: what failed.
        retry: the value of the annotation slackwater.dev/retry at that time; another value requests a retry.
    """

    template: str
    reason: str
    retry: str = ""

    def dump(self) -> dict[str, Any]:
        """The form in the status."""
        return {"hash": self.template, "reason": self.reason, "retry": self.retry}


@dataclass(frozen=True)
class Tries:
    """Preflights of a template that failed because of their environment; another one follows.

    Attributes:
        template: its hash.
        reason: why the last one failed.
        attempts: how many have failed.
        again_ms: when the next one may start (wall clock, ms).
        retry: the value of the annotation slackwater.dev/retry at that time; another value starts it at
            once.
    """

    template: str
    reason: str
    attempts: int
    again_ms: int
    retry: str = ""

    def dump(self) -> dict[str, Any]:
        """The form in the status."""
        return {
            "hash": self.template,
            "reason": self.reason,
            "attempts": self.attempts,
            "againMs": self.again_ms,
            "retry": self.retry,
        }


@dataclass(frozen=True)
class RolloutMemory:
    """status.rollout: the state of a rollout by restarts or takeovers.

    Attributes:
        phase: one of `PHASES`.
        target: the StatefulSet's revision that all pods should have.
        good: the last revision that all pods had while the group was settled: the name of a
            ControllerRevision.
        wanted: the revision that the spec asks for, by its template's hash.
        good_revision: that revision by its template's hash; "" where an older operator noted `good`.
        failed: the template that failed; None if none has.
        tries: the preflights of the wanted template that failed because of their environment; None without
            any.
        passed: the wanted template's hash, if its preflight has passed and it is not applied yet; else "".
        updated: the number of pods with the target revision.
        under_way: the restarts in progress.
        from_set: the source StatefulSet of takeovers; "" without takeovers.
        to_set: the target StatefulSet of takeovers.
        moving: the takeover in progress; None without one.
        ended_ms: for a takeover by restart, when the previous pod was gone; None while it exists.
        since_ms: since when the rollout has been in this phase.
        reason: why it is in this phase.
        expected_rebalance: why this rollout causes a rebalance, noted before it begins; "" if it causes
            none.
        step: where the rollout is in spec.rollout.steps; None without steps.
    """

    phase: str = IDLE
    target: str = ""
    good: str = ""
    wanted: str = ""
    good_revision: str = ""
    failed: Failed | None = None
    tries: Tries | None = None
    passed: str = ""
    updated: int = 0
    under_way: tuple[UnderWay, ...] = ()
    since_ms: int = 0
    reason: str = ""
    from_set: str = ""
    to_set: str = ""
    moving: Moving | None = None
    ended_ms: int | None = None
    expected_rebalance: str = ""
    step: StepState | None = None

    def dump(self) -> dict[str, Any]:
        """The form in the status."""
        return _without_none(
            {
                "phase": self.phase,
                "target": self.target or None,
                "good": self.good or None,
                "wanted": self.wanted or None,
                "goodRevision": self.good_revision or None,
                "failed": self.failed.dump() if self.failed else None,
                "tries": self.tries.dump() if self.tries else None,
                "passed": self.passed or None,
                "updated": self.updated,
                "underWay": [restart.dump() for restart in self.under_way],
                "fromSet": self.from_set or None,
                "toSet": self.to_set or None,
                "moving": _dump_moving(self.moving, self.ended_ms) if self.moving else None,
                "since": self.since_ms,
                "reason": self.reason or None,
                "expectedRebalance": self.expected_rebalance or None,
                "step": dump_step(self.step) if self.step else None,
            }
        )


@dataclass(frozen=True)
class DecisionRecord:
    """A decision that differed from the previous one of its kind.

    Attributes:
        at_ms: when it was first made.
        kind: `scaling`, `rollout`, `steps`, `analysis`, `gate`, `membership`, `preflight`, `rewind`,
            `suspend` or `topics`.
        action: what it does, in a word.
        reason: why, in a sentence.
    """

    at_ms: int
    kind: str
    action: str
    reason: str

    def dump(self) -> dict[str, Any]:
        """The form in the status."""
        return {"at": self.at_ms, "kind": self.kind, "action": self.action, "reason": self.reason}


@dataclass(frozen=True)
class KafkaMemory:
    """status.kafka: where the ConsumerGroup uses its group.id, and how its workers connect there.

    Attributes:
        bootstrap_servers: the workers' bootstrap servers.
        cluster_id: the id of the Kafka cluster; "" if not reported yet.
        security: the workers' spec.kafka.security, with the same keys.
        properties: those of the workers' spec.kafka.properties that affect how the group is observed.
        exclusive: whether its workers have had the group to themselves for long, since it last had no pods.
    """

    bootstrap_servers: str
    cluster_id: str = ""
    security: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    exclusive: bool = False

    def dump(self) -> dict[str, Any]:
        """The form in the status."""
        return _without_none(
            {
                "bootstrapServers": self.bootstrap_servers,
                "clusterId": self.cluster_id or None,
                "security": dict(self.security) or None,
                "properties": dict(self.properties) or None,
                "exclusive": self.exclusive or None,
            }
        )


@dataclass(frozen=True)
class Memory:
    """The stored state.

    Attributes:
        rollout: the rollout.
        desired: the last wanted number of workers; None before the first decision.
        scaling: the state of automatic scaling (`Autoscaler.dump`).
        restart_gaps_ms: the durations of the last restarts, oldest first.
        decisions: the last decisions, oldest first.
        conditions: the conditions by type, as in the status.
        skipped: the last records that the workers have skipped, oldest first.
        kafka: where it uses its group.id; None if it never has.
        rewind: the last rewind; None without one.
    """

    rollout: RolloutMemory = field(default_factory=RolloutMemory)
    desired: int | None = None
    scaling: Mapping[str, Any] = field(default_factory=dict)
    restart_gaps_ms: tuple[int, ...] = ()
    decisions: tuple[DecisionRecord, ...] = ()
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    skipped: tuple[Skip, ...] = ()
    kafka: KafkaMemory | None = None
    rewind: RewindMemory | None = None


def parse(status: object) -> Memory:
    """Reads the stored state from a status; invalid values are ignored."""
    stored = mapping(status)
    return Memory(
        rollout=_rollout(mapping(stored.get("rollout"))),
        desired=whole(stored.get("desiredReplicas")),
        scaling=mapping(stored.get("scaling")),
        restart_gaps_ms=tuple(
            gap_ms
            for gap_ms in map(whole, _list(stored.get("restartGapsMs")))
            if gap_ms is not None and gap_ms >= 0
        )[-GAPS_KEPT:],
        decisions=_fitting(tuple(_decisions(stored.get("decisions")))),
        conditions={
            condition["type"]: condition
            for condition in objects(stored.get("conditions"))
            if isinstance(condition.get("type"), str)
        },
        skipped=tuple(_skips(stored.get("skipped")))[-SKIPS_KEPT:],
        kafka=_kafka(mapping(stored.get("kafka"))),
        rewind=parse_rewind(stored.get("rewind")),
    )


def remember(
    kept: tuple[DecisionRecord, ...], now_ms: int, kind: str, action: str, reason: str
) -> tuple[DecisionRecord, ...]:
    """`kept` with the decision added, if its action differs from that of the last decision of its kind.

    A reason in which only figures have changed is not another decision. A scaling step from or to another
    number of workers is one, even right after the last step.
    """
    last = next((decision for decision in reversed(kept) if decision.kind == kind), None)
    if (
        last is not None
        and last.action == action
        and _distinguishing_part(action, last.reason) == _distinguishing_part(action, reason)
    ):
        return kept
    return _fitting((*kept, DecisionRecord(now_ms, kind, action, reason[:1024])))


def _fitting(decisions: tuple[DecisionRecord, ...]) -> tuple[DecisionRecord, ...]:
    """At most `DECISIONS_KEPT`. The oldest of the kind that has most is left out, so that the many decisions
    of a rollout do not take the place of the last scaling step."""
    while len(decisions) > DECISIONS_KEPT:
        counts = Counter(decision.kind for decision in decisions)
        most = max(counts.values())
        oldest = next(at for at, decision in enumerate(decisions) if counts[decision.kind] == most)
        decisions = (*decisions[:oldest], *decisions[oldest + 1 :])
    return decisions


def _distinguishing_part(action: str, reason: str) -> str:
    """The part of a reason that distinguishes decisions: without figures, except for a step's "1
    to 3: ..."."""
    if action not in STEPS:
        return _worded(reason)
    step, _, why = reason.partition(":")
    return f"{step}:{_worded(why)}"


def _worded(reason: str) -> str:
    """A reason without its figures."""
    return "".join(
        "#" if character.isdigit() or character == "." else character for character in reason
    ).replace("##", "#")


def _rollout(stored: Mapping[str, Any]) -> RolloutMemory:
    phase = stored.get("phase")
    return RolloutMemory(
        phase=phase if phase in PHASES else IDLE,
        target=text(stored.get("target")),
        good=text(stored.get("good")),
        wanted=text(stored.get("wanted")),
        good_revision=text(stored.get("goodRevision")),
        passed=text(stored.get("passed")),
        failed=_failed(mapping(stored.get("failed"))),
        tries=_tries(mapping(stored.get("tries"))),
        updated=whole(stored.get("updated")) or 0,
        under_way=tuple(_under_way(stored.get("underWay"))),
        from_set=text(stored.get("fromSet")),
        to_set=text(stored.get("toSet")),
        moving=_moving(mapping(stored.get("moving"))),
        ended_ms=whole(mapping(stored.get("moving")).get("endedMs")),
        since_ms=whole(stored.get("since")) or 0,
        reason=text(stored.get("reason")),
        expected_rebalance=text(stored.get("expectedRebalance")),
        step=parse_step(stored.get("step")),
    )


def _dump_moving(moving: Moving, ended_ms: int | None) -> dict[str, Any]:
    """The form in the status."""
    return _without_none(
        {
            "ordinal": moving.ordinal,
            "sinceMs": moving.since_ms,
            "generation": moving.generation,
            "lag": moving.lag,
            "by": moving.by,
            "toldMs": moving.told_ms,
            "tells": moving.tells,
            "to": moving.to or None,
            "endedMs": ended_ms,
        }
    )


def _moving(stored: Mapping[str, Any]) -> Moving | None:
    ordinal, generation = whole(stored.get("ordinal")), whole(stored.get("generation"))
    if ordinal is None or ordinal < 0:
        return None
    return Moving(
        ordinal=ordinal,
        since_ms=whole(stored.get("sinceMs")) or 0,
        generation=-1 if generation is None else generation,
        lag=whole(stored.get("lag")),
        by=RESTART if stored.get("by") == RESTART else TAKEOVER,
        told_ms=whole(stored.get("toldMs")) or 0,
        tells=whole(stored.get("tells")) or 0,
        to=text(stored.get("to")),
    )


def _failed(stored: Mapping[str, Any]) -> Failed | None:
    template = text(stored.get("hash"))
    return Failed(template, text(stored.get("reason")), text(stored.get("retry"))) if template else None


def _kafka(stored: Mapping[str, Any]) -> KafkaMemory | None:
    servers = text(stored.get("bootstrapServers"))
    security, properties = _texts(stored.get("security")), _texts(stored.get("properties"))
    if not servers:
        return None
    exclusive = stored.get("exclusive") is True
    return KafkaMemory(servers, text(stored.get("clusterId")), security, properties, exclusive)


def _texts(stored: object) -> dict[str, str]:
    return {name: value for name, value in mapping(stored).items() if isinstance(value, str)}


def _tries(stored: Mapping[str, Any]) -> Tries | None:
    template = text(stored.get("hash"))
    if not template:
        return None
    return Tries(
        template,
        text(stored.get("reason")),
        max(1, whole(stored.get("attempts")) or 1),
        whole(stored.get("againMs")) or 0,
        text(stored.get("retry")),
    )


def _under_way(stored: object) -> list[UnderWay]:
    result: dict[str, UnderWay] = {}
    for restart in objects(stored):
        name, uid = text(restart.get("name")), text(restart.get("uid"))
        generation = whole(restart.get("generation"))
        if name and uid:
            result[name] = UnderWay(
                name=name,
                uid=uid,
                generation=-1 if generation is None else generation,
                lag=whole(restart.get("lag")),
                since_ms=whole(restart.get("sinceMs")) or 0,
                ended_ms=whole(restart.get("endedMs")),
            )
    return list(result.values())


def _decisions(stored: object) -> list[DecisionRecord]:
    result = []
    for record in objects(stored):
        at_ms, kind = whole(record.get("at")), text(record.get("kind"))
        if at_ms is not None and kind:
            result.append(DecisionRecord(at_ms, kind, text(record.get("action")), text(record.get("reason"))))
    return result


def dump_skip(skip: Skip) -> dict[str, Any]:
    """The form in the status."""
    return {
        "topic": skip.partition.topic,
        "partition": skip.partition.partition,
        "from": skip.from_offset,
        "to": skip.to_offset,
        "cause": skip.cause,
        "at": skip.at_ms,
    }


def _skips(stored: object) -> list[Skip]:
    result = []
    for skip in objects(stored):
        topic, cause = text(skip.get("topic")), text(skip.get("cause"))
        numbers = [whole(skip.get(name)) for name in ("partition", "from", "to", "at")]
        known = [number for number in numbers if number is not None]
        if topic and len(known) == len(numbers):
            number, begin, end, at_ms = known
            result.append(Skip(TopicPartition(topic, number), begin, end, cause, at_ms))
    return result


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
