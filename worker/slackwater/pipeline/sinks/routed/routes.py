"""Which rows go where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from slackwater.conditions import Condition, ConditionTypeError
from slackwater.pipeline.sinks.routed.destinations import Destination
from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa


class Route(NamedTuple):
    """Rows that meet ``condition`` (None: all), and have a value of the column ``fields_of``, go to a
    destination, which gets the fields of that column ("": all columns). ``goes_on``: they are offered to
    later routes, too. ``path``: of its section in the configuration."""

    path: str
    condition: Condition | None
    destination: Destination
    fields_of: str = ""
    goes_on: bool = False

    def meets(self, rows: pa.Table) -> pa.ChunkedArray | pa.Array:
        """For each row whether it is for this route. Raises RecordsError for a column whose type cannot be
        compared, which some batches alone may have."""
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            met = pa.repeat(True, rows.num_rows) if self.condition is None else self.condition.of(rows)
        except ConditionTypeError as exc:
            raise RecordsError(f"{self.path}.when: {exc}") from None
        if not self.fields_of:
            return met
        at = rows.schema.get_field_index(self.fields_of)
        return pc.and_(met, rows.column(at).is_valid()) if at >= 0 else pa.repeat(False, rows.num_rows)

    def columns(self, rows: pa.Table) -> pa.Table:
        """Rows of this route as its destination gets them. Raises RecordsError."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.fields_of:
            return rows
        if not rows.num_rows:
            return rows.select(PLACE_COLUMNS)
        column = rows.column(self.fields_of)
        inner = list(column.type) if pa.types.is_struct(column.type) else None
        taken = [field.name for field in inner or () if field.name in PLACE_COLUMNS]
        if inner is None or taken:
            has = f"has a field {taken[0]}, which is a column of each row" if taken else "is no struct"
            raise RecordsError(
                f"{self.path}.fieldsOf: the column {self.fields_of} {has}: name another, or set a handler"
            )
        columns = {name: rows.column(name) for name in PLACE_COLUMNS}
        return pa.table(columns | {field.name: pc.struct_field(column, field.name) for field in inner})


def divided(
    routes: Sequence[Route], default: Destination, rows: pa.Table
) -> Iterator[tuple[Destination, pa.Table]]:
    """Each destination with its rows: a row goes to that of the first of ``routes`` which takes it, and to
    ``default`` if none does. Raises RecordsError, also for rows that ``default`` does not take."""
    import pyarrow as pa
    import pyarrow.compute as pc

    left = pa.repeat(True, rows.num_rows)  # whether a row has no table yet
    for route in routes:
        taken = pc.and_(left, route.meets(rows))
        own = route.columns(rows.filter(taken))
        if (takes := route.destination.takes(own)) is not None:
            numbers = pc.indices_nonzero(taken).filter(takes)
            taken = pc.is_in(pa.array(range(rows.num_rows), pa.uint64()), value_set=numbers)
            own = own.filter(takes)
        yield route.destination, own
        if not route.goes_on:
            left = pc.and_not(left, taken)
    rows = rows.filter(left)
    takes = default.takes(rows)
    if takes is not None and rows.num_rows and not pc.all(takes).as_py():
        raise default.refused(rows.filter(pc.invert(takes)))
    yield default, rows
