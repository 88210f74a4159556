"""Produces the flights, as a process of its own so that neither the display nor a worker slows it down.

Is told by SIGUSR1 that an operation is over (see `Pace`), and writes events to standard output, one JSON
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
from dataclasses import dataclass

from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka import KafkaProducer
from slackwater.kafka.errors import KafkaError
from slackwater_operator.demo.source import SourceRecord, read_rows, with_poison

FLIGHTS = 336_776
POISON = 300
_SLICE_S = 0.05
_REPORT_S = 0.5


@dataclass(frozen=True, slots=True)
class Stage:
    """The time until an operation is over.

    Attributes:
        ceiling: the share of the records that may be produced before.
        reserve_s: how long the stage's records last at least, at the flow that it begins with. The flow falls
            with the square of what is left of them, to a quarter after ``reserve_s`` and to a hundredth after
            nine times that: an operation that takes minutes on a busy machine has a flow at its end, too.
    """

    ceiling: float
    reserve_s: float


STAGES = (
    Stage(0.42, 30.0),  # the takeover
    Stage(0.60, 15.0),  # the rolling restart
    Stage(0.72, 8.0),
    Stage(0.86, 8.0),
    Stage(0.97, 8.0),
)
"""The two rollouts, which come first, take longest. So there are records left to flow in every operation,
however long the ones before it took; and the rollouts are held against each other at a flow that the group
keeps up with."""


@dataclass(slots=True)
class Pace:
    """Spreads ``total`` records over ``duration_s``, but for what is kept for the operations to come."""

    total: int
    duration_s: float
    stages: tuple[Stage, ...] = STAGES
    _operations_over: int = 0
    _due: float = 0.0
    _last_s: float = 0.0

    def advance(self) -> None:
        """An operation is over; after the last one everything is due at once."""
        self._operations_over += 1

    def due(self, elapsed_s: float) -> int:
        """How many records should have been sent ``elapsed_s`` after the start."""
        if self._operations_over >= len(self.stages):
            return self.total
        step_s = max(0.0, elapsed_s - self._last_s)
        self._last_s = elapsed_s
        stage = self.stages[self._operations_over]
        floor = self.stages[self._operations_over - 1].ceiling if self._operations_over else 0.0
        left = self.total * stage.ceiling - self._due
        share = left / (self.total * (stage.ceiling - floor))
        self._due += min(
            self.total / self.duration_s * step_s, left * min(1.0, share * step_s / stage.reserve_s)
        )
        return int(self._due)


def emit(event: str, **fields: object) -> None:
    """Prints an event as a line of JSON."""
    print(json.dumps({"event": event, "ts_ms": SYSTEM_CLOCK.wall_ms(), **fields}), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Produces the records; see `--help`."""
    parser = argparse.ArgumentParser(prog="python -m slackwater_operator.demo.feed")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seconds", type=float, required=True, help="spread the records over this time")
    parser.add_argument(
        "--seed", type=int, required=True, help="seed for the positions of the poison records"
    )
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
