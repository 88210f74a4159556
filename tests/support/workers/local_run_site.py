"""A site for `slackwater local run`: a topic, a ConsumerGroup with the engine `arrow`, and its output."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from uuid import uuid4

from tests.support.workers.group_site import GroupTopic, Output

PARTITIONS = 4
HANDLERS = """\
import pathlib
import time
import pyarrow as pa


def keep(table):
    return table


def fails(table):
    if table.num_rows:
        raise ValueError("cannot take it")
    return table


def hangs(table):
    if table.num_rows:
        pathlib.Path(__file__).with_name("hangs").touch()
        time.sleep(600)
    return table


def no_offset(table):
    return table.drop_columns(["offset"])


def no_table(table):
    return 42


def no_offset_later(table):
    return table.drop_columns(["offset"]) if table.num_rows else table


def no_offset_in_spark(df):
    return df.drop("offset")


def exits(table):
    raise SystemExit(0)


a_number = 42
"""
BROKEN = "from collections import NoSuchThing\n"
RESOURCE = """\
apiVersion: slackwater.dev/v1alpha1
kind: ConsumerGroup
metadata: {{name: {name}}}
spec:
  kafka:
    bootstrapServers: {bootstrap}
    properties: {{session.timeout.ms: "10000", heartbeat.interval.ms: "500", max.poll.records: "50"}}
  topics: [{name}]
  pipeline:
    handler: handlers:keep
    engine: arrow
    sink: {{path: {out}}}
  replicas: 1
"""


class LocalRunSite:
    """`file` is the resource, `out` its sink, `group` the topic, which is not there yet."""

    def __init__(self, bootstrap: str, folder: Path, *, partitions: int = PARTITIONS) -> None:
        self.bootstrap, self.folder = bootstrap, folder
        self.name = f"e2e-{uuid4().hex[:8]}"
        self.file = folder / "group.yaml"
        self.out = folder / "out"
        self.work = folder / "work"
        self.group = GroupTopic(bootstrap, self.name, self.name, partitions)
        (folder / "handlers.py").write_text(HANDLERS)
        (folder / "broken.py").write_text(BROKEN)
        self.file.write_text(RESOURCE.format(name=self.name, bootstrap=bootstrap, out=self.out))

    @property
    def ends(self) -> dict[int, int]:
        """The end offset of each partition."""
        return self.group.ends

    def change(self, old: str, new: str) -> None:
        """Replaces a text of the resource, which must be there once."""
        text = self.file.read_text()
        assert text.count(old) == 1, (old, text)
        self.file.write_text(text.replace(old, new))

    def arguments(self, *more: str | Path) -> list[str | Path]:
        """`slackwater local run` of the resource."""
        return ["local", "run", "-f", self.file, "--workdir", self.work, *more]

    def produce(self, sizes: list[int]) -> None:
        """Produces a record of random bytes for each of ``sizes``, in turn to each partition."""
        rng = random.Random(len(sizes))
        records = [(number % self.group.partitions, rng.randbytes(size)) for number, size in enumerate(sizes)]
        self.group.write(records)

    def committed(self) -> dict[int, int]:
        """The group's committed offset of each partition, 0 where there is none."""
        return self.group.committed()

    def rows(self) -> dict[int, Counter[int]]:
        """How often each offset of each partition is in the Parquet files that count as done."""
        offsets = Output(self.out).offsets(self.group.ends)
        return {partition: Counter(values) for partition, values in offsets.items()}

    def check_nothing_done(self) -> None:
        """Nothing was written that counts, nothing half-written is left, and no offset has moved."""
        assert sum(self.committed().values()) == 0
        files = [path for path in self.out.rglob("*") if path.is_file()] if self.out.is_dir() else []
        assert files == []

    def check_consistent(self) -> None:
        """What is committed is in the files, each record once."""
        for partition, offset in self.committed().items():
            rows = self.rows()[partition]
            assert [o for o in range(offset) if rows[o] != 1] == []

    def check_complete(self) -> None:
        """Every record is in the files once, and committed."""
        assert self.committed() == self.ends
        assert self.rows() == {p: Counter(range(end)) for p, end in self.ends.items()}
