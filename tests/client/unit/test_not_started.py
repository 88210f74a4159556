"""Asynchronous clients that were not started: each call says so, in place of waiting for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from slackwater.kafka import AsyncConsumer, AsyncProducer, IllegalStateError
from slackwater.kafka.admin import AsyncAdmin

NOWHERE = "127.0.0.1:1"
CALLS: dict[str, Callable[[], Awaitable[object]]] = {
    "send": lambda: AsyncProducer(bootstrap_servers=NOWHERE).send("t", b"x"),
    "list_topics": lambda: AsyncAdmin(NOWHERE).list_topics(),
    "describe_groups": lambda: AsyncAdmin(NOWHERE).describe_groups(["g"]),
    "poll": lambda: AsyncConsumer("t", bootstrap_servers=NOWHERE).poll(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_before_start_is_refused(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(IllegalStateError, match=r"call start\(\) first"):
        await call()
