"""Spark's classes from an archive: made by the command, mapped by the Java that a worker starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slackwater.pipeline.engines.spark_session import ARCHIVE_VARIABLE
from tests.support.spark import QUICK, SUBMIT_VARIABLE
from tests.support.waiting import HANG_S

SESSION = """
import sys
from pathlib import Path
from slackwater.pipeline.engines.spark_session import LocalBackend

backend = LocalBackend({})
spark = backend.open()
java = spark.sparkContext._gateway.proc.pid
assert sys.argv[1] in Path(f"/proc/{java}/maps").read_text(), "the archive is not mapped"
assert spark.range(3).count() == 3
backend.close()
"""


@pytest.mark.long
def test_a_session_maps_the_archive(tmp_path: Path) -> None:
    archive = str(tmp_path / "spark.jsa")
    # In processes of their own: the Java that writes the archive ends, and pyspark starts one only.
    environment = {**os.environ, SUBMIT_VARIABLE: QUICK}  # Java takes no second archive
    for command in (["-m", "slackwater.pipeline.engines.spark_archive"], ["-c", SESSION]):
        subprocess.run([sys.executable, *command, archive], env=environment, check=True, timeout=HANG_S)
        environment[ARCHIVE_VARIABLE] = archive
