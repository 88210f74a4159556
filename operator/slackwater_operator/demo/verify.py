"""Checks the demo's output: its rows against the source file and the offsets of the source topic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from slackwater.kafka import KafkaConsumer, TopicPartition
from slackwater.runtime.delivery.dead_letters import OFFSET_HEADER, PARTITION_HEADER, TOPIC_HEADER
from slackwater_operator.demo.children import DemoError
from slackwater_operator.demo.source import MISSING, Row, read_rows

Identity = tuple[str, int, int]
"""Topic, partition, offset of a source record."""
_MAX_NAMED = 5
_POLL_MS = 500
_EMPTY_POLLS = 40


@dataclass(frozen=True, slots=True)
class Totals:
    """What is added up per carrier and per day."""

    flights: int = 0
    cancelled: int = 0
    distance: int = 0
    dep_delay: int = 0
    arr_delay: int = 0
    air_time: int = 0

    def plus(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(slots=True)
class Summary:
    """Totals by carrier and by day (``2013-01-31``)."""

    by_carrier: dict[str, Totals] = field(default_factory=lambda: defaultdict(Totals))
    by_day: dict[str, Totals] = field(default_factory=lambda: defaultdict(Totals))

    def add(self, carrier: str, day: str, totals: Totals) -> None:
        self.by_carrier[carrier] = self.by_carrier[carrier].plus(totals)
        self.by_day[day] = self.by_day[day].plus(totals)


def summarise_source(rows: Iterable[Row] | None = None) -> Summary:
    """Adds up the source file, in plain Python."""
    summary = Summary()
    for row in read_rows() if rows is None else rows:
        day = f"{int(row['year']):04}-{int(row['month']):02}-{int(row['day']):02}"
        totals = Totals(
            1,
            int(row["dep_time"] == MISSING),
            *(0 if row[name] == MISSING else int(row[name]) for name in _SUMMED),
        )
        summary.add(row["carrier"], day, totals)
    return summary


_SUMMED = ("distance", "dep_delay", "arr_delay", "air_time")


def read_output(path: Path) -> pa.Table:
    """The Parquet that the workers wrote, as one table. Raises FileNotFoundError if there is none."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: there is no output to verify")
    return ds.dataset(path, format="parquet").to_table()


def summarise_output(table: pa.Table) -> Summary:
    """Adds up the output, in Arrow."""
    summary = Summary()
    cancelled = table["dep_time"].is_null().cast(pa.int64())
    columns = table.select(["year", "month", "day", "carrier", *_SUMMED])
    grouped = (
        columns.append_column("cancelled", cancelled)
        .group_by(["carrier", "year", "month", "day"])
        .aggregate([([], "count_all"), ("cancelled", "sum"), *((name, "sum") for name in _SUMMED)])
    )
    for row in grouped.to_pylist():
        totals = Totals(
            row["count_all"], row["cancelled_sum"], *(int(row[f"{name}_sum"] or 0) for name in _SUMMED)
        )
        summary.add(row["carrier"], f"{row['year']:04}-{row['month']:02}-{row['day']:02}", totals)
    return summary


def differences(expected: Summary, actual: Summary) -> list[str]:
    """One line for each carrier and day whose totals differ; empty if all are equal."""
    lines = []
    for kind, left, right in (
        ("carrier", expected.by_carrier, actual.by_carrier),
        ("day", expected.by_day, actual.by_day),
    ):
        for key in sorted({*left, *right}):
            want, got = left.get(key, Totals()), right.get(key, Totals())
            if want != got:
                lines.append(f"{kind} {key}: the source has {want}, the output has {got}")
    return lines


@dataclass(frozen=True, slots=True)
class Accounting:
    """Where every record of the source topic went."""

    records_in: int
    records_out: int
    dead_lettered: int
    lost: int
    duplicated: int
    examples: tuple[str, ...]
    """Some of what was lost or duplicated, by name."""


def account(
    ends: dict[tuple[str, int], int], written: Iterable[Identity], dead: Iterable[Identity]
) -> Accounting:
    """Holds what was written and dead-lettered against every offset of the source topic.

    ``ends`` maps (topic, partition) to its end offset; the demo's topics begin at 0. A record counts
    as lost if it is in neither, and as duplicated once for every time it is there beyond the first.
    """
    out, rejected = Counter(written), Counter(dead)
    occurrences = out + rejected
    expected = {(topic, n, offset) for (topic, n), end in ends.items() for offset in range(end)}
    lost = sorted(expected - occurrences.keys())
    repeated = sorted(identity for identity, times in occurrences.items() if times > 1)
    strangers = sorted(occurrences.keys() - expected)
    named = [
        *(f"lost {identity}" for identity in lost[:_MAX_NAMED]),
        *(f"{occurrences[identity]} times {identity}" for identity in repeated[:_MAX_NAMED]),
        *(f"never produced {identity}" for identity in strangers[:_MAX_NAMED]),
    ]
    return Accounting(
        records_in=len(expected),
        records_out=out.total(),
        dead_lettered=rejected.total(),
        lost=len(lost),
        duplicated=sum(occurrences[identity] - 1 for identity in repeated) + len(strangers),
        examples=tuple(named),
    )


def identities(table: pa.Table) -> Iterable[Identity]:
    """The source record of each row of the output."""
    columns = [table[name].to_pylist() for name in ("topic", "partition", "offset")]
    return zip(*columns, strict=True)


def collect(
    bootstrap: str,
    topic: str,
    dead_letter_topic: str,
    output: Path,
    read: Callable[[Path], pa.Table] = read_output,
) -> tuple[Accounting, list[str]]:
    """Accounts for every record of ``topic``, and compares the output's totals with the source file's.
    ``read``: gives the rows of ``output``.

    Raises:
        DemoError: there is no output, or a topic cannot be read to its end.
    """
    with KafkaConsumer(
        bootstrap_servers=bootstrap, client_id="slackwater-demo-check", auto_offset_reset="earliest"
    ) as consumer:
        ends = consumer.end_offsets(_partitions(consumer, topic))
        dead = _dead_letters(consumer, dead_letter_topic)
    try:
        table = read(output)
    except (FileNotFoundError, ValueError) as exc:
        raise DemoError(str(exc)) from None
    accounting = account({(tp.topic, tp.partition): end for tp, end in ends.items()}, identities(table), dead)
    return accounting, differences(summarise_source(), summarise_output(table))


def _partitions(consumer: KafkaConsumer, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for n in sorted(consumer.partitions_for_topic(topic) or ())]


def _dead_letters(consumer: KafkaConsumer, topic: str) -> list[Identity]:
    """The source record of each dead letter, out of its headers."""
    partitions = _partitions(consumer, topic)
    left = {tp: end for tp, end in consumer.end_offsets(partitions).items() if end > 0}
    consumer.assign(list(left))
    identities: list[Identity] = []
    empty = 0
    while left:
        polled = consumer.poll(timeout_ms=_POLL_MS)
        empty = 0 if polled else empty + 1
        if empty > _EMPTY_POLLS:
            raise DemoError(f"{topic} cannot be read to its end: {len(left)} partitions have more")
        for records in polled.values():
            for record in records:
                headers = {name: (value or b"").decode() for name, value in record.headers}
                identities.append(
                    (headers[TOPIC_HEADER], int(headers[PARTITION_HEADER]), int(headers[OFFSET_HEADER]))
                )
        left = {tp: end for tp, end in left.items() if consumer.position(tp) < end}
    return identities
