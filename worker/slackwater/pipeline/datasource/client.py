"""Clients of the brokers, made of the options ``kafka.*``; their errors have no secrets in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slackwater.kafka.errors import KafkaConfigurationError, KafkaError
from slackwater.pipeline.datasource.options import CLIENT_PREFIX, OptionError

if TYPE_CHECKING:
    from slackwater.kafka import KafkaAdmin, KafkaConsumer
    from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig

READING = {
    # A fetch that waits at one partition's end holds up the next one's.
    "fetch.max.wait.ms": "50",
    "fetch.max.bytes": str(16 << 20),
    "max.partition.fetch.bytes": str(4 << 20),
}
"""A task's own properties of the consumer; it reads one partition at a time."""
_FIXED: dict[str, Any] = {
    "enable_auto_commit": False,
    "allow_auto_create_topics": False,
    # A position that is not in the log is an error, or reported: nothing is passed over unseen.
    "auto_offset_reset": "none",
}
_SECRET = re.compile(r"password|passphrase|secret|jaas|token|credential|\.key$", re.IGNORECASE)
_JAAS_VALUE = re.compile(r"""=\s*(?:"((?:[^"\\]|\\.)+)"|'([^']+)'|([^\s;"']+))""")
_MAX_CONSUMERS = 4
_consumers: dict[frozenset[tuple[str, str]], KafkaConsumer] = {}
"""Of this process: Spark uses a Python process for many tasks, one at a time."""


def redacted(text: str, properties: Mapping[str, str]) -> str:
    """``text`` without the secrets among ``properties``."""
    secrets: set[str] = set()
    for name, value in properties.items():
        if _SECRET.search(name):
            parts = {part for match in _JAAS_VALUE.findall(value) for part in match}
            secrets |= {value, *parts, *(part.replace('\\"', '"') for part in parts)}
    for secret in sorted((secret for secret in secrets if len(secret) > 1), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


@contextmanager
def without_secrets(properties: Mapping[str, str]) -> Iterator[None]:
    """Raises what is raised inside, but errors of the options and of Kafka without secrets in their text."""
    try:
        yield
    except KafkaConfigurationError as exc:
        raise OptionError(f"{CLIENT_PREFIX}*", f"cannot be used: {redacted(str(exc), properties)}") from None
    except KafkaError as exc:
        if all(redacted(text, properties) == text for text in _texts(exc)):
            raise
        raise KafkaError(f"{type(exc).__name__}: {redacted(str(exc), properties)}") from None


def _texts(error: BaseException | None) -> Iterator[str]:
    """Those of an error and its causes, which a traceback shows."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def config_of(properties: Mapping[str, str], **more: Any) -> ConsumerConfig:
    """The client's configuration. Raises OptionError."""
    from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig

    with without_secrets(properties):
        return ConsumerConfig.from_properties(properties, **_FIXED, **more)


def open_admin(properties: Mapping[str, str]) -> KafkaAdmin:
    """A client that asks for topics and offsets. Raises OptionError, KafkaError."""
    from slackwater.kafka import KafkaAdmin

    config = config_of(properties)
    with without_secrets(properties):
        return KafkaAdmin(
            config.bootstrap_servers,
            client_id=config.client_id,
            security=config.security,
            request_timeout_ms=config.default_api_timeout_ms,
            bootstrap_timeout_ms=config.bootstrap_timeout_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            client_dns_lookup=config.client_dns_lookup,
        )


def open_consumer(properties: Mapping[str, str], **more: Any) -> KafkaConsumer:
    """A consumer that reads from no group. Raises OptionError, KafkaError."""
    from slackwater.kafka import KafkaConsumer

    with without_secrets(properties):
        return KafkaConsumer.from_properties(properties, **{**_FIXED, **more})


@contextmanager
def task_consumer(properties: Mapping[str, str]) -> Iterator[KafkaConsumer]:
    """A consumer for one task, with connections that an earlier task of this process may have made.

    It is closed where the task fails, and kept otherwise. Raises OptionError, KafkaError.
    """
    key = frozenset(properties.items())
    consumer = _consumers.pop(key, None) or open_consumer({**READING, **properties})
    try:
        with without_secrets(properties):
            yield consumer
            consumer.unsubscribe()
    except BaseException:
        consumer.close(autocommit=False, timeout_ms=1_000)
        raise
    _consumers[key] = consumer
    while len(_consumers) > _MAX_CONSUMERS:
        _consumers.pop(next(iter(_consumers))).close(timeout_ms=1_000)
