"""Settings of Spark sessions, and into how many tasks a batch is split."""

from __future__ import annotations

import pyarrow as pa
import pytest

from slackwater.pipeline.engines.spark import ROWS_A_TASK, TASKS_A_CORE, _split
from slackwater.pipeline.engines.spark_session import ConnectBackend, LocalBackend

LAPTOP = {"spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"}


def test_settings_for_small_batches_are_not_made_on_somebody_elses_server() -> None:
    assert LocalBackend({})._conf.keys() >= LAPTOP
    assert not ConnectBackend("sc://spark:15002", {})._conf.keys() & LAPTOP
    asked = {"spark.sql.shuffle.partitions": "8"}
    assert ConnectBackend("sc://spark:15002", asked)._conf["spark.sql.shuffle.partitions"] == "8"


def batch(rows: int, partitions: int) -> pa.Table:
    """A polled batch: one chunk for each partition of the topic."""
    each = rows // partitions
    return pa.concat_tables(
        pa.table({"offset": list(range(n * each, (n + 1) * each))}) for n in range(partitions)
    )


@pytest.mark.parametrize(
    ("rows", "partitions", "tasks"),
    [
        (12, 12, 1),
        (2 * ROWS_A_TASK - 1, 1, 1),
        (12_000, 12, 12_000 // ROWS_A_TASK),
        (120_000, 12, 2 * TASKS_A_CORE),
        (120_000, 1, 2 * TASKS_A_CORE),
    ],
)
def test_a_batch_has_tasks_by_its_rows_and_the_cores(rows: int, partitions: int, tasks: int) -> None:
    table = batch(rows, partitions)
    split = _split(table, 2)
    assert split["offset"].num_chunks == tasks
    assert split.equals(table)


def test_a_server_splits_for_itself() -> None:
    table = batch(120_000, 12)
    assert _split(table, None) is table


def test_a_batch_without_rows_stays_one() -> None:
    table = batch(0, 1)
    assert _split(table, 2) is table
