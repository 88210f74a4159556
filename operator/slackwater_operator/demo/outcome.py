"""What is in Kafka and on disk when the demo is over, for the accounting."""

from __future__ import annotations

from pathlib import Path

from slackwater.kafka import KafkaConsumer, TopicPartition
from slackwater.runtime.delivery.dead_letters import OFFSET_HEADER, PARTITION_HEADER, TOPIC_HEADER
from slackwater_operator.demo import verify
from slackwater_operator.demo.children import DemoError

_POLL_MS = 500
_EMPTY_POLLS = 40


def collect(
    bootstrap: str, topic: str, dead_letter_topic: str, output: Path
) -> tuple[verify.Accounting, list[str]]:
    """Accounts for every record of ``topic``, and compares the output's totals with the source file's.

    Raises:
        DemoError: there is no output, or a topic cannot be read to its end.
    """
    with KafkaConsumer(
        bootstrap_servers=bootstrap, client_id="slackwater-demo-check", auto_offset_reset="earliest"
    ) as consumer:
        ends = consumer.end_offsets(_partitions(consumer, topic))
        dead = _dead_letters(consumer, dead_letter_topic)
    try:
        table = verify.read_output(output)
    except FileNotFoundError as exc:
        raise DemoError(str(exc)) from None
    accounting = verify.account(
        {(tp.topic, tp.partition): end for tp, end in ends.items()}, verify.identities(table), dead
    )
    return accounting, verify.differences(verify.summarise_source(), verify.summarise_output(table))


def _partitions(consumer: KafkaConsumer, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for n in sorted(consumer.partitions_for_topic(topic) or ())]


def _dead_letters(consumer: KafkaConsumer, topic: str) -> list[verify.Identity]:
    """The source record of each dead letter, out of its headers."""
    partitions = _partitions(consumer, topic)
    left = {tp: end for tp, end in consumer.end_offsets(partitions).items() if end > 0}
    consumer.assign(list(left))
    found: list[verify.Identity] = []
    empty = 0
    while left:
        polled = consumer.poll(timeout_ms=_POLL_MS)
        empty = 0 if polled else empty + 1
        if empty > _EMPTY_POLLS:
            raise DemoError(f"{topic} cannot be read to its end: {len(left)} partitions have more")
        for records in polled.values():
            for record in records:
                headers = {name: (value or b"").decode() for name, value in record.headers}
                found.append(
                    (headers[TOPIC_HEADER], int(headers[PARTITION_HEADER]), int(headers[OFFSET_HEADER]))
                )
        left = {tp: end for tp, end in left.items() if consumer.position(tp) < end}
    return found
