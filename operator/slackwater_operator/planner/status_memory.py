"""What turns before have left in the ConsumerGroup's status: all that must survive the operator's end.

Anybody with the right to may write into a status, so that whatever stands there is read as far as it makes
sense and left out where it does not: `parse` raises nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.status_schema import SKIPS_KEPT
from slackwater_operator.model.worker_status import Skip
from slackwater_operator.policies.takeover.types import RESTART, TAKEOVER, Moving

PHASES = ("Idle", "Preflight", "Rolling", "Paused", "Refused", "Stopped", "RollingBack")
IDLE, PREFLIGHT, ROLLING, PAUSED, REFUSED, STOPPED, ROLLING_BACK = PHASES

STEPS = ("up", "down")
"""What the scaling does when it does something."""
UP, DOWN = STEPS

GAPS_KEPT = 20
DECISIONS_KEPT = 20


@dataclass(frozen=True)
class UnderWay:
    """A restart that has been decided and is not over; written before the pod is deleted.

    Attributes:
        name: the pod.
        uid: the uid of the pod that is to go: while one of that uid lives, nothing has been done yet.
        generation: the group's generation then, -1 when the worker was not in it.
        lag: how far its partitions were behind then, None when that was not known.
        since_ms: when it was decided.
        ended_ms: when the old pod was gone; None while it is there.
    """

    name: str
    uid: str
    generation: int = -1
    lag: int | None = None
    since_ms: int = 0
    ended_ms: int | None = None

    def dump(self) -> dict[str, Any]:
        """As it stands in the status."""
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
    """A template that is not tried again.

    Attributes:
        template: its HASH.
        reason: what went wrong.
        retry: the value of the annotation slackwater.dev/retry then: another one means to try again.
    """

    template: str
    reason: str
    retry: str = ""

    def dump(self) -> dict[str, Any]:
        """As it stands in the status."""
        return {"hash": self.template, "reason": self.reason, "retry": self.retry}


@dataclass(frozen=True)
class Tries:
    """The preflights of a template that failed for their environment; another one follows.

    Attributes:
        template: its HASH.
        reason: what went wrong the last time.
        attempts: how many have failed.
        again_ms: when the next one may start.
        retry: the value of the annotation slackwater.dev/retry then: another one means to try at once.
    """

    template: str
    reason: str
    attempts: int
    again_ms: int
    retry: str = ""

    def dump(self) -> dict[str, Any]:
        """As it stands in the status."""
        return {
            "hash": self.template,
            "reason": self.reason,
            "attempts": self.attempts,
            "againMs": self.again_ms,
            "retry": self.retry,
        }


@dataclass(frozen=True)
class RolloutMemory:
    """The rollout: restarts, or takeovers.

    Attributes:
        phase: one of `PHASES`.
        target: the StatefulSet's revision that all pods should have.
        good: the last revision that all pods had while the group was settled: a ControllerRevision's name.
        failed: the template that failed, None when none has.
        tries: the preflights of the wanted template that failed for their environment, None without any.
        updated: how many pods have the target revision.
        under_way: the restarts that are not over.
        from_set: the StatefulSet that takeovers leave, "" where none go on.
        to_set: the StatefulSet that they fill.
        moving: the takeover that is not over, None when there is none.
        ended_ms: where that goes by a restart, when the pod before was gone; None while it is there.
        since_ms: since when it has been in this phase.
        reason: why it is in this phase.
        expected_rebalance: why this rollout makes the group rebalance; noted before it begins, "" where it
            does not.
    """

    phase: str = IDLE
    target: str = ""
    good: str = ""
    failed: Failed | None = None
    tries: Tries | None = None
    updated: int = 0
    under_way: tuple[UnderWay, ...] = ()
    since_ms: int = 0
    reason: str = ""
    from_set: str = ""
    to_set: str = ""
    moving: Moving | None = None
    ended_ms: int | None = None
    expected_rebalance: str = ""

    def dump(self) -> dict[str, Any]:
        """As it stands in the status."""
        return _without_none(
            {
                "phase": self.phase,
                "target": self.target or None,
                "good": self.good or None,
                "failed": self.failed.dump() if self.failed else None,
                "tries": self.tries.dump() if self.tries else None,
                "updated": self.updated,
                "underWay": [restart.dump() for restart in self.under_way],
                "fromSet": self.from_set or None,
                "toSet": self.to_set or None,
                "moving": _dump_moving(self.moving, self.ended_ms) if self.moving else None,
                "since": self.since_ms,
                "reason": self.reason or None,
                "expectedRebalance": self.expected_rebalance or None,
            }
        )


@dataclass(frozen=True)
class DecisionRecord:
    """A decision that differed from the one before of its kind.

    Attributes:
        at_ms: when it was made first.
        kind: `scaling`, `rollout`, `gate`, `membership`, `preflight`, `suspend`, `topics`.
        action: what it does, in a word.
        reason: why, in a sentence.
    """

    at_ms: int
    kind: str
    action: str
    reason: str

    def dump(self) -> dict[str, Any]:
        """As it stands in the status."""
        return {"at": self.at_ms, "kind": self.kind, "action": self.action, "reason": self.reason}


@dataclass(frozen=True)
class KafkaMemory:
    """Where the ConsumerGroup has its group.id to itself, and how its workers get there.

    Attributes:
        bootstrap_servers: how its workers reach that Kafka.
        cluster_id: Kafka's id of it; "" when it was not told yet.
        security: their spec.kafka.security, by the names that it has there.
        properties: of their spec.kafka.properties those that what is seen of the group depends on.
        exclusive: whether its workers have had the group to themselves for long, since it had no pods last.
    """

    bootstrap_servers: str
    cluster_id: str = ""
    security: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    exclusive: bool = False

    def dump(self) -> dict[str, Any]:
        """As it stands in the status."""
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
    """What a turn remembers.

    Attributes:
        rollout: the rolling restart.
        desired: how many workers were wanted last, None before the first decision.
        scaling: what the automatic scaling keeps, as `decide` dumps it.
        restart_gaps_ms: how long the last restarts kept a worker away, oldest first.
        decisions: the last decisions, oldest first.
        conditions: the conditions by type, as they stand in the status.
        skipped: the last records that the workers have skipped, oldest first.
        kafka: where it has its group.id; None: it has never had it.
    """

    rollout: RolloutMemory = field(default_factory=RolloutMemory)
    desired: int | None = None
    scaling: Mapping[str, Any] = field(default_factory=dict)
    restart_gaps_ms: tuple[int, ...] = ()
    decisions: tuple[DecisionRecord, ...] = ()
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    skipped: tuple[Skip, ...] = ()
    kafka: KafkaMemory | None = None


def parse(status: object) -> Memory:
    """Reads the memory out of a status, whatever that holds."""
    stored = _mapping(status)
    return Memory(
        rollout=_rollout(_mapping(stored.get("rollout"))),
        desired=_whole(stored.get("desiredReplicas")),
        scaling=_mapping(stored.get("scaling")),
        restart_gaps_ms=tuple(
            gap_ms
            for gap_ms in map(_whole, _list(stored.get("restartGapsMs")))
            if gap_ms is not None and gap_ms >= 0
        )[-GAPS_KEPT:],
        decisions=tuple(_decisions(stored.get("decisions")))[-DECISIONS_KEPT:],
        conditions={
            condition["type"]: condition
            for condition in map(_mapping, _list(stored.get("conditions")))
            if isinstance(condition.get("type"), str)
        },
        skipped=tuple(_skips(stored.get("skipped")))[-SKIPS_KEPT:],
        kafka=_kafka(_mapping(stored.get("kafka"))),
    )


def remember(
    kept: tuple[DecisionRecord, ...], now_ms: int, kind: str, action: str, reason: str
) -> tuple[DecisionRecord, ...]:
    """`kept` with a decision, if that differs in its action from the last one of its kind.

    A reason whose figures alone have changed is no other decision: it is not kept again. But a step of the
    scaling from or to another number of workers is another, also right after one.
    """
    last = next((decision for decision in reversed(kept) if decision.kind == kind), None)
    if last is not None and last.action == action and _told(action, last.reason) == _told(action, reason):
        return kept
    return (*kept, DecisionRecord(now_ms, kind, action, reason[:1024]))[-DECISIONS_KEPT:]


def _told(action: str, reason: str) -> str:
    """What two alike decisions have in common; a step's reason is "1 to 3: ...", and the rest has figures."""
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
        target=_text(stored.get("target")),
        good=_text(stored.get("good")),
        failed=_failed(_mapping(stored.get("failed"))),
        tries=_tries(_mapping(stored.get("tries"))),
        updated=_whole(stored.get("updated")) or 0,
        under_way=tuple(_under_way(stored.get("underWay"))),
        from_set=_text(stored.get("fromSet")),
        to_set=_text(stored.get("toSet")),
        moving=_moving(_mapping(stored.get("moving"))),
        ended_ms=_whole(_mapping(stored.get("moving")).get("endedMs")),
        since_ms=_whole(stored.get("since")) or 0,
        reason=_text(stored.get("reason")),
        expected_rebalance=_text(stored.get("expectedRebalance")),
    )


