"""Where leader epochs ended: OffsetForLeaderEpoch (KIP-320)."""

from __future__ import annotations

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.support.wire.rawclient import RawClient, create_topic
from tests.support.wire.rawdata import batch, produce

CONSUMER = -1


def epoch_end(
    client: RawClient, topic: str, epoch: int, *, partition: int = 0, current: int = -1, version: int = 4
) -> tuple[int, int, int]:
    """Error code, epoch and end offset of the answer for one partition."""
    part = m.OffsetForLeaderEpochRequestPartition(
        partition=partition, current_leader_epoch=current, leader_epoch=epoch
    )
    request = m.OffsetForLeaderEpochRequest(
        replica_id=CONSUMER,
        topics=[m.OffsetForLeaderEpochRequestTopic(topic=topic, partitions=[part])],
    )
    [partition] = client.request(request, version).topics[0].partitions
    return partition.error_code, partition.leader_epoch, partition.end_offset


@pytest.mark.parametrize("version", range(2, 5))
def test_the_current_epoch_ends_at_the_end_of_the_log(client: RawClient, name: str, version: int) -> None:
    """OffsetForLeaderEpoch 2-4: the epoch that goes on ends where the log does, an empty log's at 0."""
    create_topic(client, name, 1)
    assert epoch_end(client, name, 0, version=version) == (E.NONE, 0, 0)
    produce(client, name, batch([b"x"] * 3))
    assert epoch_end(client, name, 0, version=version) == (E.NONE, 0, 3)


def test_an_epoch_that_never_was_ends_nowhere(client: RawClient, name: str) -> None:
    """An epoch above all there were, or below 0: no error, epoch -1 and offset -1."""
    create_topic(client, name, 1)
    produce(client, name, batch([b"x"] * 3))
    assert epoch_end(client, name, 7) == (E.NONE, -1, -1)
    assert epoch_end(client, name, -1) == (E.NONE, -1, -1)


def test_a_wrong_idea_of_the_leader_is_an_error(client: RawClient, name: str) -> None:
    """An epoch above the leader's: UNKNOWN_LEADER_EPOCH; no such partition: UNKNOWN_TOPIC_OR_PARTITION."""
    create_topic(client, name, 1)
    assert epoch_end(client, name, 0, current=0)[0] == E.NONE
    assert epoch_end(client, name, 0, current=5) == (E.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert epoch_end(client, name, 0, partition=9) == (E.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert epoch_end(client, "no-" + name, 0) == (E.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
