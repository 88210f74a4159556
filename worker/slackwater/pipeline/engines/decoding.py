"""Engines whose handler gets decoded values and keys: they decode, call the engine proper, and add what they
reject.

A record whose value or key cannot be decoded does not reach the handler. It comes back as a row with its
position and the reason in ``_error``, as if the handler had rejected it; so it becomes a dead letter with its
original bytes. A record without a value reaches the handler: its value is null; so is a key that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.handler import NO_BATCH, Batch
from slackwater.pipeline.values import ValueDecoder, decode
from slackwater.runtime.interfaces import ERROR_COLUMN, PLACE_COLUMNS, EngineResidentRows, RecordEngine

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.records import ConsumerRecord

MakeDecoder = Callable[[], ValueDecoder]


class TableHandler(Protocol):
    """An :class:`~slackwater.runtime.interfaces.Engine` that can be warmed up with other columns."""

    def start(self) -> None: ...

    def warm_up(self, schema: pa.Schema | None = None) -> None: ...

    def transform(self, table: pa.Table, batch: Batch = NO_BATCH) -> pa.Table: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class _Decoders:
    """The decoders by column, made at the start."""

    def __init__(self, makes: Mapping[str, MakeDecoder]) -> None:
        self._makes = makes
        self._decoders: dict[str, ValueDecoder] = {}

    def start(self) -> None:
        """Raises ConfigError and StartError."""
        for column, make in self._makes.items():
            self._decoders[column] = make()

    def __iter__(self) -> Iterator[tuple[str, ValueDecoder]]:
        """Each column and its decoder."""
        if len(self._decoders) < len(self._makes):
            raise RuntimeError("start() was not called")
        return iter(self._decoders.items())

    def close(self) -> None:
        while self._decoders:
            self._decoders.popitem()[1].close()


class DecodingEngine:
    """Gives ``engine`` tables whose columns ``value`` and ``key`` are decoded, by ``makes``."""

    def __init__(
        self, engine: TableHandler, makes: Mapping[str, MakeDecoder], *, by_record: bool = True
    ) -> None:
        self._engine, self._decoders, self._by_record = engine, _Decoders(makes), by_record

    @property
    def engine(self) -> TableHandler:
        """The engine that runs the handler."""
        return self._engine

    def start(self) -> None:
        """Makes the decoders and starts the engine. Raises ConfigError, StartError and HandlerLoadError."""
        self._decoders.start()
        self._engine.start()

    def warm_up(self) -> None:
        """The engine's, with the decoded columns."""
        import pyarrow as pa

        from slackwater.kafka.records import ARROW_SCHEMA

        schema = ARROW_SCHEMA
        for column, decoder in self._decoders:
            schema = schema.set(schema.get_field_index(column), pa.field(column, decoder.type))
        self._engine.warm_up(schema)

    def transform(self, table: pa.Table, batch: Batch = NO_BATCH) -> pa.Table:
        """The handler's output, and a row for each record whose value or key cannot be decoded.

        Raises WorkerError where the schema registry cannot be used, and what the engine raises.
        """
        import pyarrow as pa

        reasons: dict[int, str] = {}
        typed = table
        for name, decoder in self._decoders:
            chunks, first = [], 0
            for chunk in table.column(name).chunks:
                decoded, rejected = decode(decoder, name, chunk)
                chunks.append(decoded)
                reasons = {first + row: reason for row, reason in rejected.items()} | reasons
                first += len(chunk)
            of_type = decoder.type  # a later chunk may have brought fields
            column = pa.chunked_array([chunk.cast(of_type) for chunk in chunks], of_type)
            at = table.schema.get_field_index(name)
            typed = typed.set_column(at, pa.field(name, of_type), column)
        if not reasons:
            return self._engine.transform(typed, batch)
        rows = sorted(reasons)
        rejected_rows = table.select(PLACE_COLUMNS).take(pa.array(rows, pa.int64()))
        good = pa.array([row not in reasons for row in range(table.num_rows)], pa.bool_())
        rest = typed.filter(good)
        output = self._engine.transform(rest, batch) if rest.num_rows else None
        given = [reasons[row] for row in rows]
        return with_rejected(output, rejected_rows, given, by_record=self._by_record)

    def refresh(self) -> None:
        """The engine's."""
        self._engine.refresh()

    def close(self) -> None:
        """Closes both."""
        self._decoders.close()
        self._engine.close()


class DecodingRecordEngine:
    """Gives ``engine`` records whose ``value`` and ``key`` are dicts, or None, by ``makes``."""

    def __init__(
        self, engine: RecordEngine, makes: Mapping[str, MakeDecoder], *, by_record: bool = True
    ) -> None:
        self._engine, self._decoders, self._by_record = engine, _Decoders(makes), by_record

    def start(self) -> None:
        """Makes the decoders and starts the engine. Raises ConfigError, StartError and HandlerLoadError."""
        self._decoders.start()
        self._engine.start()

    def warm_up(self) -> None:
        """The engine's."""
        self._engine.warm_up()

    def transform_records(self, records: list[ConsumerRecord], batch: Batch = NO_BATCH) -> pa.Table:
        """The handler's output, and a row for each record whose value or key cannot be decoded. Raises as
        :meth:`DecodingEngine.transform`."""
        import pyarrow as pa

        reasons: dict[int, str] = {}
        decoded = list(records)
        for name, decoder in self._decoders:
            raw = pa.array([getattr(record, name) for record in records], pa.binary())
            structs, rejected = decode(decoder, name, raw)
            contents = structs.to_pylist(maps_as_pydicts="lossy")
            decoded = [
                record._replace(**{name: content}) for record, content in zip(decoded, contents, strict=True)
            ]
            reasons = rejected | reasons
        given = [record for row, record in enumerate(decoded) if row not in reasons]
        output = self._engine.transform_records(given, batch) if given or not records else None
        if not reasons:
            assert output is not None
            return output
        rows = sorted(reasons)
        places = {
            "topic": pa.array([records[row].topic for row in rows], pa.string()),
            "partition": pa.array([records[row].partition for row in rows], pa.int32()),
            "offset": pa.array([records[row].offset for row in rows], pa.int64()),
        }
        given_reasons = [reasons[row] for row in rows]
        return with_rejected(output, pa.table(places), given_reasons, by_record=self._by_record)

    def refresh(self) -> None:
        """The engine's."""
        self._engine.refresh()

    def close(self) -> None:
        """Closes both."""
        self._decoders.close()
        self._engine.close()


def with_rejected(output: Any, places: pa.Table, reasons: list[str], *, by_record: bool = True) -> pa.Table:
    """``output`` of a handler (None: it was not called) with a row for each of ``places``, and its reason. If
    not ``by_record``, the rows of ``output`` need no place.

    Raises what :func:`~slackwater.runtime.delivery.batch.checked_places` raises for an output that a worker
    would refuse.
    """
    import pyarrow as pa

    from slackwater.runtime.handler_output import checked_places

    rejected = places.append_column(ERROR_COLUMN, pa.array(reasons, pa.string()))
    if output is None:
        return rejected
    if isinstance(output, EngineResidentRows):
        return output.with_rejected(rejected)
    if not by_record and not set(PLACE_COLUMNS) <= set(getattr(output, "column_names", PLACE_COLUMNS)):
        return pa.concat_tables([output, rejected], promote_options="default")
    return pa.concat_tables(
        [checked_places(output, may_lack=not by_record), rejected], promote_options="default"
    )
