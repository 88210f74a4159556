"""What a group's status says: conditions, what does not move, the preflight's outcome, the explanation."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import EXIT_ENVIRONMENT
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.policies.conditions import (
    TYPES,
    ConditionsInput,
    RewindView,
    Trouble,
    conditions,
    foremost,
)
from slackwater_operator.policies.explanations import explain
from slackwater_operator.policies.object_events import ObjectEvent
from slackwater_operator.policies.rollout.preflight import (
    BLOCKED_AFTER_MS,
    ENVIRONMENT,
    LONGEST_RETRY_MS,
    PreflightView,
    decide_preflight,
    preflight_view,
    retry_delay_ms,
)
from slackwater_operator.policies.scaling.decision import decide_scaling
from slackwater_operator.policies.scaling.types import (
    PartitionLoad,
    ScalingDecision,
    ScalingInput,
    ScalingPolicy,
)
from slackwater_operator.policies.stalls import (
    HOT,
    IDLE,
    MARKERS,
    SPARE,
    STUCK,
    UNASSIGNED,
    Stall,
    StallWatch,
)

NOW = 1_795_000_000_000
MINUTE = 60_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)

# -- what does not move --


def group(state: str = "Stable", *members: tuple[TopicPartition, ...]) -> GroupView:
    held = members or ((T0,), (T1,))
    views = [
        MemberView(f"m{number}", f"w-{number}", frozenset(partitions), True)
        for number, partitions in enumerate(held)
    ]
    return GroupView(state, tuple(views))


def kafka_snapshot(
    first: tuple[int, int], second: tuple[int, int] = (0, 0), view: GroupView | None = None
) -> KafkaSnapshot:
    ends, done = {T0: first[0], T1: second[0]}, {T0: first[1], T1: second[1]}
    return KafkaSnapshot(0, view or group(), (T0, T1), ends, done)


def stalls(*snapshots: tuple[int, KafkaSnapshot | None], hot: tuple[TopicPartition, ...] = ()) -> list[Stall]:
    """What a watch found that saw these snapshots, each with its time in ms."""
    watch = StallWatch()
    for at_ms, snapshot in snapshots:
        watch.observe(snapshot, now_ms=NOW + at_ms, hot=hot)
    return list(watch.stalls())


def kinds(*snapshots: tuple[int, KafkaSnapshot | None], hot: tuple[TopicPartition, ...] = ()) -> list[str]:
    return [stall.kind for stall in stalls(*snapshots, hot=hot)]


BEHIND = kafka_snapshot((900, 100), (5, 5))
LATER = kafka_snapshot((901, 100), (6, 6))


def test_a_stuck_consumer_is_named_with_its_partition() -> None:
    result = next(stall for stall in stalls((0, BEHIND), (5 * MINUTE, LATER)) if stall.kind == STUCK)
    assert (result.partitions, result.members) == ((T0,), ("w-0",))
    assert result.message.startswith(
        "t-0 (assigned to w-0) has lag, but no offset was committed for more than 5 min"
    )
    assert STUCK not in kinds((0, BEHIND), (5 * MINUTE - 1, LATER))


@pytest.mark.parametrize(
    "between",
    [
        kafka_snapshot((900, 101), (5, 5)),  # it committed
        kafka_snapshot((900, 900), (5, 5)),  # it had caught up
        kafka_snapshot((900, 100), (5, 5), group("PreparingRebalance")),
        kafka_snapshot((900, 100), (5, 5), group("Stable", (T1,), (T0,))),  # somebody else has it now
        replace(BEHIND, positions={T1: 5}),
        replace(BEHIND, group=None),
        None,
    ],
)
def test_a_consumer_is_not_stuck_when_something_happened_meanwhile(between: KafkaSnapshot | None) -> None:
    assert STUCK not in kinds((0, BEHIND), (MINUTE, between), (5 * MINUTE, BEHIND))
    assert STUCK in kinds((0, BEHIND), (MINUTE, between), (2 * MINUTE, BEHIND), (7 * MINUTE, LATER))


def test_a_partition_that_nobody_has_is_not_stuck_but_unassigned() -> None:
    free = kafka_snapshot((900, 100), (5, 5), group("Stable", (T1,)))
    moving = replace(free, group=group("PreparingRebalance", (T1,)))
    reported = stalls((0, free), (10 * MINUTE, free))
    assert [(stall.kind, stall.partitions) for stall in reported] == [(UNASSIGNED, (T0,))]
    unread = replace(free, positions={T1: 5})
    assert UNASSIGNED in kinds((0, unread), (5 * MINUTE, unread), (10 * MINUTE, unread))
    for between in (free, moving, kafka_snapshot((900, 100), (5, 5))):
        so_far = kinds((0, free), (MINUTE, between), (10 * MINUTE - 1, free))
        assert UNASSIGNED not in so_far
        assert (UNASSIGNED in kinds((0, free), (MINUTE, between), (10 * MINUTE, free))) == (between is free)


@pytest.mark.parametrize(("lag", "markers"), [(1, True), (2, True), (3, False)])
def test_the_lag_of_transaction_markers_is_no_stuck_consumer(lag: int, markers: bool) -> None:
    still = kafka_snapshot((100 + lag, 100), (5, 5))
    result = kinds((0, still), (5 * MINUTE, still))
    assert (MARKERS in result, STUCK in result) == (markers, not markers)
    produced = kafka_snapshot((101 + lag, 100), (5, 5))
    assert MARKERS not in kinds((0, still), (MINUTE, produced), (5 * MINUTE, produced))


def test_a_topic_to_which_nothing_is_produced_is_idle() -> None:
    quiet = kafka_snapshot((10, 10), (5, 5))
    result = stalls((0, quiet), (5 * MINUTE, quiet))
    assert [(stall.kind, stall.partitions, stall.message) for stall in result] == [
        (IDLE, (T0, T1), "no records are produced to t")
    ]
    assert kinds((0, quiet), (5 * MINUTE - 1, quiet)) == []
    assert kinds((0, quiet), (5 * MINUTE, kafka_snapshot((11, 11), (5, 5)))) == []


def test_a_hot_partition_only_after_a_while_and_only_if_it_is_not_all() -> None:
    busy = [(second * 20_000, kafka_snapshot((second * 10, second * 10), (5, 5))) for second in range(4)]
    result = stalls(*busy, hot=(T0,))
    assert [(stall.kind, stall.partitions) for stall in result] == [(HOT, (T0,))]
    assert "distribute the keys" in result[0].message
    assert kinds(*busy[:3], (59_999, busy[3][1]), hot=(T0,)) == []
    assert kinds(*busy, hot=(T0, T1)) == []
    moved = [*busy[:2], (40_000, kafka_snapshot((0, 0), (0, 0), group("PreparingRebalance"))), busy[3]]
    assert kinds(*moved, hot=(T0,)) == []


def test_members_without_partitions_are_named() -> None:
    crowd = group("Stable", (T0,), (T1,), (), ())
    result = stalls((0, kafka_snapshot((5, 5), (5, 5), crowd)))
    assert [(stall.kind, stall.members) for stall in result] == [(SPARE, ("w-2", "w-3"))]
    assert result[0].message.startswith("4 workers for 2 partitions: w-2, w-3 has no partition")
    assert kinds((0, kafka_snapshot((5, 5), (5, 5), group("PreparingRebalance", (T0,), (T1,), ())))) == []
    assert (
        kinds((0, kafka_snapshot((5, 5), (5, 5), group("Stable", (T0, T1), ())))) == []
    )  # between two halves


def test_deleted_partitions_are_forgotten() -> None:
    one_left = replace(BEHIND, partitions=(T1,))
    assert STUCK not in kinds((0, BEHIND), (MINUTE, one_left), (9 * MINUTE, one_left))


# -- conditions --

GOOD = ConditionsInput(
    generation=4,
    replicas=3,
    members=3,
    partitions=12,
    group=group(),
    lag_known=True,
    scaling=ScalingDecision(1.0, "", "", 3, "3 is right (need 1.00)", capped=3, summary="3 is right"),
)


def conditions_by_type(
    before: list[dict[str, Any]] | None = None, now_ms: int = NOW, **more: Any
) -> dict[str, dict[str, Any]]:
    made = conditions(replace(GOOD, **more), before or [], now_ms=now_ms)
    there = [kind for kind in TYPES if kind != "Rewound" or more.get("rewind")]
    assert [condition["type"] for condition in made] == there
    for condition in made:
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", condition["reason"])
        assert condition["message"]
        assert condition["observedGeneration"] == 4
    return {condition["type"]: condition for condition in made}


def verdict(kind: str, **more: Any) -> tuple[str, str]:
    condition = conditions_by_type(**more)[kind]
    return condition["status"], condition["reason"]


def test_a_healthy_group_has_good_conditions() -> None:
    assert {kind: condition["status"] for kind, condition in conditions_by_type().items()} == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "Stable": "True",
        "Scaled": "True",
        "RolledOut": "True",
        "LagKnown": "True",
        "SkewLimited": "False",
        "Stuck": "False",
        "Degraded": "False",
        "Suspended": "False",
    }


@pytest.mark.parametrize(
    ("rewind", "status", "ready"),
    [
        (RewindView("Checking", "..."), "False", "Settled"),
        (RewindView("Rewinding", "...", stops=True), "False", "Rewinding"),
        (RewindView("Rewound", "...", done=True), "True", "Settled"),
        (RewindView("Failed", "...", done=True), "False", "Settled"),
    ],
)
def test_a_rewind_has_a_condition_and_makes_a_group_unready_while_it_is_stopped(
    rewind: RewindView, status: str, ready: str
) -> None:
    assert verdict("Rewound", rewind=rewind) == (status, rewind.reason)
    assert verdict("Ready", rewind=rewind)[1] == ready


HELD = ScalingDecision(5.0, "", "settling", 3, "3 kept: 4 s ago", capped=6, summary="3 kept: it settles")
STOPPED: dict[str, Any] = {"rollout_phase": "Stopped", "rollout_reason": "w-1 did not come back"}


@pytest.mark.parametrize(
    ("change", "kind", "status", "reason"),
    [
        ({"suspended": True, "replicas": 0, "members": 0}, "Ready", "True", "Suspended"),
        ({"suspended": True, "unsettled": "w-1 is terminating"}, "Ready", "False", "Suspending"),
        ({"suspended": True}, "Suspended", "True", "Suspended"),
        ({"group": None}, "Ready", "Unknown", "GroupUnknown"),
        ({"group": None}, "Stable", "Unknown", "GroupUnknown"),
        ({"group": None}, "Stuck", "Unknown", "GroupUnknown"),
        ({"members": 2}, "Ready", "False", "NotSettled"),
        ({"members": 2, "rollout_phase": "Rolling"}, "Ready", "False", "Rolling"),
        ({"members": 2, **STOPPED}, "Ready", "False", "RolloutStopped"),
        ({"members": 2, "troubles": (Trouble("WorkerFailing", "x"),)}, "Ready", "False", "WorkerFailing"),
        ({"group": None, "kafka_away_ms": 2 * MINUTE}, "Ready", "Unknown", "KafkaUnreachable"),
        ({"stopped": ("t-0",)}, "Ready", "False", "PartitionsStopped"),
        ({"members": 2}, "Reconciling", "True", "Settling"),
        ({"rollout_phase": "Rolling"}, "Reconciling", "True", "Rolling"),
        ({"rollout_phase": "Paused"}, "Reconciling", "True", "Paused"),
        ({"scaling": replace(HELD, damping="", applied=6)}, "Reconciling", "True", "Scaling"),
        ({"suspended": True}, "Reconciling", "False", "Suspended"),
        ({"suspended": True, "unsettled": "w-1 is terminating"}, "Reconciling", "True", "Suspending"),
        ({"suspended": True, **STOPPED}, "Reconciling", "False", "Suspended"),
        (STOPPED, "Stalled", "True", "RolloutStopped"),
        (STOPPED, "Reconciling", "False", "RolloutStopped"),
        ({"rollout_phase": "Refused"}, "Stalled", "True", "RolloutRefused"),
        ({"troubles": (Trouble("OtherKafka", "x", stalls=True),)}, "Stalled", "True", "OtherKafka"),
        (
            {"stopped": ("t-0",), "troubles": (Trouble("LogTruncated", "x"),)},
            "Stalled",
            "True",
            "LogTruncated",
        ),
        ({"group": None}, "Reconciling", "Unknown", "GroupUnknown"),
        ({"unsettled": "w-1 is warming"}, "Ready", "False", "NotSettled"),
        ({"unsettled": "w-1 is warming"}, "Stable", "False", "NotSettled"),
        ({"group": group("PreparingRebalance")}, "Stable", "False", "PreparingRebalance"),
        ({"replicas": 0, "members": 0, "group": GroupView("Empty")}, "Ready", "True", "ScaledToZero"),
        ({"replicas": 0, "members": 0, "group": GroupView("Empty")}, "Stable", "True", "Empty"),
        ({"group": GroupView("Empty")}, "Stable", "False", "Empty"),
        ({"scaling": None}, "Scaled", "Unknown", "NotDecided"),
        ({"scaling": HELD}, "Scaled", "False", "Settling"),
        ({"scaling": replace(HELD, damping="cost")}, "Scaled", "False", "NotWorthIt"),
        ({"scaling": replace(HELD, damping="rising")}, "Scaled", "False", "Steadying"),
        ({"scaling": replace(HELD, damping="draining")}, "Scaled", "False", "Draining"),
        ({"scaling": replace(HELD, damping="behavior")}, "Scaled", "False", "LimitedByBehavior"),
        ({"scaling": replace(HELD, damping="fallback")}, "Scaled", "False", "Fallback"),
        ({"scaling": replace(HELD, damping="paused")}, "Scaled", "True", "Paused"),
        ({"scaling": replace(HELD, damping="activation")}, "Scaled", "True", "BelowActivationLag"),
        ({"scaling": replace(HELD, damping="unknown")}, "Scaled", "Unknown", "NeedUnknown"),
        ({"scaling": replace(HELD, damping="", applied=6)}, "Scaled", "False", "Stepping"),
        ({"scaling": replace(HELD, damping="", cap="maxReplicas")}, "Scaled", "True", "AtMaxReplicas"),
        ({"scaling": replace(HELD, damping="", cap="partitions")}, "Scaled", "True", "AtPartitions"),
        ({"stalls": (Stall(SPARE, message="w-9"),)}, "Scaled", "True", "MoreWorkersThanPartitions"),
        ({"rollout_phase": "Rolling"}, "RolledOut", "False", "Rolling"),
        (STOPPED, "RolledOut", "False", "Stopped"),
        (STOPPED, "Degraded", "True", "RolloutStopped"),
        ({"rollout_phase": "Refused"}, "Degraded", "True", "RolloutRefused"),
        ({"rollout_phase": "Paused"}, "Degraded", "False", "AsExpected"),
        ({"lag_known": False, "problems": ("no leader",)}, "LagKnown", "False", "OffsetsUnknown"),
        ({"lag_known": False, "group": None}, "LagKnown", "False", "KafkaUnreachable"),
        ({"lag_known": False}, "SkewLimited", "Unknown", "LagUnknown"),
        ({"stalls": (Stall(HOT, (T0,), (), "t-0"),)}, "SkewLimited", "True", "HotPartition"),
        ({"stalls": (Stall(STUCK, (T0,), (), "t-0"),)}, "Stuck", "True", "StuckConsumer"),
        ({"stalls": (Stall(UNASSIGNED, (T0,), (), "t-0"),)}, "Stuck", "True", "PartitionsUnassigned"),
        ({"stalls": (Stall(MARKERS, (T0,), (), "t-0"),)}, "Stuck", "False", "TransactionMarkers"),
        ({"stalls": (Stall(IDLE, (T0,), (), "t"),)}, "Stuck", "False", "TopicIdle"),
        ({"kafka_away_ms": 2 * MINUTE}, "Degraded", "True", "KafkaUnreachable"),
        ({"kafka_away_ms": 2 * MINUTE - 1}, "Degraded", "False", "AsExpected"),
        ({"unplanned": ("a coordinator moved",)}, "Degraded", "True", "UnplannedRebalances"),
        ({"troubles": (Trouble("NameTaken", "x"), Trouble("B", "y"))}, "Degraded", "True", "NameTaken"),
    ],
)
def test_each_condition_has_its_status_and_reason(
    change: dict[str, Any], kind: str, status: str, reason: str
) -> None:
    assert verdict(kind, **change) == (status, reason)
    assert reason == "AsExpected" or verdict(kind) != (status, reason)


@pytest.mark.parametrize(
    "change",
    [
        {"troubles": (Trouble("RecordsSkipped", "x"),)},
        {"rollout_phase": "RollingBack", "rollout_reason": "w-1 did not come back"},
        {"rollout_phase": "Preflight", "troubles": (Trouble("PreflightFailed", "it is tried again"),)},
        {"rollout_phase": "Rolling", "stopped": ("t-0",), "troubles": (Trouble("LogTruncated", "x"),)},
        {"suspended": True, **STOPPED},
    ],
)
def test_what_needs_a_person_or_goes_on_by_itself_does_not_stall(change: dict[str, Any]) -> None:
    assert verdict("Stalled", **change) == ("False", "NotStalled")


def test_the_degraded_condition_names_every_problem() -> None:
    by_type = conditions_by_type(
        **STOPPED, kafka_away_ms=5 * MINUTE, problems=("no route",), unplanned=("w-3 was killed",)
    )
    message = by_type["Degraded"]["message"]
    assert message == (
        "w-1 did not come back; Kafka has not answered for more than 2 min: no route; w-3 was killed"
    )


def test_ready_tells_the_cause() -> None:
    failing = Trouble("WorkerFailing", "w-1: it exits with 2; see kubectl logs w-1")
    assert conditions_by_type(members=2, troubles=(failing,))["Ready"]["message"] == failing.message
    missing = conditions_by_type(unsettled="w-1 is warming")["Ready"]["message"]
    assert missing == "w-1 is warming"
    rolling = conditions_by_type(
        unsettled="w-1 is restarting", rollout_phase="Rolling", rollout_reason="1 of 3 workers is updated"
    )["Ready"]["message"]
    assert rolling == "1 of 3 workers is updated; w-1 is restarting"
    recreated = Trouble("TopicRecreated", "t was deleted and created again; set the offset")
    stopped = conditions_by_type(stopped=("t-0",), troubles=(recreated,))["Ready"]["message"]
    assert stopped == f"t-0 is not being consumed: {recreated.message}"
    assert conditions_by_type(troubles=(failing,))["Ready"]["status"] == "True", "it is well all the same"


def test_a_failed_preflight_is_told_once() -> None:
    failed = (Trouble("PreflightFailed", "no module named flights"),)
    assert conditions_by_type(**STOPPED, troubles=failed)["Degraded"]["message"] == "no module named flights"


def test_a_time_moves_only_when_the_status_flips() -> None:
    first = conditions_by_type()
    assert first["Ready"]["lastTransitionTime"] == "2026-11-18T11:06:40Z"
    before = list(first.values())
    later = conditions_by_type(before, NOW + 90_000, unsettled="w-1 is warming")
    assert later["Ready"]["lastTransitionTime"] == "2026-11-18T11:08:10Z"
    assert later["LagKnown"] == first["LagKnown"]
    again = conditions_by_type(list(later.values()), NOW + 99_000, unsettled="w-2 is warming")
    assert again["Stable"]["message"] == "w-2 is warming"
    assert again["Stable"]["lastTransitionTime"] == later["Stable"]["lastTransitionTime"]


def test_a_time_does_not_move_with_the_reason() -> None:
    first = conditions_by_type(unsettled="w-1 is warming")
    later = conditions_by_type(
        list(first.values()), NOW + 90_000, unsettled="w-1 is warming", rollout_phase="Rolling"
    )
    assert (first["Ready"]["reason"], later["Ready"]["reason"]) == ("NotSettled", "Rolling")
    assert later["Ready"]["lastTransitionTime"] == first["Ready"]["lastTransitionTime"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "Settled"),
        ({"rollout_phase": "Preflight"}, "Preflight"),
        ({"rollout_phase": "Preflight", "stalls": (Stall(STUCK, (T0,), (), "t-0"),)}, "StuckConsumer"),
        ({"rollout_phase": "Preflight", "troubles": (Trouble("PreflightBlocked", "x"),)}, "PreflightBlocked"),
        ({"deleting": True, "troubles": (Trouble("PreflightBlocked", "x"),)}, "Deleting"),
    ],
)
def test_what_a_person_must_see_comes_first(change: dict[str, Any], reason: str) -> None:
    assert foremost([*conditions_by_type(**change).values()])["reason"] == reason


def test_what_was_written_by_others_does_no_harm() -> None:
    assert conditions_by_type([{"type": "Ready", "status": "True"}, {}])["Ready"]["lastTransitionTime"]


def test_messages_do_not_change_with_the_figures() -> None:
    moving = [
        conditions_by_type(
            scaling=ScalingDecision(
                raw, "", "window", 3, f"need {raw}", capped=2, summary="3 kept: the window"
            )
        )
        for raw in (1.0, 1.7)
    ]
    assert moving[0] == moving[1]


# -- preflight --


def job(**status: Any) -> dict[str, Any]:
    return {"metadata": {"creationTimestamp": "2026-11-18T11:06:40Z"}, "status": status}


def pod_with(state: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"status": {"containerStatuses": [{"name": "worker", "state": state}], **status}}


FAILED = job(
    failed=1, conditions=[{"type": "Failed", "status": "True", "message": "Job has reached the limit"}]
)
ENDED = {"terminated": {"exitCode": 2}}
SAID = {"terminated": {"exitCode": 2, "message": "said at its end"}}
JSON = '{"event":"error","message":"no brokers"}'
TARGET = {"type": "FailureTarget", "status": "True"}
UNSCHEDULED = [
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"}
]


@pytest.mark.parametrize(
    ("job_", "pod", "log", "action", "reason"),
    [
        (None, None, "", "start", "has not been tried yet"),
        (job(active=1), None, "", "wait", "the preflight is running"),
        (job(active=1), pod_with({"running": {}}), "", "wait", "the preflight is running"),
        (job(succeeded=1), None, "", "pass", "has passed"),
        (job(conditions=[{"type": "Complete", "status": "True"}]), None, "", "pass", "has passed"),
        (FAILED, pod_with(ENDED), "INFO x\nno module named flights\n\n", "fail", "flights (exit code 2)"),
        (
            FAILED,
            pod_with(ENDED),
            '{"event":"error","message":"no brokers"}',
            "fail",
            "no brokers (exit code 2)",
        ),
        (
            FAILED,
            pod_with(SAID),
            "log",
            "fail",
            "said at",
        ),
        (FAILED, pod_with(ENDED), "", "fail", "exit code 2: bad configuration or handler; the log is empty"),
        (FAILED, pod_with({"terminated": {"exitCode": 137}}), "", "fail", "signal 9"),
        (FAILED, None, "", "fail", "Job has reached the limit"),
        (job(failed=1), pod_with(ENDED), "", "fail", "exit code 2"),  # before the Job controller has noticed
        (
            job(conditions=[{"type": "FailureTarget", "status": "True"}]),
            pod_with(ENDED),
            "",
            "fail",
            "code 2",
        ),
        (job(), pod_with({}, conditions=UNSCHEDULED), "", "wait", "Unschedulable: 0/3 nodes fit"),
        (job(), pod_with({"waiting": {"reason": "ImagePullBackOff"}}), "", "wait", "(ImagePullBackOff)"),
        (
            job(),
            pod_with({"waiting": {"reason": "ContainerCreating"}}),
            "",
            "wait",
            "the preflight is running",
        ),
    ],
)
def test_a_preflight_has_the_expected_outcome(
    job_: dict[str, Any] | None, pod: dict[str, Any] | None, log: str, action: str, reason: str
) -> None:
    decision = decide_preflight(preflight_view(job_, pod, log), now_ms=NOW)
    assert decision.action == action
    assert reason in decision.reason
    assert decision.failed == (action == "fail")


PROXY_RUNS = {"name": "istio-proxy", "state": {"running": {}}}
PROXY_ENDED = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 143}}}
PROXY_WAITS = {"name": "istio-proxy", "state": {"waiting": {"reason": "ImagePullBackOff"}}}


@pytest.mark.parametrize(
    ("job_", "state", "other", "action"),
    [
        (job(active=1), {"terminated": {"exitCode": 0}}, PROXY_RUNS, "pass"),
        (FAILED, {"terminated": {"exitCode": 0}}, PROXY_ENDED, "pass"),
        (job(active=1), ENDED, PROXY_RUNS, "fail"),
        (job(active=1), {"running": {}}, PROXY_ENDED, "wait"),
        (job(active=1), {"running": {}}, PROXY_WAITS, "wait"),
    ],
)
def test_the_outcome_of_a_preflight_is_that_of_its_worker(
    job_: dict[str, Any], state: dict[str, Any], other: dict[str, Any], action: str
) -> None:
    pod = {"status": {"containerStatuses": [other, {"name": "worker", "state": state}]}}
    decision = decide_preflight(preflight_view(job_, pod), now_ms=NOW + BLOCKED_AFTER_MS)
    assert (decision.action, decision.again, decision.blocked) == (action, False, "")
    ended_first = "terminated" in state and other is PROXY_RUNS
    assert ("istio-proxy" in preflight_view(job_, pod).kept) is ended_first


@pytest.mark.parametrize(("name", "again"), [("fetch", False), ("istio-validation", True)])
def test_an_init_container_that_a_webhook_has_added_is_no_fault_of_the_revision(
    name: str, again: bool
) -> None:
    spec = {"template": {"spec": {"initContainers": [{"name": "fetch"}]}}}
    init = [{"name": name, "state": {"terminated": {"exitCode": 126, "message": "no rules"}}}]
    pod = pod_with({"waiting": {"reason": "PodInitializing"}}, initContainerStatuses=init)
    decision = decide_preflight(preflight_view({**FAILED, "spec": spec}, pod), now_ms=NOW)
    assert (decision.action, decision.again) == ("fail", again)


def test_a_native_sidecar_that_was_told_to_end_hides_no_fault() -> None:
    init = [{"name": "istio-proxy", "state": {"terminated": {"exitCode": 143}}}]
    decision = decide_preflight(
        preflight_view(FAILED, pod_with(SAID, initContainerStatuses=init)), now_ms=NOW
    )
    assert (decision.action, decision.again) == ("fail", False)
    assert "said at its end (exit code 2)" in decision.reason


def test_a_preflight_that_takes_too_long_fails_and_says_what_kept_it() -> None:
    view = PreflightView(NOW, waiting="ImagePullBackOff")
    assert decide_preflight(view, now_ms=NOW + 300_000).action == "wait"
    late = decide_preflight(view, now_ms=NOW + 300_001)
    assert (late.action, late.failed) == ("timeout", True)
    assert late.reason == "the preflight took more than 5 min: ImagePullBackOff"
    assert decide_preflight(replace(view, succeeded=True), now_ms=NOW + 900_000).action == "pass"


CONFIG_ERROR = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
NO_ACCOUNT = ObjectEvent("FailedCreate", 'Error creating: serviceaccount "x" not found', True, NOW)
CREATED = ObjectEvent("SuccessfulCreate", "Created pod: p", False, NOW)
NO_VOLUME = ObjectEvent("FailedMount", 'MountVolume.SetUp failed: secret "x" not found', True, NOW)
NO_NODE = ObjectEvent("FailedScheduling", "0/3 nodes are available", True, NOW - 9)
STARTED_EVENT = ObjectEvent("Started", "Started container worker", False, NOW + 1)
LATE = job(conditions=[{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}])


@pytest.mark.parametrize(
    ("pod", "job_events", "pod_events", "cause"),
    [
        (None, [NO_ACCOUNT], [], 'FailedCreate: Error creating: serviceaccount "x" not found'),
        (pod_with({}, conditions=UNSCHEDULED), [], [], "Unschedulable: 0/3 nodes fit"),
        (pod_with(CONFIG_ERROR), [], [], 'CreateContainerConfigError: secret "x" not found'),
        (pod_with(CREATING), [CREATED], [NO_NODE, NO_VOLUME], "FailedMount: MountVolume.SetUp failed"),
        (None, [CREATED], [NO_NODE], "FailedScheduling: 0/3 nodes are available"),
        (None, [replace(NO_ACCOUNT, at_ms=NOW - 5), CREATED], [NO_VOLUME], "FailedMount: MountVolume"),
    ],
)
def test_what_holds_a_preflight_up_is_named_and_is_not_the_revisions_fault(
    pod: dict[str, Any] | None, job_events: list[ObjectEvent], pod_events: list[ObjectEvent], cause: str
) -> None:
    runs = decide_preflight(
        preflight_view(job(active=1), pod, job_events=job_events, pod_events=pod_events),
        now_ms=NOW + BLOCKED_AFTER_MS,
    )
    assert runs.action == "wait"
    assert runs.blocked.startswith(cause)
    late = decide_preflight(
        preflight_view(LATE, pod, job_events=job_events, pod_events=pod_events), now_ms=NOW
    )
    assert (late.action, late.again) == ("fail", True)
    assert late.reason.startswith(f"the preflight failed: its pod did not start: {cause}")


@pytest.mark.parametrize(
    ("pod", "pod_events", "again"),
    [
        (pod_with({"terminated": {"exitCode": 5, "message": "no topic flights"}}), [], True),
        (pod_with({"terminated": {"exitCode": 2, "message": "no module"}}), [], False),
        (pod_with({"terminated": {"exitCode": 4}}), [], False),
        (pod_with({"terminated": {"exitCode": 1}}), [], False),
        (
            pod_with(
                {"terminated": {"exitCode": 143}},
                conditions=[{"type": "DisruptionTarget", "status": "True"}],
            ),
            [],
            True,
        ),
        (None, [NO_NODE, STARTED_EVENT], False),  # it ran, and hung
    ],
)
def test_only_what_the_environment_did_is_tried_again(
    pod: dict[str, Any] | None, pod_events: list[ObjectEvent], again: bool
) -> None:
    decision = decide_preflight(
        preflight_view(LATE, pod, job_events=[CREATED], pod_events=pod_events), now_ms=NOW
    )
    assert (decision.action, decision.again) == ("fail", again)


@pytest.mark.parametrize(("since_ms", "again"), [(NOW + 1_000, True), (NOW - 1_000, False)])
def test_a_preflight_that_ended_while_no_operator_ran_has_no_outcome(since_ms: int, again: bool) -> None:
    """An injector's container may have kept its pod up to the time limit, after the worker had passed."""
    [condition] = LATE["status"]["conditions"]
    late = job(conditions=[{**condition, "lastTransitionTime": "2026-11-18T11:06:40Z"}])  # NOW
    view = preflight_view(late, None, pod_events=[STARTED_EVENT], since_ms=since_ms)
    decision = decide_preflight(view, now_ms=NOW + MINUTE)
    assert (decision.action, decision.again, view.unseen) == ("fail", again, again)


