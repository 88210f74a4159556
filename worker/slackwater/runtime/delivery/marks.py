"""Reads the sink's marks of new partitions on the sink's thread; the main thread polls meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.call_threads import Task
from slackwater.runtime.delivery.calls import sink_errors
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.errors import SinkError
from slackwater.runtime.fault_points import Step
from slackwater.runtime.interfaces import Sink
from slackwater.runtime.worker_context import WorkerContext


class MarkReader:
    """For the partitions in ``owned``, which the delivery keeps: those whose ``marks`` are None."""

    def __init__(self, context: WorkerContext, owned: Mapping[TopicPartition, OwnedPartition]) -> None:
        self._context, self._owned = context, owned
        self._task: Task | None = None
        self._asked: dict[TopicPartition, OwnedPartition] = {}
        self._alone_since_ms: float | None = None
        """Since when the sink's thread has had nothing else to do (monotonic)."""

    def wait(self, timeout_ms: float) -> bool:
        """Waits for marks that are being read; False where none are."""
        if self._task is None:
            return False
        self._task.wait(timeout_ms)
        return True

    def advance(self) -> None:
        """Begins to read. Does not wait. A returning worker gets partitions before it has loaded its sink;
        their marks are read when it has.

        Raises SinkError where the marks could not be read.
        """
        if self._task is not None and self._task.wait(0):
            task, self._task = self._task, None
            with sink_errors(f"read how far it has rows of {', '.join(map(str, sorted(self._asked)))}"):
                task.result()
        asked = {tp: owned for tp, owned in self._owned.items() if owned.marks is None}
        if self._task is not None or not asked or self._context.sink is None:
            return
        self._context.reached(Step.ASSIGNED)
        self._asked = asked
        self._task = self._context.writer.submit(partial(read_marks, self._context.sink, asked))

    def check_time(self, *, alone: bool) -> None:
        """Raises SinkError where marks are being read for longer than ``handlerTimeoutMs``.

        Args:
            alone: whether no batch is in flight. One that is waits for the same thread, and its own limit
                on time ends the worker.
        """
        now_ms, limit_ms = self._context.clock.mono_ms(), self._context.config.handler_timeout_ms
        if self._task is None or not alone:
            self._alone_since_ms = None
        elif self._alone_since_ms is None:
            self._alone_since_ms = now_ms
        elif now_ms - self._alone_since_ms > limit_ms:
            partitions = ", ".join(map(str, sorted(self._asked)))
            raise SinkError(
                f"the sink did not say how far it has rows of {partitions} within handlerTimeoutMs "
                f"({limit_ms}): check that the table can be reached"
            )


def read_marks(sink: Sink, asked: Mapping[TopicPartition, OwnedPartition]) -> None:
    """Sets the marks of ``asked``, on the sink's thread: a batch that is staged after it finds them."""
    marks = sink.marks(list(asked))
    for tp, owned in asked.items():
        owned.marks = dict(marks.get(tp, {}))
