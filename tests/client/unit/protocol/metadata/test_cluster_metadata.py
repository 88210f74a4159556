"""The view of the cluster: leader epochs go forward only, and a topic made anew starts afresh."""

from __future__ import annotations

import uuid

from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E

TP = TopicPartition("t", 0)
ID = uuid.UUID(int=1)


def metadata(
    *leaders: tuple[int, int], topic_id: uuid.UUID = ID, code: int = 0, name: str = "t"
) -> m.MetadataResponse:
    partitions = [
        m.MetadataResponsePartition(partition_index=n, leader_id=leader, leader_epoch=epoch)
        for n, (leader, epoch) in enumerate(leaders)
    ]
    topic = m.MetadataResponseTopic(name=name, topic_id=topic_id, partitions=partitions, error_code=code)
    return m.MetadataResponse(
        brokers=[m.MetadataResponseBroker(node_id=1, host="a", port=1)], topics=[topic], cluster_id="c"
    )


def test_the_view_has_the_leaders_and_epochs_of_the_metadata() -> None:
    view = ClusterMetadata()
    assert (view.leader(TP), view.partition_count("t"), view.leader_epoch(TP)) == (None, None, -1)
    view.update(metadata((1, 4), (-1, 2)), 1_000)
    assert (view.leader(TP), view.leader_epoch(TP), view.partition_count("t")) == (1, 4, 2)
    assert view.leader(TopicPartition("t", 1)) is None
    assert (view.topic_id("t"), view.topic_name(ID), view.updated_at_ms) == (ID, "t", 1_000)
    assert view.partition_counts(["t", "u"]) == {"t": 2}


def test_an_older_epoch_does_not_win() -> None:
    view = ClusterMetadata()
    view.update(metadata((1, 4)), 0)
    view.update(metadata((2, 3)), 0)
    assert (view.leader(TP), view.leader_epoch(TP)) == (1, 4)
    view.update(metadata((2, 5)), 0)
    assert view.leader(TP) == 2
    # Brokers that know no epochs say -1, and are believed.
    view.update(metadata((3, -1)), 0)
    assert view.leader(TP) == 3


def test_a_topic_made_anew_starts_afresh() -> None:
    view = ClusterMetadata()
    view.update(metadata((1, 9), (1, 9)), 0)
    new = uuid.UUID(int=2)
    view.update(metadata((2, 0), topic_id=new), 0)
    assert (view.leader(TP), view.leader_epoch(TP), view.partition_count("t")) == (2, 0, 1)
    assert (view.topic_name(ID), view.topic_name(new)) == (None, "t")


def test_a_topic_that_is_gone_is_forgotten_and_a_passing_error_is_not() -> None:
    view = ClusterMetadata()
    view.update(metadata((1, 1)), 0)
    view.update(metadata(code=E.LEADER_NOT_AVAILABLE), 0)
    assert view.partition_count("t") == 1
    view.update(metadata(code=E.UNKNOWN_TOPIC_OR_PARTITION), 0)
    assert (view.partition_count("t"), view.topics["t"].error_code) == (None, 3)
    view.update(metadata((1, 1)), 0)
    view.update(metadata((1, 1), name="u", topic_id=uuid.UUID(int=5)), 0, complete=True)
    assert set(view.topics) == {"u"}


def test_a_leader_from_another_answer_counts_if_it_is_newer() -> None:
    view = ClusterMetadata()
    view.update(metadata((1, 4)), 0)
    assert not view.learn_leader(TP, 2, 4)
    assert not view.learn_leader(TopicPartition("t", 9), 2, 9)
    assert view.learn_leader(TP, 2, 5)
    assert view.leader(TP) == 2
