"""Checks of a ConsumerGroup's fields that CEL cannot make."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from slackwater.fields import FieldError
from slackwater.kafka.errors import IllegalArgumentError
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.runtime.config.worker_config import OF_CLASSIC_ALONE
from slackwater_operator.api.v1alpha1 import pod_template_overlay as overlay
from slackwater_operator.api.v1alpha1.schedule import ScheduleError, Window, check_window

MIN_SESSION_TIMEOUT_MS = 6_000
MAX_SESSION_TIMEOUT_MS = 1_800_000
DEFAULT_SESSION_TIMEOUT_MS = 45_000
DEFAULT_MAX_POLL_INTERVAL_MS = 300_000

MAX_PATTERN_PROGRAM = 2_000
"""The largest compiled size of a topicPattern in RE2: the operator matches it with all topics."""

TIMES = ("heartbeat.interval.ms", "max.poll.interval.ms", "session.timeout.ms")
"""Properties whose values CEL rules compare."""

RESERVED_PREFIXES = ("sasl.", "security.", "ssl.")
"""Prefixes of properties that spec.kafka.security sets."""
RESERVED_PROPERTIES = {
    "bootstrap.servers": "set spec.kafka.bootstrapServers instead",
    "group.id": "set spec.groupId instead",
    "group.instance.id": "it is the worker's pod name",
    "enable.auto.commit": "a worker commits after its sink has written",
    "client.id": "it is the pod's name",
    "allow.auto.create.topics": "a worker reads topics that exist",
    "key.deserializer": "a handler receives bytes",
    "value.deserializer": "a handler receives bytes",
    "interceptor.classes": "a worker does not call them; change or drop records in the handler",
    "group.protocol": "set spec.kafka.groupProtocol instead",
}
OF_CLASSIC_ALONE_ADVICE = (
    f"{', '.join(OF_CLASSIC_ALONE[:-1])} and {OF_CLASSIC_ALONE[-1]} require groupProtocol Classic: by the "
    "consumer protocol the brokers assign partitions, and the group's configs have the times "
    "(consumer.session.timeout.ms, consumer.heartbeat.interval.ms); remove them"
)

_PROPERTIES = "spec.kafka.properties"


def check_properties(properties: Mapping[str, str], *, consumer_protocol: bool) -> None:
    """Refuses properties that Slackwater sets itself, that its client does not know, that brokers do not
    accept, or that do not go with the group protocol.

    Raises:
        FieldError: names the property.
    """
    for name, advice in RESERVED_PROPERTIES.items():
        if name in properties:
            raise FieldError(f"{_PROPERTIES}[{name}]", f"is set by Slackwater; remove it ({advice})")
    for name in properties:
        if name.startswith(RESERVED_PREFIXES):
            raise FieldError(f"{_PROPERTIES}[{name}]", "is not allowed here; use spec.kafka.security")
    if consumer_protocol and any(name in properties for name in OF_CLASSIC_ALONE):
        raise FieldError(_PROPERTIES, OF_CLASSIC_ALONE_ADVICE)
    session = milliseconds(properties, "session.timeout.ms", DEFAULT_SESSION_TIMEOUT_MS)
    if not MIN_SESSION_TIMEOUT_MS <= session <= MAX_SESSION_TIMEOUT_MS:
        raise FieldError(
            f"{_PROPERTIES}[session.timeout.ms]",
            f"is {session}, but brokers accept {MIN_SESSION_TIMEOUT_MS} to {MAX_SESSION_TIMEOUT_MS} "
            "(milliseconds; group.min.session.timeout.ms and group.max.session.timeout.ms)",
        )
    if milliseconds(properties, "heartbeat.interval.ms", 1) * 3 > session:
        raise FieldError(
            f"{_PROPERTIES}[heartbeat.interval.ms]",
            f"must be at most a third of session.timeout.ms ({session}), so that a member survives a "
            "lost heartbeat",
        )
    _check_known(properties, {"group.protocol": "consumer"} if consumer_protocol else {})


def _check_known(properties: Mapping[str, str], protocol: Mapping[str, str]) -> None:
    # Only here, so that who wants the types (the CRD, the builders) need not load the client.
    from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
    from slackwater.kafka.errors import KafkaConfigurationError

    together: KafkaConfigurationError | ValueError
    try:
        ConsumerConfig.from_properties(
            {**{name: value for name, value in properties.items() if name not in TIMES}, **protocol}
        )
        return
    except (KafkaConfigurationError, ValueError) as error:
        together = error
    for name, value in properties.items():
        if name in TIMES:
            continue  # they depend on each other, and are checked above
        try:
            ConsumerConfig.from_properties({name: value, **protocol})
        except (KafkaConfigurationError, ValueError) as error:
            problem = " ".join(str(error).split())
            if problem.startswith("unknown") and "did you mean" not in problem:
                problem += "; remove it (only Kafka consumer properties are allowed)"
            raise FieldError(f"{_PROPERTIES}[{name}]", problem) from None
    raise FieldError(_PROPERTIES, str(together)) from None


def check_servers(servers: str) -> None:
    """Refuses brokers that the client cannot connect to, such as one with a port of 70000.

    Raises:
        FieldError: names the broker.
    """
    from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
    from slackwater.kafka.errors import KafkaConfigurationError

    try:
        ConsumerConfig(bootstrap_servers=servers)
    except KafkaConfigurationError as error:
        problem = str(error).removeprefix("bootstrap_servers: ")
        raise FieldError("spec.kafka.bootstrapServers", problem) from None


def milliseconds(properties: Mapping[str, str], name: str, default: int) -> int:
    """A property in milliseconds; `default` if it is not set.

    Raises:
        FieldError: it is not a number of milliseconds.
    """
    written = properties.get(name)
    if written is None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", written):
        path = f"{_PROPERTIES}[{name}]"
        raise FieldError(path, f'{written!r} is not a number of milliseconds, such as "{default}"')
    return int(written)


def whole_pattern(pattern: str) -> str:
    r"""The expression that matches, from the start of a name, the names that `pattern` matches as a whole.

    It ends in Python's `\Z`, which `TopicPattern` accepts, and workers of older images as well.
    """
    return rf"(?:{pattern})\Z"


def check_pattern(pattern: str, dead_letter_topic: str, output_topics: Mapping[str, str]) -> None:
    """Refuses a topicPattern that RE2 cannot compile, or that matches the dead-letter topic or a sink's
    topic.

    Args:
        pattern: the expression.
        dead_letter_topic: "" where there is none.
        output_topics: the sinks' topics, by their paths in the resource.

    Raises:
        FieldError: names the field.
    """
    try:
        # By itself, too: `a)(?:b` is none, but becomes one inside of the other parentheses.
        TopicPattern(pattern)
        compiled = TopicPattern(whole_pattern(pattern), max_program=MAX_PATTERN_PROGRAM)
    except IllegalArgumentError as error:
        raise FieldError("spec.topicPattern", str(error)) from None
    if dead_letter_topic and compiled.matches(dead_letter_topic):
        raise FieldError(
            "spec.topicPattern",
            f"matches spec.pipeline.deadLetterTopic ({dead_letter_topic}), so dead letters would be "
            "consumed again; narrow the pattern or rename that topic",
        )
    for path, topic in output_topics.items():
        if compiled.matches(topic):
            raise FieldError(
                "spec.topicPattern",
                f"matches {path} ({topic}), so the group would consume its own output; narrow the pattern or "
                "rename that topic",
            )


def check_schedule(start: str, time_zone: str, path: str) -> None:
    """Refuses a cron expression that never matches, and a time zone that does not exist.

    Args:
        start: the cron expression.
        time_zone: the zone's name.
        path: the schedule's path.

    Raises:
        FieldError: names the field.
    """
    try:
        ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise FieldError(
            f"{path}.timeZone", f"{time_zone!r} is not a time zone; use a name such as Europe/Berlin, or UTC"
        ) from None
    try:
        check_window(Window(start, duration_ms=60_000, min_replicas=1, time_zone=time_zone))
    except ScheduleError as error:
        problem = str(error).removeprefix(f"schedule {start}: ")
        raise FieldError(
            f"{path}.start",
            f'{problem}; write minute, hour, day, month and weekday, such as "0 8 * * MON-FRI"',
        ) from None


def check_template(template: Mapping[str, Any]) -> None:
    """Refuses a spec.template that cannot be merged over the operator's.

    Raises:
        FieldError: names the field under spec.template.
    """
    overlay.check(template)
