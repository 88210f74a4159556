"""Produces the flights, as a process of its own so that neither the display nor a worker slows it down.

Is told by SIGUSR1 that an operation is over (see `pace`), and writes events to standard output, one JSON
object a line: `produced {records, poison}` twice a second, `done {records, poison, seconds}`,
`error {message}`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator

from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka import KafkaProducer
from slackwater.kafka.errors import KafkaError
from slackwater_operator.demo.pace import Pace
from slackwater_operator.demo.source import SourceRecord, read_rows, with_poison

FLIGHTS = 336_776
POISON = 300
_SLICE_S = 0.05
_REPORT_S = 0.5


def emit(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, "ts_ms": SYSTEM_CLOCK.wall_ms(), **fields}), flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m slackwater_operator.demo.feed")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seconds", type=float, required=True, help="spread the records over this time")
    parser.add_argument("--seed", type=int, required=True, help="decides where the poison records stand")
    options = parser.parse_args(arguments)
    pace = Pace(FLIGHTS + POISON, options.seconds)
    signal.signal(signal.SIGUSR1, lambda *_: pace.advance())
    records = with_poison(read_rows(), total=FLIGHTS, poison=POISON, seed=options.seed)
    try:
        _produce(options.bootstrap, options.topic, records, pace)
    except KafkaError as exc:
        emit("error", message=f"producing to {options.topic} at {options.bootstrap} failed: {exc}")
        return 1
    return 0


def _produce(bootstrap: str, topic: str, records: Iterator[SourceRecord], pace: Pace) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        client_id="slackwater-demo-feed",
        compression_type="lz4",
        linger_ms=20,
        batch_size=256 * 1024,
    )
    started = reported = time.monotonic()
    sent = poison = 0
    failures: list[BaseException] = []
    while sent < pace.total:
        for _ in range(pace.due(time.monotonic() - started) - sent):
            record = next(records)
            producer.send(
                topic, value=record.value, key=record.key, timestamp_ms=record.timestamp_ms
            ).add_errback(failures.append)
            sent += 1
            poison += record.poison is not None
        if time.monotonic() - reported >= _REPORT_S:
            reported = time.monotonic()
            emit("produced", records=sent, poison=poison)
        time.sleep(_SLICE_S)
    producer.flush()
    producer.close()
    if failures:
        raise failures[0]
    emit("done", records=sent, poison=poison, seconds=round(time.monotonic() - started, 3))


if __name__ == "__main__":
    sys.exit(main())
