"""What a consumer's options must be, each and together.

Sources: Java's ConsumerConfig and classic KafkaConsumer (4.3.0: what they raise was tried out, option by
option), and kafka-python 3 where it is stricter. Messages name both values and what to change.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.net.addresses import parse_servers

if TYPE_CHECKING:
    from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig

log = logging.getLogger(__name__)

_INSTANCE_ID = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAME = re.compile(r"<([a-z_]+)>")
MAY_BE_ZERO = {
    "fetch_max_wait_ms", "fetch_min_bytes", "retry_backoff_ms", "retry_backoff_max_ms",
    "reconnect_backoff_ms", "reconnect_backoff_max_ms", "auto_commit_interval_ms", "metadata_max_age_ms",
    "scheduled_rebalance_max_delay_ms", "metadata_recovery_rebootstrap_trigger_ms",
    "subscription_change_max_delay_ms",
}  # fmt: skip


class OptionProblem(KafkaConfigurationError):
    """Options that cannot be. ``text`` has their names as ``<keyword>``; :meth:`under` gives them others."""

    def __init__(self, text: str, names: Mapping[str, str] | None = None) -> None:
        self.text = text
        known = names if names is not None else {}
        super().__init__(_NAME.sub(lambda found: known.get(found[1], found[1]), text))

    def under(self, names: Mapping[str, str]) -> OptionProblem:
        """The same problem with the names that the user wrote."""
        return OptionProblem(self.text, names)


def check(config: ConsumerConfig) -> None:
    """Raises :class:`OptionProblem`; logs what is allowed but hardly meant."""
    for one in (_types, _servers, _sizes, _group, _times):
        one(config)
    _hardly_meant(config)


def _types(config: ConsumerConfig) -> None:
    for one in fields(config):
        value = getattr(config, one.name)
        if one.type == "int | None" and value is None:
            continue
        if one.type.startswith("int") and (not isinstance(value, int) or isinstance(value, bool)):
            raise OptionProblem(f"<{one.name}> must be an integer, not {value!r}")
        if one.type == "bool" and not isinstance(value, bool):
            raise OptionProblem(f"<{one.name}> must be True or False, not {value!r}")
    for name in ("client_id", "client_rack"):
        if not isinstance(getattr(config, name), str):
            raise OptionProblem(f"<{name}> must be a string, not {getattr(config, name)!r}")


def _servers(config: ConsumerConfig) -> None:
    try:
        parse_servers(config.bootstrap_servers)
    except KafkaConfigurationError as exc:
        raise OptionProblem(str(exc).replace("bootstrap_servers", "<bootstrap_servers>")) from None


def _sizes(config: ConsumerConfig) -> None:
    for one in fields(config):
        least = 0 if one.name in MAY_BE_ZERO else 1
        value = getattr(config, one.name)
        if one.type.startswith("int") and value is not None and value < least:
            raise OptionProblem(f"<{one.name}> must be at least {least}, not {value}")


def _group(config: ConsumerConfig) -> None:
    group, instance = config.group_id, config.group_instance_id
    if group is not None and (not isinstance(group, str) or not group.strip()):
        raise OptionProblem(f"<group_id> must be a non-empty string, not {group!r}")
    if instance is None:
        return
    if not group:
        raise OptionProblem(f"<group_instance_id>={instance!r} needs a <group_id>: set one, or leave it out")
    if not isinstance(instance, str) or instance in (".", "..") or not _INSTANCE_ID.fullmatch(instance):
        raise OptionProblem(
            f"<group_instance_id> {instance!r} must be 1 to 249 of the characters A-Z a-z 0-9 . _ -, "
            'and neither "." nor ".."'
        )


def _times(config: ConsumerConfig) -> None:
    beat, session = config.heartbeat_interval_ms, config.session_timeout_ms
    if beat >= session:
        raise OptionProblem(
            f"<heartbeat_interval_ms>={beat} must be lower than <session_timeout_ms>={session}: lower it to "
            f"{max(1, session // 3)} (a third) or less, or raise <session_timeout_ms>"
        )
    wait, request = config.fetch_max_wait_ms, config.request_timeout_ms
    if wait >= request:
        raise OptionProblem(
            f"<fetch_max_wait_ms>={wait} must be lower than <request_timeout_ms>={request}, or every fetch "
            "that waits for records times out: lower the one or raise the other"
        )
    idle = config.connections_max_idle_ms
    if request >= idle:
        raise OptionProblem(
            f"<request_timeout_ms>={request} must be lower than <connections_max_idle_ms>={idle}, or a "
            "connection is closed while it waits for its answer: lower the one or raise the other"
        )


def check_given(config: ConsumerConfig, given: Mapping[str, object]) -> None:
    """What depends on which options were written: raises :class:`OptionProblem`."""
    if given.get("enable_auto_commit") is True and config.group_id is None:
        raise OptionProblem(
            "<enable_auto_commit>=true needs a <group_id>, since offsets are committed for a group: set "
            "<group_id>, or leave <enable_auto_commit> out"
        )
    api, request = config.default_api_timeout_ms, config.request_timeout_ms
    if "default_api_timeout_ms" in given and "request_timeout_ms" in given and api < request:
        raise OptionProblem(
            f"<default_api_timeout_ms>={api} must not be lower than <request_timeout_ms>={request}, since a "
            "call makes at least one request: raise the one or lower the other"
        )


def _hardly_meant(config: ConsumerConfig) -> None:
    for low, high, effect in (
        ("retry_backoff_ms", "retry_backoff_max_ms", "every pause is the latter"),
        ("reconnect_backoff_ms", "reconnect_backoff_max_ms", "every pause is the latter"),
        ("fetch_min_bytes", "fetch_max_bytes", "every fetch waits for fetch_max_wait_ms"),
    ):
        one, other = getattr(config, low), getattr(config, high)
        if one > other:
            log.warning("%s=%d is greater than %s=%d: %s", low, one, high, other, effect)
