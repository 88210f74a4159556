"""When sinks load the libraries that they write with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_what_writes_is_loaded_before_the_first_batch(tmp_path: Path) -> None:
    """A standby has its sink before it takes over; what it loads later would lengthen its first batch."""
    program = (
        "import sys\n"
        "from slackwater.pipeline.sinks.parquet.sink import ParquetSink\n"
        "from slackwater.runtime.interfaces import Range\n"
        "from slackwater.kafka.structs import TopicPartition\n"
        "before = set(sys.modules)\n"
        "sink = ParquetSink('g', sys.argv[1])\n"
        "assert 'pyarrow.parquet' in set(sys.modules) - before\n"
        "import pyarrow as pa\n"
        "loaded = set(sys.modules)\n"
        "tp = TopicPartition('flights', 3)\n"
        "sink.marks([tp])\n"
        "sink.stage(pa.table({'offset': [0]}), {tp: Range('', 0, 1, None)}).publish()\n"
        "assert set(sys.modules) == loaded, set(sys.modules) - loaded\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("module", "libraries"),
    [
        ("delta", ("deltalake", "pyarrow")),
        ("iceberg.sink", ("pyiceberg", "pyarrow", "sqlalchemy")),
        ("postgres.sink", ("psycopg", "pyarrow")),
    ],
)
def test_importing_the_module_loads_no_library(module: str, libraries: tuple[str, ...]) -> None:
    code = (
        f"import sys, slackwater.pipeline.sinks.{module}\n"
        f"print([name for name in {libraries!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
