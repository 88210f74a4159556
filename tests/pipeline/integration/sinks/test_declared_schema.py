"""A table of PostgreSQL with a declared schema: as in the other formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.unit.sinks import test_declared_schema as formats
from tests.support.postgres import PostgresDatabase


@pytest.mark.parametrize(
    "check",
    [
        formats.test_the_first_batch_makes_all_declared_columns,
        formats.test_a_worker_that_returns_finds_the_types_that_it_has_declared,
        formats.test_a_table_with_another_type_is_refused_before_it_is_written_to,
        formats.test_a_row_that_deletes_needs_no_other_columns,
    ],
)
def test_in_postgres(
    check: Callable[[formats.Table], None], tmp_path: Path, database: PostgresDatabase
) -> None:
    check(formats.Table("postgres", tmp_path, database))
