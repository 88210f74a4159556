"""The engine ``python``: the handler takes a list of records and returns rows, one mapping each."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any

from slackwater.handler import NO_BATCH, Batch
from slackwater.pipeline.engines import handler as handlers
from slackwater.pipeline.engines.in_process import InProcessEngine
from slackwater.runtime.errors import HandlerError, HandlerRaised, RecordsError
from slackwater.runtime.handler_output import checked_output
from slackwater.runtime.interfaces import ERROR_COLUMN, PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka import ConsumerRecord
    from slackwater.pipeline.engines.async_calls import AsyncCalls

CLOSE_MS = 1_000.0
"""How long the tasks that a handler has left may take to end."""

log = logging.getLogger(__name__)


class RowFailed(HandlerRaised):
    """The handler raised; the message names the record that it had in hand. Its exception is the cause."""


DEFAULT_CONCURRENCY = 16


class PythonEngine(InProcessEngine):
    """Calls the handler ``spec``. ``timeout_ms`` limits each call, including the conversion of its rows; for
    a coroutine function it limits a batch. ``concurrency``: for how many records that is called at a time."""

    def __init__(
        self, spec: str, path: Sequence[str] = (), *, concurrency: int = DEFAULT_CONCURRENCY, **options: Any
    ) -> None:
        """``options``: of :class:`InProcessEngine`."""
        super().__init__(spec, path, **options)
        self._concurrency = concurrency
        self._async_calls: AsyncCalls | None = None

    def close(self) -> None:
        """Ends the handler's thread, and its event loop."""
        calls, self._async_calls = self._async_calls, None
        if calls is not None and self._calls is not None and not self._calls.stuck:
            with contextlib.suppress(Exception):  # what a handler has left in the loop
                self._calls.call(calls.close, CLOSE_MS, lambda: None)
        super().close()

    def warm_up(self) -> None:
        """Calls ``setup``, and the handler with no records.

        Raises HandlerError where the handler cannot take that, or gives what the worker cannot store, or
        where ``setup`` fails; StartError where ``setup`` fails because something else is away.
        """
        self._set_up()
        try:
            output = self.transform_records([])
        except HandlerError:
            raise
        except BaseException as exc:
            log.error("the handler %s failed on an empty list", self._spec, exc_info=exc)
            cause = exc.__cause__ if isinstance(exc, RowFailed) and exc.__cause__ else exc
            raise HandlerError(
                f"handler {self._spec} fails on an empty list, which it must accept: "
                f"{handlers.describe(cause)}"
            ) from exc
        checked_output(output, {}, by_record=self._by_record)

    def transform_records(self, records: list[ConsumerRecord], batch: Batch = NO_BATCH) -> pa.Table:
        """The handler's rows for ``records``, as Arrow.

        Raises HandlerError after ``timeout_ms`` and for rows that make no table, RowFailed for what the
        handler raises.
        """
        return self._call(lambda: self._rows(records, batch), f"on {len(records)} records")

    def _rows(self, records: list[ConsumerRecord], batch: Batch) -> pa.Table:
        handler = self._handler
        rows: list[Mapping[str, Any]] = []
        try:
            given: Any
            if handler.is_async:
                given = self._async().rows(lambda record: handler.call(record, batch), records)
            else:
                given = handler.call(records, batch)
            if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
                raise HandlerError(
                    f"handler {self._spec} returned {type(given).__name__}, not rows: return a list of "
                    "mappings, or yield them"
                )
            rows.extend(given)
        except HandlerError:
            raise
        except BaseException as exc:  # also SystemExit: a handler that calls exit() has failed
            raise RowFailed(f"{handlers.describe(exc)}{_in_hand(exc)}") from exc
        schema = getattr(handler.function, "schema", None)
        return table_of(rows, schema, self._spec, by_record=self._by_record)

    def _async(self) -> AsyncCalls:
        if self._async_calls is None:
            from slackwater.pipeline.engines.async_calls import AsyncCalls

            self._async_calls = AsyncCalls(self._concurrency)
        return self._async_calls


def _in_hand(exc: BaseException) -> str:
    """Names the record that the handler was processing: a local variable of the innermost frame with a
    record. From Python 3.12 on, one that only a comprehension has a name for is not seen (PEP 709)."""
    from slackwater.kafka import ConsumerRecord

    record = ""
    trace: TracebackType | None = exc.__traceback__
    while trace is not None:
        for value in trace.tb_frame.f_locals.values():
            if isinstance(value, ConsumerRecord):
                record = f", at {value.topic}-{value.partition} offset {value.offset}"
        trace = trace.tb_next
    return record


_NO_ARRAY = (TypeError, ValueError, OverflowError, NotImplementedError, KeyError)
"""What Arrow raises for values that make no array: its own errors are of these kinds, too."""


def table_of(
    rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None, handler: str, *, by_record: bool = True
) -> pa.Table:
    """``rows`` as a table: the place columns, then the others in the order in which they come up first.

    If not ``by_record``, rows need no place unless they reject a record.

    Types are ``schema``'s where that names the column, else what the values are. A key that a row lacks is
    null. A column of nulls and empty mappings only, whose type is not known, is left out: another batch's
    file has it, and Parquet has no column without a type.

    Raises:
        HandlerError: a row is no mapping or lacks its place.
        RecordsError: a row's place is none, or a column's values have no common type; the message names the
            record.
    """
    import pyarrow as pa

    types = _types(schema, handler)
    columns: dict[str, list[Any]] = {name: [] for name in dict.fromkeys([*PLACE_COLUMNS, *types])}
    for at, row in enumerate(rows):
        placed = by_record or (isinstance(row, Mapping) and row.get(ERROR_COLUMN) is not None)
        _check(row, at, handler, PLACE_COLUMNS if placed else ())
        for name in row:
            if name not in columns:
                columns[name] = [None] * at
        for name, values in columns.items():
            values.append(row.get(name))
    places = columns[PLACE_COLUMNS[0]], columns[PLACE_COLUMNS[1]], columns[PLACE_COLUMNS[2]]
    for name, values in zip(PLACE_COLUMNS, places, strict=True):
        _check_place(name, values, handler, may_lack=not by_record)
    arrays = {
        name: _array(name, values, types.get(name), places, handler) for name, values in columns.items()
    }
    kept = {name: array for name, array in arrays.items() if name in types or not _has_no_type(array.type)}
    return pa.table(kept)


