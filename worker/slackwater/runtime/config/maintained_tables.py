"""Which of a group's tables have maintenance."""

from __future__ import annotations

from slackwater.runtime.config.pipeline_config import PipelineConfig, sinks_of, table_names
from slackwater.runtime.config.sink_config import SinkConfig

_NONE = {
    "parquet": "the log of a folder names its files; write larger ones (sink.maxAge), or a Delta table",
    "postgres": "autovacuum does what is needed",
    "kafka": "it is a topic",
    "spark": "Spark writes it; use the means of its format",
    "custom": "only its sink knows it",
}


def maintained_tables(pipeline: PipelineConfig) -> dict[str, str]:
    """By the name or the path of each of a group's tables, why nothing maintains it; "" if something does."""
    names = table_names(pipeline)
    return {names[path]: why_not_maintained(sink) for path, sink in sinks_of(pipeline).items()}


def why_not_maintained(sink: SinkConfig) -> str:
    """Why a table has no maintenance; "" where it has."""
    if sink.tables is not None:
        return "rows name the tables; give a configuration that names each"
    if sink.format in _NONE:
        return f"format {sink.format} has no maintenance: {_NONE[sink.format]}"
    return ""
