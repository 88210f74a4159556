"""pyiceberg's catalog in AWS Glue with limits on waiting: boto3 may take ten minutes for a call.

A commit reads the table with its version, checks the requirements, and has Glue update that version alone:
Glue refuses it if another one came first, with ``ConcurrentModificationException``.
"""

from __future__ import annotations

from typing import Any

import botocore.session
from botocore.config import Config
from pyiceberg.catalog import BOTOCORE_SESSION
from pyiceberg.catalog.glue import GLUE_MAX_RETRIES, GlueCatalog

from slackwater.pipeline.sinks.iceberg import marks

CONNECT_S, ANSWER_S = 5.0, 10.0
_RETRIES = 3
"""Glue throttles: between these tries botocore waits for seconds."""


class BoundedGlueCatalog(GlueCatalog):
    """A call fails after four tries of 10 s, and leaves the marks out of what Glue itself keeps of a table:
    its names of parameters have 255 bytes."""

    def __init__(self, name: str, **properties: Any) -> None:
        session = botocore.session.Session()
        session.set_default_client_config(Config(connect_timeout=CONNECT_S, read_timeout=ANSWER_S))
        retries = int(properties.get(GLUE_MAX_RETRIES, _RETRIES))
        super().__init__(name, **{**properties, BOTOCORE_SESSION: session, GLUE_MAX_RETRIES: retries})

    def _create_glue_table(self, database_name: str, table_name: str, table_input: Any) -> None:
        super()._create_glue_table(database_name, table_name, _without_marks(table_input))

    def _update_glue_table(
        self, database_name: str, table_name: str, table_input: Any, version_id: str
    ) -> None:
        super()._update_glue_table(database_name, table_name, _without_marks(table_input), version_id)


def _without_marks(table_input: dict[str, Any]) -> dict[str, Any]:
    kept = {
        name: value for name, value in table_input["Parameters"].items() if not name.startswith(marks.PREFIX)
    }
    return {**table_input, "Parameters": kept}
