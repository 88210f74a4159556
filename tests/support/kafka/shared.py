"""One Kafka for all processes of a run."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.jars import KafkaUnavailable


@contextmanager
def shared_kafka(config: Mapping[str, str], folder: Path) -> Iterator[KafkaCluster]:
    """A broker with ``config`` for this process of pytest-xdist and the others of its run.

    The process that asks first starts it; it ends with the run, which may be later than the block. Without
    pytest-xdist it is this process's own. ``folder``: this process's own, in one of the run. Raises
    :class:`KafkaUnavailable`.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with KafkaCluster(1, config) as cluster:
            yield cluster
        return
    with (folder.parent / "kafka").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        address = file.read() or _start(config)
        file.truncate(0)
        file.write(address)
    yield KafkaCluster.at(address)


def _start(config: Mapping[str, str]) -> str:
    settings = [f"--config={name}={value}" for name, value in config.items()]
    # pytest-xdist's processes are children of the one that was started by hand.
    command = [sys.executable, "-m", "tests.support.kafka", f"--until-gone={os.getppid()}", *settings]
    keeper = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert keeper.stdout is not None
    if not (address := keeper.stdout.readline().strip()):
        raise KafkaUnavailable("the Kafka of this run did not start; its reason is on stderr")
    return address
