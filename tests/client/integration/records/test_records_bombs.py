"""What decompression takes of a process, by the system's own count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.records.bombs import CODEC_ROOM, LIMIT, bomb
from tests.support.waiting import HANG_S

_CHILD = """
import sys
from pathlib import Path
from slackwater.kafka import records

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

data = Path(sys.argv[1]).read_bytes()
before = peak()
try:
    records.decode(data, fetch_offset=0, max_decompressed_bytes=int(sys.argv[2]))
except records.CorruptRecordError:
    print(peak() - before)
"""


@pytest.mark.parametrize(
    "name",
    [
        "gzip in members",
        "snappy",
        "lz4",
        "zstd in frames",
        "zstd with a wide window",
        "magic 1, lz4",
        "tiny records",
    ],
)
def test_a_bomb_takes_no_more_of_the_machine_than_the_limit(name: str, tmp_path: Path) -> None:
    """What the codecs' own libraries take, too."""
    (tmp_path / "bomb").write_bytes(bomb(name))
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "bomb"), str(LIMIT)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S)
    assert int(completed.stdout) < LIMIT * 9 // 8 + CODEC_ROOM
