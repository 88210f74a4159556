"""Faults of three brokers and of a group's members, at moments and places that a seed decides."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.kafka import KafkaCluster
from tests.support.peers.group_journal import Event
from tests.support.peers.peer import BROKER_ASSIGNS, OURS, Peer
from tests.support.processes import reserve_ports
from tests.support.proxies import SwitchedProxy
from tests.support.waiting import WAIT_S
from tests.support.wire.rawclient import RawClient, topic_metadata

LISTENER = "PROXIED"
PAUSE_S = (0.5, 4.0)


class ProxiedKafka:
    """Three brokers whose listener for clients is behind a proxy for each; a context manager."""

    def __init__(self, config: dict[str, str]) -> None:
        ports = dict(zip((1, 2, 3), reserve_ports(3), strict=True))
        self.cluster = KafkaCluster(
            3, config, listeners={LISTENER: "PLAINTEXT"}, advertised={LISTENER: ports}
        )
        self.proxies: dict[int, SwitchedProxy] = {}
        self._ports = ports
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            for node, port in self._ports.items():
                proxy = SwitchedProxy(self.cluster.listener_of(LISTENER, node), port)
                self.proxies[node] = stack.enter_context(proxy)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def bootstrap(self) -> str:
        """The proxies' addresses."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())


class Step(NamedTuple):
    """One fault: after ``wait_s``, ``what`` happens to number ``which`` of its kind, for ``hold_s``."""

    wait_s: float
    what: str
    which: int
    hold_s: float


WEIGHTS = {
    "kill coordinator": 2,
    "kill leader": 2,
    "stop broker": 1,
    "cut one": 3,
    "cut all": 1,
    "hang one": 2,
    "kill member": 3,
    "close member": 2,
    "pause member": 2,
    "second with the id": 1,
}


def schedule(rng: random.Random, seconds: float) -> list[Step]:
    """Faults for that many seconds; the same for the same seed."""
    steps, at = [], 0.0
    while at < seconds:
        what = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        # A hang or a pause is sometimes longer than a session.
        hold_s = rng.uniform(0.2, 3.0) if rng.random() < 0.6 else rng.uniform(3.0, 9.0)
        steps.append(Step(rng.uniform(*PAUSE_S), what, rng.randrange(1000), hold_s))
        at += steps[-1].wait_s
    return steps


class Slot:
    """A place in the group: the processes that held it one after the other. ``instance`` None: dynamic."""

    def __init__(self, name: str, instance: str | None, make: Callable[[str, str | None], Peer]) -> None:
        self.name, self.instance, self._make = name, instance, make
        self._numbers = itertools.count(1)
        self.all: list[Peer] = []
        self.busy = threading.Lock()

    def start(self) -> Peer:
        """A new process of this place."""
        peer = self._make(f"{self.name}-{next(self._numbers)}", self.instance)
        self.all.append(peer)
        return peer

    @property
    def current(self) -> Peer:
        """The latest process."""
        return self.all[-1]


