"""How far a backfill is, as its table says: the marks of a group of its own, and the ends that were fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slackwater.handler import OffsetRange
from slackwater.pipeline.datasource.offsets import is_other, recreated
from slackwater.runtime.config.worker_config import BACKFILL
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.delivery.stopped_partitions import id_text
from slackwater.runtime.errors import StartError
from slackwater.runtime.interfaces import PLACE_COLUMNS, Range, SinkFencedError
from slackwater.tools.marks import marks_in

if TYPE_CHECKING:
    from slackwater.backfill.commits import BackfillOffsets
    from slackwater.kafka import KafkaConsumer
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Sink

GO_ON = (
    "Nothing more is written. Run the command again: a recreated topic is read from its start. If the first "
    "records are gone, begin later (--from)"
)
"""What to do where records are gone in the middle of a backfill."""
MakeSink = Callable[[str], "Sink"]
"""The sink of a group."""


def group_of(group_id: str, name: str) -> str:
    """The group whose marks the backfill ``name`` has."""
    return f"{group_id}{BACKFILL}{name}"


def check_topic(consumer: KafkaConsumer, tp: TopicPartition, topic_ids: Mapping[str, str]) -> None:
    """Raises StartError where ``consumer`` has read ``tp`` of another topic than that of ``topic_ids``."""
    before, now = topic_ids.get(tp.topic, ""), id_text(consumer.topic_id(tp))
    if is_other(before, now):
        raise StartError(f"{recreated(tp.topic, before, now)}. {GO_ON}")


class BackfillState:
    """The state of the backfill whose group is ``group``.

    ``make_sink``: makes the sink for a group. ``digest``: of the bounds, for which the ends are kept.
    ``topic_ids``: by topic; "": it has none. ``by_record``: whether rows carry the positions of records.
    ``offsets``: keeps the state where the table has no marks; None: it has.
    """

    def __init__(
        self,
        make_sink: MakeSink,
        group: str,
        digest: str,
        topic_ids: Mapping[str, str],
        *,
        by_record: bool,
        offsets: BackfillOffsets | None = None,
    ) -> None:
        self.group, self._ids, self._by_record = group, topic_ids, by_record
        self._digest, self._offsets = digest, offsets
        self.sink = make_sink(group)
        self._ends = make_sink(f"{group}.end-{digest}")
        self.owned: dict[TopicPartition, OwnedPartition] = {}
        """What is known of each partition: its mark, its dead letters."""
        self.resumed = False
        """Whether an earlier run has written something. Without, dead letters that this backfill's name has
        may be of a table that is gone, and say nothing about the rows of this one."""
        self._fixed: dict[TopicPartition, int] = {}
        self._ranges: dict[TopicPartition, OffsetRange] = {}

    def begin(
        self, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> tuple[dict[TopicPartition, OffsetRange], dict[TopicPartition, int]]:
        """Reads marks and ends. Returns the ranges with the ends that the first run has fixed, and by
        partition where to go on. A topic that was recreated since begins anew. Raises what the sink raises,
        KafkaError."""
        positions: dict[TopicPartition, int] = {}
        renewed: set[str] = set()
        if self._offsets is None:
            self._fixed = marks_in(self._ends, ranges, self._ids)
            known = {tp.topic for tp, ends in self._ends.marks(list(ranges)).items() if ends}
            renewed = known - {tp.topic for tp in self._fixed}
        else:
            positions, self._fixed = self._offsets.read(list(ranges), self._ids, self._digest)
        fixed = dict(ranges)
        if self._fixed:  # partitions that the first run did not know are not part of it
            fixed = {
                tp: self._as_fixed(tp, span)
                for tp, span in ranges.items()
                if tp in self._fixed or tp.topic in renewed
            }
        marks = self.sink.marks(list(fixed))
        self.owned = {
            tp: OwnedPartition(tp, marks=dict(marks.get(tp, {})), topic_id=self._ids.get(tp.topic, ""))
            for tp in fixed
        }
        self._ranges = fixed
        if self._offsets is None:
            at = {tp: owned.mark for tp, owned in self.owned.items()}
            positions = {tp: mark for tp, mark in at.items() if mark is not None}
        self.resumed = bool(positions)
        return fixed, {tp: position for tp, position in positions.items() if tp in fixed}

    def _as_fixed(self, tp: TopicPartition, span: OffsetRange) -> OffsetRange:
        end = self._fixed.get(tp, span.end)
        return OffsetRange(min(span.start, end), end)

    def fix_ends(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Keeps the ends of ``ranges``, so that another run has the same. To be called after the first batch,
        which makes the table. Does nothing if they are kept already. Raises StartError where another process
        has fixed them meanwhile, and what the sink raises."""
        from slackwater.kafka.records import ARROW_SCHEMA

        new = {tp: span for tp, span in ranges.items() if tp not in self._fixed}
        if not new or self._offsets is not None:
            return
        none = ARROW_SCHEMA.empty_table().select(PLACE_COLUMNS if self._by_record else ())
        spans = {
            tp: Range(self._ids.get(tp.topic, ""), min(span.start, span.end), span.end, None)
            for tp, span in new.items()
        }
        try:
            self._ends.stage(none, spans).publish()
        except SinkFencedError as exc:
            raise self.taken(exc) from exc
        self._fixed = {**self._fixed, **{tp: span.end for tp, span in new.items()}}

    def ranges(self, part: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, Range]:
        """What the sink is to know of ``part``."""
        return {
            tp: Range(self.owned[tp].topic_id, span.start, span.end, self.owned[tp].mark)
            for tp, span in part.items()
        }

    def published(self, part: Mapping[TopicPartition, OffsetRange]) -> None:
        """The marks are at the ends of ``part`` now. Raises KafkaError where there are none, and offsets are
        committed."""
        if self._offsets is not None:
            ends = {tp: span.end for tp, span in self._ranges.items()}
            done = {tp: span.end for tp, span in part.items()}
            self._offsets.commit(done, self._ids, self._digest, ends)
        for tp, span in part.items():
            owned = self.owned[tp]
            owned.marks = {**(owned.marks or {}), owned.topic_id: span.end}

    def taken(self, exc: SinkFencedError) -> StartError:
        """The error to raise for ``exc``."""
        return StartError(
            f"another process runs this backfill ({self.group}): {exc}. End one of them; what both have "
            "written is there once"
        )
