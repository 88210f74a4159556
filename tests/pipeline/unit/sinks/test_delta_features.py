"""Delta tables with features that others have switched on (Delta protocol, "Table Features").

What deltalake can write is written; of others the probe says what is missing.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError
from tests.support.delta import DeltaFolder
from tests.support.sinks import A, marks, put, rows

COLUMNS = {"topic": "string", "partition": "integer", "offset": "long"}
MAPPING = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "4"}
MAPPED = {name: {"delta.columnMapping.id": at, "delta.columnMapping.physicalName": f"col-{at}"}
          for at, name in enumerate([*COLUMNS, "n"], 1)}  # fmt: skip


def table(
    folder: Path,
    *features: str,
    readers: tuple[str, ...] = (),
    configuration: dict[str, str] | None = None,
    metadata: dict[str, dict[str, Any]] | None = None,
    by: tuple[str, ...] = (),
    **columns: str,
) -> Path:
    """A table without rows. ``readers``: those of its features that readers must know. ``metadata``: of
    columns."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": (metadata or {}).get(name, {})}
        for name, kind in {**COLUMNS, **columns}.items()
    ]
    protocol: dict[str, Any] = {
        "minReaderVersion": 3 if readers else 1,
        "minWriterVersion": 7,
        "writerFeatures": [*features, *readers],
    }
    if readers:
        protocol["readerFeatures"] = list(readers)
    described = {
        "id": "made by others",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(by),
        "configuration": configuration or {},
    }
    log = folder / "_delta_log"
    log.mkdir()
    actions = [{"protocol": protocol}, {"metaData": described}]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return folder


@pytest.mark.parametrize(
    ("features", "readers", "said"),
    [
        (("clustering", "domainMetadata"), (), "ClusteredTable"),
        (("identityColumns",), (), "IdentityColumns"),
        (("allowColumnDefaults",), (), "AllowColumnDefaults"),
        (("rowTracking", "domainMetadata"), (), "RowTracking"),
        (("inCommitTimestamp",), (), "InCommitTimestamp"),
        (("icebergCompatV2",), (), "IcebergCompatV2"),
        (("ofTomorrow",), (), "ofTomorrow"),
        ((), ("typeWidening",), "TypeWidening"),
        ((), ("ofTomorrow",), "ofTomorrow"),
    ],
)
def test_a_feature_that_deltalake_lacks_is_named_by_the_probe_and_by_the_first_try(
    tmp_path: Path,
    features: tuple[str, ...],
    readers: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = delta_sink("g", str(table(tmp_path, *features, readers=readers)))
    tries: list[str] = []
    write = deltalake.write_deltalake
    monkeypatch.setattr(deltalake, "write_deltalake", lambda *a, **k: (tries.append("write"), write(*a, **k)))
    for call in (sink.probe, lambda: put(sink, rows([0]), 0)):
        with pytest.raises(SinkError, match=rf"{said}.*sparkFormat: delta"):
            call()
    assert len(tries) <= 1
    assert sorted(path.name for path in tmp_path.iterdir() if "probe" in path.name) == []


@pytest.mark.parametrize(
    ("features", "readers"),
    [
        (("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"), ()),
        ((), ("deletionVectors", "timestampNtz", "v2Checkpoint", "columnMapping")),
    ],
)
def test_a_table_whose_features_deltalake_has_is_written_to(
    tmp_path: Path, features: tuple[str, ...], readers: tuple[str, ...]
) -> None:
    sink = delta_sink("g", str(table(tmp_path, *features, readers=readers)))
    assert sink.probe() == str(tmp_path)
    put(sink, rows([0]), 0)
    assert marks(sink)[A] == 1


def mapped(folder: Path, *by: str) -> Path:
    return table(folder, readers=("columnMapping",), configuration=MAPPING, metadata=MAPPED, by=by, n="long")


def test_a_table_with_column_mapping_has_rows_under_its_physical_names(tmp_path: Path) -> None:
    sink = delta_sink("g", str(mapped(tmp_path, "topic")))
    put(sink, rows([0, 1], n=pa.array([7, 8])), 0)
    ((path, by),) = DeltaFolder(tmp_path).files.items()
    assert by == {"col-1": "flights"}
    assert pq.ParquetFile(tmp_path / path).read().to_pydict() == {
        "col-2": [0, 0], "col-3": [0, 1], "col-4": [7, 8],
    }  # fmt: skip


def test_a_column_that_cannot_be_added_to_a_table_with_column_mapping_is_its_records_fault(
    tmp_path: Path,
) -> None:
    sink = delta_sink("g", str(mapped(tmp_path)))
    with pytest.raises(RecordsError, match=r"columns extra, which the table lacks") as caught:
        put(sink, rows([0, 1], extra=pa.array([None, 1])), 0)
    assert [offset for _, _, offset in caught.value.reasons] == [1]
    put(sink, rows([0], n=pa.array([1])), 0)


def test_a_generated_column_is_computed_or_checked(tmp_path: Path) -> None:
    expression = {"m": {"delta.generationExpression": "n + 1"}}
    sink = delta_sink("g", str(table(tmp_path, "generatedColumns", metadata=expression, n="long", m="long")))
    put(sink, rows([0], n=pa.array([1])), 0)
    put(sink, rows([1], n=pa.array([1]), m=pa.array([2])), 1)
    assert [row["m"] for row in DeltaFolder(tmp_path).rows()] == [2, 2]
    with pytest.raises(RecordsError, match=r"generated column m, n \+ 1") as caught:
        put(sink, rows([2, 3], n=pa.array([1, 1]), m=pa.array([2, 3])), 2)
    assert [offset for _, _, offset in caught.value.reasons] == [3]
    keyed = delta_sink("g", str(tmp_path), mode="upsert", key=["n"])
    with pytest.raises(ConfigError, match="deltalake does not compute the column m"):
        put(keyed, rows([2], n=pa.array([1])), 2)
    assert DeltaFolder(tmp_path).places() == Counter({(0, 0): 1, (0, 1): 1})
