"""Which workers are taken for lost with their node, and what people are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slackwater_operator.controller.snapshots.object_parsing import pod_snapshot
from slackwater_operator.policies.membership.lost_nodes import OVERDUE_MS, PlacedWorker, advice, lost_workers

NOW = 1_795_000_000_000
WELL = PlacedWorker("flights-2", "node-2", ready=True, node_lost=False, silent=False, is_member=True)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, False),
        ({"silent": True}, False),  # its session still runs
        ({"is_member": False}, False),  # it answers: it is on its way back
        ({"silent": True, "is_member": False}, True),
        ({"silent": True, "is_member": None}, False),  # the brokers do not say
        ({"silent": True, "is_member": False, "ready": False}, False),  # its kubelet sees that it hangs
        ({"silent": True, "ready": False, "node_lost": True}, True),
        ({"node_lost": True, "ready": False}, False),  # its kubelet alone is away: the worker serves
        ({"silent": True, "ready": False, "deleted_ms": NOW - OVERDUE_MS}, False),
        ({"silent": True, "ready": False, "deleted_ms": NOW - OVERDUE_MS - 1}, True),
        ({"silent": True, "is_member": False, "node": ""}, False),
    ],
)
def test_who_is_lost(changes: dict[str, object], lost: bool) -> None:
    worker = replace(WELL, **changes)  # type: ignore[arg-type]
    assert lost_workers([WELL, worker], now_ms=NOW) == ((worker,) if lost else ())


def test_the_message_names_the_node_and_the_ways_out() -> None:
    first = replace(WELL, node_lost=True)
    message = advice([first, replace(first, pod="flights-5"), replace(first, pod="flights-6", node="node-3")])
    assert message.startswith(
        "flights-2, flights-5 on node node-2 does not respond, and the node is lost (also node-3)"
    )
    assert "kubectl taint nodes node-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in message
    assert "kubectl delete pod flights-2 flights-5 --grace-period=0 --force" in message
    assert "may be lost" in advice([WELL])
    assert advice([]) == ""


@pytest.mark.parametrize(
    ("conditions", "lost"),
    [
        ({"Ready": "True", "ContainersReady": "True"}, False),
        ({"Ready": "False", "ContainersReady": "False"}, False),
        ({"Ready": "False", "ContainersReady": "True"}, True),
        ({"Ready": "False", "ContainersReady": "True", "example.com/gate": "False"}, False),
        ({}, False),
    ],
)
def test_what_the_node_controller_says_is_read_from_the_pod(conditions: dict[str, str], lost: bool) -> None:
    pod = {
        "metadata": {"name": "flights-2", "labels": {}},
        "status": {"conditions": [{"type": kind, "status": status} for kind, status in conditions.items()]},
    }
    assert pod_snapshot(pod).node_lost == lost
