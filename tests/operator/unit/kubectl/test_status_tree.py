"""`kubectl slackwater status`: what the tree shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.cli.kubectl.status import Observed, ranges, tree
from slackwater_operator.model.worker_status import StandbyStatus, StoppedPartition, WorkerStatus
from slackwater_operator.policies.explanations import explain

NOW_MS = 1_700_000_060_000
STARTED = "2023-11-14T22:13:20Z"


def lines(observed: Observed) -> list[str]:
    console = Console(width=300, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(tree(observed, NOW_MS))
    return [line.rstrip() for line in captured.get().splitlines()]


def resource(**status: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "air", "name": "flights"}, "status": status}


def condition(kind: str, status: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "message": message, "lastTransitionTime": STARTED}


def stateful_set(name: str, uid: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": uid},
        "spec": {"replicas": 2},
        "status": {"readyReplicas": 1, "updatedReplicas": 1, "updateRevision": f"{name}-5f"},
    }


def pod(name: str, owner: str, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "ownerReferences": [{"uid": owner}], **metadata},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "startTime": STARTED, "containerStatuses": [{"restartCount": 2}]},
    }


def test_a_group_its_sets_pods_members_and_partitions() -> None:
    held = [TopicPartition("flights", number) for number in (0, 1, 2, 5)]
    worker = WorkerStatus(
        "running",
        generation=7,
        is_leader=True,
        assignment=frozenset({*held, TopicPartition("delays", 3)}),
        lag={held[0]: 1_000, held[1]: 234},
    )
    observed = Observed(
        resource(
            readyReplicas=1,
            desiredReplicas=2,
            lag=1200,
            generation=7,
            revision="flights-5f",
            conditions=[
                condition("Ready", "False", "1 of 2 workers is ready"),
                condition("Stable", "True", "the group is stable"),
                condition("Degraded", "True", "the image is missing"),
            ],
        ),
        [stateful_set("flights", "u-1")],
        [pod("flights-10", "u-1"), pod("flights-2", "u-1"), pod("other-0", "u-9")],
        {"flights-2": worker, "flights-10": "does not answer: it is away"},
    )
    assert lines(observed) == [
        "ConsumerGroup air/flights  1 of 2 workers ready, lag about 1,200, generation 7, revision flights-5f",
        "├── Ready=False for 1 min: 1 of 2 workers is ready",
        "├── Degraded=True for 1 min: the image is missing",
        "└── StatefulSet flights  1 of 2 pods ready, 1 of flights-5f",
        "    ├── Pod flights-2  Running, on node-1, 2 restarts, started 1 min ago",
        "    │   ├── running, member of generation 7, leads the group",
        "    │   ├── delays 3: lag not known",
        "    │   └── flights 0-2, 5: lag 1,234",
        "    └── Pod flights-10  Running, on node-1, 2 restarts, started 1 min ago",
        "        └── does not answer: it is away",
    ]


def test_a_group_of_the_consumer_protocol_has_epochs() -> None:
    epochs = {**resource(generation=7), "spec": {"kafka": {"groupProtocol": "Consumer"}}}
    sets, pods = [stateful_set("flights", "u-1")], [pod("flights-0", "u-1")]
    text = lines(Observed(epochs, sets, pods, {"flights-0": WorkerStatus("running", generation=7)}))
    assert ", epoch 7, " in text[0]
    assert text[-1].endswith("running, member of epoch 7")
    assert "Kafka: epoch 7, lag not known" in explain(epochs, NOW_MS).state


def figures(status: dict[str, Any], worker: WorkerStatus) -> str:
    sets, pods = [stateful_set("flights", "u-1")], [pod("flights-0", "u-1")]
    return lines(Observed(resource(**status), sets, pods, {"flights-0": worker}))[0]


def test_the_groups_lag_is_the_sum_of_its_partitions_or_says_of_when_it_is() -> None:
    first, second = TopicPartition("flights", 0), TopicPartition("flights", 1)
    worker = WorkerStatus(
        "running", generation=7, assignment=frozenset({first, second}), lag={first: 0, second: 3}
    )
    status = {"lag": 6_000, "members": 1, "lastConfirmedTime": STARTED}
    assert ", lag 3, " in figures(status, worker)
    assert ", lag about 6,000 (1 min ago), " in figures(status, replace(worker, lag={first: 0}))
    assert ", lag about 6,000 (1 min ago), " in figures({**status, "members": 2}, worker)


def test_a_status_that_no_operator_confirms_is_said_to_be_old() -> None:
    old = {"lastConfirmedTime": "2023-11-14T22:09:20Z"}
    assert lines(Observed(resource(**old), [], [], {}))[1].startswith("├── this status is 5 min old")
    assert lines(Observed(resource(lastConfirmedTime=STARTED), [], [], {}))[1:] == ["└── no pods"]


def test_the_maintenance_of_each_table() -> None:
    done = {"phase": "Succeeded", "compacted": 412, "written": 3, "lastSuccessfulTime": STARTED}
    soon = {"nextScheduleTime": "2023-11-14T23:14:20Z"}
    failed = {"phase": "Failed", "failures": 2, "message": "no lock", **soon}
    rows = [{"table": "lake.a", **done, **soon}, {"table": "lake.b", **failed}]
    rows.append({"table": "lake.c", "phase": "Running", "lastScheduleTime": STARTED})
    shown = lines(Observed(resource(maintenance=rows), [], [], {}))
    assert [line[4:] for line in shown if "Maintenance" in line] == [
        "Maintenance lake.a  412 files became 3 1 min ago, next in 1 h",
        "Maintenance lake.b  2 failed since: no lock, next in 1 h",
        "Maintenance lake.c  running for 1 min",
    ]


def test_two_sets_of_a_takeover_with_a_standby_and_the_revision_that_is_wanted() -> None:
    standby = WorkerStatus("standby", standby=StandbyStatus(since_ms=1, prefetched_partitions=4))
    observed = Observed(
        resource(rollout={"target": "flights-b-5f"}),
        [stateful_set("flights-b", "u-2"), stateful_set("flights-a", "u-1")],
        [pod("flights-a-0", "u-1", deletionTimestamp=STARTED), pod("flights-b-0", "u-2")],
        {"flights-a-0": WorkerStatus("joining"), "flights-b-0": standby},
    )
    text = lines(observed)
    assert text[1] == "├── StatefulSet flights-a  1 of 2 pods ready, 1 of flights-a-5f, wanted: flights-b-5f"
    assert text[2].endswith("Pod flights-a-0  Terminating, on node-1, 2 restarts, started 1 min ago")
    assert text[3].endswith("joining, not in the group")
    assert text[4] == "└── StatefulSet flights-b  1 of 2 pods ready, 1 of flights-b-5f"
    assert text[6].endswith("standby, reads ahead in 4 partitions")


def test_what_is_wrong_with_a_worker() -> None:
    stopped = StoppedPartition(TopicPartition("flights", 0), "LogTruncated", "set the offset")
    worker = WorkerStatus("failed", stopped=(stopped,), error="the sink is away")
    observed = Observed(
        resource(), [stateful_set("flights", "u-1")], [pod("flights-0", "u-1")], {"flights-0": worker}
    )
    text = "\n".join(lines(observed))
    assert "LogTruncated: set the offset" in text
    assert "the sink is away" in text


def test_a_group_without_anything_yet() -> None:
    assert lines(Observed(resource(), [], [], {})) == [
        "ConsumerGroup air/flights  0 of ? workers ready, lag not known, generation ?, revision ?",
        "└── no pods",
    ]


def test_ranges() -> None:
    assert ranges([7, 0, 2, 1, 9, 8]) == "0-2, 7-9"
    assert ranges([4]) == "4"
    assert ranges([]) == ""
