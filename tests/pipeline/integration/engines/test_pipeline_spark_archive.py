"""Spark's classes from an archive: made by the command, mapped by the Java that a worker starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slackwater.pipeline.engines import spark_session
from slackwater.pipeline.engines.spark_session import LocalBackend
from tests.support.spark import SUBMIT_VARIABLE
from tests.support.waiting import HANG_S


@pytest.mark.long
def test_a_session_maps_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "spark.jsa"
    monkeypatch.delenv(SUBMIT_VARIABLE, raising=False)  # Java takes no second archive
    # By a process of its own, as in an image: the Java that writes it ends, and pyspark starts one only.
    command = [sys.executable, "-m", "slackwater.pipeline.engines.spark_archive", str(archive)]
    subprocess.run(command, check=True, timeout=HANG_S)
    monkeypatch.setenv(spark_session.ARCHIVE_VARIABLE, str(archive))
    backend = LocalBackend({})
    spark = backend.open()
    try:
        java = spark.sparkContext._gateway.proc.pid
        assert str(archive) in Path(f"/proc/{java}/maps").read_text()
        assert spark.range(3).count() == 3
    finally:
        backend.close()