def _types(schema: Any, handler: str) -> dict[str, pa.DataType]:
    """The types that are known beforehand."""
    import pyarrow as pa

    known = dict(zip(PLACE_COLUMNS, (pa.string(), pa.int32(), pa.int64()), strict=True))
    if schema is None:
        return known
    if not isinstance(schema, pa.Schema):
        raise HandlerError(f"handler {handler}: its schema is {type(schema).__name__}, not a pyarrow.Schema")
    return {**{field.name: field.type for field in schema}, **known}


def _check(row: Any, at: int, handler: str, needed: Collection[str]) -> None:
    if not isinstance(row, Mapping):
        raise HandlerError(
            f"handler {handler}: row {at} is {type(row).__name__}, not a mapping: {_shown(row)}"
        )
    for name in needed:
        if name not in row:
            have = ", ".join(map(str, row)) or "nothing"
            raise HandlerError(
                f"handler {handler}: row {at} has no {name} (it has: {have}); every row must carry "
                f"{', '.join(PLACE_COLUMNS)} of its record"
            )
    for name in row:
        if not isinstance(name, str):
            raise HandlerError(f"handler {handler}: row {at} has the key {name!r}; column names are text")


def _check_place(name: str, values: Sequence[Any], handler: str, *, may_lack: bool) -> None:
    """Refuses values that Arrow would convert to a position: 5.5 to 5, and bytes to text."""
    fits = _is_text if name == PLACE_COLUMNS[0] else _is_integer
    for at, value in enumerate(values):
        if not fits(value) and not (may_lack and value is None):
            raise RecordsError(
                f"handler {handler}: row {at} has {name} {_shown(value)}, a {type(value).__name__}; every "
                f"row must carry {', '.join(PLACE_COLUMNS)} of its record, unchanged. Write them after the "
                "payload's fields, which may have the same names"
            )


def _shown(value: Any) -> str:
    """The beginning of a value, for a message."""
    try:
        return repr(value)[:100]
    except ValueError:  # a whole number with more digits than Python converts (sys.get_int_max_str_digits)
        return f"a value ({type(value).__name__}) with a number that is too large to be written"


def _has_no_type(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_null(type_) or (pa.types.is_struct(type_) and type_.num_fields == 0))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))  # or numpy's


def _array(
    name: str, values: list[Any], type_: pa.DataType | None, places: tuple[list[Any], ...], handler: str
) -> pa.Array:
    import pyarrow as pa

    try:
        _check_numbers(values, type_)
        return pa.array(values, type_)
    except _NO_ARRAY as exc:
        at, wanted = _odd(values) if type_ is None else (_first_bad(values, type_), str(type_))
        where = f"{places[0][at]}-{places[1][at]} offset {_shown(places[2][at])}"
        row = f"row for {where}" if places[0][at] is not None else f"row {at}"
        raise RecordsError(
            f"handler {handler}: the column {name} of its {row} is {_shown(values[at])}, not "
            f"{wanted}; make all of one type ({' '.join(str(exc).split())})"
        ) from exc


def _check_numbers(values: list[Any], type_: pa.DataType | None) -> None:
    """Refuses a fraction in a column that is declared to be of integers, where Arrow would cut it off, and
    decimals that Arrow does not convert rightly."""
    import pyarrow as pa

    from slackwater.pipeline.values.types import check_decimals, decimals_of

    if type_ is None:
        return
    if pa.types.is_integer(type_):
        for value in values:
            if isinstance(value, float) and not value.is_integer():
                raise ValueError(f"{value} has a fraction")
    if decimals := decimals_of(type_):
        check_decimals(values, decimals)


def _odd(values: list[Any]) -> tuple[int, str]:
    """The index of the first value that does not fit the most frequent type, and a text that names that
    type."""
    import pyarrow as pa

    usual = Counter(type(value) for value in values if value is not None).most_common(1)[0][0]
    usually = [value for value in values if type(value) is usual]
    try:
        wanted = pa.array(usually).type
    except _NO_ARRAY:  # values of one type, such as mappings, that differ within
        at = _first_bad(values, None)
        return at, f"like the rows before ({pa.array(values[:at]).type})"
    tried: set[type] = {usual}
    for at, value in enumerate(values):
        if value is None or type(value) in tried:
            continue
        tried.add(type(value))
        try:
            pa.array([*usually[:1], value])
        except _NO_ARRAY:
            return at, f"like most rows ({wanted})"
    at = _first_bad(values, None)
    return at, f"like the rows before ({pa.array(values[:at]).type})"


def _first_bad(values: list[Any], type_: pa.DataType | None) -> int:
    """The index of the first value that makes no array with those before it, found by bisection."""
    import pyarrow as pa

    good, bad = 0, len(values)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _check_numbers(values[:middle], type_)
            pa.array(values[:middle], type_)
            good = middle
        except _NO_ARRAY:
            bad = middle
    return bad - 1
