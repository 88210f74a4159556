"""The pipeline in bulk and in trickles: our worker, engine by engine, and Structured Streaming, in one run.

A real Apache Kafka on this machine holds JSON records of about 170 bytes (columns of real flights) in six
partitions, lz4. Each way reads them all, takes the JSON apart and writes Parquet:

- ours: a worker's process with its static membership, fences, marks and commits; engines spark (in the
  worker, or on a Connect server), arrow and python. NAME-value: the worker decodes the values
  (`value.format`) in place of the handler.
- Structured Streaming: `format("kafka")`, `from_json`, `trigger(availableNow=True)`, its own checkpoint.

Prints thousands of records a second from the first batch's begin to the last commit, CPU seconds a million
records (the process with its children, without the broker), the most memory, each batch's size and time, and
the time by phase; then the same with batches of 10,000 records, which is what a steady load makes of them;
then how long one record takes from the producer's acknowledgement to the worker's commit.

    python -m benchmarks.pipeline --records 3000000 --only spark,arrow,streaming
"""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    """Runs it; without arguments with the defaults. Returns the exit code."""
    # Loaded here: Spark's Python workers may import this package, and shall not wait for all of it.
    from benchmarks.pipeline import run

    return run.main(arguments or [])
