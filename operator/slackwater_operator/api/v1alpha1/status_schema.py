"""The schema of a ConsumerGroup's status: what the operator writes, and reads again after its end.

The API server drops what a schema does not name, so that a field that is written must be here (a test
builds a full status and has it kept).
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
        "What the operator saw and decided last.",
        observedGeneration=_whole("The metadata.generation of the spec that this is about."),
        replicas=_whole("How many workers there are; the two pods of one that is taken over count once."),
        readyReplicas=_whole("How many of them have joined the group and handle records."),
        desiredReplicas=_whole("How many workers are wanted."),
        selector=_text("The workers' label selector, as text (for the scale subresource)."),
        members=_whole("How many members Kafka's group has."),
        lag=_whole("Records not handled yet, to two digits; left out while that is not known."),
        generation=_whole("Kafka's generation of the group; it grows with each rebalance."),
        revision=_text("The revision that the workers are to be started from."),
        conditions=_conditions(),
        rollout=_rollout(),
        scaling=_scaling(),
        kafka=_object(
            "Where the group has its group.id to itself.",
            bootstrapServers=_text("How its workers reach that Kafka."),
            clusterId=_text("Kafka's id of the cluster; left out until it was told."),
            security=_object(
                "The spec.kafka.security that its workers have; left out for PLAINTEXT.",
                protocol=_text("As there."),
                mechanism=_text("As there."),
                credentialsSecret=_text("As there."),
                caSecret=_text("As there."),
                clientCertificateSecret=_text("As there."),
            ),
            properties={
                "type": "object",
                "description": "Of the spec.kafka.properties that its workers have those that say how the "
                "group is looked at.",
                "additionalProperties": {"type": "string"},
                "maxProperties": 10,
            },
        ),
        restartGapsMs=_list(
            "How long the last restarts kept a worker away, in milliseconds, oldest first.",
            {"type": "integer", "format": "int64"},
            KEPT,
        ),
        decisions=_list(
            "The last decisions, oldest first; of those that are alike in a row only the first.",
            _object(
                "A decision.",
                at=_whole("When it was made first (milliseconds since 1970)."),
                kind=_text(
                    "What it is about: scaling, rollout, gate, membership, preflight, suspend, topics."
                ),
                action=_text("What it does, in a word."),
                reason=_text("Why."),
            ),
            KEPT,
        ),
        skipped=_list(
            "Records of the last hour that were gone from the log before the group read them, oldest first.",
            _object(
                "Records that were skipped.",
                topic=_text("The topic."),
                partition=_whole("The partition."),
                **{"from": _whole("The first offset that was skipped.")},
                to=_whole("The offset where the group went on."),
                cause=_text("Why they were gone: retention, which is also DeleteRecords."),
                at=_whole("When that was noticed (milliseconds since 1970)."),
            ),
            SKIPS_KEPT,
        ),
    )


def _conditions() -> Schema:
    condition = {
        "type": "object",
        "description": "One aspect of how the group is.",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": {
            "type": {"type": "string", "description": "The aspect, such as Ready.", "maxLength": 316},
            "status": {
                "type": "string",
                "enum": ["True", "False", "Unknown"],
                "description": "Whether it holds.",
            },
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "description": "The metadata.generation of the spec that it was seen with.",
            },
            "lastTransitionTime": {
                "type": "string",
                "format": "date-time",
                "description": "When status changed last.",
            },
            "reason": {"type": "string", "description": "Why, in a word.", "maxLength": 1024},
            "message": {
                "type": "string",
                "description": "Why, in a sentence, and what to do.",
                "maxLength": _MESSAGE,
            },
        },
    }
    return {
        "type": "array",
        "description": "Ready, Stable, Scaled, RolledOut, LagKnown, SkewLimited, Stalled, Degraded and "
        "Suspended.",
        "items": condition,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }


def _rollout() -> Schema:
    return _object(
        "The rolling restart.",
        phase=_text("Idle, Preflight, Rolling, Paused, Refused, Stopped or RollingBack."),
        target=_text("The StatefulSet's revision that all pods should have."),
        good=_text("The last revision that all pods had while the group was settled."),
        failed=_object(
            "The template that failed; it is not tried again until the spec or slackwater.dev/retry changes.",
            hash=_text("The template's hash."),
            reason=_text("What went wrong."),
            retry=_text("The value of the annotation slackwater.dev/retry then."),
        ),
        tries=_object(
            "The preflights of the wanted template that failed for their environment; another one follows.",
            hash=_text("The template's hash."),
            reason=_text("What went wrong the last time."),
            attempts=_whole("How many have failed."),
            againMs=_whole("When the next one may start (milliseconds since 1970)."),
            retry=_text("The value of the annotation slackwater.dev/retry then."),
        ),
        updated=_whole("How many pods have the target revision."),
        underWay=_list(
            "The restarts that have been decided and are not over; written before the pod is deleted.",
            _object(
                "A restart.",
                name=_text("The pod."),
                uid=_text("The uid of the pod that is to go."),
                generation=_whole("The group's generation then."),
                lag=_whole("How many records its partitions were behind then."),
                sinceMs=_whole("When it was decided (milliseconds since 1970)."),
                endedMs=_whole("When the old pod was gone (milliseconds since 1970)."),
            ),
            1_000,
        ),
        fromSet=_text("The StatefulSet that takeovers leave; empty where none go on."),
        toSet=_text("The StatefulSet that takeovers fill; empty where none go on."),
        moving=_object(
            "The takeover that has been decided and is not over; written before it begins.",
            ordinal=_whole("The worker's ordinal."),
            sinceMs=_whole("When it was decided (milliseconds since 1970)."),
            generation=_whole("The group's generation then."),
            lag=_whole("How many records its partitions were behind then; left out if not known."),
            by=_text("takeover, or restart where the successor did not stand by in time."),
            toldMs=_whole("When the successor was told last to take over (milliseconds since 1970); or 0."),
            endedMs=_whole("By restart: when the pod before was gone (milliseconds since 1970)."),
            tells=_whole("How many times it has been told."),
            to=_text("The StatefulSet that the worker moves to."),
        ),
        since=_whole("Since when it has been in this phase (milliseconds since 1970)."),
        reason=_text("Why it is in this phase."),
        expectedRebalance=_text("Why this rollout makes the group rebalance; left out where it does not."),
    )


def _scaling() -> Schema:
    return _object(
        "The last scaling decision, and what the next one must know.",
        raw=_number("The need, in workers, by the targets."),
        capped=_whole("The number of workers within the bounds."),
        cap=_text("The bound that counted."),
        damping=_text("What held a step back."),
        applied=_whole("The number of workers decided on."),
        reason=_text("Why."),
        at=_whole("When it was decided (milliseconds since 1970)."),
        lastStep=_object(
            "The last change of the number of workers.",
            before=_whole("Workers before it."),
            after=_whole("Workers after it."),
            at=_whole("When (milliseconds since 1970)."),
            consumedPerS=_number("Records a second before it."),
            tookMs=_whole("How long the group took to settle, in milliseconds."),
        ),
        ceiling=_object(
            "A number of workers that lowered the throughput.",
            replicas=_whole("That number."),
            untilMs=_whole("Until when it is not tried again (milliseconds since 1970)."),
        ),
        tooFew=_object(
            "A number of workers that a step down went to and that was too few.",
            replicas=_whole("That number."),
            untilMs=_whole("Until when no step down goes there again (milliseconds since 1970)."),
        ),
        settleMs=_whole("How long the longest change took so far, in milliseconds."),
        lostMs=_whole("How long a rebalance keeps a partition unread on average, in milliseconds."),
        capacityPerS=_number("Records a second that one worker can handle, to two digits."),
        partitions=_whole("Partitions of the topics."),
        skewed=_list("Partitions that one worker cannot keep up with.", {"type": "string"}, 1_000),
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
