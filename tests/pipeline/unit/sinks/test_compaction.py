"""Tables that are compacted while a group writes to them: docs/how-to/tables/compact.md."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.runtime.interfaces import SinkFencedError
from tests.support import sinks
from tests.support.delta import DeltaFolder
from tests.support.sinks import A, B, marks

HALF, RECORDS = 20, 40
"""Of each partition."""
stage = partial(sinks.stage, records=RECORDS)


def compact(table: Path) -> int:
    """Optimizes, vacuums, and removes the log that no version needs. Returns how many files were removed."""
    delta = DeltaTable(str(table))
    delta.optimize.compact(target_size=128 * 1024 * 1024)
    removed = delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    delta.create_checkpoint()
    delta.cleanup_metadata()
    return len(removed)


def test_a_delta_table_that_is_compacted_has_its_marks_and_each_record_once(tmp_path: Path) -> None:
    """The worker that has written it goes on, and so does one that starts; one that is late is refused."""
    table = tmp_path / "table"
    worker, late = delta_sink("flights", str(table)), delta_sink("flights", str(table))
    sinks.write_all(worker, random.Random(1), records=HALF)
    assert len(list(table.glob("*.parquet"))) > 4
    late.marks([A, B])
    refused = stage(late, {A: HALF - 1, B: HALF - 1})

    assert compact(table) > 4
    assert len(list(table.glob("*.parquet"))) == 1
    assert marks(delta_sink("flights", str(table))) == {A: HALF, B: HALF}

    stage(worker, {A: HALF, B: HALF}).publish()
    with pytest.raises(SinkFencedError):
        refused.publish()
    compact(table)
    heir = delta_sink("flights", str(table))
    sinks.write_all(heir, random.Random(2), records=RECORDS)
    places = DeltaFolder(table).places()
    assert set(places.values()) == {1}
    assert sorted(places) == [(partition, at) for partition in (0, 1) for at in range(RECORDS)]
