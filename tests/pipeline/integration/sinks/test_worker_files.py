"""A worker that gathers batches, with real parts: each record once, in few files."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from slackwater.kafka import KafkaConsumer
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.partition import CommitNote
from tests.support.devbroker import DevBroker
from tests.support.waiting import wait_until
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite

RECORDS = 2_000
PIECE = "50"
"""Records of a batch, so that there are 40 of them, or more."""


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.parquet") if ".slackwater" not in path.parts]


@pytest.mark.long
def test_batches_are_gathered_to_few_files_and_a_killed_worker_loses_nothing(
    devbroker: DevBroker, tmp_path: Path
) -> None:
    """The first worker is killed with rows that wait, the second one is stopped with rows that wait. A kill
    less than two seconds after the handler has returned would have the second one try the last batches in
    pieces."""
    with DeliverySite(devbroker.bootstrap, tmp_path) as site:
        sink = {**site.config()["sink"], "maxAgeMs": 120_000}
        site.produce(PARTITIONS)  # a group's first process reads dead letters back between its batches
        first = site.worker(sink=sink)
        first.until_status(lambda status: _handled(status) == PARTITIONS)
        assert first.terminate() == 0
        before = files(tmp_path)
        site.produce(RECORDS, bad_every=10)
        properties = {**site.config()["properties"], "max.poll.records": PIECE}

        killed = site.worker(sink=sink, properties=properties)
        killed.until_status(lambda status: _handled(status) == RECORDS)
        assert killed.named("batch") == []
        wait_until(lambda: _no_record_is_suspect(site), site.why)
        killed.signal(signal.SIGKILL)
        killed.wait()

        worker = site.worker(sink=sink, properties=properties)
        worker.until_status(lambda status: _handled(status) == RECORDS)
        assert files(tmp_path) == before
        assert worker.terminate() == 0
        (batch,) = worker.named("batch")
        assert batch["records"] == RECORDS
        assert len(files(tmp_path)) == len(before) + 1
        site.check()
        bad = site.bad()
        assert Counter(site.letters()) == Counter(bad)


def _no_record_is_suspect(site: DeliverySite) -> bool:
    """Whether the commits say that all records are handled, and that none is begun."""
    with KafkaConsumer(bootstrap_servers=site.bootstrap, group_id=site.group) as consumer:
        committed = {
            partition: consumer.committed(TopicPartition(site.topic, partition), metadata=True)
            for partition in site.ends
        }
    notes = {
        partition: CommitNote.decode(offset.metadata) for partition, offset in committed.items() if offset
    }
    return all(
        (note := notes.get(partition)) is not None and note.handled == end and note.begun is None
        for partition, end in site.ends.items()
    )


def _handled(status: dict[str, object]) -> int:
    spans = status["in_flight"]
    assert isinstance(spans, dict)
    return sum(end - start for start, end in spans.values())


@pytest.mark.long
def test_values_that_do_not_fit_the_declared_schema_are_dead_letters(
    devbroker: DevBroker, tmp_path: Path
) -> None:
    """From the first batch on, with rows that wait for others; the columns are those that are declared."""
    with DeliverySite(devbroker.bootstrap, tmp_path) as site:
        config = site.config()
        sink = {**config["sink"], "schema": "total TINYINT, gate STRING", "maxAgeMs": 1_000}
        site.produce(130)
        worker = site.worker(handler=config["handler"].split(":")[0] + ":totals", sink=sink)
        site.until_committed(why=site.why)
        assert worker.terminate() == 0
        letters = site.dead_letters()
        assert sorted(letter.value or b"" for letter in letters) == [b"v-128", b"v-129"]
        for letter in letters:
            assert b"column total of the table is int8" in (letter.headers["slackwater.error"] or b"")
        rows = site.output.rows("total", "gate", "digit")
        assert sorted(row["total"] for row in rows) == [*range(128)]
        assert {row["gate"] for row in rows} == {None}
