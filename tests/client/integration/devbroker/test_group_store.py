"""The coordinator's file, written by a process that is killed or meets a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slackwater.devbroker.group import FileGroupStore
from slackwater.devbroker.group.store import StoreImage
from tests.support.waiting import HANG_S

# A file size limit makes a write fail part of the way through, as a full disk does.
_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from slackwater.devbroker.group import FileGroupStore, GroupStoreError
from slackwater.devbroker.group.store import OffsetRecord

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = FileGroupStore(Path(sys.argv[1]))
record = OffsetRecord(group_id="g", topic="t", offset=1, metadata="x" * 100)
store.append([record])
limit = Path(sys.argv[1]).stat().st_size + 60
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
record.offset = 2
try:
    store.append([OffsetRecord(group_id="g", topic="t", offset=2, metadata="x" * 100)])
except GroupStoreError as exc:
    print("refused:", exc)
print("size", Path(sys.argv[1]).stat().st_size <= limit - 60)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.append([OffsetRecord(group_id="g", topic="t", partition=1, offset=3)])
"""


def test_a_full_disk_stores_nothing_and_the_next_append_goes_well(tmp_path: Path) -> None:
    path = tmp_path / "groups.log"
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, path],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "refused: group store" in done.stdout
    assert "File too large" in done.stdout
    assert "size True" in done.stdout
    stored = reopened(path).offsets["g"]["t"]
    assert {index: commit.offset for index, commit in stored.items()} == {0: 1, 1: 3}


_KILLED = """
import sys
from pathlib import Path
from slackwater.devbroker.group import FileGroupStore
from slackwater.devbroker.group.store import OffsetRecord

store = FileGroupStore(Path(sys.argv[1]))
value = 0
while True:
    value += 1
    store.append([OffsetRecord(group_id="g", topic="t", partition=p, offset=value) for p in range(12)])
    print(value, flush=True)
"""


def test_what_was_acknowledged_before_kill_9_is_there_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "groups.log"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, path], stdout=subprocess.PIPE, text=True, env=env
    )
    try:
        assert process.stdout is not None
        acknowledged = 0
        while acknowledged < 200:
            acknowledged = int(process.stdout.readline())
    finally:
        process.kill()
        rest = process.communicate()[0]
    acknowledged = int([str(acknowledged), *(line for line in rest.split("\n")[:-1])][-1])
    stored = {commit.offset for commit in reopened(path).offsets["g"]["t"].values()}
    assert len(stored) == 1
    assert stored.pop() in (acknowledged, acknowledged + 1)


def reopened(path: Path) -> StoreImage:
    opened = FileGroupStore(path)
    opened.close()
    return opened.image
