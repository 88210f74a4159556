"""What a topic takes: the size of a record, and whether it needs a key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slackwater.kafka.records import HEADER_BYTES, BatchBuilder, record_size
from slackwater.pipeline.sinks.kafka.records import Record
from slackwater.runtime.errors import RecordsError

if TYPE_CHECKING:
    import pyarrow as pa


class Limits:
    """What the topic takes. ``max_request_bytes``: of a record before compression. ``max_batch_bytes``: of a
    batch in the topic, after compression; None: not known. ``needs_keys``: whether the topic is compacted."""

    def __init__(
        self, codec: str, max_request_bytes: int, max_batch_bytes: int | None, *, needs_keys: bool
    ) -> None:
        self._codec, self._max_request, self.max_batch_bytes = codec, max_request_bytes, max_batch_bytes
        self._needs_keys = needs_keys

    def check(self, records: Iterable[Record], rows: pa.Table, topic: str) -> None:
        """Raises RecordsError for the first record that ``topic`` cannot take, with the row's position."""
        for number, record in enumerate(records):
            if problem := self._problem(record):
                topic_of, partition, offset = (
                    rows.column(name)[number].as_py() for name in ("topic", "partition", "offset")
                )
                raise RecordsError(
                    f"the sink cannot write the row of {topic_of}-{partition} offset {offset} to the topic "
                    f"{topic}: {problem}"
                )

    def _problem(self, record: Record) -> str:
        key, value, headers = record
        if key is None and self._needs_keys:
            return "it has no key, which a compacted topic needs (cleanup.policy)"
        most = record_size(key, value, headers) + HEADER_BYTES
        if most > self._max_request:
            return (
                f"a record of {most} bytes is larger than max.request.size or buffer.memory in sink.options "
                f"({self._max_request})"
            )
        if self.max_batch_bytes is not None and most > self.max_batch_bytes:
            builder = BatchBuilder(self._codec)
            builder.append(0, key, value, headers)
            size = len(builder.build())
            if size > self.max_batch_bytes:
                return f"{size} bytes are more than its max.message.bytes ({self.max_batch_bytes})"
        return ""
