"""Which tables are maintained when, and what a run has reported."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from slackwater.kafka.untrusted import json_object, one_line
from slackwater.runtime.config.maintained_tables import maintained_tables
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.api.v1alpha1.spec.maintenance import Maintenance
from slackwater_operator.api.v1alpha1.status.values import text, whole

CREATE_MS = 300_000
"""How long a Job may take to be there: without a quota for it, for example, it never is."""
START_MS = 1_800_000
"""How long a Job's pod may take to start: it may wait for room on a node."""
RUN_MS = 21_600_000
"""How long a run may take. One that is ended keeps what it has committed."""

_LONGEST = 500


@dataclass(frozen=True)
class TableReport:
    """What `slackwater maintain` has reported of a table.

    Attributes:
        compacted: how many files it has written anew as larger ones.
        written: how many files they have become.
        removed: how many files it has removed.
        expired: how many snapshots it has expired.
        nothing: why there was nothing to do; "" where there was.
    """

    compacted: int = 0
    written: int = 0
    removed: int = 0
    expired: int = 0
    nothing: str = ""


def maintained(group: ConsumerGroup) -> dict[str, Maintenance]:
    """By table the entry of spec.maintenance that it is maintained by: its own, else the one for every
    table."""
    entries = {entry.table: entry for entry in group.spec.maintenance}
    if not entries:
        return {}
    tables = [name for name, why_none in maintained_tables(group.spec.pipeline).items() if not why_none]
    chosen = {table: entries.get(table, entries.get("")) for table in tables}
    return {table: entry for table, entry in chosen.items() if entry is not None}


def next_run_ms(every_ms: int, *, key: str, after_ms: int) -> int:
    """When a table is due next after `after_ms` (wall clock, ms; whole seconds).

    The times are a multiple of `every_ms` apart, and begin at an offset that `key` determines: neither a
    restart of the operator nor a late run shifts them, and groups with one spec do not start together.

    Args:
        every_ms: how often.
        key: identifies the table.
        after_ms: a time.
    """
    offset_ms = round(zlib.crc32(key.encode()) / 2**32 * every_ms) // 1000 * 1000
    return ((after_ms - offset_ms) // every_ms + 1) * every_ms + offset_ms


def report_of(output: str) -> TableReport:
    """The report in a pod's termination message. What is missing in it, or not valid, is left out."""
    try:
        document = json_object(output)
    except ValueError:
        return TableReport()
    names = ("compacted", "written", "removed", "expired")
    counts = {name: whole(document.get(name), 0) or 0 for name in names}
    return TableReport(**counts, nothing=one_line(text(document.get("nothing")), _LONGEST))
