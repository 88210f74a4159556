"""A record with which the worker's process ends or hangs becomes a dead letter; all others are stored once.

A supervisor starts the worker again each time, as the kubelet does, and kills one whose /healthz does not
answer.
"""

from __future__ import annotations

import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.kafka import KafkaConsumer
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.delivery.ended_processes import MOST_ENDS
from slackwater.runtime.delivery.partition import Begun, CommitNote
from tests.support.devbroker import DevBroker
from tests.support.kafka.cluster import KafkaCluster
from tests.support.waiting import HANG_S, wait_until
from tests.support.workers.group_site import GroupSite
from tests.support.workers.process import WorkerProcess

HANDLER = """
import ctypes, os, resource, time
import pyarrow as pa
import pyarrow.compute as pc

HUNG = os.environ["HUNG"]


def abort():
    os.abort()


def memory():
    # As in a container with a limit: what is taken beyond it is refused.
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    taken = []
    while True:
        taken.append(bytearray(16 << 20))


def gil():
    open(HUNG, "w").close()
    ctypes.PyDLL(None).pause()  # keeps the interpreter's lock


def hang():
    time.sleep(3600)


def java():
    from pyspark.sql import SparkSession
    SparkSession.getActiveSession().sparkContext._jvm.java.lang.Runtime.getRuntime().halt(137)


END = globals().get(os.environ["END"])


def records(records):
    for record in records:
        if record.value == b"poison":
            END()
        yield {"topic": record.topic, "partition": record.partition, "offset": record.offset,
               "text": record.value.decode()}


def table(table):
    if pc.any(pc.equal(table["value"], pa.scalar(b"poison", table["value"].type))).as_py():
        END()
    return table.select(["topic", "partition", "offset"]).append_column(
        "text", table["value"].cast(pa.string())
    )


def frame(df):
    from pyspark.sql import functions as F
    rows = df.select("topic", "partition", "offset", F.col("value").cast("string").alias("text"))
    if os.environ["END"] == "python_worker":
        end = F.udf(lambda text: os.abort() if text == "poison" else text)
        return rows.withColumn("text", end("text"))
    if rows.where("text = 'poison'").count():
        END()
    return rows
"""
START_S = 5 * HANG_S
"""A worker's start and its batch. Spark's start takes minutes on a busy machine."""
HANDLERS = {"python": "records", "arrow": "table", "spark": "frame"}


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[GroupSite]:
    with GroupSite(broker.bootstrap, tmp_path, handler=HANDLER, partitions=1, dead_letters=1) as site:
        yield site


def supervise(site: GroupSite, engine: str, end: str, most: int, max_records: int = 500) -> int:
    """Starts a worker again and again until all is committed. Returns how many have ended before.

    Raises AssertionError where more than ``most`` have."""
    hung = site.folder / "hung"
    config = site.config(
        engine=engine,
        handler=f"site_handler:{HANDLERS[engine]}",
        handlerTimeoutMs=2_000 if end == "hang" else 250_000,
        drainTimeoutMs=1_000,
        retries=0,
        properties={"session.timeout.ms": "45000", "max.poll.records": str(max_records)},
    )
    for ended in range(most + 1):
        worker = site.start_worker("w-0", config, END=end, HUNG=str(hung))
        if runs_to_the_end(site, worker, hung):
            assert worker.terminate() == 0
            return ended
    raise AssertionError(site.why())


def runs_to_the_end(site: GroupSite, worker: WorkerProcess, hung: Path) -> bool:
    """Whether it commits all. False where it ends before; or hangs, and is killed."""
    end = f"{site.topic}-0", site.ends[0]

    def settled() -> bool:
        committed = any(event["offsets"].get(end[0]) == end[1] for event in worker.named("committed"))
        return committed or not worker.runs or hung.exists()

    wait_until(settled, site.why, START_S)
    if hung.exists():
        hung.unlink()
        with pytest.raises(OSError, match="timed out"):
            urllib.request.urlopen(f"http://{worker.address}/healthz", timeout=1).close()
        worker.signal(signal.SIGKILL)
    elif worker.runs:
        return True
    worker.wait()
    return False


def check(site: GroupSite, poison: int) -> None:
    """The record at the offset ``poison`` is the one dead letter, and each other is a row, once."""
    (letter,) = site.dead_letters()
    assert letter.headers["slackwater.offset"] == str(poison).encode()
    assert letter.headers["slackwater.error"].startswith(b"EndedTheProcess")
    assert letter.value == b"poison"
    others = [offset for offset in range(site.ends[0]) if offset != poison]
    assert site.output.offsets([0]) == {0: others}


@pytest.mark.parametrize(
    ("engine", "end"),
    [
        ("python", "abort"),
        *(pytest.param("spark", end, marks=pytest.mark.long) for end in ("java", "python_worker")),
    ],
)
def test_a_record_that_ends_each_process_becomes_a_dead_letter(
    site: GroupSite, engine: str, end: str
) -> None:
    """Two processes that had it alone have ended before."""
    site.write([(0, b"poison"), (0, b"v1")])
    before = CommitNote(None, "w-0", begun=Begun(0, 1, ends=MOST_ENDS - 1, alone=MOST_ENDS - 1))
    with KafkaConsumer(bootstrap_servers=site.bootstrap, group_id=site.group) as consumer:
        consumer.commit({TopicPartition(site.topic, 0): OffsetAndMetadata(0, before.encode())})
    assert supervise(site, engine, end, most=1, max_records=1) == 1
    check(site, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "end"),
    [(engine, end) for engine in ("python", "arrow") for end in ("abort", "memory", "gil", "hang")],
)
def test_it_is_found_among_others_in_a_logarithmic_number_of_ends(
    site: GroupSite, engine: str, end: str
) -> None:
    site.write((0, b"poison" if offset == 1 else f"v{offset}".encode()) for offset in range(16))
    most = 4 + MOST_ENDS  # 16, 8, 4 and 2 records; alone
    assert supervise(site, engine, end, most) <= most
    check(site, 1)
