"""``AsyncConsumer`` decodes large or compressed fetches on another thread, not on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from slackwater.kafka.consumer.async_consumer import AsyncConsumer
from slackwater.kafka.consumer.fetch import buffer as buffer_module, fetcher as fetcher_module
from slackwater.kafka.consumer.fetch.buffer import Chunk
from slackwater.kafka.errors import CorruptRecordError, IllegalStateError
from slackwater.kafka.net import Cluster
from slackwater.kafka.records import BatchBuilder, decode, measure
from slackwater.kafka.structs import TopicPartition
from tests.client.unit.consumer.fetch.fetch_bench import Bench, part
from tests.support.waiting import WAIT_S
from tests.support.wire.rawdata import old_message

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
KIB = 1024
MOST_ON_LOOP_BYTES = 32 * KIB


def batch(base: int, count: int, size: int = 100, codec: str = "none") -> bytes:
    builder = BatchBuilder(codec, 1 << 30)
    for _ in range(count):
        assert builder.append(1_000, None, b"x" * size, [])
    return builder.build(base_offset=base)


class Decoding:
    """Counts the bytes that are decoded on the loop's thread, and those that are decoded elsewhere."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real, self._loop_thread = real, threading.current_thread()
        self.on_loop = self.on_thread = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, data: Any, *arguments: Any, **options: Any) -> Any:
        if threading.current_thread() is self._loop_thread:
            self.on_loop += len(data)
        else:
            self.on_thread += len(data)
            assert self.may_go_on.wait(WAIT_S)
        return self._real(data, *arguments, **options)

    async def begun(self) -> None:
        """Waits until another thread has begun to decode."""
        while not self.on_thread:
            await asyncio.sleep(0)


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Decoding:
    counted = Decoding(decode)
    monkeypatch.setattr(buffer_module, "decode", counted)
    return counted


@pytest.fixture
async def consumer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncConsumer]:
    async def nothing(self: Cluster, timeout_ms: int = 0) -> None:
        pass

    monkeypatch.setattr(Cluster, "start", nothing)
    monkeypatch.setattr(Cluster, "refresh", nothing)
    async with AsyncConsumer(bootstrap_servers="127.0.0.1:1", enable_auto_commit=False) as made:
        made.assign([A, B])
        for tp in (A, B):
            made.seek(tp, 0)
        yield made


def add(consumer: AsyncConsumer, tp: TopicPartition, base: int, count: int, data: bytes) -> None:
    version = consumer._core.subscription.get(tp).version
    consumer._core.buffer.add(Chunk(tp, data, base, base + count, version))


def fetched(consumer: AsyncConsumer, tp: TopicPartition, base: int, count: int, **how: Any) -> None:
    add(consumer, tp, base, count, batch(base, count, **how))


async def test_a_large_fetch_is_decoded_on_another_thread(
    consumer: AsyncConsumer, decoding: Decoding
) -> None:
    fetched(consumer, A, 0, 10_000)
    assert [record.offset for record in (await consumer.poll(max_records=5))[A]] == [0, 1, 2, 3, 4]
    assert (await consumer.poll(max_records=10_000))[A][-1].offset == 9_999
    assert (decoding.on_loop, decoding.on_thread) == (0, len(batch(0, 10_000)))


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
async def test_a_small_compressed_fetch_is_decoded_on_another_thread(
    consumer: AsyncConsumer, decoding: Decoding, codec: str
) -> None:
    """Some KiB may decompress to hundreds of MiB."""
    fetched(consumer, A, 0, 100, codec=codec)
    assert len((await consumer.poll())[A]) == 100
    assert decoding.on_loop == 0


async def test_messages_of_an_old_format_are_decoded_on_another_thread(
    consumer: AsyncConsumer, decoding: Decoding
) -> None:
    add(consumer, A, 0, 1, old_message(1, b"v"))
    assert len((await consumer.poll())[A]) == 1
    assert decoding.on_loop == 0


async def test_a_small_fetch_is_decoded_on_the_loop(consumer: AsyncConsumer, decoding: Decoding) -> None:
    """A poll of a few records takes no detour over another thread."""
    fetched(consumer, A, 0, 10)
    assert len((await consumer.poll())[A]) == 10
    assert decoding.on_thread == 0


