"""The target table: what it is now, how rows fit it, and how it is created and gets columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.sinks.postgres.types import JSON, Column, ScalarRows, sql_type, wider_sql_type
from slackwater.pipeline.sinks.table_schema import fit
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg import sql
    from psycopg.sql import SQL

    from slackwater.pipeline.growth import Growth

MARKS = "slackwater_marks"
"""The name of the table with the marks, in the schema of the target."""
DELETED = "slackwater_deleted"
"""The name of the table with the deleted keys, beside it."""
MOST_REWRITTEN_BYTES = 1 << 30
"""The largest table in which a column is widened where PostgreSQL writes the table anew for it, with a lock
on which its readers wait."""
MOST_NAME_BYTES = 63
"""PostgreSQL cuts longer names off."""
_RELATION = """
select c.oid, c.relkind = 'r' and not c.relrowsecurity and not c.relhastriggers, c.relkind::text
from pg_namespace n left join pg_class c on c.relnamespace = n.oid and c.relname = %s
where n.nspname = %s
"""
_COLUMNS = """
select a.attname, format_type(a.atttypid, a.atttypmod), coalesce(e.typname, b.typname),
    case when t.typtype = 'd' then t.typtypmod else a.atttypmod end,
    e.oid is not null, a.atthasdef and a.attgenerated = '' or a.attidentity <> '',
    a.attgenerated <> '' or a.attidentity = 'a', t.typtype = 'd', a.attnotnull
from pg_attribute a
join pg_type t on t.oid = a.atttypid
join pg_type b on b.oid = case when t.typtype = 'd' then t.typbasetype else t.oid end
left join pg_type e on e.oid = b.typelem and b.typcategory = 'A'
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""
_KEYS = """
select i.indisunique and i.indimmediate and i.indisvalid and i.indpred is null and i.indexprs is null,
    not i.indimmediate, array(
    select a.attname::text from unnest(i.indkey::int2[]) with ordinality k(number, at)
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
    where k.at <= i.indnkeyatts)
from pg_index i where i.indrelid = %s and (i.indisunique or i.indisexclusion)
"""

_SIZE = """
select greatest(pg_table_size(oid), (select sum(pg_table_size(relid))::bigint from pg_partition_tree(oid)))
from (select {}::regclass oid) t
"""


@dataclass(frozen=True)
class TableName:
    """A table's name in its two parts, as they are written without quotes."""

    schema: str
    name: str

    @classmethod
    def of(cls, text: str) -> TableName:
        """From ``SCHEMA.TABLE``. Raises ConfigError."""
        parts = text.split(".")
        if len(parts) != 2 or not all(parts):
            raise ConfigError(
                f"{text!r} is no table: give SCHEMA.TABLE, such as public.flights", field="sink.table"
            )
        for part in parts:
            if problem := name_problem(part):
                raise ConfigError(f"{part!r} {problem}", field="sink.table")
        if parts[1] in (MARKS, DELETED):
            raise ConfigError(f"{parts[1]} is the sink's own: choose another name", field="sink.table")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> sql.Identifier:
        """The name within a statement without parameters."""
        from psycopg import sql

        return sql.Identifier(self.schema, self.name)

    @property
    def sql_with_parameters(self) -> SQL:
        """The name within a statement with parameters, whose signs are ``%``."""
        from psycopg import sql

        return sql.SQL(self.sql.as_string().replace("%", "%%"))


def exists(cursor: psycopg.Cursor[Any], table: TableName) -> bool:
    """Whether there is a table, or something else, with that name."""
    query = (
        "select 1 from pg_class join pg_namespace n on n.oid = relnamespace "
        "where nspname = %s and relname = %s"
    )
    return cursor.execute(query, (table.schema, table.name)).fetchone() is not None


def name_problem(name: str) -> str:
    """Why ``name`` cannot be that of a table or column; "": it can."""
    if not name:
        return "is empty"
    if "\0" in name:
        return "has a NUL character"
    size = len(name.encode("utf-8", "surrogatepass"))
    return f"is {size} bytes long; PostgreSQL's limit is {MOST_NAME_BYTES}" if size > MOST_NAME_BYTES else ""


