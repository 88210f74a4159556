"""Checks that a handler makes the same of its records in smaller batches."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater.kafka.records import ConsumerRecord
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import HandlerError
from slackwater.testing.records import RecordList

if TYPE_CHECKING:
    from slackwater.pipeline.trial import Trial, TrialOutcome

Partitions = Mapping[TopicPartition, Sequence[ConsumerRecord]]
Position = tuple[str, int, int]
MOST_PIECES = 8
MOST_SHOWN = 600
"""Characters of a record's rows in a message."""

WHAT_TO_DO = (
    "A worker's batches end anywhere, so its rows would change from run to run. Make each row from its "
    "record alone, with declared types. For a handler that aggregates over its batch on purpose, pass "
    "split=False"
)


class BatchSplits:
    """Compares smaller batches of ``partitions`` with ``whole``, which all their records gave together."""

    def __init__(
        self,
        trial: Trial,
        partitions: Partitions,
        whole: TrialOutcome,
        ignore: Collection[str],
        *,
        isolate: bool,
    ) -> None:
        self._trial, self._partitions, self._whole = trial, partitions, whole
        self._ignore, self._isolate = ignore, isolate
        self._count = sum(len(records) for records in partitions.values())
        self._expected = self._made(whole)

    def check(self, *, splits: int, singles: int, seed: int) -> None:
        """Raises AssertionError where ``splits`` random splits, or ``singles`` records alone, give something
        else."""
        __tracebackhide__ = True
        if self._count < 2:
            return
        chance = random.Random(seed)
        for number in range(splits):
            pieces = chance.randint(2, min(MOST_PIECES, self._count))
            for batch in _split(self._partitions, pieces, chance):
                self._compare(batch, f"split {number + 1} with seed {seed}")
        every = [(tp, record) for tp, records in self._partitions.items() for record in records]
        chosen = every if len(every) <= singles else chance.sample(every, singles)
        for tp, record in sorted(chosen, key=lambda it: (it[0], it[1].offset)):
            self._compare({tp: [record]}, "alone")

    def _compare(self, batch: Partitions, how: str) -> None:
        __tracebackhide__ = True
        try:
            outcome = self._run(batch)
        except HandlerError as exc:
            raise AssertionError(
                f"the handler depends on the batch's bounds: it handles all {self._count} records together, "
                f"and fails on a batch of {_named(batch)} ({how}): {exc}\n{WHAT_TO_DO}."
            ) from exc
        made = self._made(outcome)
        positions = [
            (tp.topic, tp.partition, record.offset) for tp, records in batch.items() for record in records
        ]
        for position in sorted(positions):
            if made.get(position) != self._expected.get(position):
                self._check_repeatable()
                raise AssertionError(self._difference(position, made, f"{_named(batch)} ({how})"))

    def _run(self, batch: Partitions) -> TrialOutcome:
        """Types are those that the rows of all records have: a table keeps its columns' types."""
        columns = {tp: RecordList(records) for tp, records in batch.items()}
        schema = self._whole.fitted.schema if self._whole.rows.num_rows else None
        return self._trial.run(columns, isolate=self._isolate, schema=schema)

    def _check_repeatable(self) -> None:
        """Raises AssertionError where all records together, once more, give something else."""
        __tracebackhide__ = True
        again = self._made(self._run(self._partitions))
        for position in sorted(self._expected.keys() | again.keys()):
            if again.get(position) != self._expected.get(position):
                raise AssertionError(
                    f"the handler gives different rows for the same records: {_at(position)}, in the same "
                    "batch\n"
                    f"  first: {_shown(self._expected.get(position))}\n"
                    f"  then:  {_shown(again.get(position))}\n"
                    "It depends on the time, on random numbers, or on what it keeps between calls. A worker "
                    "may call it again with the same records. Name columns that may differ in ignore=[...]."
                )

    def _difference(self, position: Position, made: Mapping[Position, Counter[str]], batch: str) -> str:
        return (
            f"the handler depends on the batch's bounds: {_at(position)}\n"
            f"  with all {self._count} records: {_shown(self._expected.get(position))}\n"
            f"  in a batch of {batch}: {_shown(made.get(position))}\n"
            f"{WHAT_TO_DO}."
        )

    def _made(self, outcome: TrialOutcome) -> dict[Position, Counter[str]]:
        """What became of each record: its rows and its dead letter, as text."""
        made: dict[Position, Counter[str]] = {}
        for row in outcome.fitted.to_pylist():
            position = (row["topic"], row["partition"], row["offset"])
            kept = {
                name: value
                for name, value in sorted(row.items())
                if value is not None and name not in self._ignore
            }
            made.setdefault(position, Counter())[repr(kept)] += 1
        for tp, letter in outcome.letters:
            place = (tp.topic, tp.partition, letter.offset)
            made.setdefault(place, Counter())[f"a dead letter: {_reason(letter.error)}"] += 1
        return made


def _reason(error: str) -> str:
    """Of a batch that failed, the error depends on the others in it; that the record is rejected does not."""
    found_by_search = error.startswith("the batch fails with this record")
    return "the batch fails with this record" if found_by_search else error


def _split(partitions: Partitions, pieces: int, chance: random.Random) -> Iterable[Partitions]:
    """Consecutive batches: each has the next records of each partition, as many as chance has it."""
    cuts = {
        tp: [0, *sorted(chance.randint(0, len(records)) for _ in range(pieces - 1)), len(records)]
        for tp, records in partitions.items()
    }
    for at in range(pieces):
        batch = {
            tp: records[cuts[tp][at] : cuts[tp][at + 1]]
            for tp, records in partitions.items()
            if cuts[tp][at] < cuts[tp][at + 1]
        }
        if batch:
            yield batch


def _named(batch: Partitions) -> str:
    count = sum(len(records) for records in batch.values())
    spans = ", ".join(
        f"{tp} offset {records[0].offset}"
        if len(records) == 1
        else f"{tp} offsets {records[0].offset} to {records[-1].offset}"
        for tp, records in batch.items()
    )
    return f"{count} record{'s' if count > 1 else ''}, {spans}"


def _at(position: Position) -> str:
    return f"the record at {position[0]}-{position[1]} offset {position[2]} differs"


def _shown(made: Counter[str] | None) -> str:
    if not made:
        return "no row"
    text = "; ".join(item if count == 1 else f"{count} times {item}" for item, count in made.items())
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."
