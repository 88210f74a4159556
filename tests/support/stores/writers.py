"""Writers to tables in an object store for tests: two partitions, and requests that are counted."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import SinkError
from slackwater.runtime.interfaces import Range, Sink, SinkFencedError
from tests.support.processes import reserve_ports
from tests.support.sinks import at_once
from tests.support.stores.choice import only
from tests.support.stores.gate import BUCKET, StoreGate
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


def _check_said(said: list[str], address: str, advice: str) -> None:
    check_no_secret(said)
    for text in said:
        assert address in text, text
        assert advice in text, text


class TableInStore(Protocol):
    """One table after another in ``store``. ``title``: what errors call it; ``settings``: of the sink."""

    store: StoreServer
    settings: dict[str, Any]

    @property
    def title(self) -> str: ...

    def begin(self, bucket: str = BUCKET) -> None:
        """From now on: another table, that is not there yet."""

    def sink(self, url: str = "", **options: str) -> Sink:
        """A sink for the table, which asks the store at ``url``; "": the store itself."""

    def check(self, why: str) -> None:
        """Whether each record is there once."""


class StoppedAtRequests:
    """Writers that end or stop at any request, and stores that refuse. The class that tests a sink says by
    which ``cases``: the kind of :class:`Requests`, the size of the batches, and the sink's settings."""

    cases: Sequence[Any] = ()
    stopped_cases: Sequence[Any] = ()
    """Of a writer that stops."""
    most = 4
    """The size of a successor's batches."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        names = "kind", "most", "settings"
        if "kind" in metafunc.fixturenames:
            stops = "goes_on" in metafunc.function.__name__
            metafunc.parametrize(names, self.stopped_cases if stops else self.cases)

    @pytest.mark.long
    def test_a_worker_that_ends_at_any_request_leaves_each_record_once(
        self, table: TableInStore, kind: str, most: int, settings: dict[str, Any]
    ) -> None:
        table.settings = settings
        for turn in itertools.count(1):
            table.begin()
            requests = Requests(turn, kind)
            with StoreGate(table.store, ending(requests)) as gate, contextlib.suppress(SinkError):
                write_all(table.sink(gate.url, **NO_RETRIES), most)
            write_all(table.sink(), 4)
            table.check(f"ended at request {turn}")
            if requests.over:
                break
        assert turn > 10

    def test_a_worker_that_goes_on_after_its_successor_has_written_changes_nothing(
        self, table: TableInStore, kind: str, most: int, settings: dict[str, Any]
    ) -> None:
        """It is stopped within the client's library, too, such as between the data file and the commit."""
        table.settings, fenced = settings, 0
        for turn in itertools.count(1):
            table.begin()
            requests = Requests(turn, kind)

            def passing(number: int, method: str, path: str, requests: Requests = requests) -> str:
                if requests.next(method) == 0:
                    write_all(table.sink(), self.most)
                return StoreGate.PASS

            with StoreGate(table.store, passing) as gate:
                try:
                    write_all(table.sink(gate.url), most)
                except SinkFencedError:
                    fenced += 1
            if requests.over:
                break
            table.check(f"stopped at request {turn}")
        assert turn > 10
        assert fenced > 5

    @only("s3", "azure")
    def test_wrong_credentials_are_named(self, table: TableInStore) -> None:
        with table.store.refusing_credentials() as options:
            said = failing_calls(table.sink(**options))
        assert len(said) == 3
        _check_said(said, table.title, "check the credentials (environment or sink.options)")

    @only("s3", "azure")
    def test_a_missing_bucket_is_named(self, table: TableInStore) -> None:
        table.begin("missing")
        said = failing_calls(table.sink())
        assert len(said) >= 2, "there is no table, and none can be made"
        _check_said(said, table.title, "create the bucket, or correct sink.path")

    def test_a_store_that_is_away_is_named(self, table: TableInStore) -> None:
        (port,) = reserve_ports(1)
        said = failing_calls(table.sink(f"http://127.0.0.1:{port}", **NO_RETRIES))
        assert len(said) == 3
        _check_said(said, table.title, "check that the store can be reached from here")

    def test_a_store_that_does_not_answer_is_left_after_the_time_that_is_set(
        self, table: TableInStore
    ) -> None:
        ended = threading.Event()

        def passing(number: int, method: str, path: str) -> str:
            ended.wait()
            return StoreGate.REFUSE

        with StoreGate(table.store, passing) as gate:
            try:
                with pytest.raises(SinkError, match="check that the store can be reached from here"):
                    table.sink(gate.url, timeout="1s", **NO_RETRIES).marks(TPS)
            finally:
                ended.set()
