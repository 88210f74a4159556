"""A process that was forked from one whose client has threads: it neither uses nor awaits them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading

import pytest

from slackwater.kafka.net import name_lookup
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
    ended = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=HANG_S)
    assert (ended.stdout, ended.stderr) == ("7\n", "")


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
