"""The errors that end a worker, each with its exit code (``docs/reference/worker.md``, "Exit codes")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from slackwater.handler import Retry

EXIT_OK = 0
EXIT_OTHER = 1
EXIT_BAD_CONFIG = 2
EXIT_FENCED = 3
EXIT_HANDLER_OR_SINK = 4
EXIT_ENVIRONMENT = 5
"""Of a preflight alone: what failed lies outside the worker and its configuration, such as a broker that is
away or a topic that is missing. Another try may pass without any change of the configuration."""


class WorkerError(Exception):
    """Ends the worker with ``exit_code``. The message is one line: what is wrong, and what to do."""

    exit_code: ClassVar[int] = EXIT_OTHER
    ended_by_batch: ClassVar[bool] = False
    """Whether the records at hand may be what the process, or the engine, has ended or hung with."""


class StartError(WorkerError):
    """Something outside the worker is missing at start: the broker, a topic, a Java."""


class ConfigError(WorkerError):
    """A configuration that cannot be used. ``field`` is the dotted path in ``file``, or empty."""

    exit_code = EXIT_BAD_CONFIG

    def __init__(self, problem: str, *, file: str = "", field: str = "") -> None:
        self.problem, self.file, self.field = problem, file, field
        super().__init__(": ".join(part for part in (file, field, problem) if part))


class HandlerLoadError(WorkerError):
    """The handler's module or function cannot be loaded."""

    exit_code = EXIT_BAD_CONFIG


class FencedError(WorkerError):
    """Another process has this worker's instance id. Nothing may be written any more."""

    exit_code = EXIT_FENCED


class TwinError(FencedError):
    """The other process calls itself by this one's pod name, so that it is no successor of its own."""


class HandlerError(WorkerError):
    """The handler raised on every try, took too long, or returned what it must not."""

    exit_code = EXIT_HANDLER_OR_SINK


class RecordsError(HandlerError):
    """Some records of a batch cannot be handled or written: it fails again, but not without them.

    ``reasons``: why records are at fault for certain, such as those whose rows the table does not take, by
    topic, partition and offset; empty: they are to be searched for.
    """

    def __init__(self, message: str, reasons: Mapping[tuple[str, int, int], str] | None = None) -> None:
        super().__init__(message)
        self.reasons = dict(reasons or {})


class BatchTooLargeError(RecordsError):
    """A batch cannot be written because of its size: none of its records need be at fault."""


class SinkRaisedError(RecordsError):
    """Code of the user's that writes, or prepares to write, has raised; its exception is the cause. Records
    may be at fault."""


class HandlerTimeoutError(HandlerError):
    """A call of the handler took longer than it may; where the machine was busy, another may not."""

    ended_by_batch = True


class HandlerSetupError(HandlerError):
    """The handler's ``setup`` failed: without what it makes no batch can be handled."""


class RefreshFailed(Exception):
    """The handler's ``refresh`` failed. What the handler had before stays in use. The message is one line."""


class HandlerRaised(Exception):
    """What an engine makes of an exception of the handler's, which is the cause."""


class QueryFailed(Exception):
    """A query that the handler has made failed in the engine; its next one may not.

    ``environment``: for want of memory, disk or a process, and so not because of the records.
    ``ended_by_batch``: of memory or a process, which the records may have taken.
    """

    def __init__(self, message: str, *, environment: bool = False, ended_by_batch: bool = False) -> None:
        super().__init__(message)
        self.environment, self.ended_by_batch = environment, ended_by_batch


class HandlerUnfitError(HandlerError):
    """The warm-up shows that the handler cannot be used: it would fail on every batch, in every process."""

    exit_code = EXIT_BAD_CONFIG


class SinkError(WorkerError):
    """The sink cannot write: a full disk, a missing right, a path that is no folder."""

    exit_code = EXIT_HANDLER_OR_SINK


class DeadLetterError(WorkerError):
    """A dead letter cannot be stored; the batch it belongs to is not committed."""

    exit_code = EXIT_HANDLER_OR_SINK


def causes(exc: BaseException | None) -> Iterator[BaseException]:
    """``exc``, its cause, the cause of that, and so on; each once: an exception may be its own cause."""
    met: set[int] = set()
    while exc is not None and id(exc) not in met:
        met.add(id(exc))
        yield exc
        exc = exc.__cause__


def ended_by_batch(exc: BaseException) -> bool:
    """Whether the records at hand may be what the worker ends with: they hang the handler, or take the memory
    or the process that it needs. It is not known of one process; it is of several (delivery/partition.py,
    ``Begun``)."""
    return any(
        isinstance(cause, MemoryError) or getattr(cause, "ended_by_batch", False) for cause in causes(exc)
    )


def is_transient(exc: BaseException) -> bool:
    """Whether ``exc``, or a cause of it, says that something which a handler needs is away: another try may
    pass."""
    return any(isinstance(cause, Retry | ConnectionError | TimeoutError) for cause in causes(exc))


def is_environment(exc: BaseException | None) -> bool:
    """Whether ``exc``, or a cause of it, says that the surroundings have failed: memory, files, connections,
    an end that the user's code itself has asked for. Records are not at fault then."""
    import pyarrow as pa

    return any(
        isinstance(cause, Retry | OSError | MemoryError | pa.ArrowCapacityError)
        or not isinstance(cause, Exception)
        or (isinstance(cause, QueryFailed) and cause.environment)
        for cause in causes(exc)
    )
