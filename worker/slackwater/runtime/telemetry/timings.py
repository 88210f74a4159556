"""The timings of a takeover and of a restart, for /status, the metrics and the events. They decide nothing.

Times are wall clock, ms. Those of the predecessor are by its own clock, so a difference between two clocks
may be negative, and counts as 0 then. The pauses of a takeover are sums of durations, each by one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.partition import CommitNote, OwnedPartition
from slackwater.runtime.takeover.messages import HandoverAnswer
from slackwater.runtime.telemetry.takeover_trace import TakeoverTrace
from slackwater.runtime.worker_context import WorkerContext

PATIENCE_MS = 2_000
"""How long after the join the event waits for the first partition."""
IDLE_MS = 1_000
"""A partition of which nothing was written for so long, and nothing is left to read, is idle: it has no
pause. A client knows within half a second (``fetch.max.wait.ms``) whether there is something to read."""
_SHOW_EVERY_MS = 250


class TakeoverRecord:
    """One takeover, from the question to when rows of all partitions are written again.

    The pause of a partition is what a reader of the table sees: from the predecessor's last publish of rows
    of it to the successor's first. The predecessor's answer says how long before it that was, and when it was
    sent by the machine's monotonic clock; the rest is measured here. Where the two are on different machines,
    no clocks are compared: the answer says how long it took from the request's arrival, and the time that
    request and answer were under way counts as a whole, because which part of it was the answer's is not
    known. Without an answer a pause begins with the note of the last commit, which has the predecessor's wall
    clock.
    """

    def __init__(self, context: WorkerContext, predecessor: str, order: str = "") -> None:
        """``predecessor``: the pod that was the member, as far as it is known. ``order``: the trace of the
        order, as the header ``traceparent``."""
        self._context, self._from = context, predecessor
        self._trace = TakeoverTrace(
            context.tracing,
            context.clock,
            member=context.instance,
            pod=context.status.pod,
            predecessor=predecessor,
            order=order,
        )
        self._asked_ms = context.clock.wall_ms()
        self._answer: HandoverAnswer | None = None
        self._answered_ms: int | None = None
        self._joins_ms: int | None = None
        self._joined_ms: int | None = None
        self._first_ms: int | None = None
        self._written_ms: int | None = None
        self._posted_ms = self._shown_ms = -float("inf")
        self._stopped_ms: dict[TopicPartition, float] = {}
        """When each partition was served last (monotonic clock), by the answer."""
        self._generation: int | None = None
        self._pauses: dict[TopicPartition, int] = {}
        self._waiting: dict[TopicPartition, float] = {}
        """Those of which nothing is written yet, since when (monotonic clock)."""
        self._told = False

    def asked(self) -> str:
        """The predecessor is asked now. The trace that is to go with the request, as its header; "": none."""
        self._asked_ms = self._context.clock.wall_ms()
        return self._trace.asks()

    def posts(self) -> None:
        """The request is sent, for the first time or again."""
        self._posted_ms = self._context.clock.mono_ms()

    def refused(self, reason: str) -> None:
        """There is no takeover."""
        self._trace.refused(reason)

    def answered(self, answer: HandoverAnswer) -> None:
        """It has answered."""
        self._answer, self._answered_ms = answer, self._context.clock.wall_ms()
        now = self._context.clock.mono_ms()
        known = answer.clock and answer.clock == self._context.clock.mono_id()
        under_way_ms = max(0.0, now - (answer.sent_ms if known else self._posted_ms + answer.took_ms))
        self._stopped_ms = {tp: now - under_way_ms - ms for tp, ms in answer.unserved_ms.items()}

    def ends(self) -> None:
        """The worker ends, whether the takeover is over or not."""
        self._trace.end({} if self._told else {"slackwater.takeover.interrupted": True})

    def joins(self) -> None:
        """The join begins. The predecessor's answer is here, or will not count any more."""
        self._joins_ms = self._context.clock.wall_ms()
        self._trace.joins()

    def joined(self, generation: int) -> None:
        """It is the member; the first time counts."""
        if self._joined_ms is not None:
            return
        self._joined_ms, self._generation = self._context.clock.wall_ms(), generation
        self._trace.joined()
        before = self._answer.generation if self._answer is not None else generation
        if before != generation:
            self._context.log.line(
                f"the group moved from generation {before} to {generation} since the handover; continuing"
            )
        self._show()

    def committed_known(self, owned: OwnedPartition) -> None:
        """A partition has come, with what is committed of it."""
        gap_ms = owned.gap_ms(self._context.clock.wall_ms())
        if owned.tp in self._pauses or owned.tp in self._waiting or gap_ms is None or self._told:
            return
        by_note = self._context.clock.mono_ms() - gap_ms
        answered = self._stopped_ms.get(owned.tp) if owned.handed_over else None
        self._waiting[owned.tp] = by_note if answered is None else answered

    def left(self, tp: TopicPartition) -> None:
        """A partition went to another member."""
        self._waiting.pop(tp, None)

    def awaits(self, tp: TopicPartition) -> bool:
        """Whether the partition was taken over, and has no rows of this process yet."""
        return tp in self._waiting

    def served(self) -> None:
        """A partition is read again."""
        if self._first_ms is None:
            self._first_ms = self._context.clock.wall_ms()
            self._trace.first_records()
            self._show()

    def written(self, partitions: Collection[TopicPartition], at_ms: float) -> None:
        """Rows of ``partitions`` are written since ``at_ms`` (monotonic clock)."""
        first = [tp for tp in partitions if tp in self._waiting]
        for tp in first:
            pause_ms = self._pauses[tp] = max(0, round(at_ms - self._waiting.pop(tp)))
            self._context.metrics.count("unserved_seconds", (tp.topic, str(tp.partition)), pause_ms / 1000)
        if first:
            self._written_ms = self._context.clock.wall_ms()
            self._show()

    def turned(
        self, idle: Callable[[Collection[TopicPartition]], Collection[TopicPartition]], *, looked_up: bool
    ) -> None:
        """Emits the event as soon as all is known. ``idle``: of which partitions there is nothing to write,
        as far as is known. ``looked_up``: whether it is known what is committed of all partitions."""
        if self._told or self._joined_ms is None:
            return
        waited, now = self._context.clock.wall_ms() - self._joined_ms, self._context.clock.mono_ms()
        if waited >= IDLE_MS and self._waiting:
            for tp in idle(list(self._waiting)):
                del self._waiting[tp]
        if self._waiting or not looked_up:
            if now - self._shown_ms >= _SHOW_EVERY_MS:
                self._show()
        elif self._first_ms is not None or waited >= PATIENCE_MS:
            self._told = True
            self._show()
            self._context.events.emit("takeover", **self.document())
            self._trace.end(
                {
                    "slackwater.takeover.forced": self._answer is None,
                    "slackwater.takeover.partitions": len(self._pauses),
                    "slackwater.takeover.longest_pause_ms": max(self._pauses.values(), default=0),
                }
            )

    def _show(self) -> None:
        self._shown_ms = self._context.clock.mono_ms()
        self._context.status.takeover = self.document()
        pauses = {**self._pauses, **self._so_far()}
        self._context.metrics.replace(
            "takeover_pause_seconds",
            {(tp.topic, str(tp.partition)): ms / 1000 for tp, ms in pauses.items()},
        )
        for phase, seconds in self.seconds().items():
            self._context.metrics.set("takeover_phase_seconds", seconds, (phase,))

    def _so_far(self) -> dict[TopicPartition, int]:
        now = self._context.clock.mono_ms()
        return {tp: max(0, round(now - since)) for tp, since in self._waiting.items()}

    def document(self) -> dict[str, Any]:
        """For /status and the event."""
        answer = self._answer
        return {
            "from": self._from,
            "asked_ms": self._asked_ms,
            "drain_ms": answer.drain_ms if answer is not None else None,
            "committed_ms": answer.committed_ms if answer is not None else None,
            "answered_ms": self._answered_ms,
            "joined_ms": self._joined_ms,
            "first_record_ms": self._first_ms,
            "written_ms": self._written_ms if not self._waiting else None,
            "generation_before": answer.generation if answer is not None else None,
            "generation": self._generation,
            "forced": answer is None,
            "pauses_ms": {str(tp): ms for tp, ms in sorted(self._pauses.items())},
            "waiting_ms": {str(tp): ms for tp, ms in sorted(self._so_far().items())},
        }

    def seconds(self) -> dict[str, float]:
        """How long each phase took, as far as it is known."""
        answer = self._answer
        marks = {
            "drain": (answer.drain_ms, answer.committed_ms) if answer is not None else (None, None),
            "answer": (answer.committed_ms if answer is not None else None, self._answered_ms),
            "join": (self._joins_ms, self._joined_ms),
            "first_record": (self._joined_ms, self._first_ms),
            "write": (self._first_ms, self._written_ms if not self._waiting else None),
        }
        return {
            phase: max(0, end - begin) / 1000
            for phase, (begin, end) in marks.items()
            if begin is not None and end is not None
        }


