"""The engine ``python``: the handler takes a list of records and gives rows, one mapping each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from slackwater.pipeline import handler as handlers
from slackwater.pipeline.in_process import InProcessEngine
from slackwater.pipeline.rows import table_of
from slackwater.runtime.delivery.output_split import split
from slackwater.runtime.errors import HandlerError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka import ConsumerRecord

log = logging.getLogger(__name__)


class RowFailed(Exception):
    """The handler raised; the message names the record that it had in hand. Its exception is the cause."""


class PythonEngine(InProcessEngine):
    """Calls the handler ``spec``. ``timeout_ms`` bounds each call, with the making of the rows."""

    def warm_up(self) -> None:
        """Calls the handler with no records. Raises HandlerError where it cannot take that, or gives what
        the worker cannot store."""
        try:
            output = self.transform_records([])
        except HandlerError:
            raise
        except BaseException as exc:
            log.error("the handler %s failed on an empty list", self._spec, exc_info=exc)
            cause = exc.__cause__ if isinstance(exc, RowFailed) and exc.__cause__ else exc
            raise HandlerError(
                f"handler {self._spec} fails on an empty list, which it must accept: "
                f"{handlers.describe(cause)}"
            ) from exc
        split(output, {})

    def transform_records(self, records: list[ConsumerRecord]) -> pa.Table:
        """The handler's rows for ``records``, as Arrow.

        Raises HandlerError after ``timeout_ms`` and for rows that make no table, RowFailed for what the
        handler raises.
        """
        return self._call(lambda: self._rows(records), len(records))

    def _rows(self, records: list[ConsumerRecord]) -> pa.Table:
        handler = self._handler
        if handler is None:
            raise RuntimeError("start() was not called")
        rows: list[Mapping[str, Any]] = []
        try:
            given = handler(records)
            if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
                raise HandlerError(
                    f"handler {self._spec} returned {type(given).__name__}, not rows: return a list of "
                    "mappings, or yield them"
                )
            rows.extend(given)
        except HandlerError:
            raise
        except BaseException as exc:  # also SystemExit: a handler that calls exit() has failed
            raise RowFailed(f"{handlers.describe(exc)}{_in_hand(exc)}") from exc
        return table_of(rows, getattr(handler, "schema", None), self._spec)


def _in_hand(exc: BaseException) -> str:
    """Names the record that the handler was at: a local variable of its innermost frame that has one."""
    from slackwater.kafka import ConsumerRecord

    found = ""
    trace: TracebackType | None = exc.__traceback__
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if isinstance(value, ConsumerRecord):
                found = f", at {value.topic}-{value.partition} offset {value.offset}"
        trace = trace.tb_next
    return found