OUT_OF_MEMORY = {"exitCode": 137, "reason": "OOMKilled"}
SEGMENTATION_FAULT = {"exitCode": 139}


@pytest.mark.parametrize(
    ("pod", "again"),
    [
        (pod_with({"terminated": {"exitCode": 137, "reason": "Error"}}), True),
        (pod_with({"terminated": {"exitCode": 143}}), True),
        (pod_with({"terminated": OUT_OF_MEMORY}), False),
        (pod_with({"terminated": SEGMENTATION_FAULT}), False),
        ({"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}}, True),
        ({"status": {"phase": "Failed", "reason": "OutOfcpu"}}, True),
        ({"status": {"phase": "Failed"}}, False),
    ],
)
def test_a_preflight_that_was_killed_or_rejected_is_tried_again(pod: dict[str, Any], again: bool) -> None:
    assert decide_preflight(preflight_view(FAILED, pod), now_ms=NOW).again is again


def test_the_worker_and_the_operator_agree_on_the_exit_code() -> None:
    assert ENVIRONMENT == EXIT_ENVIRONMENT


def test_a_preflight_is_tried_again_less_and_less_often() -> None:
    delays = [retry_delay_ms(attempts, "uid") for attempts in range(1, 12)]
    for longest, delay in zip([10_000, 20_000, 40_000], delays, strict=False):
        assert longest / 2 <= delay <= longest
    assert delays[-1] <= LONGEST_RETRY_MS
    assert retry_delay_ms(1, "uid") != retry_delay_ms(1, "another")


# -- the explanation --

SPEC: dict[str, Any] = {
    "kafka": {"bootstrapServers": "kafka:9092"},
    "topics": ["flights"],
    "pipeline": {"handler": "flights.pipeline:transform", "sink": {"path": "/data"}},
}
SCALING = {
    "raw": 3.1,
    "capped": 4,
    "cap": "",
    "damping": "settling",
    "applied": 4,
    "reason": "4 kept: the last change has to settle",
    "settleMs": 30_000,
    "capacityPerS": 1_000,
    "partitions": 12,
    "lastStep": {"before": 3, "after": 4, "at": NOW - 12_000, "tookMs": 9_100},
}
FIGURES = {
    "desiredReplicas": 4,
    "replicas": 4,
    "readyReplicas": 4,
    "members": 4,
    "generation": 12,
    "lag": 1200,
}


def resource(scaling: dict[str, Any] | None = None, /, **status: Any) -> dict[str, Any]:
    spec = dict(SPEC) if scaling is None else {**SPEC, "scaling": scaling}
    made = conditions(GOOD, [], now_ms=NOW - 5 * MINUTE)
    return {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {"name": "flights", "namespace": "air", "generation": 4},
        "spec": spec,
        "status": {"observedGeneration": 4, "conditions": made, "scaling": SCALING, **FIGURES, **status},
    }


def otherwise(scaling: dict[str, Any] | None, /, **status: Any) -> list[str]:
    return list(explain(resource(scaling, **status), NOW).otherwise)


@pytest.mark.parametrize(("age_ms", "old"), [(4 * MINUTE, False), (5 * MINUTE, True)])
def test_an_explanation_says_that_the_status_is_old(age_ms: int, old: bool) -> None:
    status = resource(lastConfirmedTime="2026-11-18T11:06:40Z")  # NOW
    assert any(line.startswith("this status is ") for line in explain(status, NOW + age_ms).state) is old


def test_an_explanation_in_full() -> None:
    decisions = [
        {"at": NOW - 90_000, "kind": "rollout", "action": "restart", "reason": "restart of flights-1"},
        {"at": NOW - 12_000, "kind": "scaling", "action": "up", "reason": "3 to 4: need 3.10"},
    ]
    rollout = {
        "phase": "Rolling",
        "since": NOW - 95_000,
        "underWay": [{"name": "flights-2", "uid": "u", "generation": 12, "sinceMs": NOW - 3_000}],
    }
    both = resource({"catchUp": "1m"}, decisions=decisions, rollout=rollout, revision="abc")
    assert explain(both, NOW).lines() == [
        "ConsumerGroup air/flights, Kafka group flights",
        "",
        "State:",
        "  workers: 4 wanted, 4 there, 4 ready",
        "  Kafka: 4 members, generation 12, lag about 1,200",
        "  revision abc: Rolling for 1 min 35 s",
        "  flights-2 is restarting, for 3 s",
        "  Ready=True Settled (for 5 min): 3 workers in the group; every partition is assigned",
        "",
        "Decisions:",
        "  scaling: raw 3.1 -> capped 4 -> applied 4 (held: settling): 4 kept: the last change has to settle",
        "  last step: 3 to 4, 12 s ago, took 9.1 s",
        "  12 s ago: scaling up: 3 to 4: need 3.10",
        "  1 min 30 s ago: rollout restart: restart of flights-1",
        "",
        "Otherwise:",
        "  a step when the last change was 30 s ago",
        "  6 workers when production plus lag / 1 min exceeds 4,400/s (a lag of 264,000 alone)",
        "  3 workers when production plus lag / 1 min stays below 3,300/s (a lag of 198,000 alone) for the "
        "whole window",
        "  the rolling restart continues when flights-2 is back in a stable group",
    ]


@pytest.mark.parametrize(
    ("scaling", "status", "line"),
    [
        ({"lagPerReplica": 1_000}, {}, "6 workers when the lag exceeds 4,400"),
        ({"lagPerReplica": 1_000}, {}, "3 workers when the lag stays below 3,300 for the whole window"),
        (
            {"lagPerReplica": 1_000, "maxReplicas": 4},
            {},
            "more than 4 workers only with a higher spec.scaling",
        ),
        ({"lagPerReplica": 1_000, "maxReplicas": 5}, {}, "more workers only with a maxReplicas that gives"),
        ({"lagPerReplica": 1_000}, {"desiredReplicas": 12}, "more than 12 workers only with more partitions"),
        ({"lagPerReplica": 1_000}, {"desiredReplicas": 0}, "1 worker or more as soon as there is a record"),
        (
            {"lagPerReplica": 9, "minReplicas": 0},
            {},
            "0 workers when there is nothing to consume and nothing was prod",
        ),
        ({"catchUp": "1m"}, {"scaling": {"partitions": 12}}, "numbers by rate when it is known what one"),
        (None, {}, "the number of workers changes when spec.replicas changes (kubectl scale"),
        (None, {"rollout": {"phase": "Paused"}}, "the rolling restart continues when spec.rollout.paused"),
        (None, {"rollout": {"phase": "Stopped"}}, "the revision is tried again when the spec or the"),
        (None, {"rollout": {"phase": "Refused"}}, "the rolling restart begins when restarts fit"),
        (None, {"rollout": {"phase": "Preflight"}}, "the rolling restart begins when the preflight"),
        (None, {"rollout": {"phase": "Idle", "failed": {"hash": "h"}}}, "revision h is tried again when"),
        (None, {"rollout": {"phase": "Idle"}}, "workers are restarted when their template or"),
        (
            {"lagPerReplica": 9},
            {"scaling": {"damping": "unknown"}},
            "a step when the lag and the rates of all",
        ),
        (
            {"lagPerReplica": 9},
            {"scaling": {"damping": "throughput", "ceiling": {"replicas": 3, "untilMs": NOW + MINUTE}}},
            "more than 3 workers again from 2026-11-18 11:07 UTC",
        ),
        (
            {"lagPerReplica": 9},
            {"scaling": {"damping": "flapping", "tooFew": {"replicas": 3, "untilMs": NOW + MINUTE}}},
            "3 workers or fewer again from 2026-11-18 11:07 UTC",
        ),
    ],
)
def test_the_explanation_says_what_would_have_to_change(
    scaling: dict[str, Any] | None, status: dict[str, Any], line: str
) -> None:
    assert [sentence for sentence in otherwise(scaling, **status) if sentence.startswith(line)]


def test_the_explanation_says_that_a_users_number_does_not_count() -> None:
    """An HPA on a group with a target writes spec.replicas, which the operator ignores."""
    both = resource({"catchUp": "1m", "lagPerReplica": 9})
    line = (
        "as spec.replicas requests (kubectl scale, an HPA, KEDA), only without spec.scaling.catchUp and spec."
    )

    def sentences(replicas: int) -> list[str]:
        both["spec"] = {**both["spec"], "replicas": replicas}
        return [sentence for sentence in explain(both, NOW).otherwise if line in sentence]

    assert [sentence.partition(",")[0] for sentence in sentences(1)] == ["1 worker"]
    assert [sentence.partition(",")[0] for sentence in sentences(7)] == ["7 workers"]
    assert sentences(4) == [], "it is the number that there is"
    assert sentences(7)[0].endswith("spec.scaling.lagPerReplica")


def test_the_explanation_names_the_numbers_that_decide() -> None:
    """Just above and just below the named lag the decision is the named one."""
    policy = ScalingPolicy(lag_per_replica=12_000)
    for lag, expected in ((52_799, 4), (52_802, 6), (39_599, 3), (39_602, 4)):
        even = [lag // 12 + (partition < lag % 12) for partition in range(12)]
        loads = {
            TopicPartition("t", partition): PartitionLoad(own, 0.0) for partition, own in enumerate(even)
        }
        given = ScalingInput(4, group(), loads, window_full=True, capacity_per_s=1e6)
        assert decide_scaling(policy, given).applied == expected, lag
    lines = otherwise({"lagPerReplica": 12_000})
    assert "6 workers when the lag exceeds 52,800" in lines
    assert "3 workers when the lag stays below 39,600 for the whole window" in lines


def test_the_explanation_describes_the_schedule() -> None:
    night = {"name": "night", "start": "0 18 * * *", "duration": "2h", "minReplicas": 6}
    before = otherwise({"lagPerReplica": 9, "schedules": [night]})
    assert "6 or more from 2026-11-18 18:00 UTC (schedule night)" in before
    during = explain(resource({"lagPerReplica": 9, "schedules": [night]}), NOW + 8 * 3_600_000).otherwise
    assert "no fewer than 6 now (schedule night)" in during
    assert "fewer than 6, down to 1, from 2026-11-18 20:00 UTC" in during


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ({}, "the spec is invalid"),
        (
            {"metadata": None, "spec": 5, "status": []},
            "no status yet: the operator has not processed this resource",
        ),
        ({"status": {"conditions": 5, "rollout": {"phase": "Rolling", "underWay": [3]}}}, "Kafka: lag not"),
    ],
)
def test_the_explanation_reports_missing_and_broken_fields(broken: dict[str, Any], line: str) -> None:
    assert any(printed.strip().startswith(line) for printed in explain(broken, NOW).lines())


def test_the_explanation_names_only_conditions_with_a_problem() -> None:
    made = conditions(replace(GOOD, lag_known=False, problems=("no leader",)), [], now_ms=NOW)
    state = explain(resource(conditions=made), NOW).state
    kinds = [word.split("=")[0] for word in state if "=" in word]
    assert kinds == ["Ready", "LagKnown", "SkewLimited"]
    newer = resource()
    newer["metadata"]["generation"] = 5
    assert "the newest spec has not been looked at yet" in explain(newer, NOW).state


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("Checking", "when its Job has checked the request"),
        ("Stopping", "when no pod and no member is left"),
        ("Rewinding", "when the rewind's Job and its pod have ended"),
    ],
)
def test_explain_says_what_a_rewind_waits_for(phase: str, words: str) -> None:
    shown = resource({"lagPerReplica": 9}, rewind={"request": "t:0:1", "phase": phase})
    assert any(words in sentence for sentence in explain(shown, NOW).otherwise)
    done = resource({"lagPerReplica": 9}, rewind={"request": "t:0:1", "phase": "Done"})
    assert not any("rewind" in sentence for sentence in explain(done, NOW).otherwise)