RESTART_PHASES = ("drain", "replace", "join", "first_record")
"""Drain: the process before ended its work. Replace: until this one began. Join: until it was in the group.
First record: until all partitions that it had served before were served again."""


class RestartRecord:
    """Records the moments of a restart and computes how long its phases took.

    The process before may have run on another machine: `replace` compares two machines' clocks.
    """

    def __init__(self, instance: str, started_ms: int) -> None:
        self._instance, self._started_ms = instance, started_ms
        self._notes: dict[TopicPartition, CommitNote] = {}
        self._waiting: set[TopicPartition] = set()
        self._served: set[TopicPartition] = set()
        self.joined_ms: int | None = None
        self.first_record_ms: int | None = None
        self.traceparent = ""
        """Of the restart's span, when it is over and traced."""

    @property
    def trace(self) -> str:
        """The trace that the process before has begun; "": none."""
        return next((note.trace for note in self._notes.values() if note.trace), "")

    def joined(self, now_ms: int) -> None:
        """The worker is in the group; the first time counts."""
        if self.joined_ms is None:
            self.joined_ms = now_ms

    def committed_known(self, tp: TopicPartition, note: CommitNote | None) -> None:
        """A partition has come, with the note of its last commit."""
        before = note is not None and note.instance == self._instance and note.at_ms is not None
        if note is None or not before or tp in self._served or self.first_record_ms is not None:
            return
        self._notes[tp] = note
        self._waiting.add(tp)

    def served(self, tp: TopicPartition, now_ms: int) -> bool:
        """A partition is served. Whether that completes the return."""
        self._served.add(tp)
        if tp not in self._waiting:
            return False
        self._waiting.discard(tp)
        if self._waiting:
            return False
        self.first_record_ms = now_ms
        return True

    def left(self, tp: TopicPartition) -> None:
        """A partition went to another member before it was served."""
        self._waiting.discard(tp)

    def document(self) -> dict[str, Any] | None:
        """The moments for /status; None where no process of this name is known to have been before."""
        if not self._notes:
            return None
        traced = {"traceparent": self.traceparent} if self.traceparent else {}
        return {
            "drain_ms": min(
                (n.drain_ms for n in self._notes.values() if n.drain_ms is not None), default=None
            ),
            "served_until_ms": min(n.at_ms for n in self._notes.values() if n.at_ms is not None),
            "started_ms": self._started_ms,
            "joined_ms": self.joined_ms,
            "first_record_ms": self.first_record_ms,
            **traced,
        }

    def seconds(self) -> dict[str, float]:
        """How long each phase took, as far as it is known; a negative one (two clocks) counts as 0."""
        document = self.document()
        if document is None:
            return {}
        names = ("drain_ms", "served_until_ms", "started_ms", "joined_ms", "first_record_ms")
        marks = [document[name] for name in names]
        return {
            phase: max(0, after - before) / 1000
            for phase, before, after in zip(RESTART_PHASES, marks, marks[1:], strict=False)
            if before is not None and after is not None
        }
