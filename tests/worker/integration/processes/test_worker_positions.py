"""What a worker commits without having had records: where it begins, and behind what is no record."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest

from tests.support.kafka import KafkaCluster
from tests.support.waiting import WAIT_S
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite


@pytest.mark.long
def test_with_latest_records_produced_during_the_first_restart_are_read(site: DeliverySite) -> None:
    """Without a commit of its predecessor a worker would begin after these records."""
    properties = {**site.config()["properties"], "auto.offset.reset": "latest"}
    site.produce(40)
    first = site.worker(properties=properties)
    site.until_committed(why=site.why)
    assert first.terminate() == 0
    site.produce(40)
    site.worker(properties=properties)
    site.until_committed(why=site.why)
    assert sorted(site.rows()) == sorted(site.produced[40:])


@pytest.mark.parametrize(
    "level", [pytest.param("read_uncommitted", marks=pytest.mark.long), "read_committed"]
)
def test_the_end_of_a_transaction_is_no_lag(kafka: KafkaCluster, tmp_path: Path, level: str) -> None:
    """Markers, and with ``read_committed`` aborted records, follow the last handled record."""
    with DeliverySite(kafka.bootstrap, tmp_path) as site:
        check_transactions(site, level)


def check_transactions(site: DeliverySite, level: str) -> None:
    worker = site.worker(properties={**site.config()["properties"], "isolation.level": level})
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": site.bootstrap, "transactional.id": f"{site.group}-{level}"}
    )
    producer.init_transactions(60)
    for text, end in (("v-kept", producer.commit_transaction), ("v-aborted", producer.abort_transaction)):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(site.topic, text.encode(), partition=partition)
        assert producer.flush(WAIT_S) == 0
        end(60)
    wanted = dict.fromkeys(range(PARTITIONS), 4)  # two records and two markers
    site.until_committed(wanted, why=site.why)
    handled = {"v-kept"} if level == "read_committed" else {"v-kept", "v-aborted"}
    assert set(site.rows()) == handled
    assert worker.terminate() == 0
    assert site.committed() == wanted
