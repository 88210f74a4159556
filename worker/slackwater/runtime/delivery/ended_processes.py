"""Finds the record with which processes end or hang, over several processes: what to try, and what to note.

A process that its handler kills tells nobody. So the first batch of a partition that it handles is noted in
the commit before (:class:`~slackwater.runtime.delivery.partition.Begun`). The next process that finds a note
tries half of these records alone, and notes that. Where it ends too, the one after it tries half of the half.
A record that has ended :data:`MOST_ENDS` processes alone is a dead letter. Before it is tried again, the
handler gets another record: if that ends the process too, it is the handler or what it works with, and
nothing is rejected. docs/design/worker.md says more. No I/O here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.runtime.delivery.batch import DeliveryBatch, Part, Transformed
from slackwater.runtime.delivery.columns import Selected, Whole
from slackwater.runtime.delivery.dead_letters import letters_of
from slackwater.runtime.delivery.partition import Begun, OwnedPartition
from slackwater.runtime.handler_output import Output
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    from slackwater.kafka.structs import TopicPartition

MOST_ENDS = 3
"""With so many processes one record is handled alone before it is rejected."""
MOST_CONTROLLED = 40
"""After so many processes in a row that have ended, a record is tried alone without another one before it."""
ENDED_THE_PROCESS = (
    "EndedTheProcess: {ends} processes in a row ended or hung while they handled this record alone"
)
"""The reason of such a dead letter."""

Parts = dict["TopicPartition", Part]


def before_suspects(parts: Mapping[TopicPartition, Part]) -> Parts | None:
    """Of ``parts`` what is not suspect, if some of it comes before suspect records of its partition: the
    handler had returned for that when processes have ended. None: nothing does."""
    taken: Parts = {}
    for tp, part in parts.items():
        suspect = part.owned.suspect
        if suspect is None or part.end <= suspect.start:
            taken[tp] = part
        elif count := len(_offsets_below(suspect.start, columns := Whole(part.columns, tp))):
            taken[tp] = replace(part, columns=Selected(columns, range(count)), end=suspect.start)
    return taken if any(part.owned.suspect for part in taken.values()) else None


def narrowed(parts: Mapping[TopicPartition, Part]) -> Parts | None:
    """The first half of the records of ``parts`` with which processes have ended, or the one that is left.
    None: there are no such records. Of several ranges those that were tried last are taken."""
    suspects = {tp: Whole(part.columns, tp) for tp, part in parts.items() if part.suspect}
    offsets = {tp: _offsets_below(_suspect(parts[tp]).end, columns) for tp, columns in suspects.items()}
    for tp in [
        tp for tp, suspected in offsets.items() if not suspected
    ]:  # retention has removed them meanwhile
        parts[tp].owned.suspect = None
        del offsets[tp]
    if not offsets:
        return None
    last = max(_suspect(parts[tp]).ends for tp in offsets)
    offsets = {tp: suspected for tp, suspected in offsets.items() if _suspect(parts[tp]).ends == last}
    left = max(1, sum(map(len, offsets.values())) // 2)
    taken: Parts = {}
    for tp, suspected in sorted(offsets.items()):
        if not left:
            break
        part, count = parts[tp], min(left, len(suspected))
        end = suspected[count] if count < len(suspected) else min(part.end, _suspect(part).end)
        taken[tp] = replace(part, columns=Selected(suspects[tp], range(count)), end=end)
        left -= count
    return taken


def control_of(parts: Mapping[TopicPartition, Part], taken: Parts, turn: int) -> Parts | None:
    """Another record of ``parts``, where ``taken`` is one that has ended a process alone and is tried again:
    if that one passes, it is not the handler, or what it works with, that ends the process. ``turn``: which,
    since it may end the process itself. None: none is needed, or there is none, or so many processes have
    ended that each other record may be like that one."""
    ((suspect, part),) = taken.items() if len(taken) == 1 else ((None, None),)
    if part is None or len(part.columns) != 1 or part.owned.controlled:
        return None
    if not 0 < _ended_alone(part) < MOST_ENDS or _suspect(part).ends >= MOST_CONTROLLED:
        return None
    others = [(tp, row) for tp, other in parts.items() for row in range(tp == suspect, len(other.columns))]
    if not others:
        return None
    part.owned.controlled = True
    tp, row = others[turn % len(others)]
    columns = Selected(Whole(parts[tp].columns, tp), [row])
    return {tp: replace(parts[tp], columns=columns, end=columns.first_offset + 1)}


def begin_notes(
    batch: DeliveryBatch, ends: Mapping[TopicPartition, int]
) -> list[tuple[OwnedPartition, Begun]]:
    """What is to be noted before the handler or the table gets ``batch``, of partitions that need it.
    ``ends``: up to where batches are in flight."""
    if batch.control_for is not None:
        suspect = batch.control_for.suspect
        return [(batch.control_for, replace(suspect, ends=suspect.ends + 1))] if suspect else []
    noted = [part for part in batch.parts.values() if part.owned.needs_note]
    count = 1 + max((part.suspect.ends for part in noted if part.suspect), default=0)
    alone = sum(len(part.columns) for part in batch.parts.values()) == 1
    return [
        (part.owned, Begun(part.start, ends[part.owned.tp], count, 1 + _ended_alone(part) if alone else 0))
        for part in noted
    ]


def ended_alone(parts: Mapping[TopicPartition, Part]) -> int:
    """With how many processes the one record of ``parts`` has ended alone, if those are enough; else 0."""
    if sum(len(part.columns) for part in parts.values()) != 1:
        return 0
    ends = max(map(_ended_alone, parts.values()))
    return ends if ends >= MOST_ENDS else 0


def rejected_whole(batch: DeliveryBatch, reason: str, *, by_record: bool) -> Transformed:
    """As if the handler had rejected each record of ``batch``."""
    from slackwater.kafka.records import ARROW_SCHEMA

    letters = {}
    for tp, part in batch.parts.items():
        records = part.columns.to_arrow(tp.topic, tp.partition)
        dead = [(offset, reason) for offset in records.column("offset").to_pylist()]
        letters[tp] = letters_of(records, dead, attempt=batch.ended_alone)
    rows = ARROW_SCHEMA.empty_table().select(PLACE_COLUMNS if by_record else ())
    return Transformed(Output(rows, {}, {}), letters, 0, {}, by_record)


def _suspect(part: Part) -> Begun:
    assert part.suspect is not None
    return part.suspect


def _ended_alone(part: Part) -> int:
    """With how many processes its one record has ended alone."""
    suspect = part.suspect
    return suspect.alone if suspect is not None and suspect.end == part.end else 0


def _offsets_below(end: int, columns: Whole) -> list[int]:
    offsets = columns.to_arrow("", 0).column("offset").to_pylist()
    return [offset for offset in offsets if offset < end]
