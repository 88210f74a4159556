"""Workers whose position is not in the log any more: they skip and count it, or stop; none resets in silence.

``auto.offset.reset`` is for partitions without a committed offset, whatever it says.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.kafka import KafkaAdmin
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.waiting import WAIT_S, wait_until
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite
from tests.support.workers.process import WorkerProcess
from tests.support.workers.takeover_site import TakeoverSite

POLICIES = ["latest", *(pytest.param(policy, marks=pytest.mark.long) for policy in ("earliest", "none"))]
"""``latest`` would skip the most. All three: tests/client/unit/consumer/offsets/test_positions.py."""
WAITING = """
import os, time
from site_handler import transform as handle


def transform(table):
    while table.num_rows and not os.path.exists({file!r}):
        time.sleep(0.01)
    return handle(table)
"""


class LogSite(DeliverySite):
    """A site whose logs are cut under the group."""

    def properties(self, policy: str, **more: str) -> dict[str, str]:
        """The workers' properties with this reset policy."""
        return {**self.config()["properties"], "auto.offset.reset": policy, **more}

    def committed_epochs(self) -> dict[int, int]:
        """The leader epoch that is committed with each offset."""
        with KafkaAdmin(self.bootstrap) as admin:
            committed = admin.committed_offsets(self.group)
        return {place.partition: offset.leader_epoch for place, offset in committed.items()}

    def offsets(self) -> dict[int, list[int]]:
        """The offsets of all rows by partition, in order; an offset that is written twice is twice here."""
        return self.output.offsets(range(PARTITIONS))

    def recreate(self, count: int) -> None:
        """Deletes the topic and creates it again, with ``count`` records."""
        self.recreate_topic()
        self.produce(count)

    def check_rows(self) -> None:
        """Each record that was ever produced is a row, once."""
        assert Counter(self.rows()) == Counter(self.produced)

    def until_done(self, timeout_s: float = WAIT_S) -> None:
        """Waits until the group has committed everything that was produced, also by earlier workers."""
        self.until_committed(timeout_s=timeout_s, why=self.why)


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[LogSite]:
    with LogSite(broker.bootstrap, tmp_path) as site:
        yield site


@pytest.fixture
def real(kafka: KafkaCluster, tmp_path: Path) -> Iterator[LogSite]:
    with LogSite(kafka.bootstrap, tmp_path) as site:
        yield site


