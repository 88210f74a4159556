"""spec.maintenance of a ConsumerGroup: how often each table is compacted, and what of it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater import fields
from slackwater.fields import FieldError, required, spec
from slackwater.runtime.config.maintained_tables import maintained_tables
from slackwater.runtime.config.pipeline_config import MAX_ROUTES, PipelineConfig
from slackwater_operator.api.v1alpha1 import pod_template_overlay as overlay

MAX_ENTRIES = MAX_ROUTES + 1
"""One for each table."""

_PATH = "spec.maintenance"


@dataclass(frozen=True, kw_only=True)
class Maintenance:
    """How a table is maintained."""

    table: str = spec(
        "table",
        fields.text(pattern=r"\S(.*\S)?", example="lake.orders", max_length=2048),
        "The table, by its name or path: sink.table or sink.path of spec.pipeline. Without it, the entry is "
        "for every table that no other entry names.",
        absent="",
    )
    every_ms: int = required(
        "every",
        fields.duration("10m", "8760h"),
        "How often it is maintained (1h, 24h). Each table has its own minute, so that groups do not start at "
        "the same time.",
    )
    compact_to: int = spec(
        "compactTo",
        fields.file_size(),
        "About the size of the files that small ones are put together to, within a partition. The rows of "
        "one file are in memory, decoded.",
        default="128Mi",
    )
    expire_after_ms: int = spec(
        "expireAfter",
        fields.duration("1h", "87600h"),
        "How long a version of the table can be read after another has replaced it. It must be longer than "
        "the longest query.",
        default="168h",
    )
    cluster_by: tuple[str, ...] = spec(
        "clusterBy",
        fields.text_list(fields.text(pattern=r"\S(.*\S)?", example="carrier", max_length=255), at_most=4),
        "Columns that queries filter by: what is put together is written in their order (format iceberg) or "
        "their Z-order (format delta), so that queries skip files.",
        absent=(),
    )
    resources: dict[str, Any] = spec(
        "resources",
        fields.anything(),
        "The resources of the Job's container (requests and limits). Defaults to those of the workers.",
        default={},
    )


def check_maintenance(entries: Sequence[Maintenance], pipeline: PipelineConfig) -> None:
    """Refuses entries for tables that the group does not have, or that have no maintenance.

    Raises:
        FieldError: names the field.
    """
    known, counted = maintained_tables(pipeline), Counter(entry.table for entry in entries)
    tables = {name for name, why_none in known.items() if not why_none}
    for index, entry in enumerate(entries):
        path = f"{_PATH}[{index}]"
        if counted[entry.table] > 1:
            which = repr(entry.table) if entry.table else "every table"
            raise FieldError(f"{path}.table", f"two entries are for {which}; remove one of them")
        if entry.table and entry.table not in known:
            raise FieldError(
                f"{path}.table",
                f"{entry.table!r} is no table of the group; name one of {', '.join(sorted(known))}",
            )
        if entry.table and known[entry.table]:
            raise FieldError(f"{path}.table", f"{entry.table!r}: {known[entry.table]}; remove the entry")
        if not tables:
            raise FieldError(path, f"the group has no table to maintain: {next(iter(known.values()))}")
        _check_resources(entry.resources, f"{path}.resources")


def _check_resources(resources: Mapping[str, Any], path: str) -> None:
    for name in resources:
        if name not in ("requests", "limits"):
            raise FieldError(fields.join(path, name), "is unknown; use requests and limits")
        if not isinstance(resources[name], Mapping):
            raise FieldError(fields.join(path, name), "must map resources to quantities, such as memory: 1Gi")
    overlay.check_quantities(resources, path)
