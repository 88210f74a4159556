"""A sink of one's own: rows and marks are one transaction of an SQLite database, so each record counts once.

`sqlite.yaml` uses it for the rows of `hourly.py`. It is small to be read: the table has the rows of one
group. One process at a time writes to an SQLite file, which must be on a disk of the machine.
"""

import sqlite3
from collections.abc import Collection, Mapping

import pyarrow as pa

from slackwater.sinks import Range, StagedRows, TopicPartition, check_mark

COLUMNS = ["topic", "partition", "offset", "origin", "hour", "cancelled", "delay_total"]
TABLES = """
create table if not exists flights (
  topic text, "partition" integer, "offset" integer,
  origin text, hour text, cancelled integer, delay integer);
create table if not exists marks (
  "group" text, topic text, "partition" integer, topic_id text, next_offset integer,
  primary key ("group", topic, "partition", topic_id));
"""


class SqliteSink:
    """Adds rows to the table `flights`. The option `file` is the database; it is created if it is missing."""

    def __init__(self, group_id: str, options: Mapping[str, str]) -> None:
        self._group, self._file = group_id, options["file"]
        self._database = sqlite3.connect(self._file, timeout=30, isolation_level=None)
        self._database.executescript(TABLES)

    def marks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, dict[str, int]]:
        """The next offset to write of each partition, by topic id."""
        return {tp: self._marks(tp) for tp in partitions}

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedRows:
        """Keeps the rows in memory; `_commit` writes them when the worker publishes the batch."""
        return StagedRows(self._commit, rows.select(COLUMNS), ranges)

    def _commit(self, staged: StagedRows) -> None:
        columns = [column.cast(pa.string()) if name == "hour" else column
                   for name, column in zip(COLUMNS, staged.rows.columns, strict=True)]  # fmt: skip
        self._database.execute("begin immediate")  # from here on nobody else moves a mark
        with self._database:  # commits, or rolls back if something is raised
            for tp, span in staged.ranges.items():
                check_mark(tp, span, self._marks(tp).get(span.topic_id), self._file)
                self._set_mark(tp, span.topic_id, span.end)
            values = zip(*(column.to_pylist() for column in columns), strict=True)
            self._database.executemany("insert into flights values (?, ?, ?, ?, ?, ?, ?)", values)

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Removes rows and lowers marks, for `slackwater rewind`. May be left out."""
        removed = 0
        self._database.execute("begin immediate")
        with self._database:
            for tp, (topic_id, start) in starts.items():
                if self._marks(tp).get(topic_id, 0) > start:
                    rows = 'delete from flights where topic = ? and "partition" = ? and "offset" >= ?'
                    removed += self._database.execute(rows, (*tp, start)).rowcount
                    self._set_mark(tp, topic_id, start)
        return removed

    def probe(self) -> str:
        """Checks that the database can be written to, for the preflight. May be left out."""
        self._database.execute("begin immediate")
        self._database.rollback()
        return self._file

    def _marks(self, tp: TopicPartition) -> dict[str, int]:
        query = 'select topic_id, next_offset from marks where "group" = ? and topic = ? and "partition" = ?'
        return dict(self._database.execute(query, (self._group, *tp)).fetchall())

    def _set_mark(self, tp: TopicPartition, topic_id: str, offset: int) -> None:
        mark = (self._group, *tp, topic_id, offset)
        self._database.execute("insert or replace into marks values (?, ?, ?, ?, ?)", mark)
