"""What the rows of a Delta table must be: its CHECK constraints, column invariants and generated columns.

A write that deltalake refuses names neither rule nor row, so each rule is evaluated by itself, as deltalake
does it (DataFusion).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.table_schema import reasons
from slackwater.runtime.errors import RecordsError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_CHECK = "delta.constraints."
_INVARIANT, _EXPRESSION = b"delta.invariants", b"delta.generationExpression"
GIVEN, NUMBER = "given", "slackwater_row"
"""The table of the rows that are checked, and its column with their numbers."""


def rules_of(table: DeltaTable) -> dict[str, str]:
    """The SQL expressions that must be true for each row, by what says so. Of invariants those of columns,
    not of fields within them."""
    import pyarrow as pa

    rules = {
        f"constraint {name.removeprefix(_CHECK)}, {expression}": expression
        for name, expression in table.metadata().configuration.items()
        if name.startswith(_CHECK)
    }
    for field in pa.schema(table.schema().to_arrow()):
        metadata = field.metadata or {}
        if invariant := metadata.get(_INVARIANT):
            expression = json.loads(invariant)["expression"]["expression"]
            rules[f"invariant of the column {field.name}, {expression}"] = expression
        if (expression := generated(field)) is not None:
            rules[f"generated column {field.name}, {expression}"] = (
                f"{quoted(field.name)} IS NOT DISTINCT FROM ({expression})"
            )
    return rules


def generated(field: pa.Field) -> str | None:
    """The expression by which Delta computes a column of a table; None: it does not."""
    expression = (field.metadata or {}).get(_EXPRESSION)
    return None if expression is None else expression.decode()


def not_null(schema: pa.Schema) -> dict[str, str]:
    """The columns that must not be null, as :func:`rules_of` gives rules."""
    return {
        f"the column {field.name} must not be null": f"{quoted(field.name)} IS NOT NULL"
        for field in schema
        if not field.nullable
    }


def quoted(name: str) -> str:
    """The name of a column in SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def check_rules(
    rows: pa.Table, rules: Mapping[str, str], selection: str = f"SELECT * FROM {GIVEN}", **tables: DeltaTable
) -> None:
    """Raises RecordsError for rows that break one of ``rules``, as :func:`rules_of` gives them. Raises
    deltalake's errors for an expression that it cannot evaluate, and OSError: the rows are written to a
    temporary folder.

    ``selection``: what the rules are about, with the column :data:`NUMBER` of the rows, which it finds in the
    table :data:`GIVEN`, beside ``tables``.
    """
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder, write_deltalake

    with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
        write_deltalake(folder, rows.append_column(NUMBER, pa.array(range(rows.num_rows), pa.int64())))
        query = QueryBuilder()
        for name, table in {GIVEN: DeltaTable(folder), **tables}.items():
            query = query.register(name, table)
        for rule, expression in rules.items():
            broken = f"SELECT {NUMBER} FROM ({selection}) WHERE NOT coalesce(({expression}), false)"
            numbers = pa.table(query.execute(broken).read_all()).column(0).to_pylist()
            if numbers:
                problem = f"a row breaks a rule of the table ({rule})"
                raise RecordsError(problem, reasons(rows, dict.fromkeys(sorted(numbers), problem)))
