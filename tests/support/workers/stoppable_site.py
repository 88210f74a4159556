"""A site whose workers can be stopped and continued, and which knows where each record was stored.

A record's key is its text, which is unique. The handler rejects some of the records. In the end each record
is a row or a dead letter, once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka

from slackwater.runtime.fault_points import VARIABLE
from tests.support.waiting import WAIT_S, wait_until
from tests.support.workers.group_site import GroupSite
from tests.support.workers.process import WorkerProcess
from tests.support.workers.takeover_worker import TakeoverKey

PARTITIONS = 4
LETTER_PARTITIONS = 2
BAD_EVERY = 7
HANDLER = """
def transform(records):
    for record in records:
        text = record.key.decode()
        row = {"topic": record.topic, "partition": record.partition, "offset": record.offset, "text": text}
        yield {**row, "_error": "is bad" if text.startswith("bad") else None}
"""


class StoppableSite(GroupSite):
    """Workers that can be stopped, with a record of everything that was produced; ends them when left.

    ``consumer_protocol``: they are members by it, and the brokers' session holds in place of ``session_ms``.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        *,
        session_ms: int = 6_000,
        handler: str = HANDLER,
        consumer_protocol: bool = False,
    ) -> None:
        super().__init__(
            bootstrap, folder, handler=handler, partitions=PARTITIONS, dead_letters=LETTER_PARTITIONS
        )
        self.session_ms = session_ms
        self.consumer_protocol = consumer_protocol
        self.key = TakeoverKey(folder)
        self.good: Counter[str] = Counter()
        self.bad: Counter[str] = Counter()
        self.either: Counter[str] = Counter()
        """The records of which a row is as good as a dead letter."""
        self._stored: dict[tuple[int, int], str] = {}
        """The records of the topic as it is now, by partition and offset."""
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """Where each record was stored, also in topics that are deleted by now."""
        self._rewound: set[str] = set()
        """The records that :meth:`rewind` has had delivered again."""
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})

    @property
    def produced(self) -> int:
        """How many records there are."""
        return self.good.total() + self.bad.total() + self.either.total()

    def kind(self, number: int) -> str:
        """Of the record with this number: the attribute that counts it."""
        return "bad" if number % BAD_EVERY == 0 else "good"

    def value(self, text: str) -> bytes | None:
        """Of the record with this text as its key."""
        return text.encode()

    def produce(self, count: int) -> None:
        """Stores ``count`` records, evenly over the partitions."""

        def stored(error: object, message: Any) -> None:
            assert error is None, error
            text = message.key().decode()
            getattr(self, text.split()[0])[text] += 1
            self._stored[message.partition(), message.offset()] = text
            self._places[text].append((message.partition(), message.offset()))
            self.ends[message.partition()] = max(self.ends[message.partition()], message.offset() + 1)

        first = self.produced
        for number in range(first, first + count):
            text = f"{self.kind(number)} {number}"
            self._producer.produce(
                self.topic, self.value(text), text, partition=number % PARTITIONS, on_delivery=stored
            )
        assert self._producer.flush(WAIT_S) == 0

    def start(self, ordinal: int, suffix: str = "a", stop_at: str = "") -> WorkerProcess:
        """Starts the pod ``g-SUFFIX-ORDINAL`` as the member ``g-ORDINAL``; ``stop_at``: a fault point."""
        classic = {"session.timeout.ms": str(self.session_ms), "heartbeat.interval.ms": "500"}
        config = self.config(
            groupProtocol="Consumer" if self.consumer_protocol else "Classic",
            properties={} if self.consumer_protocol else classic,
            takeover={"keyFile": str(self.key.file), "deadlineMs": 2_000},
        )
        pod = f"g-{suffix}-{ordinal}"
        return self.start_worker(f"g-{ordinal}", config, pod=pod, **{VARIABLE: stop_at})

    def until_done(self) -> None:
        """Waits until the group has committed everything that was produced."""
        self.until_committed(why=self.why)

    # ---- what an administrator does, with no worker in the group

    def until_empty(self) -> None:
        """Waits until the group has no member, after all workers have ended."""

        wait_until(lambda: self.describe().state in ("Empty", "Dead"), lambda: self.describe().state)

    def rewind(self, partition: int, share: float) -> None:
        """Sets the committed offset of a partition back, to ``share`` of what it is."""
        committed = self.committed().get(partition, 0)
        offset = int(committed * share)
        self.commit({partition: offset})
        self._rewound |= {text for (p, at), text in self._stored.items() if p == partition and at >= offset}

    def recreate(self) -> None:
        """Deletes the topic and creates it again, and has the group begin at the new one's start. Only when
        all of the old one is delivered."""
        self.recreate_topic()
        self._stored.clear()
        self.commit(dict.fromkeys(range(PARTITIONS), 0))

    # ---- the output, compared with what was produced

    def stored_rows(self) -> list[dict[str, Any]]:
        """All rows: ``text``, ``partition``, ``offset``, and the ``file`` in which pyarrow has found it."""
        return self.output.rows("text", "partition", "offset")

    def differences(self) -> list[str]:
        """A line for each record that is lost, or whose rows or dead letters are too many, but for those that
        somebody has had delivered again: where it was stored, and where it is now."""
        return [
            line
            for what, wanted, found in self._compared()
            for text in sorted(wanted.keys() | found.keys())
            if (line := self._differing(what, text, wanted[text], found.get(text, [])))
        ]

    def difference(self) -> tuple[int, int, int]:
        """How many records are lost, how many rows and letters are too many, and how many were written again
        because somebody has set the group's offsets back."""
        lost = doubled = again = 0
        for _, wanted, found in self._compared():
            written = Counter({text: len(places) for text, places in found.items()})
            lost += (wanted - written).total()
            more = written - wanted
            asked = sum(count for text, count in more.items() if text in self._rewound)
            doubled, again = doubled + more.total() - asked, again + asked
        return lost, doubled, again

    def check(self) -> None:
        """Raises AssertionError with the differences, if there are any."""
        differences = self.differences()
        assert not differences, "\n".join(differences)

    def _compared(self) -> Iterator[tuple[str, Counter[str], dict[str, list[str]]]]:
        """What is compared: its name, how often each record is to be there, and the places of what is."""
        rows, letters, both = (defaultdict[str, list[str]](list) for _ in range(3))
        for row in self.stored_rows():
            found = both if row["text"] in self.either else rows
            place = f"partition {row['partition']} offset {row['offset']} in {row['file']}"
            found[row["text"]].append(place)
        for letter in self.dead_letters():
            text = (letter.key or b"").decode()
            partition, offset = letter.source
            at = f"{self.letters_topic}-{letter.partition} offset {letter.offset}"
            (both if text in self.either else letters)[text].append(
                f"partition {partition} offset {offset} at {at}"
            )
        yield "rows", self.good, rows
        yield "dead letters", self.bad, letters
        yield "rows or dead letters", self.either, both

    def _differing(self, what: str, text: str, count: int, there: list[str]) -> str:
        if len(there) == count or (len(there) > count and text in self._rewound):
            return ""
        stored = ", ".join(f"partition {p} offset {o}" for p, o in self._places.get(text, []))
        now = "; ".join(there) or "nowhere"
        return f"{text!r}, stored at {stored or 'no place'}: {len(there)} {what} for {count}: {now}"
