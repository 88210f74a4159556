"""A backfill from its bounds to its last batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slackwater.backfill import bounds, target
from slackwater.backfill.bounds import Bound
from slackwater.backfill.cluster import BackfillCluster
from slackwater.backfill.commits import BackfillOffsets, committed
from slackwater.backfill.delivery import BackfillDelivery
from slackwater.backfill.letters import TOPIC, make_letters
from slackwater.backfill.report import BackfillCounts, BackfillReport, Plan, Progress
from slackwater.backfill.slices import DEFAULT_MOST, BackfillBatchSize, Work
from slackwater.backfill.state import BackfillState, group_of
from slackwater.clock import SYSTEM_CLOCK
from slackwater.runtime.config.sink_config import name_of, place_of
from slackwater.runtime.delivery.calls import sink_errors
from slackwater.tools import clients
from slackwater.tools.marks import has_marks, marks_in
from slackwater.tools.topics import topics_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.handler import OffsetRange
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.config.worker_config import WorkerConfig
    from slackwater.runtime.interfaces import Sink

    Ranges = Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True)
class Options:
    """What the command line says.

    ``name``: "": made of the bounds and the table. ``batch_rows``: the most records of a batch. ``tasks``:
    into how many tasks a batch is divided at least; 0: by the session's cores. ``dead_letters``: ``topic``,
    ``none`` or a file.
    """

    begins: list[Bound]
    ends: list[Bound] = field(default_factory=list)
    name: str = ""
    batch_rows: int = DEFAULT_MOST
    tasks: int = 0
    dead_letters: str = TOPIC
    allow_overlap: bool = False
    dry_run: bool = False
    route: str = ""


def backfill(
    config: WorkerConfig,
    group_config: WorkerConfig,
    options: Options,
    report: BackfillReport,
    session: SparkSession | None = None,
) -> BackfillCounts:
    """Runs a backfill, or goes on with one.

    Args:
        config: the group's, with the sink and the handler of the backfill.
        group_config: the group's.
        options: the command line's.
        report: is told what happens, but for the end.
        session: to use, and to leave open; None: the one that ``config`` says.

    Raises WorkerError and KafkaError.
    """
    live, section = target.one_table(group_config, options.route)
    clients.check_reachable(config)
    topics = topics_of(config)
    ids = {name: topic.id for name, topic in topics.items()}
    cluster = BackfillCluster(config, ids, options.tasks, session)
    with clients.reader(config) as consumer:
        partitions = {name: topic.partitions for name, topic in sorted(topics.items())}
        ranges = bounds.resolve(consumer, partitions, options.begins, options.ends)
        digest = bounds.digest_of(options.begins, options.ends)
        name = options.name or bounds.digest_of(options.begins, options.ends, *place_of(config.sink))
        group = group_of(config.group_id, name)
        state = BackfillState(
            lambda name: _sink(config, name, cluster, group_config, section),
            group,
            digest,
            ids,
            by_record=config.by_record,
            offsets=None if _has_marks(config, cluster) else BackfillOffsets(config, group),
        )
        with sink_errors("read the marks"):
            ranges, positions = state.begin(ranges)
        work = Work(ranges)
        work.advance(positions)
        if not options.allow_overlap and target.same_target(config.sink, live.sink):
            written = _live_marks(live, ids, ranges, cluster)
            target.check_overlap(config.sink, work.left, written, live.group_id)
        place = name_of(config.sink)
        report.plan(Plan(group, config.handler, config.sink.format, place, ranges, positions, cluster.sent))
        if options.dry_run or work.done == work.total:
            report.nothing("nothing is written" if options.dry_run else "nothing is left to do")
            return BackfillCounts()
        letters = make_letters(config, group, options.dead_letters)
        try:
            letters.begin(list(state.owned.values()))
            with cluster:
                delivery = BackfillDelivery(config, state, letters, cluster, consumer)
                return _run(delivery, state, work, ranges, options.batch_rows, report)
        finally:
            letters.close()


def _run(
    delivery: BackfillDelivery,
    state: BackfillState,
    work: Work,
    ranges: Ranges,
    most: int,
    report: BackfillReport,
) -> BackfillCounts:
    clock, counts, size = SYSTEM_CLOCK, BackfillCounts(), BackfillBatchSize(most)
    began = clock.mono_ms()
    while part := work.take(size.offsets):
        at = clock.mono_ms()
        offsets = sum(span.end - span.start for span in part.values())
        delivered = delivery.deliver(part, ranges, may_halve=size.can_halve(offsets))
        if delivered is None:
            size.failed(offsets)
            work.failed(part)
            report.failed(offsets, delivery.failure)
            continue
        with sink_errors("fix the backfill's end"):
            state.fix_ends(ranges)
        work.advance({tp: span.end for tp, span in part.items()})
        size.succeeded(offsets, delivered.rows_bytes, clock.mono_ms() - at)
        counts.offsets += offsets
        counts.rows += delivered.rows
        counts.letters += delivered.letters
        counts.batches += 1
        report.progress(Progress(work.done, work.total, replace(counts), clock.mono_ms() - began))
    return counts


def _sink(
    config: WorkerConfig,
    group: str,
    cluster: BackfillCluster,
    group_config: WorkerConfig | None = None,
    section: str = "",
) -> Sink:
    """The sink of a group. ``section``: of ``group_config``, whose rows alone it gets; "": it gets all."""
    if config.sink.format == "spark":
        from slackwater.pipeline.sinks.spark import spark_sink

        return spark_sink(replace(config, group_id=group), lambda: cluster.spark)
    from slackwater.pipeline import make_chosen_sink, make_sink

    made = make_sink(replace(config, group_id=group))
    if group_config is None or not section:
        return made
    return make_chosen_sink(made, group_config, section)


def _has_marks(config: WorkerConfig, cluster: BackfillCluster) -> bool:
    if config.sink.format != "custom":
        return has_marks(config)
    from slackwater.pipeline.sinks.custom.sink import CustomSink

    sink = _sink(config, config.group_id, cluster)
    return not isinstance(sink, CustomSink) or sink.has_marks


def _live_marks(
    live: WorkerConfig, ids: Mapping[str, str], ranges: Ranges, cluster: BackfillCluster
) -> dict[TopicPartition, int]:
    if not _has_marks(live, cluster):
        return {tp: at.offset for tp, at in committed(live, live.group_id, list(ranges)).items()}
    sink = _sink(live, live.group_id, cluster)
    with sink_errors("read the group's marks"):
        return marks_in(sink, ranges, ids)
