"""spec.scaling of a ConsumerGroup: the number of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slackwater import fields
from slackwater.fields import FieldError, Rule, required, spec
from slackwater_operator.api.v1alpha1 import validation
from slackwater_operator.api.v1alpha1.spec.scaling_behavior import Behavior, Fallback

MAX_REPLICAS = 1_000
"""Greater than any number of partitions; limits the effect of a mistyped number."""

NO_TARGET = (
    "requires a target (catchUp or lagPerReplica): without one, Slackwater does not change the number of "
    "workers"
)
WITH_TARGET = ("behavior", "activationLag", "fallback", "pausedReplicas")

_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_CRON = r"\s*[0-9A-Za-z*/,#-]+(\s+[0-9A-Za-z*/,#-]+){4}\s*"
_ZONE = r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A window with a higher minimum than minReplicas."""

    name: str = required(
        "name",
        fields.text(pattern=_NAME, example="working-day", max_length=63),
        "The window's name, as decisions and explanations show it.",
    )
    start: str = required(
        "start",
        fields.text(pattern=_CRON, example='"0 8 * * MON-FRI"', max_length=100),
        "When the window opens: a cron expression of five fields (minute, hour, day, month, weekday).",
    )
    duration_ms: int = required(
        "duration", fields.duration("1m", "168h"), "How long the window stays open (10h); at most a week."
    )
    time_zone: str = spec(
        "timeZone",
        fields.text(pattern=_ZONE, example="Europe/Berlin", max_length=64),
        "The IANA time zone of start, such as Europe/Berlin.",
        default="UTC",
    )
    min_replicas: int = required(
        "minReplicas",
        fields.whole(minimum=1, maximum=MAX_REPLICAS),
        "The minimum number of workers while the window is open.",
    )


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The allowed number of workers, and what determines it."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not be greater than maxReplicas; lower minReplicas or raise maxReplicas",
            ".minReplicas",
            "'is %d, but maxReplicas is %d; lower minReplicas or raise "
            "maxReplicas'.format([self.minReplicas, self.maxReplicas])",
        ),
        Rule(
            "!has(self.maxReplicas) || self.schedules.all(s, s.minReplicas <= self.maxReplicas)",
            "a schedule's minReplicas must not be greater than scaling.maxReplicas; lower it or raise "
            "maxReplicas",
            ".schedules",
        ),
        Rule(
            "self.schedules.size() == 0 || has(self.catchUp) || has(self.lagPerReplica)",
            NO_TARGET,
            ".schedules",
        ),
        *(
            Rule(f"!has(self.{name}) || has(self.catchUp) || has(self.lagPerReplica)", NO_TARGET, f".{name}")
            for name in WITH_TARGET
        ),
        Rule(
            "!has(self.fallback) || !has(self.maxReplicas) || self.fallback.replicas <= self.maxReplicas",
            "replicas must not be greater than scaling.maxReplicas; lower it or raise maxReplicas",
            ".fallback",
        ),
    ]

    min_replicas: int = spec(
        "minReplicas",
        fields.whole(minimum=0, maximum=MAX_REPLICAS),
        "The minimum number of workers. 0 stops all workers while there is nothing to consume; it requires "
        "a target (catchUp or lagPerReplica).",
        default=1,
    )
    max_replicas: int | None = spec(
        "maxReplicas",
        fields.whole(minimum=1, maximum=MAX_REPLICAS),
        "The maximum number of workers. Workers never exceed the number of partitions.",
    )
    catch_up_ms: int | None = spec(
        "catchUp",
        fields.duration("1s"),
        "How soon the lag should be worked off (5m, 90s). The number of workers follows from the rates at "
        "which records are produced and consumed.",
    )
    lag_per_replica: int | None = spec(
        "lagPerReplica",
        fields.whole(minimum=1, maximum=10**15),
        "The number of records of lag that justifies one worker.",
    )
    idle_after_ms: int = spec(
        "idleAfter",
        fields.duration("10s"),
        "How long the group must have had no lag and no new records before the last worker is stopped. "
        "Applies if minReplicas is 0.",
        default="5m",
    )
    schedules: tuple[Schedule, ...] = spec(
        "schedules",
        fields.object_list(Schedule, key="name", at_most=20),
        "Time windows with a higher minimum number of workers. If several are open, the highest "
        "minimum applies.",
        default=[],
    )
    behavior: Behavior | None = spec(
        "behavior",
        fields.nested(Behavior),
        "How fast the number of workers changes, as in a HorizontalPodAutoscaler. Not needed against steps "
        "that are taken back soon.",
    )
    activation_lag: int | None = spec(
        "activationLag",
        fields.whole(minimum=0, maximum=10**15),
        "Without workers, the first one starts when the lag is greater than this (default 0). Applies if "
        "minReplicas is 0.",
    )
    fallback: Fallback | None = spec(
        "fallback",
        fields.nested(Fallback),
        "The number of workers while the lag cannot be observed. By default the number is kept.",
    )
    paused_replicas: int | None = spec(
        "pausedReplicas",
        fields.whole(minimum=0, maximum=MAX_REPLICAS),
        "Pauses scaling at this number of workers, whatever the load and the limits are.",
    )

    @property
    def automatic(self) -> bool:
        """Whether a target is given, so that the operator decides the number of workers."""
        return self.catch_up_ms is not None or self.lag_per_replica is not None


def check_scaling(scaling: Scaling) -> None:
    """Refuses settings that exclude each other, as the CEL rules do, and windows that never open.

    Raises:
        FieldError: names the field.
    """
    low, high = scaling.min_replicas, scaling.max_replicas
    if high is not None and low > high:
        raise FieldError(
            "spec.scaling.minReplicas",
            f"is {low}, but maxReplicas is {high}; lower minReplicas or raise maxReplicas",
        )
    if scaling.schedules and not scaling.automatic:
        raise FieldError(
            "spec.scaling.schedules",
            NO_TARGET,
        )
    for name, given in (
        ("behavior", scaling.behavior is not None),
        ("activationLag", scaling.activation_lag is not None),
        ("fallback", scaling.fallback is not None),
        ("pausedReplicas", scaling.paused_replicas is not None),
    ):
        if given and not scaling.automatic:
            raise FieldError(f"spec.scaling.{name}", NO_TARGET)
    if scaling.fallback is not None and high is not None and scaling.fallback.replicas > high:
        raise FieldError(
            "spec.scaling.fallback",
            "replicas must not be greater than scaling.maxReplicas; lower it or raise maxReplicas",
        )
    for index, schedule in enumerate(scaling.schedules):
        path = f"spec.scaling.schedules[{index}]"
        validation.check_schedule(schedule.start, schedule.time_zone, path)
        if high is not None and schedule.min_replicas > high:
            raise FieldError(
                f"{path}.minReplicas",
                f"is {schedule.min_replicas}, but spec.scaling.maxReplicas is {high}; lower minReplicas or "
                "raise maxReplicas",
            )


def check_replicas(replicas: int | None, scaling: Scaling) -> None:
    """Refuses a spec.replicas outside of the limits.

    Raises:
        FieldError: names the field.
    """
    low, high = scaling.min_replicas, scaling.max_replicas
    if replicas is not None and not low <= replicas <= (replicas if high is None else high):
        bounds = f"{low} to {high}" if high is not None else f"at least {low}"
        raise FieldError("spec.replicas", f"is {replicas}, but spec.scaling allows {bounds}")
