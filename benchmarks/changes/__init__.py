"""Changes into a table of a million rows: our worker into Delta, Iceberg and PostgreSQL, Structured Streaming
with `foreachBatch` and MERGE into Delta, and Kafka Connect with Debezium's JDBC sink into PostgreSQL, in one
run.

A real Apache Kafka on this machine holds changes in JSON (about 110 bytes) in six partitions by key: 80 of
a hundred replace a row, 10 add one and 10 delete one, at keys all over the table or among the latest. Each
way reads them all, in batches of one size, keeps the newest of each key by a version, and commits. Then the
table is compared with what the changes make, row by row.

- ours: a worker's process without a handler, mode `changes`, `version`, deleted keys remembered.
- Structured Streaming: `format("kafka")`, `from_json`, the last change of each key by a window, MERGE with
  the version as a condition. `streaming-dv`: with Delta's deletion vectors, so that a merge writes no file
  anew.

- Kafka Connect: as `connect.py` says; its topic has tombstones in place of changes that delete.

Prints changes a second from the first batch's begin to the last commit, CPU seconds for 100,000 changes (the
process with its children, without the broker and PostgreSQL's server), the most memory, and a batch's time.

    python -m benchmarks.changes --changes 200000 --only delta,streaming
"""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    """Runs it; without arguments with the defaults. Returns the exit code."""
    # Loaded here: Spark's Python workers may import this package, and shall not wait for all of it.
    from benchmarks.changes import run

    return run.main(arguments or [])
