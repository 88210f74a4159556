"""Takeovers in which something goes at the worst moment: one of the two pods, the operator, the coordinator,
or the link between the two. Nothing is lost or handled twice, and nobody else hears of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.controlplane import ControlPlane, until
from tests.support.controlplane.api import Json
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group, Load, Produced, now_ms
from tests.support.site.operator import OperatorProcess

pytestmark = pytest.mark.controlplane

WORKERS, PARTITIONS, RATE = 3, 6, 300
LAST = WORKERS - 1
"""Who is taken over first."""
SESSION_MS = 90_000
TAKEOVER: dict[str, Any] = {"strategy": "Takeover", "takeover": {"warmTimeout": "1m"}}
STUCK = "stuck"
"""What makes batches last: so a predecessor that is asked to drain does not do so at once."""
CONFIG = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "500",
}


# --- the two pods -------------------------------------------------------------------------------------


def _standby(worker: Json) -> Json:
    standby: Json = worker.get("standby") or {}
    return standby


def _warming(old: Json, new: Json) -> bool:
    return new["phase"] in ("starting", "warming")


def _stands_by(old: Json, new: Json) -> bool:
    return bool(new["phase"] == "standby" and not _standby(new)["told"])


def _asked(old: Json, new: Json) -> bool:
    return bool(old["phase"] == "handing-over" and new["phase"] == "taking-over")


def _handed_over(old: Json, new: Json) -> bool:
    return bool(old["phase"] == "standby" and _standby(old)["handed_over"])


def _joined(old: Json, new: Json) -> bool:
    return bool(new["takeover"] and new["takeover"]["joined_ms"])


Moment = Callable[[Json, Json], bool]


def _killed(who: str, when: str, moment: Moment) -> Any:
    return pytest.param(who, moment, id=f"the {who}, {when}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("who", "moment"),
    [
        _killed("predecessor", "while its successor warms up", _warming),
        _killed("predecessor", "while it is asked", _asked),
        _killed("predecessor", "after the handover", _handed_over),
        _killed("successor", "while it warms up", _warming),
        _killed("successor", "in standby", _stands_by),
        _killed("successor", "right after it was told", _asked),
        _killed("successor", "right after its join", _joined),
    ],
)
def test_a_takeover_survives_a_killed_pod(
    cluster: ClusterSite, namespace: str, who: str, moment: Moment
) -> None:
    group, before = _settled(cluster, "pod")
    cluster.push("v2", environment={"IMPORT_S": "1.5"})  # so that it is seen to warm up
    with group.load(RATE) as load:
        _under_way(group)
        since = group.roll(cluster.image("v2"))
        old, new = f"{group.name}-a-{LAST}", f"{group.name}-b-{LAST}"
        if moment is _asked:
            _await(group, old, new, _warming)
            cluster.switch(STUCK)
        if moment is _stands_by:
            until(lambda: _moving(group), "the first takeover", 60, every_s=0.02)
            group.change(rollout={"paused": True})  # which holds the order back
        _await(group, old, new, moment)
        victim = old if who == "predecessor" else new
        pid = cluster.plane.pods.kill(namespace, victim)
        cluster.switch(None)
        until(lambda: _ended(cluster, victim, pid), f"{victim} ended")
        if moment is _stands_by:
            group.change(rollout={"paused": False})
        group.await_rolled(cluster.image("v2"), WORKERS)
        produced = _settles(group, load, before)
    summary = _check(group, produced, since)
    killed = [
        event for event in group.worker_events() if event.event == "exited" and event.data["code"] == 137
    ]
    assert [event.pod for event in killed if event.ts_ms >= since] == [victim], summary


# --- the operator -------------------------------------------------------------------------------------


def _begun(group: Group, ordinal: int) -> bool:
    moving = _moving(group)
    return bool(moving and moving["ordinal"] == ordinal)


def _ordered(group: Group, ordinal: int) -> bool:
    moving = _moving(group)
    return bool(moving and moving["ordinal"] == ordinal and moving.get("toldMs"))


def _to_be_retired(group: Group, ordinal: int) -> bool:
    """The successor has joined, and its predecessor is there."""
    # Seen for as long as the operator needs to see it, too: few requests, so that it is not missed.
    new = group.worker(f"{group.name}-b-{ordinal}")
    if new is None or new["phase"] != "running":
        return False
    start, count = group.sets().get(f"{group.name}-a", (0, 0))
    return start <= ordinal < start + count


STEPS = (_begun, _ordered, _to_be_retired)


@pytest.mark.long
@pytest.mark.parametrize(
    "steps",
    [
        # Each step once, of another member each.
        pytest.param([(2, _begun), (1, _ordered), (0, _to_be_retired)], id="once each"),
        pytest.param([(ordinal, step) for ordinal in (2, 1, 0) for step in STEPS], id="each of each"),
    ],
)
def test_a_takeover_survives_a_killed_operator(
    cluster: ClusterSite, operator: OperatorProcess, steps: list[tuple[int, Callable[[Group, int], bool]]]
) -> None:
    group, before = _settled(cluster, "operator")
    with group.load(RATE) as load:
        _under_way(group)
        since = group.roll(cluster.image("v2"))
        for ordinal, step in steps:
            what = f"{step.__name__} {ordinal}"
            try:
                until(lambda: step(group, ordinal), what, 120, every_s=0.02)  # noqa: B023
            except TimeoutError as exc:
                raise AssertionError(f"{exc}\n{group.tell()}") from exc
            operator.restart_after()
        group.await_rolled(cluster.image("v2"), WORKERS)
        produced = _settles(group, load, before)
    _check(group, produced, since)
    until(lambda: len(group.takeovers(since)) >= WORKERS, "the workers' events")
    takeovers = group.takeovers(since)
    assert [takeover.pod for takeover in takeovers] == [f"{group.name}-b-{n}" for n in (2, 1, 0)], takeovers
    assert not any(takeover.forced for takeover in takeovers), takeovers
    assert group.restarts(since) == []


# --- the group's coordinator --------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("moment", [_stands_by, _asked], ids=["in standby", "while it is asked"])
def test_a_takeover_survives_a_killed_coordinator(
    control_plane: ControlPlane, namespace: str, moment: Moment
) -> None:
    with (
        KafkaCluster(3, CONFIG) as kafka,
        ClusterSite(control_plane, kafka, namespace) as site,
        site.operator(),
    ):
        group, before = _settled(site, "coordinator")
        node = kafka.await_coordinator(group.name)
        site.push("v2", environment={"IMPORT_S": "1.5"})
        with group.load(RATE) as load:
            _under_way(group)
            since = group.roll(site.image("v2"))
            old, new = f"{group.name}-a-{LAST}", f"{group.name}-b-{LAST}"
            if moment is _asked:
                _await(group, old, new, _warming)
                site.switch(STUCK)
            _await(group, old, new, moment)
            kafka.kill(node)
            site.switch(None)
            kafka.start(node)
            _await_end(site, group)
            after = group.await_settled(WORKERS)
            produced = load.stop()
        group.await_handled(produced)
        rebalances = group.rebalances(since)
        print(f"{rebalances} rebalances, generation {before} to {after}; {_how_it_ended(group)}")
        for takeover in group.takeovers(since):
            print(takeover)
        verdict = group.verify(produced)
        assert verdict.exact, verdict
        assert after == before if not rebalances else after > before
        if rebalances:  # only the broker may have forced it, and then it is told
            reasons = " ".join(decision["reason"] for decision in group.decisions())
            assert "forced" in reasons or "unplanned" in reasons or "broker" in reasons, reasons


# --- the link between the two -------------------------------------------------------------------------


@pytest.mark.long
def test_a_takeover_completes_when_the_link_is_cut_before_the_handover(cluster: ClusterSite) -> None:
    """The successor cannot reach its predecessor and takes over anyway. The broker fences the predecessor."""
    group, before = _settled(cluster, "link")
    with group.load(RATE) as load:
        _under_way(group)
        cluster.links.cut()
        since = group.roll(cluster.image("v2"))
        group.await_rolled(cluster.image("v2"), WORKERS)
        produced = _settles(group, load, before)
    _check(group, produced, since)
    takeovers = group.takeovers(since)
    assert [takeover.forced for takeover in takeovers] == [True] * WORKERS, takeovers
    assert group.restarts(since) == [], "fenced, and not one has ended by that"


@pytest.mark.long
def test_a_takeover_completes_when_the_link_is_cut_after_the_handover(
    cluster: ClusterSite, operator: OperatorProcess
) -> None:
    """The predecessor cannot reach its successor, sees it commit, and does not take the membership back."""
    group, before = _settled(cluster, "after")
    with group.load(RATE) as load:
        _under_way(group)
        since = group.roll(cluster.image("v2"))
        old, new = f"{group.name}-a-{LAST}", f"{group.name}-b-{LAST}"
        _await(group, old, new, _handed_over)
        operator.kill()  # or it would let the predecessor go
        cluster.links.cut()
        cut_ms, handled = now_ms(), group.handled_count()
        # Twice as long as it takes to find its successor gone: silent for 2 s, no commit for session / 5.
        patience_ms = 2 * (2_000 + SESSION_MS // 5)
        until(lambda: now_ms() - cut_ms > patience_ms, "the predecessor's patience", 120, every_s=0.5)
        assert group.handled_count() > handled, "the successor serves"
        assert _handed_over(group.workers()[old], group.workers()[new])
        operator.start()
        group.await_rolled(cluster.image("v2"), WORKERS)
        produced = _settles(group, load, before)
    _check(group, produced, since)
    assert not [event for event in group.worker_events() if event.event == "took_back"]
    takeovers = group.takeovers(since)
    assert [takeover.forced for takeover in takeovers] == [False, True, True], takeovers


# --- what they share ----------------------------------------------------------------------------------


def _settled(site: ClusterSite, name: str) -> tuple[Group, int]:
    group = site.group(
        f"{name}-{site.namespace}",
        partitions=PARTITIONS,
        replicas=WORKERS,
        session_timeout_ms=SESSION_MS,
        handler="stuck",
        rollout=TAKEOVER,
    )
    generation = group.await_settled(WORKERS)
    group.await_condition("RolledOut")
    return group, generation


def _under_way(group: Group) -> None:
    until(lambda: min(group.committed().values()) > 0, "commits of every partition")


def _moving(group: Group) -> Json | None:
    """The takeover under way, as the operator has noted it."""
    moving: Json | None = (group.status().get("rollout") or {}).get("moving")
    return moving


def _await(group: Group, old: str, new: str, moment: Moment) -> None:
    """Waits until /status of both pods shows the moment, in the takeover that the operator has noted."""

    def is_now() -> bool:
        workers = group.workers()
        if old not in workers or new not in workers:
            return False
        return moment(workers[old], workers[new])

    try:
        until(is_now, f"{moment.__name__.strip('_')} of {new}", 180, every_s=0.02)
    except TimeoutError as exc:
        raise AssertionError(f"{exc}\n{group.tell()}") from exc


def _ended(site: ClusterSite, pod: str, pid: int) -> bool:
    return any(
        event.event == "exited" and event.pid == pid for event in site.plane.pods.journal(site.namespace, pod)
    )


def _await_end(site: ClusterSite, group: Group) -> None:
    """Waits until the roll is done, or taken back altogether."""

    def ended() -> bool:
        return len(group.sets()) == 1 and len(group.pods()) == WORKERS and bool(_how_it_ended(group))

    try:
        until(ended, "the end of the roll", 300, every_s=0.25)
    except TimeoutError as exc:
        raise AssertionError(f"{exc}\n{group.tell()}") from exc


def _how_it_ended(group: Group) -> str:
    if group.condition("RolledOut").get("status") == "True":
        return "rolled out"
    degraded = group.condition("Degraded")
    return str(degraded.get("message")) if degraded.get("status") == "True" else ""


def _settles(group: Group, load: Load, before: int) -> list[Produced]:
    assert group.await_settled(WORKERS) == before, f"the generation has moved\n{group.tell()}"
    return load.stop()


def _check(group: Group, produced: list[Produced], since: int) -> str:
    group.await_handled(produced)
    summary = "\n".join(map(str, [*group.takeovers(since), *group.restarts(since)]))
    print(summary)
    assert group.rebalances(since) == 0, f"{summary}\n{group.tell()}"
    assert group.sets() == {f"{group.name}-b": (0, WORKERS)}
    verdict = group.verify(produced)
    print(verdict)
    assert verdict.exact, verdict
    return summary
