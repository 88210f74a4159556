"""Writers to tables in an object store for tests: two partitions, and requests that are counted."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Range, Sink
from tests.support.sinks import at_once
from tests.support.stores.gate import HasPort, StoreGate
from tests.support.stores.objects import StoreServer

TPS = [TopicPartition("flights", partition) for partition in range(2)]
ID = "nxyNPlt6TCGPAAEjRWeJqw"
RECORDS = 5
"""Of each partition."""
ALL = Counter({(tp.partition, offset): 1 for tp in TPS for offset in range(RECORDS)})
NO_RETRIES = {"max_retries": "0", "retry_timeout": "1s"}
"""For a worker that ends: what it would try again, it does not."""


def rows(tp: TopicPartition, start: int, end: int) -> pa.Table:
    n = end - start
    return pa.table(
        {
            "topic": [tp.topic] * n,
            "partition": pa.array([tp.partition] * n, pa.int32()),
            "offset": pa.array(range(start, end), pa.int64()),
        }
    )


def write_all(sink: Sink, most: int = 5, tps: list[TopicPartition] = TPS) -> None:
    """What a worker does that owns the partitions. It asks for the marks once."""
    marks = sink.marks(tps)
    at: dict[TopicPartition, int | None] = {tp: marks.get(tp, {}).get(ID) for tp in tps}
    rng = random.Random(most)
    while any((start or 0) < RECORDS for start in at.values()):
        ranges = {
            tp: Range(ID, start or 0, min(RECORDS, (start or 0) + rng.randrange(1, most + 1)), start)
            for tp, start in at.items()
            if (start or 0) < RECORDS
        }
        batch = pa.concat_tables([rows(tp, span.start, span.end) for tp, span in ranges.items()])
        sink.stage(batch, ranges).publish()
        at |= {tp: span.end for tp, span in ranges.items()}


class Requests:
    """Counts requests of a worker: ``all``, or those that write and each first one after them. They are
    counted, too, when they are tried again."""

    def __init__(self, turn: int, kind: str) -> None:
        self._turn, self._all = turn, kind == "all"
        self._count = 0
        self._wrote = False

    def next(self, method: str) -> int:
        """Is below 0 before request number ``turn``, 0 at it, and above 0 after it."""
        writes = method not in ("GET", "HEAD")
        counted = self._all or writes or self._wrote
        self._wrote = writes
        self._count += counted
        return self._count - self._turn if counted or self._count != self._turn else 1

    @property
    def over(self) -> bool:
        """Whether the worker has made less than ``turn`` of them."""
        return self._count < self._turn


def ending(requests: Requests) -> Callable[[int, str, str], str]:
    """For StoreGate: the worker ends at that request. The store gets it, and none after it."""

    def passing(number: int, method: str, path: str) -> str:
        at = requests.next(method)
        return StoreGate.PASS if at < 0 else StoreGate.REFUSE if at else StoreGate.LOSE

    return passing


def write_at_once(make: Callable[[], Sink]) -> Counter[tuple[int, int]]:
    """Three workers at once, each with a sink of its own and one partition. Returns what the table has then.
    Raises what one of them raised."""
    tps = [TopicPartition("flights", partition) for partition in range(3)]
    barrier = threading.Barrier(len(tps))

    def work(tp: TopicPartition) -> None:
        sink = make()
        barrier.wait()
        write_all(sink, 2, [tp])

    at_once(work, tps)
    return Counter({(tp.partition, offset): 1 for tp in tps for offset in range(RECORDS)})


def failing_calls(sink: Sink) -> list[str]:
    """What the calls of a sink say that cannot write."""
    said = []
    calls: list[Callable[[], object]] = [
        lambda: sink.marks(TPS),
        sink.probe,
        lambda: sink.stage(rows(TPS[0], 0, 1), {TPS[0]: Range(ID, 0, 1, None)}).publish(),
    ]
    for call in calls:
        try:
            call()
        except SinkError as exc:
            said.append(str(exc))
    return said


def check_no_secret(said: list[str]) -> None:
    for text in said:
        assert "\n" not in text
        assert "\x1b" not in text
        assert "test-secret-key" not in text
        assert "test-key-id" not in text


def check_wrong_credentials(server: StoreServer, sink: Callable[..., Sink], address: str) -> None:
    """Whether each call names the table and what to do. ``sink``: with storage options."""
    with server.refusing_credentials() as options:
        said = failing_calls(sink(**options))
    assert len(said) == 3
    _check_said(said, address, "check the credentials (environment or sink.options)")


def check_missing_bucket(sink: Sink, address: str) -> None:
    """The same; ``sink``: of a bucket that is missing."""
    said = failing_calls(sink)
    assert len(said) >= 2, "there is no table, and none can be made"
    _check_said(said, address, "create the bucket, or correct sink.path")


def check_unreachable(sink: Sink, address: str) -> None:
    """The same; ``sink``: of a store that is away."""
    said = failing_calls(sink)
    assert len(said) == 3
    _check_said(said, address, "check that the store can be reached from here")


def _check_said(said: list[str], address: str, advice: str) -> None:
    check_no_secret(said)
    for text in said:
        assert address in text
        assert advice in text


def check_time_limit(server: HasPort, sink: Callable[[str], Sink]) -> None:
    """Whether a store that does not answer is left. ``sink``: for a URL, with a time limit of a second."""
    ended = threading.Event()

    def passing(number: int, method: str, path: str) -> str:
        ended.wait()
        return StoreGate.REFUSE

    with StoreGate(server, passing) as gate:
        try:
            with pytest.raises(SinkError, match="check that the store can be reached from here"):
                sink(gate.url).marks(TPS)
        finally:
            ended.set()
