"""The marks: rows of the table ``slackwater_marks`` in the schema of the target table.

A writer locks the rows of its partitions, in the order of their key, compares them with what it knows, and
moves them in the transaction that writes the batch. Of two writers that insert the same first mark, the
second waits for the first, and is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.sinks.marks import MarkKey, check_mark, ends_of
from slackwater.pipeline.sinks.postgres.table import MARKS, TableName
from slackwater.runtime.errors import ConfigError
from slackwater.runtime.interfaces import SinkFencedError

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range

_CREATE = """
create table if not exists {marks} (
    target text not null, "group" text not null, topic text not null, topic_id text not null,
    "partition" integer not null, next_offset bigint not null, batch text not null,
    primary key (target, "group", topic, topic_id, "partition"))
"""
_LIST = """
select "group", topic, topic_id, "partition", next_offset from {marks} where target = %s and topic = any(%s)
"""
_LOCK = """
select topic, topic_id, "partition", next_offset, batch from {marks}
where target = %s and "group" = %s
    and (topic, topic_id, "partition") in (select * from unnest(%s::text[], %s::text[], %s::integer[]))
order by topic, topic_id, "partition" for update
"""
_INSERT = """
insert into {marks} (target, "group", topic, topic_id, "partition", next_offset, batch)
select %s, %s, v.topic, v.topic_id, v.number, v.next_offset, %s
from unnest(%s::text[], %s::text[], %s::integer[], %s::bigint[]) v(topic, topic_id, number, next_offset)
order by 3, 4, 5 on conflict do nothing
"""
_MOVE = """
update {marks} m set next_offset = v.next_offset, batch = %s
from unnest(%s::text[], %s::text[], %s::integer[], %s::bigint[]) v(topic, topic_id, number, next_offset)
where m.target = %s and m."group" = %s and m.topic = v.topic and m.topic_id = v.topic_id
    and m."partition" = v.number
"""


class Marks:
    """The marks of ``group_id`` for the table ``target``. The methods raise psycopg.Error.

    Raises ConfigError for a group id that PostgreSQL cannot store.
    """

    def __init__(self, target: TableName, group_id: str) -> None:
        if "\0" in group_id or any("\ud800" <= character <= "\udfff" for character in group_id):
            raise ConfigError(
                "has a character that PostgreSQL cannot store (NUL, or half of a pair)", field="groupId"
            )
        self.table = TableName(target.schema, MARKS)
        self._target, self._group = target, group_id

    def create(self, cursor: psycopg.Cursor[Any]) -> None:
        """Creates the table for the marks if there is none."""
        cursor.execute(self._sql(_CREATE), ())

    def read(self, cursor: psycopg.Cursor[Any], topics: Collection[str]) -> dict[str, dict[MarkKey, int]]:
        """The marks of ``topics``, by group."""
        marks: dict[str, dict[MarkKey, int]] = {}
        rows = cursor.execute(self._sql(_LIST), (self._target.name, sorted(topics))).fetchall()
        for group, topic, topic_id, partition, end in rows:
            marks.setdefault(group, {})[MarkKey(topic, topic_id, partition)] = end
        return marks

    def claim(self, cursor: psycopg.Cursor[Any], ranges: Mapping[TopicPartition, Range], batch: str) -> bool:
        """Locks and moves the marks of ``ranges``, for the commit with the id ``batch``.

        Returns False where that commit was made already. Raises SinkFencedError where a mark is not the
        range's.
        """
        ends = ends_of(ranges)
        saved = self.lock(cursor, list(ends))
        if any(by == batch for _, by in saved.values()):
            return False
        for key, (tp, span) in zip(ends, ranges.items(), strict=True):
            check_mark(tp, span, saved[key][0] if key in saved else None, str(self._target))
        first = {key: end for key, end in ends.items() if key not in saved}
        if first:
            parameters = (self._target.name, self._group, batch, *_columns(first))
            if cursor.execute(self._sql(_INSERT), parameters).rowcount < len(first):
                if any(by == batch for _, by in self.lock(cursor, list(first)).values()):
                    return False
                raise SinkFencedError(
                    f"another process has written the first rows of {', '.join(map(str, sorted(ranges)))} to "
                    f"{self._target} at the same time"
                )
        self.move(cursor, {key: ends[key] for key in saved}, batch)
        return True

    def probe(self, cursor: psycopg.Cursor[Any]) -> None:
        """Writes a mark, in a transaction that is to be rolled back."""
        key = MarkKey(f".probe-{uuid.uuid4().hex}", "", 0)
        cursor.execute(self._sql(_INSERT), (self._target.name, self._group, "", *_columns({key: 0})))
        self.lock(cursor, [key])
        self.move(cursor, {key: 1}, "")

    def lock(self, cursor: psycopg.Cursor[Any], keys: Sequence[MarkKey]) -> dict[MarkKey, tuple[int, str]]:
        """The marks of ``keys`` that are there, and the id of the commit that has moved each. They cannot
        change until the transaction ends."""
        parameters = (self._target.name, self._group, *_columns(dict.fromkeys(keys, 0))[:3])
        rows = cursor.execute(self._sql(_LOCK), parameters).fetchall()
        return {MarkKey(*key): (end, by) for *key, end, by in rows}

    def move(self, cursor: psycopg.Cursor[Any], ends: Mapping[MarkKey, int], batch: str) -> None:
        """Sets marks that are there."""
        if ends:
            cursor.execute(self._sql(_MOVE), (batch, *_columns(ends), self._target.name, self._group))

    def _sql(self, text: str) -> sql.Composed:
        from psycopg import sql

        return sql.SQL(text).format(marks=self.table.sql_with_parameters)


def _columns(ends: Mapping[MarkKey, int]) -> tuple[list[str], list[str], list[int], list[int]]:
    """Topics, topic ids, partitions and offsets."""
    return (
        [topic for topic, _, _ in ends],
        [topic_id for _, topic_id, _ in ends],
        [number for _, _, number in ends],
        list(ends.values()),
    )
