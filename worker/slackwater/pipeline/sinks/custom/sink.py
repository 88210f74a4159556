"""A sink that the user has written, as the worker's other sinks.

A class has the methods of :class:`slackwater.runtime.interfaces.Sink`; ``rewind`` and ``probe`` may be left
out. A function takes the rows of a batch; it keeps no marks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.engines.handler import describe, load
from slackwater.pipeline.sinks.custom.calls import SinkCalls
from slackwater.pipeline.sinks.unmarked import UnmarkedSink
from slackwater.runtime.errors import (
    ConfigError,
    HandlerLoadError,
    SinkError,
    SinkRaisedError,
    WorkerError,
    is_environment,
)
from slackwater.runtime.interfaces import SinkFencedError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range

_NEEDED = ("marks", "stage")
_STAGED = ("drop", "publish", "discard")


class CustomSink:
    """Writes by the class or the function that ``implementation`` names.

    Args:
        group_id: the consumer group.
        implementation: ``module:name``. A class is called with ``group_id`` and ``options``; a function with
            the rows of each batch and, if it has a second parameter, with ``options``.
        path: folders that are put first on ``sys.path``, as the handler's are.
        options: for the class or the function.
        timeout_ms: how long each call may take.

    Raises HandlerLoadError for what cannot be loaded or used as a sink, ConfigError for options that a
    function does not take, SinkError for what the class raises.
    """

    def __init__(
        self,
        group_id: str,
        implementation: str,
        path: Sequence[str] = (),
        *,
        options: Mapping[str, str] | None = None,
        timeout_ms: float = 300_000,
    ) -> None:
        self._name = implementation
        loaded: Any = load(implementation, path, "sink")
        given = dict(options or {})
        self._calls = SinkCalls(implementation, timeout_ms)
        if isinstance(loaded, type):
            for name in _NEEDED:
                if not callable(getattr(loaded, name, None)):
                    raise HandlerLoadError(
                        f"sink {implementation}: the class has no method {name}; it needs "
                        f"{', '.join(_NEEDED)} (see slackwater.sinks.Sink)"
                    )
            make = partial(loaded, group_id=group_id, options=given)
            self._sink: Any = self._calls.make("its constructor", make)
        else:
            write = _writer(loaded, implementation, given)
            self._sink = UnmarkedSink(partial(self._of_rows, write), implementation)

    @property
    def has_marks(self) -> bool:
        """Whether it is a class of the user's, which may keep marks, and no function."""
        return not isinstance(self._sink, UnmarkedSink)

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The marks that the sink keeps. Raises SinkError."""
        asked = list(partitions)
        return self._calls.make("marks", lambda: _checked_marks(self._sink.marks(asked), asked))

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> CustomStaged:
        """Has the sink prepare the rows. Raises RecordsError, SinkFencedError, SinkError."""

        def stage() -> Any:
            return _checked_staged(self._of_rows(self._sink.stage, rows, ranges))

        return CustomStaged(self._calls, self._calls.make("stage", stage))

    def _of_rows(self, call: Callable[..., Any], *given: Any) -> Any:
        """What ``call`` returns for ``given``. Raises SinkRaisedError where records may be what it has raised
        for, and else what it raises."""
        try:
            return call(*given)
        except (WorkerError, SinkFencedError):
            raise
        except Exception as exc:
            if is_environment(exc):
                raise
            raise SinkRaisedError(f"sink {self._name}: {describe(exc)}") from exc

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Has the sink remove rows and lower marks. Raises SinkError, also if it has no ``rewind``."""
        if not hasattr(self._sink, "rewind"):
            raise SinkError(f"sink {self._name}: the class has no method rewind, so rows cannot be removed")
        return self._calls.make("rewind", lambda: int(self._sink.rewind(starts)))

    def probe(self) -> str:
        """Has the sink check that it can write; without a ``probe``, reads the marks of no partition. Raises
        SinkError."""
        if hasattr(self._sink, "probe"):
            return self._calls.make("probe", lambda: str(self._sink.probe()))
        self.marks([])
        return f"sink {self._name}, which has no method probe: only reading marks was tried"

    def close(self) -> None:
        """Ends the thread of the calls."""
        self._calls.close()


class CustomStaged:
    """A batch that a user's sink has staged. All its calls are made on the sink's thread: ``drop`` directly
    before ``publish``."""

    def __init__(self, calls: SinkCalls, staged: Any) -> None:
        self._calls, self._staged = calls, staged
        self._dropped: set[TopicPartition] = set()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Notes what to leave out."""
        self._dropped |= set(partitions)

    def publish(self) -> None:
        """Has the sink write rows and marks. Raises SinkFencedError, RecordsError, SinkError."""

        def publish() -> None:
            if self._dropped:
                self._staged.drop(self._dropped)
            self._staged.publish()

        self._calls.make("publish", publish)

    def discard(self) -> None:
        """Has the sink remove what is staged, and does not wait for it."""
        self._calls.post("discard", self._staged.discard)


def _writer(loaded: Any, name: str, options: dict[str, str]) -> Callable[[pa.Table], object]:
    """What writes the rows of a batch. Raises HandlerLoadError, ConfigError."""
    if inspect.iscoroutinefunction(loaded):
        raise HandlerLoadError(f"sink {name}: an async function is not supported; use a plain function")
    if hasattr(loaded, "stage"):
        raise HandlerLoadError(f"sink {name} is an object of {type(loaded).__name__}; name its class")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(loaded).parameters.values()
    except (TypeError, ValueError):
        raise HandlerLoadError(f"sink {name}: its parameters are not known; wrap it in a function") from None
    count = sum(parameter.kind in kinds for parameter in parameters)
    if count not in (1, 2):
        raise HandlerLoadError(
            f"sink {name}: the function must take the rows, or the rows and the options; it takes "
            f"{count} arguments"
        )
    if count == 2:
        return partial(_with_options, loaded, options)
    if options:
        raise ConfigError(
            f"are given, but the function {name} takes only the rows; remove them, or add a parameter",
            field="sink.options",
        )
    return loaded  # type: ignore[no-any-return]


def _with_options(write: Callable[..., object], options: dict[str, str], rows: pa.Table) -> object:
    return write(rows, options)


def _checked_marks(marks: Any, asked: Sequence[TopicPartition]) -> dict[TopicPartition, dict[str, int]]:
    """``marks`` of what was ``asked``. Raises SinkError where they are none."""
    if not isinstance(marks, Mapping):
        raise SinkError(f"marks returned {type(marks).__name__}, not a mapping of partitions")
    checked: dict[TopicPartition, dict[str, int]] = {}
    for tp in asked:
        own = marks.get(tp, {})
        if not isinstance(own, Mapping) or not all(
            isinstance(topic_id, str) and type(offset) is int and offset >= 0
            for topic_id, offset in own.items()
        ):
            raise SinkError(f"marks returned {own!r} for {tp}, not a mapping of topic ids to offsets")
        checked[tp] = dict(own)
    return checked


def _checked_staged(staged: Any) -> Any:
    missing = [name for name in _STAGED if not callable(getattr(staged, name, None))]
    if missing:
        raise SinkError(
            f"stage returned {type(staged).__name__}, which has no method {missing[0]}; return a "
            "slackwater.sinks.StagedRows, or another Staged"
        )
    return staged
