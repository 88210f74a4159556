"""Spark under a user that the system does not know, in a working directory that nobody can write to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slackwater.pipeline.engines.spark_session import NSS_WRAPPER_VARIABLE
from tests.support.controlplane.build import nss_wrapper
from tests.support.spark import QUICK, SUBMIT_VARIABLE
from tests.support.waiting import HANG_S

NAMELESS = ("unshare", "--user", "--map-user=1000660000", "--map-group=0")
"""Runs a command as OpenShift's policy restricted-v2 does: an id without an entry in /etc/passwd, group 0."""
SESSION = """
import sys
from slackwater.pipeline.engines.spark_session import LocalBackend

backend = LocalBackend({"spark.master": "local[1]"})
spark = backend.open()
spark.range(3).write.parquet(sys.argv[1])
spark.sql("create table kept (id bigint) using parquet")
assert spark.sql("select count(*) from kept").first()[0] == 0
backend.close()
"""


@pytest.mark.long
@pytest.mark.parts("spark", "nss-wrapper")
def test_a_user_without_a_name_writes_and_the_working_directory_stays_as_it_is(tmp_path: Path) -> None:
    working, target = tmp_path / "working", tmp_path / "out"
    working.mkdir(mode=0o555)
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": "/", "TMPDIR": str(tmp_path), SUBMIT_VARIABLE: QUICK,
        NSS_WRAPPER_VARIABLE: str(nss_wrapper()),
    }  # fmt: skip
    command = [*NAMELESS, sys.executable, "-c", SESSION, str(target)]
    subprocess.run(command, cwd=working, env=environment, check=True, timeout=HANG_S)
    assert list(target.glob("*.parquet"))
    assert not list(working.iterdir())
    assert not list(tmp_path.glob("slackwater-warehouse-*"))
