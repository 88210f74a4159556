"""Workers that write to a topic: no record is missing, whichever of them is killed."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from slackwater_operator.api.v1alpha1.consumer_group import load
from tests.support.peers.librdkafka import StoredRecord, read_topic
from tests.support.waiting import wait_until
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite

EXAMPLES = Path(__file__).parents[4] / "examples"
ORDERS = 3000


def customer(number: int) -> str:
    """Whose order it is: a customer's orders are all in one partition of the source."""
    return f"c{number % PARTITIONS}-{number % 5}"


def order(number: int) -> bytes:
    fields = {"id": f"o-{number}", "customer": customer(number), "quantity": number, "price": 0.5}
    return json.dumps(fields).encode()


def check_order(records: list[StoredRecord]) -> int:
    """Whether each customer's orders are in order. How many are in the topic a second time.

    A worker that was killed has its last orders written again, from one on: so an order may be followed by an
    earlier one, but by no later one than the next.
    """
    streams: dict[tuple[int, bytes | None], list[int]] = defaultdict(list)
    for record in records:
        number = int(json.loads(record.value or b"")["id"].removeprefix("o-"))
        streams[record.partition, record.key].append(number)
    customers = [key for _, key in streams]
    assert len(customers) == len(set(customers)), "a customer's orders are in several partitions"
    again = 0
    for (_, key), numbers in streams.items():
        wanted = [n for n in range(ORDERS) if customer(n).encode() == key]
        place = {number: at for at, number in enumerate(wanted)}
        reached = -1
        for number in numbers:
            assert place[number] <= reached + 1, f"{key!r}: order {number} comes too early"
            again += place[number] <= reached
            reached = max(reached, place[number])
        assert reached == len(wanted) - 1
    return again


def test_no_order_is_missing_and_those_of_a_customer_stay_in_order(site: DeliverySite) -> None:
    """The example, with its handler. Workers are killed between the topic's acknowledgement and the group's
    commit, and in the middle of whatever they do."""
    example = load(EXAMPLES / "orders" / "to-topic.yaml").spec.pipeline
    assert example.sink.topic == "orders.priced"
    output = f"{site.topic}-priced"
    site.create_topics(**{output: 3})
    site.write([(number % PARTITIONS, order(number)) for number in range(ORDERS)])
    handler = site.config()["handler"].split(":")[0]
    # The first makes the process die where the environment says.
    (site.folder / "dying.py").write_text(
        f"from {handler} import *\nfrom orders.priced import transform\n", encoding="utf-8"
    )
    config = {
        "engine": example.engine,
        "handler": "dying:transform",
        "handlerPath": [str(site.folder), *site.config()["handlerPath"], str(EXAMPLES)],
        "sink": {"format": "kafka", "topic": output, "options": dict(example.sink.options)},
    }
    once = {"DIE_AFTER": "publish", "DIE_ONCE_FILE": str(site.folder / "died")}
    assert site.worker(environment=once, **config).wait() == -signal.SIGKILL
    before = len(list(read_topic(site.bootstrap, output)))
    assert before > 0, "the first batch was acknowledged, and is not committed"
    second = site.worker(**config)
    wait_until(lambda: len(second.named("committed")) > 5, "commits of the second worker")
    second.signal(signal.SIGKILL)
    last = site.worker(**config)
    site.until_committed(why=site.why)
    assert last.terminate() == 0
    records = list(read_topic(site.bootstrap, output))
    again = check_order(records)
    assert len(records) == ORDERS + again
    assert again >= before, "what the first worker had written was written again"
    assert site.dead_letters() == []


@pytest.mark.long
def test_an_order_that_is_too_large_for_the_topic_becomes_a_dead_letter(
    site: DeliverySite,
) -> None:
    output = f"{site.topic}-priced"
    site.create_topics(**{output: 3})
    site.write([(number % PARTITIONS, order(number)) for number in range(770, 790)])
    config = {
        "engine": "python",
        "handler": "wide:transform",
        "handlerPath": [str(site.folder), str(EXAMPLES)],
        "sink": {"format": "kafka", "topic": output},
    }
    (site.folder / "wide.py").write_text(
        "from orders import priced\n\n\n"
        "def transform(records):\n"
        "    for row in priced.transform(records):\n"
        "        yield {**row, 'value': row['value'] * (20_000 if 'o-777' in row['value'] else 1)}\n\n\n"
        "transform.schema = priced.transform.schema\n",
        encoding="utf-8",
    )
    worker = site.worker(**config)
    site.until_committed(why=site.why)
    assert worker.terminate() == 0
    (letter,) = site.dead_letters()
    assert letter.value == order(777)
    error = letter.headers["slackwater.error"].decode()
    assert f"to the topic {output}: " in error
    assert "are more than its max.message.bytes (1048588)" in error
    records = list(read_topic(site.bootstrap, output))
    ids = sorted(json.loads(record.value or b"")["id"] for record in records)
    assert ids == [f"o-{number}" for number in range(770, 790) if number != 777]
    assert {record.headers["source"] for record in records} <= {
        f"{site.topic}-{partition}".encode() for partition in range(PARTITIONS)
    }
