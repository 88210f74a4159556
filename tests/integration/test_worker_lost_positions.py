"""Workers whose position is not in the log any more: they skip and count it, or stop; none resets in silence.

``auto.offset.reset`` is for partitions without a committed offset, whatever it says.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from slackwater.kafka import KafkaAdmin
from tests.integration.consumer_harness import wait_for
from tests.integration.takeover_site import TakeoverSite
from tests.integration.test_worker_process import PARTITIONS, Site
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.peers.librdkafka import write_topic
from tests.support.workers.process import WorkerProcess

POLICIES = ["latest", *(pytest.param(policy, marks=pytest.mark.long) for policy in ("earliest", "none"))]
"""``latest`` would skip the most. All three are tried in tests/unit/consumer/test_positions.py, too."""
WAITING = """
import os, time
from arrow_handler import transform as handle


def transform(table):
    while table.num_rows and not os.path.exists({file!r}):
        time.sleep(0.01)
    return handle(table)
"""


def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    """Moves the log's start, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = confluent_kafka.TopicPartition(topic, partition, before)
    for future in admin.delete_records([place]).values():
        assert future.result(60).low_watermark == before


def make_anew(bootstrap: str, topic: str, partitions: int) -> None:
    """Deletes the topic, and makes another one of that name."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_topics([topic], operation_timeout=30).values():
        future.result(60)

    def made() -> bool:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
        except confluent_kafka.KafkaException:  # the old one is not gone yet
            return False
        return True

    wait_for(made, "the new topic")


class LogSite(Site):
    """A site whose logs are cut under the group."""

    def properties(self, policy: str, **more: str) -> dict[str, str]:
        """The workers' properties with this reset policy."""
        return {**self.config()["properties"], "auto.offset.reset": policy, **more}

    def commit(self, offsets: dict[int, int], leader_epoch: int = -1) -> None:
        """Sets offsets of the group, which has no members, as kafka-consumer-groups.sh does."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        places = [
            confluent_kafka.TopicPartition(self.topic, partition, offset, leader_epoch=leader_epoch)
            for partition, offset in offsets.items()
        ]
        wanted = confluent_kafka.ConsumerGroupTopicPartitions(self.group, places)
        for future in admin.alter_consumer_group_offsets([wanted]).values():
            assert not [one for one in future.result(60).topic_partitions if one.error]

    def committed_epochs(self) -> dict[int, int]:
        """The leader epoch that is committed with each offset."""
        with KafkaAdmin(self.bootstrap) as admin:
            return {tp.partition: at.leader_epoch for tp, at in admin.committed_offsets(self.group).items()}

    def remove_members(self, *instances: str) -> None:
        """Takes static members out of the group, as the operator does when it suspends."""
        with KafkaAdmin(self.bootstrap) as admin:
            admin.remove_members(self.group, instances)

    def offsets(self) -> dict[int, list[int]]:
        """The offsets of all rows, by partition, in order; one that is there twice is twice here."""
        found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        for file in self.out.glob("*.parquet"):
            table = pq.read_table(file, columns=["partition", "offset"])
            for row in table.to_pylist():
                found[row["partition"]].append(row["offset"])
        return {partition: sorted(offsets) for partition, offsets in found.items()}

    def make_anew(self, count: int) -> None:
        """Makes another topic of that name with ``count`` records of its own."""
        make_anew(self.bootstrap, self.topic, PARTITIONS)
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.produce(count)

    def check_rows(self) -> None:
        """Each record that was ever produced is a row, once."""
        assert Counter(self.rows()) == Counter(self.produced)

    def until_committed(self) -> None:
        """Waits until the group has committed all that was produced."""
        deadline = time.monotonic() + 90
        while (found := self.committed()) != self.ends:
            assert time.monotonic() < deadline, (found, self.ends, [one.why("") for one in self.workers])
            time.sleep(0.1)


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[LogSite]:
    found = LogSite(broker.bootstrap, tmp_path)
    yield found
    found.close()


@pytest.fixture
def real(kafka: KafkaCluster, tmp_path: Path) -> Iterator[LogSite]:
    found = LogSite(kafka.bootstrap, tmp_path)
    yield found
    found.close()


def status(worker: WorkerProcess) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(worker.ask("GET", "/status"))
    return found


def metric(worker: WorkerProcess, name: str, **labels: str) -> float:
    """The sum of a metric's series with these labels."""
    total = 0.0
    for line in worker.ask("GET", "/metrics").decode().splitlines():
        if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            total += float(line.rpartition(" ")[2])
    return total


