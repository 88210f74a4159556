"""What a worker takes from its environment in place of its configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slackwater.commands.worker import KafkaParts
from slackwater.runtime.config.environment import settings
from slackwater.runtime.config.worker_config import parse

DOCUMENT = {
    "groupId": "flights",
    "topics": ["flights"],
    "bootstrapServers": "kafka:9092",
    "handler": "flights.pipeline:transform",
    "engine": "arrow",
    "sink": {"format": "parquet", "path": "/data"},
}


@pytest.mark.parametrize(
    ("environment", "host", "advertised"),
    [
        ({}, "::", ""),
        ({"SLACKWATER_POD_IP": "10.0.0.7"}, "::", "10.0.0.7"),
        ({"SLACKWATER_HEALTH_HOST": "10.0.0.7"}, "10.0.0.7", ""),
    ],
    ids=["by hand", "in a pod", "in a pod of an older operator"],
)
def test_where_it_listens_and_what_other_workers_are_told(
    environment: dict[str, str], host: str, advertised: str, tmp_path: Path
) -> None:
    file = tmp_path / "worker.json"
    file.write_text(json.dumps({**DOCUMENT, "health": {"host": "::", "port": 8080}}))
    health = settings(file, environment).health
    assert (health.host, health.port, health.advertised_host) == (host, 8080, advertised)


def test_the_limit_of_a_brokers_answer_counts_for_the_looks_from_outside_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A preflight asks for all topics' names where there is a pattern: the largest answer of all."""
    given: dict[str, Any] = {}

    class Admin:
        def __init__(self, *_: object, **options: Any) -> None:
            given.update(options)

    monkeypatch.setattr("slackwater.kafka.KafkaAdmin", Admin)
    config = parse({**DOCUMENT, "properties": {"receive.message.max.bytes": "100000000"}})
    KafkaParts(config, "w-0", "worker.json")._admin()
    assert given["receive_message_max_bytes"] == 100_000_000
