"""Where the rows of a route go: to one table, or to one for each name that rows make."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from slackwater.pipeline.sinks.routed.table import ColumnRules, Table
from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import PLACE_COLUMNS, Sink

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.topic_pattern import TopicPattern

_COLUMN = re.compile(r"\{([^{}]+)\}")
_NEVER = re.compile(r"[./\\\s\x00-\x1f\x7f{}]")
"""What no part of a name may have, whatever is allowed: it would lead to another folder or namespace."""


class Destination(Protocol):
    """Where rows go that a route takes: to one table, or to several by what they say."""

    def tables(self) -> Collection[Table]:
        """Those that are known so far."""

    def takes(self, rows: pa.Table) -> pa.Array | None:
        """For each row whether it has a table here; None: each has. Raises RecordsError."""

    def refused(self, rows: pa.Table) -> RecordsError:
        """Why ``rows``, none of which it takes, have no table."""

    def divided(self, rows: pa.Table) -> Iterator[tuple[Table, pa.Table]]:
        """The tables and the rows of each; also of a table that is known and gets none. Raises RecordsError,
        and what making a sink raises."""

    @property
    def setting(self) -> str:
        """That by which rows name its tables, so that not all are known; "": they don't."""


class Elsewhere:
    """A destination that takes all rows, and whose table is not written here."""

    setting = ""

    def tables(self) -> Collection[Table]:
        """None."""
        return ()

    def takes(self, rows: pa.Table) -> pa.Array | None:
        """Each."""
        return None

    def refused(self, rows: pa.Table) -> RecordsError:
        """It refuses none."""
        raise RuntimeError("the destination takes all rows")

    def divided(self, rows: pa.Table) -> Iterator[tuple[Table, pa.Table]]:
        """No table."""
        yield from ()


class FixedTable(Elsewhere):
    """A destination that is one table."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def tables(self) -> Collection[Table]:
        """The table."""
        return (self._table,)

    def divided(self, rows: pa.Table) -> Iterator[tuple[Table, pa.Table]]:
        """All rows."""
        yield self._table, rows


class NamedTables:
    """A destination with a table for each name that rows make of ``template``.

    Args:
        path: of its section in the configuration.
        template: with ``{column}``s.
        make: makes the sink of the table with a name.
        columns: as :class:`Table` has them.
        owner: of a name, the section that has the table already; "": none has.
        allow: which values may be a part of a name.
        limit: the most tables.
    """

    def __init__(
        self,
        path: str,
        template: str,
        make: Callable[[str], Sink],
        columns: ColumnRules | None,
        *,
        owner: Callable[[str], str],
        allow: TopicPattern,
        limit: int,
    ) -> None:
        self._owner, self.setting = owner, f"{path}.tables"
        self._path, self._template, self._make, self._rules = path, template, make, columns
        self._allow, self._limit = allow, limit
        self._columns = list(dict.fromkeys(_COLUMN.findall(template)))
        self._tables: dict[str, Table] = {}

    def tables(self) -> Collection[Table]:
        """Those that rows have named."""
        return self._tables.values()

    def takes(self, rows: pa.Table) -> pa.Array | None:
        """Whether the row has a value in each column, and each may be a part of a name. Raises
        RecordsError."""
        import pyarrow as pa
        import pyarrow.compute as pc

        taken = pa.repeat(True, rows.num_rows)
        for values in self._values(rows):
            allowed = [value for value in values.unique().to_pylist() if self._is_allowed(value)]
            taken = pc.and_(taken, pc.is_in(values, value_set=pa.array(allowed, pa.string())))
        return taken

    def refused(self, rows: pa.Table) -> RecordsError:
        """Which value of each row names no table."""
        columns = zip(*(values.to_pylist() for values in self._values(rows)), strict=True)
        return _refused(rows, [self._fault(values) for values in columns])

    def _fault(self, values: Sequence[str | None]) -> str:
        name, value = next(
            (name, value)
            for name, value in zip(self._columns, values, strict=True)
            if not self._is_allowed(value)
        )
        given = "no value" if value is None else f"the value {value[:100]!r}"
        return f"the column {name} has {given}, which names no table ({self.setting}.allow)"

    def named(self, rows: pa.Table) -> dict[str, pa.Table]:
        """Rows that all have a table, by its name. Raises RecordsError."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = [pc.fill_null(column, "") for column in self._values(rows)]
        named = pa.table(values, names=[f"{number}" for number in range(len(values))])
        masks: dict[str, pa.Array] = {}
        for combination in named.group_by(named.column_names).aggregate([]).to_pylist():
            mask = pa.repeat(pa.scalar(True), rows.num_rows)
            for column, part in zip(values, combination.values(), strict=True):
                mask = pc.and_(mask, pc.equal(column, part))
            name = self._name(list(combination.values()))
            masks[name] = pc.or_(masks[name], mask) if name in masks else mask
        return {name: rows.filter(mask) for name, mask in masks.items()}

    def divided(self, rows: pa.Table) -> Iterator[tuple[Table, pa.Table]]:
        """Each table's rows; all have one. Raises RecordsError for one table too many."""
        named = self.named(rows)
        self._begin({name: own for name, own in named.items() if name not in self._tables})
        for name, table in list(self._tables.items()):
            yield table, named.get(name, rows.slice(0, 0))

    def _name(self, parts: Sequence[str]) -> str:
        by_column = dict(zip(self._columns, parts, strict=True))
        return _COLUMN.sub(lambda match: by_column[match[1]], self._template)

    def _begin(self, named: Mapping[str, pa.Table]) -> None:
        """Makes the tables that rows have named, which are new; by name, the rows."""
        refused: list[tuple[pa.Table, str]] = []
        for name, rows in named.items():
            if owner := self._owner(name):
                refused.append((rows, f"the row is for {name}, which is the table of {owner}"))
            elif len(self._tables) < self._limit:
                self._tables[name] = Table(name, self._path, partial(self._make, name), self._rules)
            else:
                limit = f"{self._limit} tables already, which is the limit ({self.setting}.limit)"
                refused.append((rows, f"the row is for {name}, and the worker writes to {limit}"))
        if refused:
            import pyarrow as pa

            faults = [fault for rows, fault in refused for _ in range(rows.num_rows)]
            raise _refused(pa.concat_tables(rows for rows, _ in refused), faults)

    def _values(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        """The columns as texts. Raises RecordsError for one of another type, which some batches alone may
        have."""
        import pyarrow as pa

        columns = []
        for name in self._columns:
            at = rows.schema.get_field_index(name)
            column = rows.column(at) if at >= 0 else pa.chunked_array([pa.nulls(rows.num_rows)])
            try:
                columns.append(column.cast(pa.string()))
            except pa.ArrowException:
                raise RecordsError(
                    f"{self.setting}: the column {name} is {column.type}, which cannot be a part of a "
                    "table's name"
                ) from None
        return columns

    def _is_allowed(self, value: str | None) -> bool:
        return bool(value) and not _NEVER.search(value or "") and self._allow.matches_all_of(value or "")


def _refused(rows: pa.Table, faults: Sequence[str]) -> RecordsError:
    """The records of ``rows`` are at fault, each for its own reason."""
    places = zip(*(rows.column(name).to_pylist() for name in PLACE_COLUMNS), strict=True)
    return RecordsError(faults[0], dict(zip(places, faults, strict=True)))
