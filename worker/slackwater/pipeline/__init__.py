"""The engines that run a user's handler, and the sinks that store its rows.

Importing this package loads neither Spark nor Arrow; making an engine or a sink doesn't either: a
returning worker joins its group first, and loads them in :meth:`Engine.start`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from slackwater.extras import SPARK
from slackwater.runtime.config.pipeline_config import several_tables, sinks_of, table_names
from slackwater.runtime.config.sink_config import place_of
from slackwater.runtime.errors import ConfigError
from slackwater.tracing.spans import NO_TRACING, Tracing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from slackwater.pipeline.engines.arrow import ArrowEngine
    from slackwater.pipeline.engines.spark import SparkEngine
    from slackwater.pipeline.sinks.declared_schema import TypedSink
    from slackwater.pipeline.sinks.routed.destinations import Destination
    from slackwater.pipeline.sinks.routed.routes import Route
    from slackwater.pipeline.values import ValueDecoder
    from slackwater.runtime.config.sink_config import SinkConfig
    from slackwater.runtime.config.worker_config import WorkerConfig
    from slackwater.runtime.interfaces import AnyEngine, Sink

__all__ = ["make_chosen_sink", "make_engine", "make_sink", "rows_by_table"]


def make_engine(
    config: WorkerConfig,
    *,
    for_sink: bool = False,
    session: SparkSession | None = None,
    tracing: Tracing = NO_TRACING,
) -> AnyEngine:
    """The engine that ``config.engine`` names. It loads nothing before ``start()``.

    ``for_sink``: whether its rows are for the sink of ``config``, and so may stay where that writes them.
    ``session``: of the caller's, on which engine spark runs instead of one of its own. ``tracing``: for the
    jobs of Spark. Raises ConfigError where the engine's packages are not installed.
    """
    makes = _decoder_factories(config)
    if config.engine == "python":
        from slackwater.pipeline.engines.python import PythonEngine

        records = PythonEngine(
            config.handler,
            config.handler_path,
            timeout_ms=config.handler_timeout_ms,
            refreshes=config.refresh_every_ms > 0,
            by_record=config.by_record,
            concurrency=config.concurrency,
        )
        if not makes:
            return records
        from slackwater.pipeline.engines.decoding import DecodingRecordEngine

        return DecodingRecordEngine(records, makes, by_record=config.by_record)
    tables = _table_engine(config, for_sink=for_sink, session=session, tracing=tracing)
    if not makes:
        return tables
    from slackwater.pipeline.engines.decoding import DecodingEngine

    return DecodingEngine(tables, makes, by_record=config.by_record)


def _decoder_factories(config: WorkerConfig) -> dict[str, Callable[[], ValueDecoder]]:
    """Makes the decoders of ``value`` and ``key``, by column; a column that is left out stays bytes."""
    decoded = config.decoded
    if not decoded:
        return {}
    from slackwater.pipeline.values import make_decoder

    # The handler needs time of its own after the wait for the schema registries.
    waits_ms = config.handler_timeout_ms * 0.8 / len(decoded)
    return {
        name: partial(
            make_decoder, given, timeout_ms=waits_ms, start_timeout_ms=config.start_timeout_ms, column=name
        )
        for name, given in decoded.items()
    }


def _table_engine(
    config: WorkerConfig, *, for_sink: bool, session: SparkSession | None, tracing: Tracing
) -> ArrowEngine | SparkEngine:
    if config.engine == "arrow":
        from slackwater.pipeline.engines.arrow import ArrowEngine

        return ArrowEngine(
            config.handler,
            config.handler_path,
            timeout_ms=config.handler_timeout_ms,
            refreshes=config.refresh_every_ms > 0,
            by_record=config.by_record,
        )
    if problem := SPARK.problem("engine spark"):
        raise ConfigError(problem, field="engine")
    from slackwater.pipeline.engines.spark import SparkEngine

    return SparkEngine(
        config.handler,
        config.handler_path,
        remote=config.spark.remote,
        conf=config.spark.conf,
        start_timeout_ms=config.spark.start_timeout_ms,
        timeout_ms=config.handler_timeout_ms,
        session=session,
        refreshes=config.refresh_every_ms > 0,
        by_record=config.by_record,
        # Rows that wait for those of other batches wait in the worker.
        keeps_rows=for_sink
        and config.sink.format == "spark"
        and config.by_record
        and not config.sink.max_age_ms
        and not config.routes,
        tracing=tracing,
    )


def make_sink(config: WorkerConfig, engine: AnyEngine | None = None) -> Sink:
    """The sink that ``config`` describes. ``engine``: the worker's, for format spark, which writes in its
    session; None: rows cannot be written with this format.

    Raises SinkError for a path that it cannot write to, ConfigError for what cannot be used.
    """
    if not several_tables(config):
        return _sink(config, engine)
    from slackwater.pipeline.sinks.routed.sink import RoutedSink

    owners: dict[tuple[str, ...], str] = {}
    tables = {
        path: _destination(config, path, sink, engine, owners) for path, sink in sinks_of(config).items()
    }
    return RoutedSink(_routes(config, tables), tables["sink"])


def make_chosen_sink(sink: Sink, config: WorkerConfig, path: str) -> Sink:
    """``sink``, which gets those rows alone that ``config`` has for the section ``path``, such as
    ``routes[1].sink``. Raises what :func:`make_sink` raises."""
    from slackwater.pipeline.sinks.routed.sink import ChosenTable

    tables = _elsewhere(config)
    return ChosenTable(sink, _routes(config, tables), tables["sink"], tables[path])


def rows_by_table(config: WorkerConfig, rows: pa.Table) -> dict[str, pa.Table]:
    """A handler's rows by the path or the name of the table that they go to, as each gets them; tables
    without rows are left out. Nothing is written. Raises RecordsError for rows that have no table."""
    from slackwater.pipeline.sinks.routed.destinations import NamedTables
    from slackwater.pipeline.sinks.routed.routes import divided

    tables = _elsewhere(config)
    names = {id(tables[path]): name for path, name in table_names(config).items()}
    by_name: dict[str, pa.Table] = {}
    for destination, own in divided(_routes(config, tables), tables["sink"], rows):
        if isinstance(destination, NamedTables):
            by_name |= destination.named(own)
        else:
            by_name[names[id(destination)]] = own
    return {name: own for name, own in by_name.items() if own.num_rows}


def _elsewhere(config: WorkerConfig) -> dict[str, Destination]:
    """The destinations by section, none of which is written."""
    from slackwater.pipeline.sinks.routed.destinations import Elsewhere

    return {
        path: Elsewhere() if sink.tables is None else _destination(config, path, sink, None, {})
        for path, sink in sinks_of(config).items()
    }


def _routes(config: WorkerConfig, tables: Mapping[str, Destination]) -> list[Route]:
    """The routes, by the destinations of their sections."""
    from slackwater.conditions import Condition
    from slackwater.pipeline.sinks.routed.routes import Route

    return [
        Route(
            f"routes[{number}]",
            Condition(route.when) if route.when else None,
            tables[f"routes[{number}].sink"],
            route.fields_of,
            route.continue_,
        )
        for number, route in enumerate(config.routes)
    ]


def _destination(
    config: WorkerConfig,
    path: str,
    sink: SinkConfig,
    engine: AnyEngine | None,
    owners: dict[tuple[str, ...], str],
) -> Destination:
    """Where the rows go that ``sink`` is for; ``path``: of its section. ``owners``: the sections that have
    tables, by their places."""
    from slackwater.pipeline.sinks.routed.destinations import FixedTable, NamedTables
    from slackwater.pipeline.sinks.routed.table import Table, column_rules

    def named(name: str) -> SinkConfig:
        return replace(sink, path=name) if sink.path else replace(sink, table=name)

    def owner(name: str) -> str:
        has = owners.setdefault(place_of(named(name)), path)
        return "" if has == path else has

    def make(name: str) -> Sink:
        return _sink(replace(config, sink=named(name), routes=()), engine)

    if sink.tables is None:
        owners[place_of(sink)] = path
        made = partial(_sink, replace(config, sink=sink, routes=()), engine)
        return FixedTable(Table(table_names(config)[path], path, made, column_rules(sink)))
    from slackwater.kafka.topic_pattern import TopicPattern

    return NamedTables(
        path,
        sink.path or sink.table,
        make,
        column_rules(sink),
        owner=owner,
        allow=TopicPattern(sink.tables.allow),
        limit=sink.tables.limit,
    )


def _sink(config: WorkerConfig, engine: AnyEngine | None) -> Sink:
    """The sink that ``config.sink`` names."""
    sink = config.sink
    if sink.format == "custom":
        from slackwater.pipeline.sinks.custom.sink import CustomSink

        return CustomSink(
            config.group_id,
            sink.implementation,
            config.handler_path,
            options=sink.options,
            timeout_ms=config.handler_timeout_ms,
        )
    if sink.format == "kafka":
        return _kafka_sink(config)
    if sink.format == "spark":
        from slackwater.pipeline.sinks.spark import spark_sink

        return spark_sink(config, partial(_session_of, engine))
    table = _table(config)
    if not sink.schema:
        return table
    from slackwater.pipeline.sinks.declared_schema import DeclaredSchemaSink
    from slackwater.pipeline.sinks.modes import WriteMode

    mode = WriteMode.of(sink.mode, sink.key, sink.aggregates, sink.version, sink.deleted_for_ms)
    return DeclaredSchemaSink(table, sink.schema, new_columns=sink.new_columns == "add", mode=mode)


def _table(config: WorkerConfig) -> TypedSink:
    """The sink of a format whose tables have a schema."""
    sink = config.sink
    new_columns, makes_optional = sink.new_columns == "add", "makeOptional" in sink.schema_changes
    if sink.format == "delta":
        from slackwater.pipeline.sinks.delta.sink import delta_sink

        return delta_sink(
            config.group_id,
            sink.path,
            options=sink.options,
            mode=sink.mode,
            key=sink.key,
            aggregates=sink.aggregates,
            version=sink.version,
            deleted_for_ms=sink.deleted_for_ms,
            partition_by=sink.partition_by,
            new_columns=new_columns,
        )
    if sink.format == "iceberg":
        from slackwater.pipeline.sinks.iceberg.sink import iceberg_sink

        return iceberg_sink(
            config.group_id,
            sink.table,
            options=sink.options,
            mode=sink.mode,
            key=sink.key,
            aggregates=sink.aggregates,
            version=sink.version,
            deleted_for_ms=sink.deleted_for_ms,
            partition_by=sink.partition_by,
            new_columns=new_columns,
            makes_optional=makes_optional,
        )
    if sink.format == "postgres":
        from slackwater.pipeline.sinks.postgres.sink import PostgresSink

        return PostgresSink(
            config.group_id,
            sink.table,
            options=sink.options,
            mode=sink.mode,
            key=sink.key,
            aggregates=sink.aggregates,
            version=sink.version,
            deleted_for_ms=sink.deleted_for_ms,
            new_columns=new_columns,
            makes_optional=makes_optional,
        )
    from slackwater.pipeline.sinks.parquet.sink import ParquetSink

    return ParquetSink(
        config.group_id,
        sink.path,
        options=sink.options,
        partition_by=sink.partition_by,
        new_columns=new_columns,
    )


def _session_of(engine: AnyEngine | None) -> SparkSession:
    from slackwater.pipeline.engines.decoding import DecodingEngine
    from slackwater.pipeline.engines.spark import SparkEngine

    inner = engine.engine if isinstance(engine, DecodingEngine) else engine
    if not isinstance(inner, SparkEngine):
        raise RuntimeError("format spark is for workers with engine spark")
    return inner.session


def _kafka_sink(config: WorkerConfig) -> Sink:
    from slackwater.pipeline.sinks.kafka.options import connection_of
    from slackwater.pipeline.sinks.kafka.sink import KafkaSink

    security = config.security.client()
    connection = connection_of(config.sink.options, config.bootstrap_servers, security)

    def group_cluster() -> str | None:
        from slackwater.kafka import KafkaAdmin

        with KafkaAdmin(config.bootstrap_servers, security=security) as admin:
            return admin.describe_cluster().cluster_id

    return KafkaSink(
        config.group_id,
        config.sink.topic,
        connection,
        group_cluster=group_cluster if config.uses_topic(config.sink.topic) else None,
    )
