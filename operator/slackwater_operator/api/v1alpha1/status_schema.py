"""The schema of a ConsumerGroup's status, which the operator writes, and reads after a restart.

The API server drops fields that the schema does not name; every field that is written must be here (a test
writes a full status and compares).
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

SKIPS_KEPT = 50
"""Skips of records in the status: the last so many."""
KEPT = 20
"""Decisions and restart gaps are kept for the last so many."""

_MESSAGE = 32_768


def schema() -> Schema:
    """The status."""
    return _object(
        "The last observation and decisions of the operator.",
        observedGeneration=_whole(
            "The metadata.generation of the spec that this status describes; -1 before the first."
        ),
        lastConfirmedTime={
            "type": "string",
            "format": "date-time",
            "description": "When the operator last looked at the group and found this status to hold. It is "
            "written with every change, and at least every three minutes.",
            "nullable": True,
        },
        reason=_text("The reason of the condition that a person must see first."),
        message=_text("The beginning of that condition's message."),
        replicas=_whole("The number of workers. A worker and its successor count as one."),
        readyReplicas=_whole("The number of workers that have joined the group and process records."),
        desiredReplicas=_whole("The number of workers that should run."),
        selector=_text("The workers' label selector as text, for the scale subresource."),
        members=_whole("The number of members of the Kafka group."),
        lag=_whole(
            "Records not yet processed, rounded to two significant digits. Absent while the lag is unknown."
        ),
        lagSeconds=_whole(
            "The age of the oldest record that is not committed, in seconds, rounded to two significant "
            "digits. Absent while unknown."
        ),
        generation=_whole("The Kafka group's generation. It increases with each rebalance."),
        revision=_text("The revision that workers are started from."),
        strategy=_text("How workers are replaced: spec.rollout.strategy or its default."),
        conditions=_conditions(),
        rollout=_rollout(),
        scaling=_scaling(),
        kafka=_object(
            "The Kafka cluster on which this resource owns its group.id.",
            bootstrapServers=_text("The bootstrap servers that the workers use."),
            clusterId=_text("Kafka's cluster id. Absent until a broker has reported it."),
            security=_object(
                "The spec.kafka.security that the workers use. Absent for PLAINTEXT.",
                protocol=_text("As in spec.kafka.security."),
                mechanism=_text("As in spec.kafka.security."),
                credentialsSecret=_text("As in spec.kafka.security."),
                caSecret=_text("As in spec.kafka.security."),
                clientCertificateSecret=_text("As in spec.kafka.security."),
            ),
            properties={
                "type": "object",
                "description": "The workers' spec.kafka.properties that affect how the operator observes "
                "the group.",
                "additionalProperties": {"type": "string"},
                "maxProperties": 10,
            },
            exclusive={
                "type": "boolean",
                "description": "Whether its workers have had the group to themselves for ten minutes, so "
                "that it came first; left out where they have not.",
                "nullable": True,
            },
        ),
        rewind=_object(
            "The last rewind, which the annotation slackwater.dev/rewind has asked for.",
            request=_text("The annotation's value. The same value is not carried out again."),
            phase=_text("Checking, Stopping, Rewinding, Starting or Done."),
            acceptedMs=_whole("When the operator noticed it (milliseconds since 1970)."),
            sinceMs=_whole("When this phase began (milliseconds since 1970)."),
            result=_text("Rewound, Refused, Failed or Withdrawn. Absent while it is not known."),
            message=_text("What was done, or why not."),
        ),
        restartGapsMs=_list(
            "How long each of the last restarts took a worker out of the group, in milliseconds, "
            "oldest first.",
            {"type": "integer", "format": "int64"},
            KEPT,
        ),
        decisions=_list(
            "The last decisions, oldest first. Consecutive equal decisions are listed once.",
            _object(
                "A decision.",
                at=_whole("When it was first made (milliseconds since 1970)."),
                kind=_text(
                    "Its subject: scaling, rollout, steps, analysis, gate, membership, preflight, rewind, "
                    "suspend, topics."
                ),
                action=_text("What the operator does, in one word."),
                reason=_text("Why."),
            ),
            KEPT,
        ),
        skipped=_list(
            "Records of the last hour that Kafka deleted before the group consumed them, oldest first.",
            _object(
                "A range of skipped records.",
                topic=_text("The topic."),
                partition=_whole("The partition."),
                **{"from": _whole("The first skipped offset.")},
                to=_whole("The offset at which the group continued."),
                cause=_text("Why the records were deleted: retention (includes DeleteRecords)."),
                at=_whole("When the operator noticed it (milliseconds since 1970)."),
            ),
            SKIPS_KEPT,
        ),
    )


def _conditions() -> Schema:
    condition = {
        "type": "object",
        "description": "A condition of the group.",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {
                "type": "string",
                "description": "The condition's type, such as Ready.",
                "maxLength": 316,
            },
            "status": {
                "type": "string",
                "enum": ["True", "False", "Unknown"],
                "description": "Whether the condition holds.",
            },
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "description": "The metadata.generation of the spec that the condition describes.",
            },
            "lastTransitionTime": {
                "type": "string",
                "format": "date-time",
                "description": "When the status last changed.",
            },
            "reason": {
                "type": "string",
                "description": "The reason in one CamelCase word.",
                "maxLength": 1024,
            },
            "message": {
                "type": "string",
                "description": "What happened, and what to do.",
                "maxLength": _MESSAGE,
            },
        },
    }
    return {
        "type": "array",
        "description": "Ready, Reconciling, Stalled, Stable, Scaled, RolledOut, LagKnown, SkewLimited, "
        "Stuck, Degraded, Suspended and, once a rewind was asked for, Rewound.",
        "items": condition,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }


def _rollout() -> Schema:
    return _object(
        "The rolling restart.",
        phase=_text("Idle, Preflight, Rolling, Paused, Refused, Stopped or RollingBack."),
        target=_text("The StatefulSet revision that all pods should have."),
        good=_text("The last revision that all pods had while the group was stable."),
        wanted=_text(
            "The revision that the spec asks for. status.revision follows when its preflight has passed."
        ),
        goodRevision=_text("The same revision by the name that status.revision has."),
        failed=_object(
            "The template that failed. It is not tried again until the spec or the annotation "
            "slackwater.dev/retry changes.",
            hash=_text("The template's hash."),
            reason=_text("What went wrong."),
            retry=_text("The value of the annotation slackwater.dev/retry at that time."),
        ),
        tries=_object(
            "Preflights of the current template that failed because of their environment. They are repeated.",
            hash=_text("The template's hash."),
            reason=_text("What went wrong in the last attempt."),
            attempts=_whole("The number of failed attempts."),
            againMs=_whole("The earliest time of the next attempt (milliseconds since 1970)."),
            retry=_text("The value of the annotation slackwater.dev/retry at that time."),
        ),
        passed=_text("The wanted revision, if its preflight has passed and workers do not have it yet."),
        updated=_whole("The number of pods that have the target revision."),
        underWay=_list(
            "Restarts in progress, written before the pod is deleted.",
            _object(
                "A restart.",
                name=_text("The pod."),
                uid=_text("The uid of the pod that is replaced."),
                generation=_whole("The group's generation when the restart was decided."),
                lag=_whole("The lag of the pod's partitions when the restart was decided, in records."),
                sinceMs=_whole("When it was decided (milliseconds since 1970)."),
                endedMs=_whole("When the old pod had terminated (milliseconds since 1970)."),
            ),
            1_000,
        ),
        fromSet=_text(
            "The StatefulSet that takeovers move workers from. Empty if no takeover is in progress."
        ),
        toSet=_text("The StatefulSet that takeovers move workers to. Empty if no takeover is in progress."),
        moving=_object(
            "The takeover in progress, written before it begins.",
            ordinal=_whole("The worker's ordinal."),
            sinceMs=_whole("When it was decided (milliseconds since 1970)."),
            generation=_whole("The group's generation when the takeover was decided."),
            lag=_whole(
                "The lag of the worker's partitions when the takeover was decided, in records. Absent if "
                "unknown."
            ),
            by=_text("takeover, or restart if the successor was not ready in time."),
            toldMs=_whole(
                "When the operator last asked the successor to take over (milliseconds since 1970), or 0."
            ),
            endedMs=_whole("For a restart: when the old pod had terminated (milliseconds since 1970)."),
            tells=_whole("How many times the operator has asked the successor."),
            to=_text("The StatefulSet that the worker moves to."),
        ),
        since=_whole("When this phase began (milliseconds since 1970)."),
        reason=_text("Why the rollout is in this phase."),
        expectedRebalance=_text("Why this rollout causes a rebalance. Absent if it causes none."),
        step=_object(
            "Where the rollout is in spec.rollout.steps. Absent without steps.",
            revision=_text("The revision that is rolled out."),
            steps=_text("The hash of the steps. Other steps begin anew."),
            index=_whole("The step, from 0. The number of steps when all are complete."),
            sinceMs=_whole("When it began (milliseconds since 1970)."),
            promoted=_text("The value of the annotation slackwater.dev/promote at that time."),
            heldSinceMs=_whole("Since when all metrics have held (milliseconds since 1970)."),
            measuredMs=_whole("The time of the last measurement (milliseconds since 1970)."),
            failures=_whole("The number of measurements of this step that were out of range."),
            inconclusive=_whole("How many measurements in a row had no result."),
            message=_text("What the last measurement showed."),
        ),
    )


def _scaling() -> Schema:
    return _object(
        "The last scaling decision, and the measurements that the next one needs.",
        raw=_number("The number of workers that the targets require."),
        capped=_whole("That number within the limits."),
        cap=_text("The limit that applied."),
        damping=_text("Why a step was delayed or reduced."),
        applied=_whole("The number of workers that was decided."),
        reason=_text("Why."),
        at=_whole("When it was decided (milliseconds since 1970)."),
        lastStep=_object(
            "The last change of the number of workers.",
            before=_whole("The number of workers before it."),
            after=_whole("The number of workers after it."),
            at=_whole("When it was made (milliseconds since 1970)."),
            consumedPerS=_number("Records consumed per second before it."),
            tookMs=_whole("How long the group took to become stable, in milliseconds."),
        ),
        ceiling=_object(
            "A number of workers that reduced the throughput.",
            replicas=_whole("That number."),
            untilMs=_whole("When it may be tried again (milliseconds since 1970)."),
        ),
        tooFew=_object(
            "A number of workers that proved too small after scaling down.",
            replicas=_whole("That number."),
            untilMs=_whole("When the group may scale down to it again (milliseconds since 1970)."),
            holdMs=_whole("For how long it may not, in milliseconds; longer each time."),
        ),
        settleMs=_whole("How long the longest change has taken, in milliseconds."),
        lostMs=_whole(
            "How long a rebalance interrupts the consumption of a partition on average, in milliseconds."
        ),
        capacityPerS=_number(
            "Records per second that one worker can process, rounded to two significant digits."
        ),
        partitions=_whole("The number of partitions of the topics."),
        skewed=_list(
            "Partitions whose records arrive faster than one worker can process them.",
            {"type": "string"},
            1_000,
        ),
    )


def _object(description: str, **properties: Schema) -> Schema:
    return {"type": "object", "description": description, "nullable": True, "properties": properties}


def _list(description: str, items: Schema, at_most: int) -> Schema:
    return {
        "type": "array",
        "description": description,
        "nullable": True,
        "items": items,
        "maxItems": at_most,
        "x-kubernetes-list-type": "atomic",
    }


def _text(description: str) -> Schema:
    return {"type": "string", "description": description, "nullable": True}


def _whole(description: str) -> Schema:
    return {"type": "integer", "format": "int64", "description": description, "nullable": True}


def _number(description: str) -> Schema:
    return {"type": "number", "description": description, "nullable": True}
