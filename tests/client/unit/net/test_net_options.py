"""How a consumer's options reach the network, by kafka-python's names and by Java's."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.devbroker import DevBroker
from slackwater.kafka import AsyncConsumer
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.errors import KafkaConfigurationError


def test_javas_names_of_the_connection_options_are_read() -> None:
    made = ConsumerConfig.from_properties(
        {
            "client.dns.lookup": "resolve_canonical_bootstrap_servers_only",
            "connections.max.idle.ms": "60000",
            "metadata.recovery.strategy": "none",
            "metadata.recovery.rebootstrap.trigger.ms": "0",
            "receive.buffer.bytes": "65536",
            "send.buffer.bytes": "-1",
        }
    )
    assert made.client_dns_lookup == "resolve_canonical_bootstrap_servers_only"
    assert made.connections_max_idle_ms == 60_000
    assert made.metadata_recovery_strategy == "none"
    assert made.metadata_recovery_rebootstrap_trigger_ms == 0
    assert made.receive_buffer_bytes == 65_536
    assert made.send_buffer_bytes is None


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"client.dns.lookup": "default"}, "client.dns.lookup must be one of use_all_dns_ips, resolve_"),
        (
            {"metadata.recovery.strategy": "some"},
            "metadata.recovery.strategy must be one of rebootstrap, none",
        ),
        ({"receive.buffer.bytes": "0"}, "receive.buffer.bytes must be at least 1, not 0"),
        ({"send.buffer.bytes": "-2"}, "send.buffer.bytes must be at least 1, not -2"),
        ({"metadata.recovery.rebootstrap.trigger.ms": "-1"}, "must be at least 0"),
        (
            {"bootstrap.controllers": "c:9093"},
            "bootstrap.controllers=c:9093 is not supported: controllers answer to admin tools only; "
            "set bootstrap.servers to brokers",
        ),
    ],
)
def test_invalid_connection_options_are_refused(properties: dict[str, str], says: str) -> None:
    with pytest.raises(KafkaConfigurationError) as raised:
        ConsumerConfig.from_properties(properties)
    assert says in str(raised.value)


async def test_the_connection_options_reach_the_network(tmp_path: Any) -> None:
    async with DevBroker(tmp_path) as broker:
        consumer = AsyncConsumer(
            bootstrap_servers=broker.bootstrap,
            connections_max_idle_ms=77_000,
            receive_buffer_bytes=30_000,
            receive_message_max_bytes=40_000,
            metadata_recovery_strategy="none",
        )
        async with consumer:
            cluster = consumer._core.cluster
            assert cluster.settings.receive_buffer_bytes == 30_000
            assert cluster.settings.send_buffer_bytes is None
            assert cluster.settings.receive_message_max_bytes == 40_000
            assert cluster._pool._max_idle_s == 77
            assert cluster._recovery == "none"