@pytest.mark.parametrize("policy", POLICIES)
def test_a_committed_offset_before_the_log_goes_to_its_start_and_is_counted(
    real: LogSite, policy: str
) -> None:
    """Of partition 0 offsets 100 to 149 are deleted while nobody reads; 150 to 199 are still there."""
    real.produce(400)
    real.commit(dict.fromkeys(range(PARTITIONS), 0))
    first = real.worker(properties=real.properties(policy))
    real.until_committed()
    assert first.terminate() == 0
    real.produce(400)
    delete_records(real.bootstrap, real.topic, 0, 150)
    worker = real.worker(properties=real.properties(policy))
    real.until_committed()
    assert real.offsets() == {
        0: [*range(100), *range(150, 200)],
        **{partition: list(range(200)) for partition in range(1, PARTITIONS)},
    }
    [skipped] = worker.named("skipped")
    name = f"{real.topic}-0"
    told = {"partition": name, "from": 100, "to": 150, "cause": "retention"}
    assert {key: skipped[key] for key in told} == told
    assert skipped["records"] == 50
    [shown] = status(worker)["skipped"]
    assert {key: shown[key] for key in told} == told
    total = "slackwater_records_skipped_total"
    assert metric(worker, total) == metric(worker, total, partition="0", cause="retention") == 50
    assert f"{total}{{" in worker.ask("GET", "/metrics").decode()
    assert status(worker)["stopped"] == []
    assert worker.terminate() == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_retention_that_overtakes_a_worker_is_counted(real: LogSite, policy: str) -> None:
    """While the handler has the first records of partition 0, the next are deleted up to offset 900. What
    the client has in hand by then is delivered."""
    # A fetch brings at least a whole batch, however large.
    records = [(0, b"v-%d" % number) for number in range(1000)]
    write_topic(real.bootstrap, real.topic, records, batch_num_messages=20)
    real.ends[0] = 1000
    real.commit(dict.fromkeys(range(PARTITIONS), 0))
    go_on = real.folder / "go on"
    (real.folder / "handlers" / "waiting_handler.py").write_text(WAITING.format(file=str(go_on)))
    small = {"max.partition.fetch.bytes": "2000", "fetch.max.bytes": "8000"}
    worker = real.worker(properties=real.properties(policy, **small), handler="waiting_handler:transform")
    worker.phase("running")
    wait_for(lambda: status(worker)["in_flight"], "the first batch")
    delete_records(real.bootstrap, real.topic, 0, 900)
    go_on.touch()
    real.until_committed()
    [skipped] = worker.named("skipped")
    begin, end = skipped["from"], skipped["to"]
    assert 50 <= begin < end == 900
    assert real.offsets()[0] == [*range(begin), *range(900, 1000)]
    assert metric(worker, "slackwater_records_skipped_total", partition="0") == end - begin
    assert worker.terminate() == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_an_offset_beyond_the_log_stops_its_partition_until_a_person_has_decided(
    site: LogSite, policy: str
) -> None:
    site.produce(400)
    site.commit({0: 5000, 1: 0, 2: 0, 3: 0})
    worker = site.worker(properties=site.properties(policy))
    stopped = worker.until("partition_stopped")
    assert (stopped["partition"], stopped["reason"]) == (f"{site.topic}-0", "LogTruncated")
    assert "has read up to offset 5000, but the log ends at offset 100" in stopped["message"]
    assert "--reset-offsets" in stopped["message"]
    site.ends[0] = 5000
    site.until_committed()
    assert site.offsets() == {0: [], **{partition: list(range(100)) for partition in (1, 2, 3)}}
    [shown] = status(worker)["stopped"]
    assert (shown["partition"], shown["reason"]) == (f"{site.topic}-0", "LogTruncated")
    assert shown["message"] == stopped["message"]
    assert status(worker)["phase"] == "running"
    assert metric(worker, "slackwater_stopped_partitions", reason="LogTruncated") == 1
    assert worker.terminate() == 0
    assert len(worker.named("partition_stopped")) == 1
    assert site.committed()[0] == 5000, "nothing was reset"
    # The way on that the message names.
    site.remove_members("w-0")
    site.commit({0: 40})
    site.ends[0] = 100
    again = site.worker(properties=site.properties(policy))
    site.until_committed()
    assert site.offsets() == {0: list(range(40, 100)), **{number: list(range(100)) for number in (1, 2, 3)}}
    assert again.terminate() == 0
    assert not again.named("partition_stopped")


