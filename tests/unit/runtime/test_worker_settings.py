"""What a worker takes from its environment in place of its configuration file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slackwater.worker_cli import settings


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
    document = {
        "groupId": "flights",
        "topics": ["flights"],
        "bootstrapServers": "kafka:9092",
        "handler": "flights.pipeline:transform",
        "engine": "arrow",
        "sink": {"format": "parquet", "path": "/data"},
        "health": {"host": "::", "port": 8080},
    }
    file.write_text(json.dumps(document))
    health = settings(file, environment).health
    assert (health.host, health.port, health.advertised_host) == (host, 8080, advertised)
