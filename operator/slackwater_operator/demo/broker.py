"""The demo's broker and topics: the dev broker as a child process, or one that is there already."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from slackwater.kafka.admin import AsyncAdmin, NewTopic
from slackwater.kafka.errors import KafkaError
from slackwater_operator.demo.children import Child, DemoError

SOURCE_PARTITIONS = 12
DEAD_LETTER_PARTITIONS = 3


async def start_dev_broker(folder: Path) -> tuple[Child, str]:
    """Starts `slackwater devbroker` on a free port; gives the process and its address.

    Args:
        folder: for its data and logs; must be new.

    Raises:
        DemoError: it ended before it served.
    """
    command = [sys.executable, "-m", "slackwater.cli", "devbroker", "--data", str(folder / "data")]
    child = Child("broker", command, folder / "logs")
    await child.start()
    try:
        event = await child.wait_for("listening")
    except DemoError:
        await child.stop()
        raise
    return child, f"{event.data['host']}:{event.data['port']}"


async def make_topics(bootstrap: str, group_id: str, topics: Mapping[str, int], *, replace: bool) -> None:
    """Makes the topics, which must not be there yet; with ``replace`` those that are go, and the group too.

    Raises:
        DemoError: the broker does not answer, or a topic or the group is there and ``replace`` is not set.
    """
    try:
        async with AsyncAdmin(bootstrap_servers=bootstrap, client_id="slackwater-demo") as admin:
            present = sorted(set(await admin.list_topics()) & topics.keys())
            groups = [group.group_id for group in await admin.list_groups() if group.group_id == group_id]
            if (present or groups) and not replace:
                named = ", ".join([*(f"topic {name}" for name in present), *(f"group {g}" for g in groups)])
                raise DemoError(
                    f"{bootstrap} already has {named}; delete them with --replace, or use another broker"
                )
            (await admin.delete_groups(groups)).unwrap()
            (await admin.delete_topics(present)).unwrap()
            for name in present:
                await admin.wait_for_topic_deleted(name)
            # The flights' timestamps are of 2013: with a retention by time a broker would delete them.
            keep = {"retention.ms": "-1"}
            made = [NewTopic(name, partitions, configs=keep) for name, partitions in topics.items()]
            (await admin.create_topics(made)).unwrap()
            for name, partitions in topics.items():
                await admin.wait_for_topic(name, partitions)
    except KafkaError as exc:
        raise DemoError(f"{bootstrap}: the topics could not be created: {exc}") from exc
