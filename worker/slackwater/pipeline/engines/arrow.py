"""The engine ``arrow``: the handler takes and returns a ``pyarrow.Table``, in the worker's process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from slackwater.handler import NO_BATCH, Batch
from slackwater.pipeline.engines import handler as handlers
from slackwater.pipeline.engines.hooks import refuse_async
from slackwater.pipeline.engines.in_process import InProcessEngine
from slackwater.runtime.errors import HandlerError
from slackwater.runtime.handler_output import checked_output

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class ArrowEngine(InProcessEngine):
    """Calls the handler ``spec``. ``timeout_ms`` limits each call."""

    def warm_up(self, schema: pa.Schema | None = None) -> None:
        """Calls ``setup``, and the handler with a table without rows. ``schema``: its columns; None: those of
        a poll.

        Raises HandlerError where the handler cannot take one, or returns what the worker cannot store, or
        where ``setup`` fails; StartError where ``setup`` fails because something else is away.
        """
        from slackwater.kafka.records import ARROW_SCHEMA

        self._set_up()
        try:
            output = self.transform((schema or ARROW_SCHEMA).empty_table())
        except HandlerError:
            raise
        except BaseException as exc:
            log.error("the handler %s failed on a table without rows", self._spec, exc_info=exc)
            raise HandlerError(
                f"handler {self._spec} fails on a table without rows, which it must accept: "
                f"{handlers.describe(exc)}"
            ) from exc
        checked_output(output, {}, by_record=self._by_record)

    def start(self) -> None:
        """Imports the handler. Raises HandlerLoadError."""
        super().start()
        refuse_async(self._handler, self._spec)

    def transform(self, table: pa.Table, batch: Batch = NO_BATCH) -> pa.Table:
        """The handler's result. Raises HandlerError after ``timeout_ms``, else what the handler raises."""
        handler = self._handler.call
        return self._call(lambda: handler(table, batch), f"on {table.num_rows} records")