def test_a_log_that_was_cut_off_and_has_grown_again_stops_its_partition(site: LogSite) -> None:
    """It reaches beyond the committed offset, but no leader of the committed epoch has written to it.

    For the client with an unclean election: tests/integration/test_fetch_truncation.py.
    """
    site.produce(400)
    worker = site.worker()
    site.until_committed()
    assert worker.terminate() == 0
    epochs = site.committed_epochs()
    assert len(epochs) == PARTITIONS
    assert min(epochs.values()) >= 0, "without an epoch, nobody could find out"
    before = site.offsets()
    site.remove_members("w-0")
    site.commit({0: 50}, leader_epoch=epochs[0] + 5)
    worker = site.worker()
    stopped = worker.until("partition_stopped")
    assert (stopped["partition"], stopped["reason"]) == (f"{site.topic}-0", "LogTruncated")
    assert "has read up to offset 50, but the log ends somewhere before" in stopped["message"]
    assert "--reset-offsets" in stopped["message"]
    site.produce(4)
    site.ends[0] = 50
    site.until_committed()
    assert worker.terminate() == 0
    assert site.committed_epochs()[0] == epochs[0] + 5, "nothing was reset"
    after = site.offsets()
    assert after[0] == before[0]
    assert after[1] == [*before[1], 100]


# -- topics made anew -----------------------------------------------------------------------------------


def until_stopped(workers: list[WorkerProcess], topic: str) -> None:
    """Waits until all partitions are stopped, by whichever worker."""
    wanted = {f"{topic}-{partition}" for partition in range(PARTITIONS)}

    def all_stopped() -> bool:
        shown = [one for worker in workers for one in status(worker)["stopped"]]
        return {one["partition"] for one in shown if one["reason"] == "TopicRecreated"} == wanted

    wait_for(all_stopped, "the stop of all partitions")


