"""Files of large batches, for a Connect server on this machine, after a process was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from slackwater.pipeline.engines.batch_files import BatchFiles
from tests.pipeline.unit.engines.test_pipeline_spark_frames import LARGE, ReadingSession, sent


def test_the_folder_of_a_process_that_was_killed_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; import pyarrow as pa\n"
        "from tests.pipeline.unit.engines.test_pipeline_spark_frames import LARGE, ReadingSession\n"
        "from slackwater.pipeline.engines.batch_files import BatchFiles\n"
        "assert BatchFiles(Path(sys.argv[1])).write(ReadingSession(), LARGE)\n"
        "os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[4])
    assert ended.returncode == -9
    (killed,) = tmp_path.iterdir()
    assert list(killed.glob("*.parquet"))
    session: Any = ReadingSession()
    alive, another = BatchFiles(tmp_path), BatchFiles(tmp_path)
    sent(session, LARGE, alive)
    assert not killed.exists()
    (folder,) = tmp_path.iterdir()
    sent(session, LARGE, another)
    assert folder.exists()
    assert len(list(tmp_path.iterdir())) == 2
    assert sent(session, LARGE, alive) == ["file"]
