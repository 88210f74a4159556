"""What a sink of one's own is made of (``sink.format: custom``).

A class that implements :class:`Sink` and keeps marks writes each record exactly once. :class:`StagedRows` is
a :class:`Staged` that keeps a batch in memory and calls a function to commit it; :func:`check_mark` compares
a mark. docs/how-to/tables/write-a-sink.md has an example.

Importing this module does not load Arrow.
"""

from __future__ import annotations

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.marks import check_mark
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.runtime.errors import RecordsError, SinkError
from slackwater.runtime.interfaces import Range, Sink, SinkFencedError, Staged

__all__ = [
    "Range",
    "RecordsError",
    "Sink",
    "SinkError",
    "SinkFencedError",
    "Staged",
    "StagedRows",
    "TopicPartition",
    "check_mark",
]
