"""What happens to a group when its topics change, on a real Kafka and a real control plane."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from tests.support.controlplane import ControlPlane, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group, now_ms
from tests.support.site.operator import OperatorProcess
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.controlplane

PARTITIONS = 6
MORE = 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        ("Takeover", 3),
        ("Restart", 1),
        ("Restart", 3),
        ("Takeover", 1),
    ],
)
def test_topics_are_added_and_removed_by_a_rollout_that_costs_one_rebalance(
    cluster: ClusterSite, namespace: str, strategy: str, workers: int
) -> None:
    name = f"topics-{namespace}"
    cluster.make_topic(f"{name}-more", MORE)
    group = cluster.group(name, partitions=PARTITIONS, replicas=workers, rollout={"strategy": strategy})
    group.await_settled(workers)
    group.await_condition("RolledOut")

    _change_topics(group, [name, f"{name}-more"], workers, PARTITIONS + MORE)
    _change_topics(group, [name], workers, PARTITIONS)

    reasons = [event["reason"] for event in group.events()]
    assert "RolloutStopped" not in reasons
    assert reasons.count("RebalanceExpected") == 2, reasons


@pytest.mark.long
def test_new_grown_and_deleted_topics_are_named_and_cause_no_unplanned_rebalance(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing topic blocks the group until it exists. Then it grows, is deleted and is created again.

    Nobody edits the resource or restarts a worker in between."""
    name, later = f"grows-{namespace}", f"later-{namespace}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    with ClusterSite(control_plane, kafka, namespace) as site, site.operator() as operator:
        group = site.group(name, partitions=PARTITIONS, replicas=2, topics=[name, later])
        took = {
            "missing": _seconds_until_event(group, "TopicMissing", f"topic {later} does not exist; create it")
        }
        degraded = group.await_condition("Degraded", reason="TopicMissing")
        assert later in degraded["message"]
        assert not group.pods(), "no worker starts before the topic exists"

        site.make_topic(later, MORE)
        created = f"topic {later} was created, with {MORE} partitions"
        took["created"] = _seconds_until_event(group, "TopicCreated", created)
        _await_healed(group, PARTITIONS + MORE)
        group.await_condition("RolledOut")
        uids, counted, since = group.uids(), _rebalances_counted(group, operator), now_ms()

        admin.create_partitions([NewPartitions(later, 2 * MORE)])[later].result(HANG_S)
        grew = f"topic {later} grew from {MORE} to {2 * MORE} partitions"
        took["grown"] = _seconds_until_event(group, "PartitionsAdded", grew)
        _await_healed(group, PARTITIONS + 2 * MORE)
        assert 1 <= group.rebalances(since) <= 2, group.tell()

        admin.delete_topics([later])[later].result(HANG_S)
        took["deleted"] = _seconds_until_event(group, "TopicMissing", f"topic {later} was deleted")
        degraded = group.await_condition("Degraded", reason="TopicMissing")
        assert later in degraded["message"]
        _await_assigned(group, [name])

        site.make_topic(later, MORE + 1)
        created = f"topic {later} was created, with {MORE + 1} partitions"
        took["created again"] = _seconds_until_event(group, "TopicCreated", created)
        _await_healed(group, PARTITIONS + MORE + 1)
        # The first may count as "scale": the workers were let in less than a minute before it.
        _await_counted(group, operator, counted + 3)
        assert _rebalances_counted(group, operator, cause="unplanned") == 0
        assert group.uids() == uids
        assert not [event for event in group.worker_events() if event.event == "exited"]
    with capsys.disabled():
        print("\nseconds until the Event: " + ", ".join(f"{key} {value:.1f}" for key, value in took.items()))


def _seconds_until_event(group: Group, reason: str, message: str) -> float:
    """Waits for the Event. The limit only ends a test that fails: how soon a change is seen follows from the
    intervals at which operator and workers ask for metadata."""
    began = time.monotonic()

    def event_is_recorded() -> bool:
        return any((event["reason"], event["message"]) == (reason, message) for event in group.events())

    try:
        until(event_is_recorded, f"{group.name}: {reason}: {message}")
    except TimeoutError as exc:
        raise AssertionError(f"{exc}\n{group.events()}\n{group.tell()}") from exc
    return time.monotonic() - began


def _await_healed(group: Group, partitions: int) -> None:
    """Waits until both workers share so many partitions, and nothing is wrong."""
    group.partitions = partitions
    group.await_settled(2)
    group.await_condition("Degraded", "False")
    group.await_condition("Ready")


def _await_counted(group: Group, operator: OperatorProcess, count: int) -> None:
    """Waits until the operator has counted so many rebalances, whatever their causes."""

    def counted() -> bool:
        return _rebalances_counted(group, operator) >= count

    try:
        until(counted, f"{group.name}: {count} rebalances counted")
    except TimeoutError as exc:
        shown = [f"{key}: {value}" for key, value in operator.metrics().items() if "rebalances" in key[0]]
        raise AssertionError(f"{exc}\n{shown}\n{group.tell()}") from exc


def _rebalances_counted(group: Group, operator: OperatorProcess, **labels: str) -> int:
    return int(operator.metric("slackwater_group_rebalances_total", group=group.name, **labels) or 0)


def _change_topics(group: Group, topics: list[str], workers: int, partitions: int) -> None:
    """Changes the list of topics, and waits until every worker reads it; at most one rebalance more than is
    needed (by the consumer protocol each worker's new subscription is one), none of them called unplanned."""
    since = now_ms()
    group.change(topics=topics)
    group.partitions = partitions
    _await_assigned(group, topics)
    group.await_condition("RolledOut")
    group.await_settled(workers)
    group.await_condition("Ready")
    assert 1 <= group.rebalances(since) <= 1 + group.costs(workers)[-1], group.tell()
    degraded = group.condition("Degraded")
    assert degraded["status"] == "False", degraded


def _await_assigned(group: Group, topics: list[str]) -> None:
    """Waits until the group's members are assigned partitions of these topics and of no others."""

    def assigned() -> bool:
        held = {topic for worker in group.workers().values() for topic, _ in worker["assignment"]}
        return held == set(topics)

    try:
        until(assigned, f"{group.name} reads {topics}")
    except TimeoutError as exc:
        raise AssertionError(f"{exc}\n{group.tell()}") from exc
