"""The clients in interpreters and on event loops that are not the usual ones."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.client.integration.groups.consumer_harness import make_topic
from tests.support.waiting import HANG_S

CLIENTS = """
import asyncio, sys
bootstrap, topic, loop = sys.argv[1:]
if loop == "uvloop":
    import uvloop
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
from slackwater.kafka import AsyncConsumer, AsyncProducer, KafkaAdmin, KafkaConsumer, KafkaProducer

def options(group):
    return {"bootstrap_servers": bootstrap, "group_id": group, "auto_offset_reset": "earliest"}

async def main():
    async with AsyncProducer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, b"async")
    async with AsyncConsumer(topic, **options(topic + "-async")) as consumer:
        values = [(await anext(consumer)).value, (await anext(consumer)).value]
        await consumer.commit()
    return type(asyncio.get_running_loop()).__module__.split(".")[0], *values

with KafkaProducer(bootstrap_servers=bootstrap) as producer, KafkaAdmin(bootstrap) as admin:
    producer.send(topic, b"sync").get(600)
    assert topic in admin.list_topics()
with KafkaConsumer(topic, **options(topic)) as consumer:
    first = next(consumer).value
print(first, *asyncio.run(main()))
"""


@pytest.mark.parametrize(
    ("flags", "loop"),
    [
        (["-X", "dev", "-W", "error"], "asyncio"),
        (["-O", "-W", "error::ResourceWarning"], "uvloop"),
    ],
    ids=["development mode", "optimized, uvloop"],
)
def test_the_clients_run(devbroker: Any, flags: list[str], loop: str) -> None:
    topic = make_topic(devbroker.bootstrap, 1)
    command = [sys.executable, *flags, "-c", CLIENTS, devbroker.bootstrap, topic, loop]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert (ended.stdout, ended.stderr) == (f"b'sync' {loop} b'sync' b'async'\n", "")
