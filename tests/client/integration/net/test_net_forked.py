"""A process that was forked from one whose client has threads: it neither uses nor awaits them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from slackwater.kafka import (
    AsyncConsumer,
    AsyncProducer,
    KafkaAdmin,
    KafkaConsumer,
    KafkaProducer,
    TopicPartition,
)
from slackwater.kafka.admin import AsyncAdmin
from slackwater.kafka.net import name_lookup
from slackwater.kafka.net.threads import MADE_BEFORE_FORK
from tests.client.integration.groups.consumer_harness import make_topic, options
from tests.support.waiting import HANG_S

FORKS = """
import os
from slackwater.kafka.net.threads import answer_decoder
answer_decoder().submit(int).result()
child = os.fork()
if not child:
    os._exit(answer_decoder().submit(lambda: 7).result(600))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_decodes_large_answers_by_a_thread_of_its_own() -> None:
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", FORKS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert (ended.stdout, ended.stderr) == ("7\n", "")


def test_clients_of_the_parent_refuse_their_calls_in_a_forked_process(devbroker: Any) -> None:
    topic, loop = make_topic(devbroker.bootstrap, 1, 2), asyncio.new_event_loop()
    servers = {"bootstrap_servers": devbroker.bootstrap}
    with (
        KafkaConsumer(topic, **options(devbroker.bootstrap, None)) as consumer,
        KafkaProducer(**servers, linger_ms=60_000) as producer,
        KafkaAdmin(**servers) as admin,
    ):
        while not consumer.poll(1_000, max_records=1):
            pass
        producer.send(topic, b"waits")

        async def started() -> tuple[AsyncConsumer, AsyncProducer, AsyncAdmin]:
            return (
                await AsyncConsumer(topic, **servers).start(),
                await AsyncProducer(**servers).start(),
                await AsyncAdmin(**servers).start(),
            )

        async_consumer, async_producer, async_admin = loop.run_until_complete(started())
        calls: dict[str, Callable[[], object]] = {
            "poll": consumer.poll,
            "iteration": lambda: next(consumer),
            "send": lambda: producer.send(topic, b"never"),
            "flush": producer.flush,
            "list_topics": admin.list_topics,
            "AsyncConsumer.poll": lambda: async_consumer.poll().send(None),
            "AsyncProducer.send": lambda: async_producer.send(topic, b"never").send(None),
            "AsyncAdmin.list_topics": lambda: async_admin.list_topics().send(None),
        }
        assert done_in_a_fork(calls) == dict.fromkeys(calls, "IllegalStateError: " + MADE_BEFORE_FORK)
        closing: dict[str, Callable[[], object]] = {
            client.__class__.__name__: client.close for client in (consumer, producer, admin)
        }
        assert done_in_a_fork(closing) == dict.fromkeys(closing, "")
        for client in (async_consumer, async_producer, async_admin):
            loop.run_until_complete(client.close())
        producer.flush()
        assert consumer.poll(60_000)
        assert consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 3}
    loop.close()


def done_in_a_fork(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    """The error of each call in a forked process; "": none."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writer, "w") as output:
            for name, call in calls.items():
                try:
                    call()
                    error = ""
                except BaseException as exc:
                    error = f"{type(exc).__name__}: {exc}"
                print(json.dumps([name, error]), file=output, flush=True)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        errors = dict(json.loads(line) for line in answers)
    os.waitpid(child, 0)
    return errors


async def test_a_forked_process_does_not_wait_for_the_threads_of_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()

    def getaddrinfo(host: str, port: int, **_: object) -> list[name_lookup.AddressInfo]:
        answers.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    pending = asyncio.create_task(name_lookup.look_up("broker", 9092))
    await asyncio.sleep(0)
    child = os.fork()
    if not child:
        os._exit(1 if name_lookup.is_running("broker", 9092) else 0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    answers.set()
    assert await pending