@dataclass(frozen=True)
class Fitted:
    """Rows as they are to be written. ``types``: the SQL type of each of their columns. ``added``: those of
    them that the table lacks. ``widened``: those whose type in the table is too narrow. ``made_optional``:
    columns of the table that must not be null, and for which a row has no value."""

    rows: pa.Table
    types: dict[str, str]
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    made_optional: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether the table is to be changed."""
        return bool(self.added or self.widened or self.made_optional)


@dataclass(frozen=True)
class Target:
    """A table that is there.

    ``takes_copy``: COPY may write to it, and its rows conflict with no others, so that the writer needs no
    lock. ``keys``: the columns of each unique index that ON CONFLICT can name.
    """

    oid: int
    columns: tuple[Column, ...]
    takes_copy: bool
    keys: frozenset[frozenset[str]]

    def lacking(self, rows: pa.Table) -> list[str]:
        """The columns that must not be null, and that neither PostgreSQL fills nor all ``rows`` do."""
        if not rows.num_rows:
            return []
        names = set(rows.column_names)
        return [
            column.name
            for column in self.columns
            if column.is_required
            and not column.is_computed
            and (rows.column(column.name).null_count if column.name in names else not column.is_filled)
        ]

    @classmethod
    def read(cls, cursor: psycopg.Cursor[Any], name: TableName) -> Target | None:
        """The table as it is now; None: there is none. Raises SinkError, ConfigError."""
        relation = cursor.execute(_RELATION, (name.name, name.schema)).fetchone()
        if relation is None:
            raise SinkError(
                f"the sink cannot write to {name}: there is no schema {name.schema} in this database; create "
                "it, or correct sink.table"
            )
        oid, is_plain, kind = relation
        if oid is None:
            return None
        if kind not in ("r", "p", "v", "f"):
            raise ConfigError(f"{name} is no table: choose another name", field="sink.table")
        columns = tuple(Column(*row) for row in cursor.execute(_COLUMNS, (oid,)).fetchall())
        indexes = cursor.execute(_KEYS, (oid,)).fetchall()
        # ON CONFLICT refuses a deferrable constraint, even if another index has the same columns.
        deferrable = {frozenset(names) for _, is_deferrable, names in indexes if is_deferrable}
        keys = frozenset(frozenset(names) for can_decide, _, names in indexes if can_decide)
        return cls(oid, columns, is_plain and not indexes, keys - deferrable)


def fitted(
    plain: ScalarRows, target: Target | None, *, new_columns: bool, growth: Growth | None, whole: bool
) -> Fitted:
    """The rows with the columns and types of ``target``; None: the table is to be created.

    ``new_columns``, ``growth``: as in :func:`~slackwater.pipeline.sinks.table_schema.fit`. ``whole``: the
    rows replace others, so that a column which they lack is null. Otherwise it is left out, as are in both
    cases columns that PostgreSQL fills. Raises RecordsError.
    """
    import pyarrow as pa

    columns = {} if target is None else {column.name: column for column in target.columns}
    if computed := [name for name in plain.given if name in columns and columns[name].is_computed]:
        raise RecordsError(
            f"the rows have the column {computed[0]}, which the table computes: remove it in the handler"
        )
    given = {field.name: field.type for field in plain.rows.schema}
    if wrong := [name for name in plain.json if name in columns and not columns[name].is_json]:
        raise RecordsError(
            f"the column {wrong[0]} of the table is {columns[wrong[0]].type}, and rows have values that are "
            "structs, maps or nested lists"
        )
    writable = [column for column in columns.values() if not column.is_computed]
    held = {column.name: column.held(given.get(column.name, pa.null())) for column in writable}
    kept = None if target is None else pa.schema(list(held.items()))
    rows = fit(plain.rows, kept, new_columns=new_columns, growth=growth)
    unwanted = [
        name
        for name in rows.column_names
        if name not in plain.given and (not whole or columns[name].is_filled)
    ]
    rows = rows.drop_columns(unwanted)
    added = tuple(name for name in rows.column_names if name not in columns)
    for name in added:
        if problem := name_problem(name):
            raise RecordsError(f"a table cannot have the column {name[:80]!r}, which {problem}")
    widened = tuple(
        field.name for field in rows.schema if field.name in columns and field.type != held[field.name]
    )
    for name in widened:
        if columns[name].is_domain:
            raise RecordsError(
                f"the column {name} of the table is of the domain {columns[name].type}, and a row has a "
                f"value that needs {wider_sql_type(rows.schema.field(name).type)}: give it that type by "
                "ALTER TABLE"
            )
    types = {
        field.name: wider_sql_type(field.type)
        if field.name in widened
        else columns[field.name].type
        if field.name in columns
        else JSON
        if field.name in plain.json
        else sql_type(field.type)
        for field in rows.schema
    }
    return Fitted(rows, types, added, widened)


def create(cursor: psycopg.Cursor[Any], name: TableName, types: dict[str, str], key: Sequence[str]) -> None:
    """Creates the table, with ``key`` as its primary key if there is one."""
    from psycopg import sql

    parts = [
        sql.SQL("{} {}{}").format(
            sql.Identifier(column),
            sql.SQL(kind),
            sql.SQL(" not null" if column in PLACE_COLUMNS else ""),
        )
        for column, kind in types.items()
    ]
    if key:
        parts.append(sql.SQL("primary key ({})").format(identifiers(key)))
    cursor.execute(sql.SQL("create table {} ({})").format(name.sql, sql.SQL(", ").join(parts)))


def alter(cursor: psycopg.Cursor[Any], name: TableName, fitted: Fitted) -> None:
    """Adds columns, without values, widens others, and makes some optional. Raises RecordsError for a table
    that is too large to be written anew."""
    from psycopg import sql

    made = {
        column: sql.SQL("{} {} {}{}").format(
            sql.SQL("add column" if column in fitted.added else "alter column"),
            sql.Identifier(column),
            sql.SQL("" if column in fitted.added else "type "),
            sql.SQL(fitted.types[column]),
        )
        for column in fitted.added + fitted.widened
    }
    rewriting = [column for column in fitted.widened if not fitted.types[column].startswith("numeric")]
    if rewriting:
        row = cursor.execute(sql.SQL(_SIZE).format(name.sql.as_string())).fetchone()
        if row and row[0] > MOST_REWRITTEN_BYTES:
            column = rewriting[0]
            raise RecordsError(
                f"a row has a value that needs {fitted.types[column]} in the column {column} of {name}, and "
                f"PostgreSQL would write the table anew for it ({row[0] >> 20} MiB) while others wait: when "
                f"it suits, run alter table {name} {made[column].as_string()}"
            )
    optional = [
        sql.SQL("alter column {} drop not null").format(sql.Identifier(column))
        for column in fitted.made_optional
    ]
    cursor.execute(
        sql.SQL("alter table {} {}").format(name.sql, sql.SQL(", ").join([*made.values(), *optional]))
    )


def identifiers(names: Sequence[str]) -> sql.Composed:
    """The names, quoted, with commas between them."""
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, names))