def _dump_moving(moving: Moving, ended_ms: int | None) -> dict[str, Any]:
    """As it stands in the status."""
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
    ordinal, generation = _whole(stored.get("ordinal")), _whole(stored.get("generation"))
    if ordinal is None or ordinal < 0:
        return None
    return Moving(
        ordinal=ordinal,
        since_ms=_whole(stored.get("sinceMs")) or 0,
        generation=-1 if generation is None else generation,
        lag=_whole(stored.get("lag")),
        by=RESTART if stored.get("by") == RESTART else TAKEOVER,
        told_ms=_whole(stored.get("toldMs")) or 0,
        tells=_whole(stored.get("tells")) or 0,
        to=_text(stored.get("to")),
    )


def _failed(stored: Mapping[str, Any]) -> Failed | None:
    template = _text(stored.get("hash"))
    return Failed(template, _text(stored.get("reason")), _text(stored.get("retry"))) if template else None


def _kafka(stored: Mapping[str, Any]) -> KafkaMemory | None:
    servers = _text(stored.get("bootstrapServers"))
    security, properties = _texts(stored.get("security")), _texts(stored.get("properties"))
    if not servers:
        return None
    exclusive = stored.get("exclusive") is True
    return KafkaMemory(servers, _text(stored.get("clusterId")), security, properties, exclusive)


