"""Committed offsets: what waits for a transaction, what is refused alone, which epoch goes with them."""

from __future__ import annotations

import threading
from typing import Any

import confluent_kafka as ck
import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.errors import KafkaTimeoutError, OffsetMetadataTooLargeError, UnstableOffsetCommitError
from tests.client.integration.groups.consumer_harness import drain, make_topic, options, unique
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.waiting import WAIT_S, wait_until

LONGEST = 4_096
"""UTF-16 units of metadata that a broker stores (``offset.metadata.max.bytes``, which counts no bytes)."""


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_an_offset_in_an_open_transaction_is_waited_for(kafka: KafkaCluster, commits: bool) -> None:
    """KIP-447: OffsetFetch requires stable offsets and is repeated after UNSTABLE_OFFSET_COMMIT."""
    topic, group = make_topic(kafka.bootstrap, 2), unique("g")
    pending, stable = partitions(topic, 2)
    producer = ck.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique("tx")})
    reader = ck.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    with KafkaConsumer(**options(kafka.bootstrap, group)) as consumer:
        consumer.assign([stable])
        consumer.commit({stable: OffsetAndMetadata(3), pending: OffsetAndMetadata(5)})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        producer.send_offsets_to_transaction(
            [ck.TopicPartition(topic, 0, 9)], reader.consumer_group_metadata(), 30
        )
        with pytest.raises(KafkaTimeoutError, match="UNSTABLE_OFFSET_COMMIT"):
            consumer.committed_many([pending, stable], timeout_ms=3_000)
        assert consumer.committed(stable) == 3
        # The admin asks for what is stored, whatever is under way.
        with KafkaAdmin(bootstrap_servers=kafka.bootstrap) as admin:
            assert admin.committed_offsets(group)[pending].offset == 5
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(consumer.committed_many([pending, stable])))
        before = consumer._core.cluster.settings.requests["OffsetFetch"]
        asking.start()
        wait_until(
            lambda: consumer._core.cluster.settings.requests["OffsetFetch"] > before + 2, "asked again"
        )
        assert answers == []
        (producer.commit_transaction if commits else producer.abort_transaction)(30)
        asking.join(WAIT_S)
        [offsets] = answers
        assert {tp: offset.offset for tp, offset in offsets.items()} == {
            pending: 9 if commits else 5,
            stable: 3,
        }
    reader.close()


