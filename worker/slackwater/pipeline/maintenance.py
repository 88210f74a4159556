"""The maintenance of a group's tables: which of them have any, and what does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.runtime.config.maintained_tables import why_not_maintained
from slackwater.runtime.config.pipeline_config import sinks_of, table_names

if TYPE_CHECKING:
    from slackwater.pipeline.sinks.compaction import TableMaintenance
    from slackwater.runtime.config.sink_config import SinkConfig
    from slackwater.runtime.config.worker_config import WorkerConfig


def maintenance_of(config: WorkerConfig) -> dict[str, TableMaintenance | str]:
    """By the name or the path of each of a group's tables what maintains it, or why nothing does.

    Raises ConfigError for a table that cannot be used.
    """
    sinks, names = sinks_of(config), table_names(config)
    return {names[path]: why_not_maintained(sink) or _of(sink) for path, sink in sinks.items()}


def _of(sink: SinkConfig) -> TableMaintenance:
    if sink.format == "delta":
        from slackwater.pipeline.sinks.delta.maintenance import DeltaMaintenance

        return DeltaMaintenance(sink.path, sink.options)
    from slackwater.pipeline.sinks.iceberg.maintenance import IcebergMaintenance

    return IcebergMaintenance(sink.table, sink.options)
