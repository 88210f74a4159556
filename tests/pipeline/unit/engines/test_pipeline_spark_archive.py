"""Java is told of an archive of classes where the image has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.pipeline.engines import spark_session
from slackwater.pipeline.engines.spark_session import LOCAL, LocalBackend

OPTIONS = "spark.driver.extraJavaOptions"


def test_an_archive_that_is_there_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "spark.jsa"
    archive.touch()
    monkeypatch.setenv(spark_session.ARCHIVE_VARIABLE, str(archive))
    assert f"-XX:SharedArchiveFile={archive}" in LocalBackend({})._conf[OPTIONS]
    assert LocalBackend({})._conf[OPTIONS].startswith(LOCAL[OPTIONS])
    assert LocalBackend({OPTIONS: "-Xint"})._conf[OPTIONS].startswith("-Xint -XX:SharedArchiveFile=")


@pytest.mark.parametrize("named", ["", "/nowhere/spark.jsa"])
def test_without_an_archive_java_gets_no_option_for_it(named: str) -> None:
    assert spark_session.archive_options({spark_session.ARCHIVE_VARIABLE: named}) == ""
    assert spark_session.archive_options({}) == ""