def _texts(stored: object) -> dict[str, str]:
    return {name: value for name, value in _mapping(stored).items() if isinstance(value, str)}


def _tries(stored: Mapping[str, Any]) -> Tries | None:
    template = _text(stored.get("hash"))
    if not template:
        return None
    return Tries(
        template,
        _text(stored.get("reason")),
        max(1, _whole(stored.get("attempts")) or 1),
        _whole(stored.get("againMs")) or 0,
        _text(stored.get("retry")),
    )


def _under_way(stored: object) -> list[UnderWay]:
    result: dict[str, UnderWay] = {}
    for restart in map(_mapping, _list(stored)):
        name, uid = _text(restart.get("name")), _text(restart.get("uid"))
        generation = _whole(restart.get("generation"))
        if name and uid:
            result[name] = UnderWay(
                name=name,
                uid=uid,
                generation=-1 if generation is None else generation,
                lag=_whole(restart.get("lag")),
                since_ms=_whole(restart.get("sinceMs")) or 0,
                ended_ms=_whole(restart.get("endedMs")),
            )
    return list(result.values())


def _decisions(stored: object) -> list[DecisionRecord]:
    result = []
    for record in map(_mapping, _list(stored)):
        at_ms, kind = _whole(record.get("at")), _text(record.get("kind"))
        if at_ms is not None and kind:
            result.append(
                DecisionRecord(at_ms, kind, _text(record.get("action")), _text(record.get("reason")))
            )
    return result


def dump_skip(skip: Skip) -> dict[str, Any]:
    """As it stands in the status."""
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
    for skip in map(_mapping, _list(stored)):
        topic, cause = _text(skip.get("topic")), _text(skip.get("cause"))
        numbers = [_whole(skip.get(name)) for name in ("partition", "from", "to", "at")]
        known = [number for number in numbers if number is not None]
        if topic and len(known) == len(numbers):
            number, begin, end, at_ms = known
            result.append(Skip(TopicPartition(topic, number), begin, end, cause, at_ms))
    return result


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value)


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
