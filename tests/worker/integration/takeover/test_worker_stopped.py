"""Real workers, stopped at a step until their partitions have another owner, and then continued.

The same in virtual time, with more variations: tests/worker/unit/runtime/worker/test_runtime_stopped.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slackwater.runtime.fault_points import Step
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.support.workers.process import WorkerProcess
from tests.support.workers.stoppable_site import StoppableSite

SIDE_BY_SIDE = 5
"""How many groups are tried at once: most of their time is that of a session that runs out."""
FIRST, WHILE_STOPPED, LAST = 60, 40, 20
"""Records: of the batch in which a worker is stopped, before it is continued, and after."""


def new_process(site: StoppableSite, step: Step) -> None:
    """The session runs out; a process that never owned the partitions gets them."""
    stopped = site.start(0, stop_at=step)
    site.produce(FIRST)
    stopped.until_stopped()
    site.start(1)
    goes_on_as_another_member(site, stopped)


def previous_owner(site: StoppableSite, step: Step) -> None:
    """The session runs out; a process that had owned the partitions before gets them back."""
    successor = site.start(1)
    site.produce(FIRST)
    site.until_done()
    stopped = site.start(0, stop_at=step)
    successor.until("revoked")
    if step is not Step.ASSIGNED:
        stopped.until("assigned", lambda event: bool(event["partitions"]))
    site.produce(FIRST)
    stopped.until_stopped()
    goes_on_as_another_member(site, stopped)


def goes_on_as_another_member(site: StoppableSite, stopped: WorkerProcess) -> None:
    site.produce(WHILE_STOPPED)
    site.until_done()
    assigned = len(stopped.named("assigned"))
    stopped.go_on()
    stopped.until("lost")
    wait_until(lambda: len(stopped.named("assigned")) > assigned, lambda: stopped.why("assigned"))
    site.produce(LAST)
    site.until_done()


def returning_member(site: StoppableSite, step: Step) -> None:
    """Another process of the same pod joins at once, and fences the first."""
    stopped = site.start(0, stop_at=step)
    site.produce(FIRST)
    stopped.until_stopped()
    site.start(0)
    site.produce(WHILE_STOPPED)
    site.until_done()
    stopped.go_on()
    assert stopped.wait() == 3
    site.produce(LAST)
    site.until_done()


def takeover(site: StoppableSite, step: Step) -> None:
    """Another pod takes over, without an answer, and fences the first."""
    stopped = site.start(0, stop_at=step)
    if step is Step.ASSIGNED:
        stopped.until_stopped()
    else:
        stopped.until_phase("running")
    successor = site.start(0, "b")
    successor.until_phase("standby")
    site.produce(FIRST)
    stopped.until_stopped()
    assert site.key.order(successor, stopped)[0] == 202
    goes_on_as_a_standby(site, stopped)


def taken_back(site: StoppableSite, step: Step) -> None:
    """A pod hands over to the one that is stopped, and takes its membership back."""
    successor = site.start(0)
    site.produce(FIRST)
    site.until_done()
    stopped = site.start(0, "b", stop_at=step)
    stopped.until_phase("standby")
    assert site.key.order(stopped, successor)[0] == 202
    if step is not Step.ASSIGNED:
        stopped.until_phase("running")
    site.produce(FIRST)
    stopped.until_stopped()
    successor.until("took_back")
    goes_on_as_a_standby(site, stopped)


def goes_on_as_a_standby(site: StoppableSite, stopped: WorkerProcess) -> None:
    site.produce(WHILE_STOPPED)
    site.until_done()
    stopped.go_on()
    stopped.until_phase("standby")  # fenced; or, if it reads its successor's question first, handed over
    site.produce(LAST)
    site.until_done()


Successor = Callable[[StoppableSite, Step], None]
BY_SESSION: list[Successor] = [new_process, previous_owner]
AT_ONCE: list[Successor] = [returning_member, takeover, taken_back]


def try_out(bootstrap: str, folder: Path, step: Step, successor: Successor) -> str:
    """What is wrong with what came of it; "" where nothing is."""
    session_ms = 6_000 if successor in BY_SESSION else 30_000
    try:
        with StoppableSite(bootstrap, folder, session_ms=session_ms) as site:
            successor(site, step)
            assert {pod.terminate() for pod in site.workers if pod.runs} <= {0}
            site.check()
    except (AssertionError, subprocess.TimeoutExpired) as exc:
        return f"stopped at {step}, successor {successor.__name__}: {exc}"
    return ""


def try_all(bootstrap: str, folder: Path, cells: list[tuple[Step, Successor]]) -> None:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        tries = [
            pool.submit(try_out, bootstrap, folder / f"{step}-{successor.__name__}", step, successor)
            for step, successor in cells
        ]
        wrong = [said for tried in tries if (said := tried.result())]
    print(f"{len(cells) - len(wrong)} of {len(cells)} passed")
    assert not wrong, "\n\n".join(wrong)


def test_a_worker_stopped_after_its_fence_check_changes_nothing_when_it_continues(
    devbroker: DevBroker, tmp_path: Path
) -> None:
    try_all(devbroker.bootstrap, tmp_path, [(Step.FENCED, new_process)])


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("successor", [*BY_SESSION, *AT_ONCE])
def test_a_worker_stopped_at_any_step_changes_nothing_when_it_continues(
    kafka: KafkaCluster, tmp_path: Path, successor: Successor
) -> None:
    # After a handover nothing is noted as begun: the predecessor lived until then.
    steps = [step for step in Step if (step, successor) != (Step.BEGUN, taken_back)]
    try_all(kafka.bootstrap, tmp_path, [(step, successor) for step in steps])
