"""status.rollout: the state of a rollout by restarts or takeovers."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater_operator.api.v1alpha1.status.declaration import COUNT, TEXT, WHOLE, many, one, stored, text

PHASES = ("Idle", "Preflight", "Rolling", "Paused", "Refused", "Stopped", "RollingBack")
IDLE, PREFLIGHT, ROLLING, PAUSED, REFUSED, STOPPED, ROLLING_BACK = PHASES

TAKEOVER = "takeover"
RESTART = "restart"
"""How a member moves (`Moving.by`): with its successor beside its predecessor, or after it."""


@dataclass(frozen=True)
class UnderWay:
    """A restart in progress. It is noted before the pod is deleted; while a pod of that uid is alive, nothing
    has been done yet."""

    name: str = stored(TEXT, "The pod.")
    uid: str = stored(TEXT, "The uid of the pod that is replaced.")
    generation: int = stored(
        WHOLE,
        "The group's generation when the restart was decided; -1 if the worker was not in the group.",
        default=-1,
    )
    lag: int | None = stored(
        WHOLE,
        "The lag of the pod's partitions when the restart was decided, in records. Absent if unknown.",
        default=None,
    )
    since_ms: int = stored(WHOLE, "When it was decided (milliseconds since 1970).", default=0)
    ended_ms: int | None = stored(
        WHOLE, "When the old pod had terminated (milliseconds since 1970).", default=None
    )


@dataclass(frozen=True)
class Failed:
    """A template that failed."""

    template: str = stored(TEXT, "The template's hash.", name="hash")
    reason: str = stored(TEXT, "What went wrong.", default="")
    retry: str = stored(TEXT, "The value of the annotation slackwater.dev/retry at that time.", default="")


@dataclass(frozen=True)
class Tries:
    """Preflights of a template that failed because of their environment."""

    template: str = stored(TEXT, "The template's hash.", name="hash")
    reason: str = stored(TEXT, "What went wrong in the last attempt.", default="")
    attempts: int = stored(COUNT, "The number of failed attempts.", default=1)
    again_ms: int = stored(
        WHOLE, "The earliest time of the next attempt (milliseconds since 1970).", default=0
    )
    retry: str = stored(
        TEXT,
        "The value of the annotation slackwater.dev/retry at that time. Another value starts it at once.",
        default="",
    )


@dataclass(frozen=True)
class Moving:
    """The takeover in progress; noted before anything is done for it."""

    ordinal: int = stored(COUNT, "The worker's ordinal.")
    since_ms: int = stored(
        WHOLE,
        "Since when its successor is awaited, or the worker is away (milliseconds since 1970).",
        default=0,
    )
    generation: int = stored(
        WHOLE,
        "The group's generation when the successor was asked; before that, when the takeover was decided.",
        default=-1,
    )
    lag: int | None = stored(
        WHOLE, "The lag of the worker's partitions at that time, in records. Absent if unknown.", default=None
    )
    by: str = stored(
        text(TAKEOVER, RESTART),
        "takeover, or restart if the successor was not ready in time.",
        default=TAKEOVER,
    )
    told_ms: int = stored(
        WHOLE,
        "When the operator last asked the successor to take over (milliseconds since 1970), or 0.",
        default=0,
    )
    tells: int = stored(WHOLE, "How many times the operator has asked the successor.", default=0)
    to: str = stored(
        TEXT,
        "The StatefulSet that the worker moves to. A note of the other direction does not count.",
        default="",
    )
    ended_ms: int | None = stored(
        WHOLE,
        "For a restart: when the old pod had terminated (milliseconds since 1970). Absent while it exists.",
        default=None,
    )


@dataclass(frozen=True)
class StepState:
    """Where a rollout is in its steps."""

    revision: str = stored(TEXT, "The revision that is rolled out.")
    version: str = stored(TEXT, "The hash of the steps. Other steps begin anew.", name="steps")
    index: int = stored(
        COUNT,
        "The step, from 0. The number of steps when all are complete.",
        default=0,
        required=True,
    )
    since_ms: int = stored(WHOLE, "When it began (milliseconds since 1970).", default=0)
    promoted: str = stored(
        TEXT,
        "The value of the annotation slackwater.dev/promote at that time. Another may promote the step.",
        default="",
    )
    held_since_ms: int | None = stored(
        WHOLE,
        "Since when all metrics have held without a break (milliseconds since 1970). Absent if they do not.",
        default=None,
    )
    measured_ms: int = stored(
        WHOLE,
        "The time of the last measurement (milliseconds since 1970); before the first, when the step began.",
        default=0,
    )
    failures: int = stored(
        COUNT, "The number of measurements of this step that were out of range.", default=0
    )
    inconclusive: int = stored(COUNT, "How many measurements in a row had no result.", default=0)
    message: str = stored(TEXT, "What the last measurement showed.", default="")

    @property
    def key(self) -> str:
        """What a measurement belongs to: another step has another key."""
        return f"{self.revision}/{self.version}/{self.index}/{self.since_ms}"


@dataclass(frozen=True)
class RolloutStatus:
    """The state of a rollout by restarts or takeovers."""

    phase: str = stored(
        text(*PHASES), "Idle, Preflight, Rolling, Paused, Refused, Stopped or RollingBack.", default=IDLE
    )
    target: str = stored(TEXT, "The StatefulSet revision that all pods should have.", default="")
    good: str = stored(
        TEXT,
        "The last revision that all pods had while the group was stable: the name of a ControllerRevision.",
        default="",
    )
    wanted: str = stored(
        TEXT,
        "The revision that the spec asks for. status.revision follows when its preflight has passed.",
        default="",
    )
    good_revision: str = stored(
        TEXT, "The same revision as `good`, by the name that status.revision has.", default=""
    )
    failed: Failed | None = stored(
        one(Failed),
        "The template that failed. It is not tried again until the spec or the annotation "
        "slackwater.dev/retry changes.",
        default=None,
    )
    tries: Tries | None = stored(
        one(Tries),
        "Preflights of the current template that failed because of their environment. They are repeated.",
        default=None,
    )
    passed: str = stored(
        TEXT,
        "The wanted revision, if its preflight has passed and workers do not have it yet.",
        default="",
    )
    updated: int = stored(WHOLE, "The number of pods that have the target revision.", default=0)
    under_way: tuple[UnderWay, ...] = stored(
        many(one(UnderWay), 1_000, "A restart."),
        "Restarts in progress, written before the pod is deleted.",
        default=(),
    )
    from_set: str = stored(
        TEXT,
        "The StatefulSet that takeovers move workers from. Empty if no takeover is in progress.",
        default="",
    )
    to_set: str = stored(
        TEXT,
        "The StatefulSet that takeovers move workers to. Empty if no takeover is in progress.",
        default="",
    )
    moving: Moving | None = stored(
        one(Moving), "The takeover in progress, written before it begins.", default=None
    )
    since_ms: int = stored(WHOLE, "When this phase began (milliseconds since 1970).", default=0, name="since")
    reason: str = stored(TEXT, "Why the rollout is in this phase.", default="")
    expected_rebalance: str = stored(
        TEXT,
        "Why this rollout causes a rebalance, written before it begins. Absent if it causes none.",
        default="",
    )
    step: StepState | None = stored(
        one(StepState), "Where the rollout is in spec.rollout.steps. Absent without steps.", default=None
    )
