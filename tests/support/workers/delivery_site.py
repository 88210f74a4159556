"""A site for delivery: workers with the engine `arrow`, whose handler rejects some records.

Tests judge what a user would look at: the files, the dead-letter topic and the committed offsets.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.waiting import WAIT_S, wait_until
from tests.support.workers.group_site import GroupSite
from tests.support.workers.process import WorkerProcess

PARTITIONS = 4
HANDLER = """
import os, signal, time
import pyarrow as pa
import pyarrow.compute as pc

SLOW_MS = int(os.environ.get("SLOW_MS", "0"))
DIE_AFTER = os.environ.get("DIE_AFTER", "")
ONCE = os.environ.get("DIE_ONCE_FILE", "")


def die_here():
    # Ends this process at exactly this point, the first time only.
    if ONCE and not os.path.exists(ONCE):
        open(ONCE, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)


def after(owner, name):
    original = getattr(owner, name)
    def patched(*args, **kwargs):
        result = original(*args, **kwargs)
        die_here()
        return result
    setattr(owner, name, patched)


if DIE_AFTER == "publish":
    from slackwater.pipeline.sinks.parquet.sink import StagedFiles
    from slackwater.pipeline.sinks.staged import StagedRows
    after(StagedFiles, "publish")
    after(StagedRows, "publish")
if DIE_AFTER == "letters":
    from slackwater.runtime.delivery.dead_letters import DeadLetterTopic
    after(DeadLetterTopic, "write")


def transform(table):
    time.sleep(SLOW_MS / 1000 if table.num_rows else 0)
    text = table.column("value").cast(pa.string())
    bad = pc.starts_with(text, "bad")
    errors = pc.if_else(bad, pa.scalar("is bad"), pa.scalar(None, pa.string()))
    place = table.select(["topic", "partition", "offset"])
    return place.append_column("text", text).append_column("_error", errors)


def in_spark(df):
    from pyspark.sql import functions as F
    text = F.col("value").cast("string")
    error = F.when(text.startswith("bad"), "is bad")
    return df.select("topic", "partition", "offset", text.alias("text"), error.alias("_error"))


def totals(table):
    # For mode merge: texts are kind-number; numbers are added up by the last digit.
    output = transform(table)
    parts = pc.split_pattern(output["text"], "-")
    number = pc.list_element(parts, 1).cast(pa.int64()) if table.num_rows else pa.array([], pa.int64())
    columns = {name: output[name] for name in ("topic", "partition", "offset", "_error")}
    digit = pc.subtract(number, pc.multiply(pc.divide(number, 10), 10))
    return pa.table({**columns, "digit": digit, "total": number, "most": number})


def raises(table):
    if table.num_rows:
        raise ValueError("boom")
    return table


def hangs(table):
    if table.num_rows:
        time.sleep(3600)
    return table


def large(table):
    # A limit of this process stands for the full disk: writing beyond it fails as ENOSPC does.
    import resource
    if table.num_rows:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
    texts = [os.urandom(65536).hex() for _ in range(table.num_rows)]
    return table.select(["topic", "partition", "offset"]).append_column("text", pa.array(texts, pa.string()))


def wrong(table):
    return table.select(["topic"]) if table.num_rows else table
"""


class DeliverySite(GroupSite):
    """A group that turns each record into a row or a dead letter. ``produced``: the texts of all records."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        super().__init__(bootstrap, folder, handler=HANDLER, partitions=PARTITIONS, dead_letters=2)
        self.produced: list[str] = []

    def produce(self, count: int, *, bad_every: int = 0) -> None:
        """Stores ``count`` records, in turn to each partition; the handler rejects each ``bad_every``-th."""
        records = []
        for i in range(count):
            text = f"{'bad' if bad_every and i % bad_every == 0 else 'v'}-{len(self.produced)}"
            records.append((i % PARTITIONS, text.encode()))
            self.produced.append(text)
        self.write(records, headers={"h": b"x"})

    def config(self, **changes: Any) -> dict[str, Any]:
        """A worker's configuration."""
        properties = {
            # Longer than a process takes to start on a busy machine.
            "session.timeout.ms": "45000",
            "heartbeat.interval.ms": "1000",
            "max.poll.records": "50",
        }
        return super().config(**{"engine": "arrow", "properties": properties, **changes})

    def worker(
        self, instance: str = "w-0", *, environment: dict[str, str] | None = None, **changes: Any
    ) -> WorkerProcess:
        """Starts a worker; ``changes``: to its configuration."""
        return self.start_worker(instance, self.config(**changes), **(environment or {}))

    def die_and_finish(self, *steps: str, **config: Any) -> None:
        """Runs a worker that dies after each of the steps, and one that reads to the end.

        ``publish``: between the table's commit and Kafka's. ``letters``: between the dead letters and the
        table's commit. Default: both.
        """
        for step in (*(steps or ("publish", "letters")), ""):
            once = str(self.folder / f"died-{step}")
            environment = {"DIE_AFTER": step, "DIE_ONCE_FILE": once, "SLOW_MS": "10"}
            worker = self.worker(environment=environment, **config)
            if step:
                worker.wait()
        self.until_committed(why=self.why)
        assert worker.terminate() == 0

    def rows(self) -> list[str]:
        """The texts of all rows."""
        return self.output.texts()

    def letters(self) -> list[str]:
        """The values of all dead letters, which the handler has rejected; their headers are checked."""
        values = []
        for letter in self.dead_letters():
            assert letter.headers["slackwater.group"] == self.group.encode()
            assert letter.headers["slackwater.error"] == b"is bad"
            assert letter.headers["h"] == b"x"
            assert letter.source[0] % 2 == letter.partition
            values.append((letter.value or b"").decode())
        return values

    def bad(self) -> list[str]:
        """The texts of the records that the handler rejects."""
        return [text for text in self.produced if text.startswith("bad")]

    def good_places(self) -> Counter[tuple[int, int]]:
        """The places (partition, offset) of the records that become rows, each once."""
        places = ((number % PARTITIONS, number // PARTITIONS) for number in range(len(self.produced)))
        return Counter(
            place for place, text in zip(places, self.produced, strict=True) if not text.startswith("bad")
        )

    def until_done(self, timeout_s: float = WAIT_S) -> None:
        """Waits until the workers' events say that everything produced is committed.

        Raises AssertionError at once when no worker runs any more.
        """
        ends = {f"{self.topic}-{partition}": end for partition, end in self.ends.items()}
        committed: dict[str, int] = {}

        def done() -> bool:
            for worker in self.workers:
                for event in worker.named("committed"):
                    for name, offset in event["offsets"].items():
                        committed[name] = max(offset, committed.get(name, 0))
            if committed == ends:
                return True
            assert any(worker.runs for worker in self.workers), (committed, ends, self.why())
            return False

        wait_until(done, lambda: (committed, ends, self.why()), timeout_s)

    def check(self) -> None:
        """Each record is a row or a dead letter, once."""
        assert Counter(self.rows()) == Counter(text for text in self.produced if text.startswith("v"))
        assert Counter(self.letters()) == Counter(self.bad())
        assert self.committed() == self.ends
