"""The trace of a batch: one span from poll to commit, and a child for each of its stages.

A batch has records of many producers, so it is a trace of its own, with links to theirs (OpenTelemetry's
conventions for messaging): the contexts in the headers ``traceparent`` of its records. Which batches are
sampled is decided first, so that headers are read for these alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol, TypeVar

from slackwater.clock import Clock
from slackwater.tracing.context import HEADER, TraceContext, parse
from slackwater.tracing.spans import (
    CLIENT,
    CONSUMER,
    INTERNAL,
    NO_SPAN,
    NO_TRACING,
    Attributes,
    Span,
    Tracing,
    Value,
)

if TYPE_CHECKING:
    from slackwater.kafka.structs import TopicPartition

MOST_LINKS = 128
"""The SDK's own limit (OTEL_SPAN_LINK_COUNT_LIMIT)."""
MOST_RECORDS = 1_000
"""So many records of a batch are asked for their context, from all over it."""
MOST_CHILDREN = 100
"""A search for records at fault may have more stages."""
MOST_RANGES = 32

MOST_CHARACTERS = 1_000
"""Of an error."""

T = TypeVar("T")

_STAGES: Mapping[str, tuple[str, str]] = {
    "HANDLING": ("handle", INTERNAL),
    "ISOLATING": ("handle a part", INTERNAL),
    "TRIAL_STAGING": ("stage a part", INTERNAL),
    "GATHERING": ("gather", INTERNAL),
    "STAGING": ("stage", INTERNAL),
    "BACKING_OFF": ("back off", INTERNAL),
    "READING_FIRST": ("read dead letters", CLIENT),
    "READING": ("read dead letters", CLIENT),
    "WRITING": ("write dead letters", CLIENT),
    "READY": ("fence", CLIENT),
    "PUBLISHING": ("publish", CLIENT),
    "PUBLISHED": ("commit", CLIENT),
    "HANDLED": ("wait", INTERNAL),
    "WAITING": ("wait", INTERNAL),
}
"""By the name of a stage (`delivery.batch.Stage`): its span's name and kind."""


class BatchTrace:
    """The trace of one batch. It is told of stages and results, and decides nothing.

    All but what :meth:`inside` returns is called on the main thread.
    """

    def __init__(self, tracing: Tracing, span: Span, to_wall_ms: float) -> None:
        """``span``: of the batch. ``to_wall_ms``: added to the monotonic times that it is given, it makes
        them wall clock."""
        self._tracing, self.span, self._to_wall_ms = tracing, span, to_wall_ms
        self._recording = span.recording
        self._stage = span
        self._children = 0

    def enter(self, stage: str, now_ms: float, attempt: int = 0) -> None:
        """The batch goes to a stage, in the ``attempt`` of its handler."""
        if not self._recording:
            return
        at_ms = now_ms + self._to_wall_ms
        self._leave(at_ms)
        self._children += 1
        if self._children > MOST_CHILDREN:
            return
        name, kind = _STAGES[stage]
        attributes: Attributes = {"slackwater.batch.attempt": attempt} if stage == "HANDLING" else {}
        self._stage = self._tracing.span(name, at_ms, kind=kind, parent=self.span, attributes=attributes)

    def _leave(self, at_ms: float) -> None:
        if self._stage is not self.span:
            self._stage.end(at_ms)
            self._stage = self.span

    def inside(self, call: Callable[[], T]) -> Callable[[], T]:
        """``call`` with the stage as the current span, on whichever thread it runs."""
        return self._stage.inside(call)

    def current(self) -> AbstractContextManager[object]:
        """In it, the batch is the current span."""
        return self.span.current() if self._recording else nullcontext()

    def failed(self, error: BaseException | str) -> None:
        """The stage has failed."""
        if self._recording and self._stage is not self.span:
            self._stage.fail(error if isinstance(error, str) else _line(error))

    def given_up(self, partitions: Collection[TopicPartition], why: str, now_ms: float) -> None:
        """Some of its partitions are written by others, or later."""
        if self._recording:
            named = [str(tp) for tp in sorted(partitions)][:MOST_RANGES]
            details: Attributes = {"slackwater.partitions": named, "slackwater.reason": why}
            self.span.event("partitions given up", now_ms + self._to_wall_ms, details)

    def gathered(self, first: BatchTrace, now_ms: float) -> None:
        """The batch is written with another, ``first``."""
        if self._recording:
            if first.span.context is not None:
                self.span.link(first.span.context)
            self.end(now_ms, "gathered")

    def end(
        self,
        now_ms: float,
        result: str,
        *,
        counts: Mapping[str, int] | None = None,
        error: BaseException | None = None,
    ) -> None:
        """The batch is ``committed``, ``abandoned``, ``gathered`` into another, or has ``failed`` with
        ``error``. ``counts``: of its records, by what has become of them."""
        if not self._recording:
            return
        if error is not None:
            self.failed(error)
            self.span.fail(_line(error))
        at_ms = now_ms + self._to_wall_ms
        self._leave(at_ms)
        attributes: dict[str, Value] = {"slackwater.batch.result": result}
        attributes.update({f"slackwater.batch.{name}": count for name, count in (counts or {}).items()})
        if self._children > MOST_CHILDREN:
            attributes["slackwater.batch.stages_left_out"] = self._children - MOST_CHILDREN
        self.span.set(attributes)
        self.span.end(at_ms)
        self._recording = False


