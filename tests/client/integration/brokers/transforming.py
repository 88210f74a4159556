"""A process that copies a topic in transactions, until it is killed or has copied enough."""

from __future__ import annotations

import random
import sys

from slackwater.kafka import AbortableTransactionError, KafkaConsumer, KafkaProducer, OffsetAndMetadata


def main() -> None:
    """Arguments: bootstrap, source, target, group, a seed."""
    bootstrap, source, target, group, seed = sys.argv[1:]
    rng = random.Random(int(seed))
    consumer = KafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id="only",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=20,
    )
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=group, linger_ms=1)
    producer.init_transactions()
    print("ready", flush=True)
    while True:
        batches = consumer.poll(200)
        if not batches:
            continue
        try:
            with producer.transaction():
                offsets = {}
                for tp, records in batches.items():
                    offsets[tp] = OffsetAndMetadata(records[-1].offset + 1)
                    for record in records:
                        producer.send(target, record.value, partition=tp.partition)
                if rng.random() < 0.2:
                    raise InterruptedError
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        except (AbortableTransactionError, InterruptedError):
            for tp in batches:
                consumer.seek(tp, batches[tp][0].offset)


if __name__ == "__main__":
    main()