class Chaos:
    """Carries a schedule out. :attr:`log`: what happened; :attr:`problems`: what should not have."""

    def __init__(self, kafka: ProxiedKafka, topic: str, group: str, strategy: str, members: int) -> None:
        self.kafka, self.topic, self.group = kafka, topic, group
        self.log: list[str] = []
        self.problems: list[str] = []
        self.done: Counter[str] = Counter()
        self.paused: set[str] = set()
        self._started = time.monotonic()
        self._brokers = threading.Lock()
        self._threads: list[threading.Thread] = []

        def make(name: str, instance: str | None) -> Peer:
            return Peer(
                OURS,
                name,
                bootstrap=kafka.bootstrap,
                topic=topic,
                group=group,
                strategy=strategy,
                instance=instance,
            )

        # Two thirds are static members; of the consumer protocol none, since one that is killed holds its
        # instance id until its session is over, and a successor before that is refused.
        static = [n % 3 != 2 and strategy != BROKER_ASSIGNS for n in range(members)]
        self.slots = [Slot(f"m{n}", f"i-{n}" if static[n] else None, make) for n in range(members)]

    def note(self, what: str) -> None:
        """One line of the log, with the seconds since the start."""
        self.log.append(f"{time.monotonic() - self._started:7.2f} {what}")

    def start(self) -> None:
        """All places are taken."""
        for slot in self.slots:
            slot.start()

    def run(self, steps: list[Step]) -> None:
        """The whole schedule; faults last beside the next ones, but only one broker is away at a time."""
        for step in steps:
            time.sleep(step.wait_s)  # the schedule's own rhythm
            self._look_after()
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._threads.append(threading.Thread(target=self._guarded, args=(step,)))
            self._threads[-1].start()

    def calm(self) -> None:
        """Waits for the end of all faults; then every place has a process that runs."""
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a fault does not end"
        for proxy in self.kafka.proxies.values():
            proxy.open()
        self._look_after()

    def close(self) -> None:
        """Every member closes as it should. Raises TimeoutExpired where one does not."""
        closing = [threading.Thread(target=self._close, args=(slot,)) for slot in self.slots]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _close(self, slot: Slot) -> None:
        try:
            slot.current.close()
        except Exception as exc:
            self.problems.append(f"{slot.current.name} does not close: {exc}")

    def kill_all(self) -> None:
        """Nothing is left."""
        for slot in self.slots:
            for peer in slot.all:
                if peer.alive:
                    peer.kill()

    @property
    def events(self) -> list[Event]:
        """What all processes said."""
        return [event for slot in self.slots for peer in slot.all for event in list(peer.events)]

    def _look_after(self) -> None:
        """A process that ended by itself is a problem; it gets a successor."""
        for slot in self.slots:
            if not slot.busy.acquire(blocking=False):
                continue
            try:
                problem = slot.current.problem()
                if problem is not None:
                    self.problems.append(problem)
                    self.note(f"{slot.current.name} has ended, a successor starts: {problem.splitlines()[0]}")
                    slot.start()
            finally:
                slot.busy.release()

    def _guarded(self, step: Step) -> None:
        try:
            if getattr(self, "_" + step.what.replace(" ", "_"))(step):
                self.done[step.what] += 1
        except Exception as exc:
            self.problems.append(f"{step}: {type(exc).__name__}: {exc}")

    # --- brokers and connections; True: it happened

    def _kill_coordinator(self, step: Step) -> bool:
        return self._one_away(lambda: self.kafka.cluster.coordinator_of(self.group), step)

    def _kill_leader(self, step: Step) -> bool:
        def leader() -> int:
            cluster = self.kafka.cluster
            with RawClient.to(cluster.address(min(cluster.pids))) as client:
                leaders = [p.leader_id for p in topic_metadata(client, self.topic).partitions]
            return leaders[step.which % len(leaders)]

        return self._one_away(leader, step)

    def _stop_broker(self, step: Step) -> bool:
        return self._one_away(lambda: 1 + step.which % 3, step)

    def _one_away(self, choose: Callable[[], int | None], step: Step) -> bool:
        """Not while another broker is away, or has not caught up."""
        if not self._brokers.acquire(blocking=False):
            return False
        try:
            node = choose()
            hard = step.what.startswith("kill")
            return node in self.kafka.cluster.pids and self._away(node, step, hard=hard)
        finally:
            self._brokers.release()

    def _away(self, node: int, step: Step, *, hard: bool) -> bool:
        self.note(f"broker {node} {'killed' if hard else 'stopped'} ({step.what})")
        if hard:
            self.kafka.cluster.kill(node)
        else:
            self.kafka.cluster.stop(node)
        _last(step.hold_s)
        self.kafka.cluster.start(node)
        self._await_replicas()
        self.note(f"broker {node} is back")
        return True

    def _await_replicas(self) -> None:
        """Until all replicas are in sync again: else the next death would take a partition's only copy."""
        deadline = time.monotonic() + WAIT_S
        cluster = self.kafka.cluster
        while time.monotonic() < deadline:
            with RawClient.to(cluster.address(min(cluster.pids))) as client:
                shown = [topic_metadata(client, name) for name in (self.topic, "__consumer_offsets")]
            if all(len(p.isr_nodes) == 3 for topic in shown for p in topic.partitions):
                return
            time.sleep(0.2)
        raise TimeoutError("the replicas do not come in sync")

    def _cut_one(self, step: Step) -> bool:
        return self._cut([list(self.kafka.proxies)[step.which % 3]], step)

    def _cut_all(self, step: Step) -> bool:
        return self._cut(list(self.kafka.proxies), step)

    def _cut(self, nodes: list[int], step: Step) -> bool:
        self.note(f"connections to {nodes} cut")
        for node in nodes:
            self.kafka.proxies[node].cut()
        if step.which % 2:
            _last(min(step.hold_s, 2.0))
        for node in nodes:
            self.kafka.proxies[node].open()
        return True

    def _hang_one(self, step: Step) -> bool:
        node = list(self.kafka.proxies)[step.which % 3]
        self.note(f"broker {node} hangs for {step.hold_s:.1f} s")
        self.kafka.proxies[node].hang()
        _last(step.hold_s)
        self.kafka.proxies[node].open()
        return True

    # --- members

    def _slot(self, step: Step, *, static: bool = False) -> Slot | None:
        """A place that nothing else is done to at the moment; held until its lock is released."""
        fit = [slot for slot in self.slots if slot.instance is not None or not static]
        for index in range(len(fit)):
            slot = fit[(step.which + index) % len(fit)]
            if slot.busy.acquire(blocking=False):
                if slot.current.alive:
                    return slot
                slot.busy.release()
        return None

    def _kill_member(self, step: Step) -> bool:
        if (slot := self._slot(step)) is None:
            return False
        with _Released(slot):
            self.note(f"{slot.current.name} killed, its successor in {step.hold_s:.1f} s")
            slot.current.kill()
            _last(step.hold_s)
            slot.start()
        return True

    def _close_member(self, step: Step) -> bool:
        if (slot := self._slot(step)) is None:
            return False
        with _Released(slot):
            self.note(f"{slot.current.name} closes, its successor in {step.hold_s:.1f} s")
            slot.current.close()
            _last(step.hold_s)
            slot.start()
        return True

    def _pause_member(self, step: Step) -> bool:
        if (slot := self._slot(step)) is None:
            return False
        with _Released(slot):
            self.note(f"{slot.current.name} stands still for {step.hold_s:.1f} s")
            self.paused.add(slot.current.name)
            slot.current.send(signal.SIGSTOP)
            _last(step.hold_s)
            slot.current.send(signal.SIGCONT)
        return True

    def _second_with_the_id(self, step: Step) -> bool:
        if (slot := self._slot(step, static=True)) is None:
            return False
        with _Released(slot):
            first = slot.current
            self.note(f"a second one with the id of {first.name}")
            second = slot.start()
            deadline = time.monotonic() + WAIT_S
            while first.alive and second.alive and time.monotonic() < deadline:
                time.sleep(0.05)
            # The one that joins last wins, which is the first if the broker had removed it before.
            fenced, stays = (second, first) if first.alive else (first, second)
            slot.all.remove(stays)
            slot.all.append(stays)
            if fenced.alive:
                self.problems.append(f"of {first.name} and {second.name} none was fenced within 60 s")
                fenced.kill()
            elif "Fenced" not in (fenced.failure or ""):
                self.problems.append(f"fenced on purpose: {fenced.problem()}")
        return True


class _Released:
    """Gives a place free at the end."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._slot.busy.release()


def _last(seconds: float) -> None:
    """Lets a fault last: the duration is a part of the schedule, not a wait for something."""
    time.sleep(seconds)