@pytest.mark.parametrize("policy", POLICIES)
def test_a_committed_offset_before_the_log_goes_to_its_start_and_is_counted(
    real: LogSite, policy: str
) -> None:
    """Of partition 0 offsets 100 to 149 are deleted while nobody reads; 150 to 199 are still there."""
    real.produce(400)
    real.commit(dict.fromkeys(range(PARTITIONS), 0))
    first = real.worker(properties=real.properties(policy))
    real.until_done()
    assert first.terminate() == 0
    real.produce(400)
    real.delete_records(0, 150)
    worker = real.worker(properties=real.properties(policy))
    real.until_done()
    assert real.offsets() == {
        0: [*range(100), *range(150, 200)],
        **{partition: list(range(200)) for partition in range(1, PARTITIONS)},
    }
    [skipped] = worker.named("skipped")
    name = f"{real.topic}-0"
    expected = {"partition": name, "from": 100, "to": 150, "cause": "retention"}
    assert {key: skipped[key] for key in expected} == expected
    assert skipped["records"] == 50
    [shown] = worker.status()["skipped"]
    assert {key: shown[key] for key in expected} == expected
    total = "slackwater_records_skipped_total"
    assert worker.metric(total) == worker.metric(total, partition="0", cause="retention") == 50
    assert f"{total}{{" in worker.ask("GET", "/metrics").decode()
    assert worker.status()["stopped"] == []
    assert worker.terminate() == 0


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_retention_that_overtakes_a_worker_is_counted(real: LogSite, policy: str) -> None:
    """While the handler has the first records of partition 0, the next are deleted up to offset 900. What
    the client has in hand by then is delivered."""
    # A fetch brings at least a whole batch, however large.
    records = [(0, b"v-%d" % number) for number in range(1000)]
    real.write(records, batch_num_messages=20)
    real.commit(dict.fromkeys(range(PARTITIONS), 0))
    go_on = real.folder / "go on"
    real.write_handler("waiting_handler", WAITING.format(file=str(go_on)))
    small = {"max.partition.fetch.bytes": "2000", "fetch.max.bytes": "8000"}
    worker = real.worker(properties=real.properties(policy, **small), handler="waiting_handler:transform")
    worker.phase("running")
    worker.until_status(lambda status: bool(status["in_flight"]))
    real.delete_records(0, 900)
    go_on.touch()
    real.until_done()
    [skipped] = worker.named("skipped")
    begin, end = skipped["from"], skipped["to"]
    assert 50 <= begin < end == 900
    assert real.offsets()[0] == [*range(begin), *range(900, 1000)]
    assert worker.metric("slackwater_records_skipped_total", partition="0") == end - begin
    assert worker.terminate() == 0


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_an_offset_beyond_the_log_stops_its_partition_until_a_person_decides(
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
    site.until_done()
    assert site.offsets() == {0: [], **{partition: list(range(100)) for partition in (1, 2, 3)}}
    [shown] = worker.status()["stopped"]
    assert (shown["partition"], shown["reason"]) == (f"{site.topic}-0", "LogTruncated")
    assert shown["message"] == stopped["message"]
    assert worker.status()["phase"] == "running"
    assert worker.metric("slackwater_stopped_partitions", reason="LogTruncated") == 1
    assert worker.terminate() == 0
    assert len(worker.named("partition_stopped")) == 1
    assert site.committed()[0] == 5000, "nothing was reset"
    # The way on that the message names.
    site.remove_members("w-0")
    site.commit({0: 40})
    site.ends[0] = 100
    again = site.worker(properties=site.properties(policy))
    site.until_done()
    assert site.offsets() == {0: list(range(40, 100)), **{number: list(range(100)) for number in (1, 2, 3)}}
    assert again.terminate() == 0
    assert not again.named("partition_stopped")


@pytest.mark.long
def test_a_log_that_was_cut_off_and_has_grown_again_stops_its_partition(site: LogSite) -> None:
    """It reaches beyond the committed offset, but no leader of the committed epoch has written to it.

    For the client with an unclean election: tests/client/integration/fetch/test_fetch_truncation.py.
    """
    site.produce(400)
    worker = site.worker()
    site.until_done()
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
    site.until_done()
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
        stopped = [partition for worker in workers for partition in worker.status()["stopped"]]
        recreated = {item["partition"] for item in stopped if item["reason"] == "TopicRecreated"}
        return recreated == wanted

    wait_until(all_stopped, "the stop of all partitions")


@pytest.mark.parametrize(
    ("running", "count"),
    [
        pytest.param(False, 800, id="stopped-longer", marks=pytest.mark.long),
        pytest.param(True, 800, id="running-longer"),
        pytest.param(False, 80, id="stopped-shorter", marks=pytest.mark.long),
        pytest.param(True, 80, id="running-shorter", marks=pytest.mark.long),
    ],
)
def test_a_recreated_topic_stops_the_group_and_overwrites_nothing(
    site: LogSite, running: bool, count: int
) -> None:
    """With 800 records no committed offset is beyond the new topic's end."""
    site.produce(400)
    worker = site.worker()
    site.until_done()
    old = {file.name: file.read_bytes() for file in site.out.glob("*.parquet")}
    if not running:
        assert worker.terminate() == 0
    site.recreate(count)
    if not running:
        worker = site.worker()
    until_stopped([worker], site.topic)
    [shown, *_] = worker.status()["stopped"]
    assert "the topic was deleted and created again" in shown["message"]
    assert "--reset-offsets" in shown["message"]
    assert worker.metric("slackwater_stopped_partitions", reason="TopicRecreated") == PARTITIONS
    assert worker.status()["phase"] == "running"
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
    site.until_done()
    site.check_rows()
    assert worker.terminate() == 0
    assert {name: (site.out / name).read_bytes() for name in old} == old
    # What follows is of the new topic, and begins where its predecessor's offsets were, too.
    site.produce(400)
    worker = site.worker()
    site.until_done()
    site.check_rows()
    assert worker.terminate() == 0
    assert not worker.named("partition_stopped")


# -- taken over -----------------------------------------------------------------------------------------


@pytest.fixture
def pods(kafka: KafkaCluster, tmp_path: Path) -> Iterator[TakeoverSite]:
    with TakeoverSite(kafka.bootstrap, tmp_path, partitions=1) as site:
        yield site


@pytest.fixture
def either_pods(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[TakeoverSite]:
    with TakeoverSite(broker.bootstrap, tmp_path, partitions=1) as site:
        yield site


@pytest.mark.long
def test_a_successor_skips_what_was_deleted_and_counts_it(pods: TakeoverSite) -> None:
    """The predecessor hangs in its first batch; the successor delivers the records it has prefetched."""
    records = [(0, b"0:%d" % number) for number in range(1000)]
    pods.write(records, batch_num_messages=20)
    pods.commit({0: 0})  # a standby reads ahead from what is committed
    small = {"max.partition.fetch.bytes": "2000", "fetch.max.bytes": "8000", "auto.offset.reset": "latest"}
    properties = {**pods.config()["properties"], **small}
    before = pods.start(0, "a", slow_ms=600_000, properties=properties)
    before.until_status(lambda status: bool(status["in_flight"]))
    after = pods.standby(0, "b", 1, properties=properties)
    pods.delete_records(0, 900)
    assert pods.key.order(after, None)[0] == 202
    after.in_phase("running")
    pods.until_done()
    [skipped] = after.named("skipped")
    begin, end = skipped["from"], skipped["to"]
    assert 0 <= begin < end == 900
    assert pods.rows() == Counter(f"0:{offset}" for offset in (*range(begin), *range(900, 1000)))
    assert after.metric("slackwater_records_skipped_total") == end - begin


@pytest.mark.long
def test_a_successor_reads_nothing_of_a_recreated_topic(either_pods: TakeoverSite) -> None:
    pods = either_pods
    before = pods.members(1)[0]
    pods.flow.start(300)
    before.until("committed")
    pods.flow.stop()
    pods.until_done()
    old = pods.rows()
    after = pods.standby(0, "b", 1)
    pods.recreate_topic()
    pods.write([(0, b"new:%d" % number) for number in range(3000)])
    before.signal(signal.SIGKILL)
    assert pods.key.order(after, None)[0] == 202
    status = after.until_status(lambda status: bool(status["stopped"]))
    assert [stopped["reason"] for stopped in status["stopped"]] == ["TopicRecreated"]
    assert pods.rows() == old
