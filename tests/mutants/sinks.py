"""Faults of the sinks: Parquet, Delta, Iceberg, PostgreSQL, and what they share."""

from __future__ import annotations

from tests.mutants.fault import Fault

_SINKS = "worker/slackwater/pipeline/sinks"
_UNIT = "tests/pipeline/unit/sinks"
_CONTRACT = f"{_UNIT}/test_sink_contract.py"

_ROUTED = f"{_SINKS}/routed/table.py"

FAULTS = (
    Fault(
        "first-batch-leaves-the-marks-of-tables-without-rows",
        _ROUTED,
        "            if tp in self._unmoved or (",
        "            if (",
        (
            f"{_UNIT}/test_routes.py::test_a_table_without_rows_makes_no_commit_and_the_first_batch_moves_all_marks",
        ),
    ),
    Fault(
        "table-gets-the-rows-that-it-has",
        _ROUTED,
        'pc.greater_equal(rows["offset"], span.start)',
        'pc.greater_equal(rows["offset"], 0)',
        (f"{_UNIT}/test_routes.py::test_a_batch_that_is_begun_again_continues_in_each_table_where_it_was",),
    ),
    Fault(
        "first-mark-of-a-partition-is-not-compared",
        f"{_SINKS}/marks.py",
        "    if mark != span.mark:",
        "    if span.mark is not None and mark != span.mark:",
        (f"{_CONTRACT}::TestParquet::test_a_former_owner_changes_nothing",),
    ),
    Fault(
        "commit-below-a-checkpoint-counts",
        f"{_SINKS}/parquet/commit_log.py",
        "        if self._list()[1] >= version:\n            return None\n",
        "",
        (f"{_UNIT}/test_pipeline_parquet_sink.py::test_a_commit_whose_number_is_free_again_does_not_count",),
    ),
    Fault(
        "staged-file-that-may-be-committed-is-removed",
        f"{_SINKS}/parquet/files.py",
        "known.get(match[1], -1) > int(match[2])",
        "known.get(match[1], -1) >= int(match[2])",
        (
            f"{_UNIT}/test_pipeline_parquet_sink.py::test_staged_files_that_cannot_be_committed_any_more_are_removed_with_a_checkpoint",
        ),
    ),
    Fault(
        "dropped-partition-is-in-the-files",
        f"{_SINKS}/parquet/sink.py",
        "        self._dropped = True\n",
        "",
        (f"{_CONTRACT}::TestParquet::test_what_is_dropped_is_neither_written_nor_marked",),
    ),
    Fault(
        "commit-whose-answer-was-lost-is-made-twice",
        f"{_SINKS}/table_sink.py",
        "if (removed := self._table.removed_by(commit)) is not None:",
        "if (removed := self._table.removed_by(commit)) is not None and failure is None:",
        (
            f"{_UNIT}/test_pipeline_delta_sink.py::test_a_commit_that_was_made_though_it_seemed_refused_counts",
        ),
    ),
    Fault(
        "marks-are-not-compared-after-another-commit",
        f"{_SINKS}/table_sink.py",
        "                check()\n",
        "                if failure is None:\n                    check()\n",
        (
            f"{_CONTRACT}::TestDelta::test_a_worker_that_goes_on_after_its_successor_has_written_changes_nothing",
        ),
    ),
    Fault(
        "marks-of-other-partitions-are-lost",
        f"{_SINKS}/iceberg/marks.py",
        'changed[name] = json.loads(properties.get(name, "{}"))',
        "changed[name] = {}",
        (f"{_UNIT}/test_pipeline_iceberg_sink.py::test_marks_of_thousands_of_partitions_stay_small",),
    ),
    Fault(
        "files-of-an-uncertain-commit-are-removed",
        f"{_SINKS}/table_sink.py",
        "target.end(is_refused=is_refused)",
        "target.end(is_refused=True)",
        (f"{_UNIT}/test_pipeline_iceberg_sink.py::test_a_commit_that_may_have_been_made_keeps_its_files",),
    ),
    Fault(
        "value-is-cut-to-fit-its-column",
        f"{_SINKS}/table_schema.py",
        "    if not _equal(result.cast(column.type), column):",
        "    if len(result) != len(column):",
        (f"{_UNIT}/test_table_schema.py",),
    ),
    Fault(
        "postgres-name-is-measured-in-characters",
        f"{_SINKS}/postgres/table.py",
        'size = len(name.encode("utf-8", "surrogatepass"))',
        "size = len(name)",
        (f"{_UNIT}/test_pipeline_postgres_options.py",),
    ),
)
