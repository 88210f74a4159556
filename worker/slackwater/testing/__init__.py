"""Tests of what users write.

A handler is run without a broker and without a table:

    from slackwater.testing import run

    result = run(transform, [{"dep_delay": 5}], engine="python")
    assert result.rows.to_pylist() == [...]
    assert result.dead_letters == []

A sink of one's own passes the tests of :class:`SinkContract`.

Importing this package loads neither Arrow nor Spark.
"""

from __future__ import annotations

from slackwater.testing.handler_run import DeadLetter, Result, run
from slackwater.testing.records import Record, record
from slackwater.testing.sink_contract import SinkContract

__all__ = ["DeadLetter", "Record", "Result", "SinkContract", "record", "run"]
