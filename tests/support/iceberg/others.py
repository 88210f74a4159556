"""What other processes do to an Iceberg table that a sink writes, by pyiceberg."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyiceberg.types import StringType

from tests.support.iceberg.catalogs import Catalog


def expire_all(lake: Catalog) -> None:
    """All snapshots but the current one, as Spark's expire_snapshots with retain_last => 1."""
    table = lake.other()
    current = table.current_snapshot()
    assert current is not None
    old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current.snapshot_id]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def compact(lake: Catalog) -> None:
    """Rewrites all rows, as another engine does: its snapshot knows nothing of Slackwater."""
    table = lake.other()
    table.overwrite(table.scan().to_arrow())


def delete(lake: Catalog) -> None:
    """Deletes a row of each partition."""
    lake.other().delete("offset = 0")


def append(lake: Catalog) -> None:
    """Adds a row without a place."""
    lake.other().append(pa.table({"carrier": ["other"]}))


def add_a_column(lake: Catalog) -> None:
    """Adds the column ``extra``."""
    with lake.other().update_schema() as update:
        update.add_column("extra", StringType())


def set_a_property(lake: Catalog) -> None:
    """Sets the property ``owner``."""
    with lake.other().transaction() as change:
        change.set_properties({"owner": "somebody"})


OTHERS: list[Callable[[Catalog], None]] = [expire_all, compact, delete, append, add_a_column, set_a_property]