NO_BATCH_TRACE = BatchTrace(NO_TRACING, NO_SPAN, 0.0)
"""Of a batch that is not traced."""


class TracedColumns(Protocol):
    """One partition's records."""

    def __len__(self) -> int: ...

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]: ...


class TracedPart(Protocol):
    """One partition's part of a batch."""

    @property
    def columns(self) -> TracedColumns: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


class BatchTraces:
    """Begins the traces of a worker's batches."""

    def __init__(self, tracing: Callable[[], Tracing], clock: Clock, group: str, client: str) -> None:
        """``tracing``: asked for each batch, because a returning worker opens its traces after its join."""
        self._tracing, self._clock = tracing, clock
        self._attributes: Attributes = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.consumer.group.name": group,
            "messaging.client.id": client,
        }

    def begin(self, parts: Mapping[TopicPartition, TracedPart], now_ms: float) -> BatchTrace:
        """The trace of a batch of ``parts`` that was polled ``now_ms`` (monotonic)."""
        tracing = self._tracing()
        if not tracing.on:
            return NO_BATCH_TRACE
        to_wall_ms = self._clock.wall_ms() - self._clock.mono_ms()
        topics = sorted({tp.topic for tp in parts})
        name = f"process {topics[0]}" if len(topics) == 1 else "process"
        span = tracing.span(name, now_ms + to_wall_ms, kind=CONSUMER, attributes=self._attributes)
        if span.recording:
            span.set(_described(parts, topics))
            self._link(span, parts)
        return BatchTrace(tracing, span, to_wall_ms)

    @staticmethod
    def _link(span: Span, parts: Mapping[TopicPartition, TracedPart]) -> None:
        contexts = producers(parts)
        for context in contexts[:MOST_LINKS]:
            span.link(context)
        if len(contexts) > MOST_LINKS:
            span.set({"slackwater.batch.links_left_out": len(contexts) - MOST_LINKS})


def _described(parts: Mapping[TopicPartition, TracedPart], topics: list[str]) -> Attributes:
    ranges = [f"{tp} {part.start}..{part.end - 1}" for tp, part in sorted(parts.items())]
    attributes: dict[str, Value] = {
        "messaging.batch.message_count": sum(len(part.columns) for part in parts.values()),
        "slackwater.batch.offsets": ranges[:MOST_RANGES],
    }
    if len(topics) == 1:
        attributes["messaging.destination.name"] = topics[0]
    if len(parts) == 1:
        attributes["messaging.destination.partition.id"] = str(next(iter(parts)).partition)
    return attributes


def producers(parts: Mapping[TopicPartition, TracedPart]) -> list[TraceContext]:
    """The distinct contexts of the records of ``parts``, first those that are sampled: others lead to nothing
    that was recorded."""
    total = sum(len(part.columns) for part in parts.values())
    step = max(1, -(-total // MOST_RECORDS))
    contexts: dict[TraceContext, None] = {}
    for part in parts.values():
        for value in part.columns.header_values(HEADER, range(0, len(part.columns), step)):
            context = parse(value)
            if context is not None:
                contexts.setdefault(context)
    return sorted(contexts, key=lambda context: not context.sampled)


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_CHARACTERS]
