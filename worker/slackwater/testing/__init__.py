"""Runs a handler in a unit test or a notebook: without a broker and without a table.

    from slackwater.testing import run

    result = run(transform, [{"dep_delay": 5}], engine="python")
    assert result.rows.to_pylist() == [...]
    assert result.dead_letters == []

Importing this package loads neither Arrow nor Spark.
"""

from __future__ import annotations

from slackwater.testing.handler_run import DeadLetter, Result, run
from slackwater.testing.records import Record, record

__all__ = ["DeadLetter", "Record", "Result", "record", "run"]