async def test_many_small_fetches_do_not_hold_the_loop_together(
    consumer: AsyncConsumer, decoding: Decoding
) -> None:
    for base in range(0, 2_000, 10):
        fetched(consumer, A, base, 10)
    assert len((await consumer.poll(max_records=2_000))[A]) == 2_000
    assert decoding.on_loop <= MOST_ON_LOOP_BYTES
    assert decoding.on_loop + decoding.on_thread == 200 * len(batch(0, 10))


async def test_no_more_is_decoded_than_the_poll_asks_for(consumer: AsyncConsumer, decoding: Decoding) -> None:
    """Else a slow application would hold all that is fetched in its decoded form."""
    for base in (0, 1_000, 2_000):
        fetched(consumer, A, base, 1_000)
    await consumer.poll(max_records=500)
    assert decoding.on_thread == len(batch(0, 1_000))


async def test_other_tasks_run_while_a_fetch_is_decoded(consumer: AsyncConsumer, decoding: Decoding) -> None:
    fetched(consumer, A, 0, 1_000)
    decoding.may_go_on.clear()
    polling = asyncio.create_task(consumer.poll(max_records=1_000))
    await decoding.begun()
    assert not polling.done()
    decoding.may_go_on.set()
    assert len((await polling)[A]) == 1_000


async def test_a_poll_that_is_cancelled_meanwhile_loses_nothing(
    consumer: AsyncConsumer, decoding: Decoding
) -> None:
    fetched(consumer, A, 0, 1_000)
    decoding.may_go_on.clear()
    polling = asyncio.create_task(consumer.poll(max_records=1_000))
    await decoding.begun()
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    again = asyncio.create_task(consumer.poll(max_records=1_000))
    decoding.may_go_on.set()
    assert [record.offset for record in (await again)[A]] == list(range(1_000))
    assert decoding.on_thread == len(batch(0, 1_000)), "it is decoded once"


async def test_a_seek_meanwhile_drops_what_was_decoded(consumer: AsyncConsumer, decoding: Decoding) -> None:
    fetched(consumer, A, 0, 1_000)
    decoding.may_go_on.clear()
    polling = asyncio.create_task(consumer.poll(timeout_ms=60_000, max_records=1_000))
    await decoding.begun()
    consumer.seek(A, 5)
    fetched(consumer, A, 5, 3)
    decoding.may_go_on.set()
    assert [record.offset for record in (await polling)[A]] == [5, 6, 7]


async def test_closing_meanwhile_ends_the_poll(consumer: AsyncConsumer, decoding: Decoding) -> None:
    fetched(consumer, A, 0, 1_000)
    decoding.may_go_on.clear()
    polling = asyncio.create_task(consumer.poll())
    await decoding.begun()
    await consumer.close()
    decoding.may_go_on.set()
    with pytest.raises(IllegalStateError, match="closed"):
        await polling


async def test_a_fetch_that_cannot_be_read_is_raised_by_each_poll_and_decoded_once(
    consumer: AsyncConsumer, decoding: Decoding
) -> None:
    broken = bytearray(batch(0, 1_000))
    broken[-1] ^= 1
    fetched(consumer, B, 0, 1)
    add(consumer, A, 0, 1_000, bytes(broken))
    assert set(await consumer.poll()) == {B}
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="seek to offset 1000"):
            await consumer.poll()
    assert (decoding.on_loop, decoding.on_thread) == (0, len(batch(0, 1)) + len(broken))


@pytest.mark.parametrize(("messages", "on_thread"), [(900, 0), (5_000, 1)])
async def test_the_headers_of_many_messages_are_walked_on_another_thread(
    monkeypatch: pytest.MonkeyPatch, messages: int, on_thread: int
) -> None:
    """A fetch of 50 MB may hold two million messages of an old format."""
    walked = Decoding(measure)
    monkeypatch.setattr(fetcher_module, "measure", walked)
    data = b"".join(n.to_bytes(8, "big") + old_message(0, b"")[8:] for n in range(messages))
    bench = Bench(A)
    add, added = bench.buffer.add, asyncio.Event()

    def add_and_tell(chunk: Any) -> None:
        add(chunk)
        added.set()

    monkeypatch.setattr(bench.buffer, "add", add_and_tell)
    bench.fetcher.wake()
    await bench.next()
    await bench.answer(part(A, data, end=messages))
    async with asyncio.timeout(WAIT_S):
        await added.wait()
    assert (walked.on_loop, walked.on_thread) == (0, on_thread * len(data))
    assert bench.fetcher._ahead.of(bench.subscription.get(A)).offset == messages
