"""A producer's options by Java's names."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.producer import KafkaProducer, ProducerConfig


def upper(value: str) -> bytes:
    return value.upper().encode()


def test_properties_of_java_become_options() -> None:
    config = ProducerConfig.from_properties(
        {
            "bootstrap.servers": "a:1,b:2",
            "acks": "all",
            "linger.ms": "7",
            "batch.size": 100,
            "enable.idempotence": "true",
            "compression.type": "zstd",
            "key.serializer": "org.apache.kafka.common.serialization.StringSerializer",
            "value.serializer": f"{__name__}:upper",
            "security.protocol": "SSL",
            "transactional.id": "",
            "send.buffer.bytes": "-1",
        },
        client_id="c",
    ).loaded()
    assert (config.acks, config.linger_ms, config.batch_size) == ("all", 7, 100)
    assert (config.codec, config.client_id, config.security.protocol) == ("zstd", "c", "SSL")
    assert config.key_serializer is not None
    assert config.key_serializer("é") == "é".encode()
    assert config.value_serializer is upper
    assert config.send_buffer_bytes is None
    assert config.transactional_id is None


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"linger.mss": "1"}, "did you mean 'linger.ms'"),
        ({"linger_ms": "1"}, "unknown property 'linger_ms'"),
        ({"linger.ms": "soon"}, "linger.ms must be a number"),
        ({"transactional.id": "t", "acks": "1"}, "transactions need acks"),
        ({"value.serializer": "org.example.Avro"}, "module:name"),
        ({"interceptor.classes": "org.example.Counts"}, "module:Class"),
        ({"interceptor.classes": "pathlib:Path"}, "neither on_send"),
    ],
)
def test_properties_that_cannot_be_are_refused(properties: dict[str, Any], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says):
        KafkaProducer.from_properties(properties)


@pytest.mark.parametrize("acks", [0, 1, "0", "1"])
def test_fewer_acks_turn_idempotence_off(acks: int | str) -> None:
    assert not ProducerConfig.from_keywords({"acks": acks}).enable_idempotence
    assert not ProducerConfig.from_properties({"acks": str(acks)}).enable_idempotence
    with pytest.raises(KafkaConfigurationError, match="idempotence needs acks"):
        ProducerConfig.from_keywords({"acks": acks, "enable_idempotence": True})
