"""What decompression takes of a process, by the system's own count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.records.bombs import CODEC_ROOM, LIMIT, bomb
from tests.support.waiting import HANG_S

_CHILD = """
import sys
from pathlib import Path
from slackwater.kafka import records

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

before = peak()
for bomb in sys.argv[2:]:
    try:
        records.decode(Path(bomb).read_bytes(), fetch_offset=0, max_decompressed_bytes=int(sys.argv[1]))
    except records.CorruptBatchError:
        print(peak() - before)
"""
_NAMES = (
    "gzip in members",
    "snappy",
    "lz4",
    "zstd in frames",
    "zstd with a wide window",
    "magic 1, lz4",
    "tiny records",
)


def test_a_bomb_takes_no_more_of_the_machine_than_the_limit(tmp_path: Path) -> None:
    """What the codecs' own libraries take, too; one process reads them all, as its peak only grows."""
    for name in _NAMES:
        (tmp_path / name).write_bytes(bomb(name))
    command = [sys.executable, "-c", _CHILD, str(LIMIT), *(str(tmp_path / name) for name in _NAMES)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG_S)
    peaks = dict(zip(_NAMES, map(int, completed.stdout.split()), strict=True))
    assert {name: peak for name, peak in peaks.items() if peak >= LIMIT * 9 // 8 + CODEC_ROOM} == {}
