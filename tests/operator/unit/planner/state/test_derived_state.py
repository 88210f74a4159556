"""Members by the pod that serves them: of two pods only one counts, whatever the other one is doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.consumer_group import parse
from slackwater_operator.api.v1alpha1.status.group_status import GroupStatus
from slackwater_operator.api.v1alpha1.status.rollout import RESTART, TAKEOVER, Moving, RolloutStatus
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.model.statefulsets import StatefulSetSnapshot
from slackwater_operator.model.worker_status import StandbyStatus, WorkerStatus
from slackwater_operator.planner.derived_state import derive
from slackwater_operator.planner.snapshot import GroupSnapshot, PodSnapshot
from tests.operator.unit.planner.simulation.simulated_cluster import spec

NOW_MS = 1_790_000_000_000


def pod(name: str, **more: Any) -> PodSnapshot:
    suffix, ordinal = name.split("-")[1:]
    return PodSnapshot(
        name,
        f"uid-{name}",
        member=f"flights-{ordinal}",
        suffix=suffix,
        ordinal=int(ordinal),
        **{"started": True, **more},
    )


def runs(pod_name: str, *, since_ms: int = 0) -> WorkerStatus:
    held = frozenset({TopicPartition("flights", int(pod_name[-1]))})
    uid = f"uid-{pod_name}"
    return WorkerStatus(
        "running", 1, uid=uid, at_ms=NOW_MS, assignment=held, running_since_ms=NOW_MS + since_ms
    )


def stands_by(pod_name: str, holder: str, *, handed_over: bool = False) -> WorkerStatus:
    standby = StandbyStatus(NOW_MS, handed_over)
    return WorkerStatus("standby", uid=f"uid-{pod_name}", at_ms=NOW_MS, holder=holder, standby=standby)


def seen_set(suffix: str, start: int, replicas: int) -> StatefulSetSnapshot:
    template = {"a": "v1", "b": "v2"}[suffix]
    created = {"a": 1, "b": 2}[suffix]
    return StatefulSetSnapshot(
        f"flights-{suffix}", suffix, suffix, start, replicas, replicas, template, "r", False, created, {}
    )


def snapshot(
    pods: list[PodSnapshot], workers: Mapping[str, WorkerStatus | None], **more: Any
) -> GroupSnapshot:
    """Two members; the second is between `a` and `b`."""
    members = tuple(
        MemberView(f"m{n}", f"flights-{n}", frozenset({TopicPartition("flights", n)}), True, client)
        for n, client in ((0, "flights-a-0"), (1, more.pop("holder", "")))
    )
    manifest = {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "flights"},
        "spec": spec(replicas=2),
    }
    partitions = tuple(TopicPartition("flights", n) for n in range(2))
    more.setdefault("sets", {"a": seen_set("a", 0, 2), "b": seen_set("b", 1, 1)})
    return GroupSnapshot(
        NOW_MS,
        "default",
        "flights",
        "uid",
        1,
        GroupStatus(),
        group=parse(manifest),
        pods=tuple(pods),
        workers=workers,
        kafka=KafkaSnapshot(NOW_MS, GroupView("Stable", members), partitions),
        **more,
    )


A0, A1, B1 = pod("flights-a-0"), pod("flights-a-1"), pod("flights-b-1")


def test_a_standby_is_no_worker_that_is_missing_or_leaving() -> None:
    said = {
        "flights-a-0": runs("flights-a-0"),
        "flights-a-1": runs("flights-a-1"),
        "flights-b-1": stands_by("flights-b-1", "flights-a-1"),
    }
    here = snapshot([A0, A1, B1], said)
    assert here.replicas == 2
    assert here.pod("flights-1") == A1
    assert here.successor("flights-1") == B1
    assert here.successor("flights-0") is None
    got = derive(here)
    assert got.unsettled == ""
    assert [worker.pod for worker in got.workers] == ["flights-a-0", "flights-a-1"]
    assert got.running == 2

    # Nor does it matter what becomes of the standby.
    for other in (replace(B1, deleting=True), replace(B1, started=False, trouble="CrashLoopBackOff")):
        assert derive(snapshot([A0, A1, other], {**said, "flights-b-1": None})).unsettled == ""


@pytest.mark.parametrize(
    ("change", "away"),
    [
        ({}, ""),
        ({"node": "node-2", "node_lost": True}, "flights-a-1 on node node-2 stopped responding"),
        ({"trouble": "OOMKilled"}, "flights-a-1: OOMKilled"),
    ],
)
def test_a_worker_that_is_lost_or_fails_is_away(change: dict[str, Any], away: str) -> None:
    workers = {"flights-a-0": runs("flights-a-0"), "flights-a-1": None}
    assert derive(snapshot([A0, replace(A1, **change), B1], workers)).away == away


def test_a_predecessor_that_was_fenced_is_not_leaving() -> None:
    said = {
        "flights-a-0": runs("flights-a-0"),
        "flights-a-1": stands_by("flights-a-1", "flights-b-1", handed_over=True),
        "flights-b-1": runs("flights-b-1"),
    }
    here = snapshot([A0, A1, B1], said)
    assert here.pod("flights-1") == B1
    assert derive(here).unsettled == ""
    gone = replace(here, sets={"a": seen_set("a", 0, 1), "b": seen_set("b", 1, 1)})
    assert derive(gone).unsettled == "", "one that is retired and still ending"


def test_of_two_that_say_they_run_the_later_one_does() -> None:
    said = {
        "flights-a-0": runs("flights-a-0"),
        "flights-a-1": runs("flights-a-1", since_ms=-9_000),
        "flights-b-1": runs("flights-b-1", since_ms=-5),
    }
    assert snapshot([A0, A1, B1], said).pod("flights-1") == B1


def test_of_two_that_say_they_run_the_broker_knows_which_does() -> None:
    older = replace(runs("flights-a-1", since_ms=-9_000), member_id="m1")
    later = replace(runs("flights-b-1", since_ms=-5), member_id="m1-fenced")
    said = {"flights-a-0": runs("flights-a-0"), "flights-a-1": older, "flights-b-1": later}
    assert snapshot([A0, A1, B1], said).pod("flights-1") == A1
    # Its client.id is that of who joined first, which says nothing of who did last.
    assert snapshot([A0, A1, B1], said, holder="flights-b-1").pod("flights-1") == A1
    swapped = {
        **said,
        "flights-a-1": replace(older, member_id="m0"),
        "flights-b-1": replace(later, member_id="m1"),
    }
    assert snapshot([A0, A1, B1], swapped, holder="flights-a-1").pod("flights-1") == B1


def test_the_holder_counts_where_no_worker_runs() -> None:
    said = {"flights-a-0": runs("flights-a-0"), "flights-b-1": stands_by("flights-b-1", "flights-a-1")}
    assert snapshot([A0, A1, B1], said).pod("flights-1") == A1
    swapped = {"flights-a-0": runs("flights-a-0"), "flights-a-1": stands_by("flights-a-1", "flights-b-1")}
    assert snapshot([A0, A1, B1], swapped).pod("flights-1") == B1
    silent = {"flights-a-0": runs("flights-a-0")}
    assert snapshot([A0, A1, B1], silent, holder="flights-b-1").pod("flights-1") == B1, "as the broker says"
    assert snapshot([A0, A1, B1], silent).pod("flights-1") == A1, (
        "nobody says: the one of the set that is left"
    )
    # A takeover from b to a, and b's pod does not answer: the standby knows the holder, the broker the first.
    first = snapshot([A0, A1, B1], swapped, holder="flights-a-1")
    assert first.pod("flights-1") == B1, "a client.id that is the first joiner's counts for less"


def test_a_member_is_unsettled_while_its_serving_pod_terminates() -> None:
    said = {
        "flights-a-0": runs("flights-a-0"),
        "flights-a-1": runs("flights-a-1"),
        "flights-b-1": stands_by("flights-b-1", "flights-a-1"),
    }
    got = derive(snapshot([A0, replace(A1, deleting=True), B1], said))
    assert got.unsettled == "flights-a-1 is terminating"


def test_a_member_that_moves_by_a_restart_is_still_one_while_it_has_no_pod() -> None:
    moving = Moving(1, NOW_MS, 1, 0, RESTART, to="flights-b", ended_ms=NOW_MS - 700)
    here = replace(
        snapshot([A0], {"flights-a-0": runs("flights-a-0")}),
        sets={"a": seen_set("a", 0, 1), "b": seen_set("b", 1, 0)},
        memory=GroupStatus(rollout=RolloutStatus(moving=moving)),
    )
    assert here.replicas == 2
    got = derive(here)
    assert got.names == ("flights-0", "flights-1")
    assert got.orphans == ()
    away = got.worker("flights-1")
    assert away is not None
    assert (away.alive, away.ended_ms) == (False, NOW_MS - 700)
    for other in (
        Moving(1, NOW_MS, 1, 0, TAKEOVER, to="flights-b"),
        Moving(900_000, NOW_MS, 1, 0, RESTART, to="flights-b"),
    ):
        assert replace(here, memory=GroupStatus(rollout=RolloutStatus(moving=other))).replicas == 1


LOST = {"node": "node-7", "node_lost": True, "ready": False}


def test_a_worker_whose_node_is_lost_is_called_so_with_the_way_out() -> None:
    said = {"flights-a-0": runs("flights-a-0"), "flights-a-1": None}
    sets = {"a": seen_set("a", 0, 2)}
    here = snapshot([A0, pod("flights-a-1", **LOST)], said, sets=sets)
    got = derive(here)
    assert got.unsettled.startswith("flights-a-1 on node node-7 does not respond, and the node is lost")
    assert "kubectl taint nodes node-7 node.kubernetes.io/out-of-service" in got.unsettled
    assert "starting" not in got.unsettled
    # And one that answers is not lost, nor is one that starts on a node that is there.
    starts = snapshot([A0, pod("flights-a-1", node="node-7")], said, sets=sets)
    assert derive(starts).unsettled == "flights-1 is starting"


def test_a_pod_that_should_be_gone_and_whose_node_is_lost_is_not_called_ending() -> None:
    said = {"flights-a-0": runs("flights-a-0"), "flights-a-1": runs("flights-a-1"), "flights-a-2": None}
    over = pod("flights-a-2", **LOST, deleting=True)
    got = derive(snapshot([A0, A1, over], said, sets={"a": seen_set("a", 0, 2)}))
    assert got.unsettled.startswith("flights-a-2 on node node-7 does not respond, and the node is lost")
    assert [member.pod for member in got.lost] == ["flights-a-2"]


def test_a_group_that_waits_for_a_pod_names_what_keeps_it() -> None:
    going = pod("flights-a-1", deleting=True, started=False, held_up="kept by mesh-proxy")
    workers = {"flights-a-0": runs("flights-a-0")}
    assert "kept by mesh-proxy" in derive(snapshot([pod("flights-a-0"), going], workers)).unsettled