@pytest.mark.parametrize(
    ("running", "count"),
    [
        pytest.param(False, 800, id="stopped-longer"),
        pytest.param(True, 800, id="running-longer"),
        pytest.param(False, 80, id="stopped-shorter", marks=pytest.mark.long),
        pytest.param(True, 80, id="running-shorter", marks=pytest.mark.long),
    ],
)
def test_a_topic_made_anew_stops_the_group_and_overwrites_nothing(
    site: LogSite, running: bool, count: int
) -> None:
    """With 800 records no committed offset is beyond the new topic's end."""
    site.produce(400)
    worker = site.worker()
    site.until_committed()
    old = {file.name: file.read_bytes() for file in site.out.glob("*.parquet")}
    if not running:
        assert worker.terminate() == 0
    site.make_anew(count)
    if not running:
        worker = site.worker()
    until_stopped([worker], site.topic)
    [shown, *_] = status(worker)["stopped"]
    assert "the topic was deleted and created again" in shown["message"]
    assert "--reset-offsets" in shown["message"]
    assert metric(worker, "slackwater_stopped_partitions", reason="TopicRecreated") == PARTITIONS
    assert status(worker)["phase"] == "running"
    assert {file.name: file.read_bytes() for file in site.out.glob("*.parquet")} == old
    assert worker.terminate() == 0
    # A restart forgets nothing of that.
    worker = site.worker()
    until_stopped([worker], site.topic)
    assert worker.terminate() == 0
    assert {file.name: file.read_bytes() for file in site.out.glob("*.parquet")} == old
    # The way on that the message names.
    site.remove_members("w-0")
    site.commit(dict.fromkeys(range(PARTITIONS), 0))
    worker = site.worker()
    site.until_committed()
    site.check_rows()
    assert worker.terminate() == 0
    assert {name: (site.out / name).read_bytes() for name in old} == old
    # What follows is of the new topic, and begins where its predecessor's offsets were, too.
    site.produce(400)
    worker = site.worker()
    site.until_committed()
    site.check_rows()
    assert worker.terminate() == 0
    assert not worker.named("partition_stopped")


# -- taken over -----------------------------------------------------------------------------------------


@pytest.fixture
def seats(kafka: KafkaCluster, tmp_path: Path) -> Iterator[TakeoverSite]:
    found = TakeoverSite(kafka.bootstrap, tmp_path, partitions=1)
    yield found
    found.close()


@pytest.fixture
def either_seats(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[TakeoverSite]:
    found = TakeoverSite(broker.bootstrap, tmp_path, partitions=1)
    yield found
    found.close()


def commit_first(site: TakeoverSite) -> None:
    """Commits offset 0: a standby reads ahead from what is committed."""
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    places = [confluent_kafka.TopicPartition(site.topic, 0, 0)]
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(site.group, places)
    for future in admin.alter_consumer_group_offsets([wanted]).values():
        future.result(60)


def test_a_successor_skips_what_was_deleted_and_counts_it(seats: TakeoverSite) -> None:
    """Its predecessor hangs in its first batch; what the successor has read ahead is delivered."""
    records = [(0, b"0:%d" % number) for number in range(1000)]
    write_topic(seats.bootstrap, seats.topic, records, batch_num_messages=20)
    commit_first(seats)
    small = {"max.partition.fetch.bytes": "2000", "fetch.max.bytes": "8000", "auto.offset.reset": "latest"}
    properties = {**seats.config()["properties"], **small}
    before = seats.start(0, "a", slow_ms=600_000, properties=properties)
    before.until_status(lambda status: bool(status["in_flight"]))
    after = seats.standby(0, "b", 1, properties=properties)
    delete_records(seats.bootstrap, seats.topic, 0, 900)
    assert seats.order(after, None)[0] == 202
    after.in_phase("running")
    seats.ends = {0: 1000}
    seats.until_done()
    [skipped] = after.named("skipped")
    begin, end = skipped["from"], skipped["to"]
    assert 0 <= begin < end == 900
    assert seats.rows() == Counter(f"0:{offset}" for offset in (*range(begin), *range(900, 1000)))
    assert metric(after, "slackwater_records_skipped_total") == end - begin


def test_a_successor_reads_nothing_of_a_topic_made_anew(either_seats: TakeoverSite) -> None:
    seats = either_seats
    before = seats.members(1)[0]
    seats.flow(300)
    before.until("committed")
    seats.ebb()
    seats.until_done()
    old = seats.rows()
    after = seats.standby(0, "b", 1)
    make_anew(seats.bootstrap, seats.topic, 1)
    write_topic(seats.bootstrap, seats.topic, [(0, b"new:%d" % number) for number in range(3000)])
    before.signal(signal.SIGKILL)
    assert seats.order(after, None)[0] == 202
    told = after.until_status(lambda status: bool(status["stopped"]))
    assert [one["reason"] for one in told["stopped"]] == ["TopicRecreated"]
    assert seats.rows() == old