@pytest.mark.not_on("kafka-2.8", why="it holds the refused offset for one of an open transaction")
def test_metadata_that_is_too_long_is_refused_for_its_partition_alone(broker: Any) -> None:
    """The limit counts UTF-16 units: two for a character beyond the Basic Multilingual Plane."""
    topic, group = make_topic(broker.bootstrap, 4), unique("g")
    tps = partitions(topic, 4)
    fits = ["é" * LONGEST, "\N{CAT}" * (LONGEST // 2), ""]
    with KafkaConsumer(**options(broker.bootstrap, group)) as consumer:
        consumer.assign(tps)
        offsets = {
            tp: OffsetAndMetadata(number + 1, note)
            for number, (tp, note) in enumerate(zip(tps, fits, strict=False))
        }
        offsets[tps[3]] = OffsetAndMetadata(4, "\N{CAT}" * (LONGEST // 2) + "x")
        with pytest.raises(OffsetMetadataTooLargeError, match=f"of {tps[3]} in") as caught:
            consumer.commit(offsets)
        for tp in tps[:3]:
            assert str(tp) not in str(caught.value)
        stored = consumer.committed_many(tps)
        assert [offset and offset.offset for offset in stored.values()] == [1, 2, 3, None]
        assert [offset.metadata for offset in stored.values() if offset] == fits
        offsets = {tp: OffsetAndMetadata(9, "x" * (LONGEST + 1)) for tp in (tps[3], tps[1])}
        with pytest.raises(OffsetMetadataTooLargeError, match=f"of {tps[1]}, {tps[3]} in"):
            consumer.commit(offsets)


def test_only_what_was_not_stored_is_sent_again(devbroker: DevBroker) -> None:
    topic, group, client_id = make_topic(devbroker.bootstrap, 2), unique("g"), unique("c")
    partition, other = partitions(topic, 2)
    with KafkaConsumer(**options(devbroker.bootstrap, group, client_id=client_id)) as consumer:
        consumer.assign([partition, other])
        sent: list[list[int]] = []
        send = consumer._core.cluster.send

        async def spy(node: int, request: Any, **how: Any) -> Any:
            if getattr(request, "api", None) is not None and request.api.__name__ == "OffsetCommitRequest":
                sent.append([p.partition_index for t in request.make(9).topics for p in t.partitions])
            return await send(node, request, **how)

        consumer._core.cluster.send = spy  # type: ignore[method-assign, assignment]
        rule = {"api": "OffsetCommit", "error": "UNKNOWN_TOPIC_OR_PARTITION", "client_id": client_id}
        devbroker.control("POST", "/faults", {**rule, "partition": 1, "topic": topic, "times": 2})
        consumer.commit({partition: OffsetAndMetadata(1), other: OffsetAndMetadata(2)})
        assert sent == [[0, 1], [1], [1]]
        assert [v and v.offset for v in consumer.committed_many([partition, other]).values()] == [1, 2]


def test_the_leader_epoch_of_the_last_record_is_committed_with_its_offset(broker: Any) -> None:
    """KIP-320: the next owner asks the leader whether the log still reaches that offset."""
    topic, group = make_topic(broker.bootstrap, 1, 10), unique("g")
    [tp] = partitions(topic, 1)
    with KafkaConsumer(**options(broker.bootstrap, group)) as consumer:
        consumer.assign([tp])
        drain(consumer, 10)
        consumer.commit()
        assert consumer.committed(tp, metadata=True) == OffsetAndMetadata(10, "", 0)
    with KafkaConsumer(**options(broker.bootstrap, group)) as consumer:
        consumer.assign([tp])
        assert consumer.position(tp) == 10
        wait_until(lambda: consumer._core.cluster.settings.requests["OffsetForLeaderEpoch"], "the question")
        wait_until(lambda: consumer._core.subscription.get(tp).validated_epoch == 0, "the answer")


def test_many_partitions_are_looked_up_in_one_request(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 200), unique("g")
    tps = partitions(topic, 200)
    with KafkaConsumer(**options(broker.bootstrap, group)) as consumer:
        consumer.assign(tps[:1])
        consumer.commit({tp: OffsetAndMetadata(tp.partition) for tp in tps[:150]})
        before = consumer._core.cluster.settings.requests["OffsetFetch"]
        offsets = consumer.committed_many(tps)
        assert consumer._core.cluster.settings.requests["OffsetFetch"] == before + 1
        assert [offset and offset.offset for offset in map(offsets.get, tps)] == [*range(150), *[None] * 50]


def test_an_error_of_one_partition_leaves_the_others_readable_for_the_admin(devbroker: DevBroker) -> None:
    topic, group, client_id = make_topic(devbroker.bootstrap, 2), unique("g"), unique("c")
    partition, other = partitions(topic, 2)
    with KafkaConsumer(**options(devbroker.bootstrap, group)) as consumer:
        consumer.assign([partition])
        consumer.commit({partition: OffsetAndMetadata(1), other: OffsetAndMetadata(2)})
    rule = {"api": "OffsetFetch", "error": "UNSTABLE_OFFSET_COMMIT", "client_id": client_id}
    with KafkaAdmin(bootstrap_servers=devbroker.bootstrap, client_id=client_id) as admin:
        devbroker.control("POST", "/faults", {**rule, "topic": topic, "partition": 1, "times": 2})
        offsets = admin.committed_offsets_of_groups([group], [partition, other])[group]
        assert not isinstance(offsets, Exception)
        assert {tp: offset.offset for tp, offset in offsets.values_ok.items()} == {partition: 1}
        assert {tp: type(error) for tp, error in offsets.errors.items()} == {other: UnstableOffsetCommitError}
        with pytest.raises(UnstableOffsetCommitError, match=str(other)):
            admin.committed_offsets(group, [partition, other])
        assert admin.committed_offsets(group)[other].offset == 2
