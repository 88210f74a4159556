"""Reports on a delivery: events, metrics, status, lag, rebalances, the restart gap. It decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from slackwater.kafka.structs import GenerationSeen, MembershipSnapshot, SkippedRecords, TopicPartition
from slackwater.runtime.delivery.batch import DeliveryBatch
from slackwater.runtime.delivery.in_flight import InFlight
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.interfaces import Columns, Consumer, SinkOfTables
from slackwater.runtime.telemetry.takeover_trace import trace_return
from slackwater.runtime.telemetry.timings import RestartRecord, TakeoverRecord
from slackwater.runtime.worker_context import WorkerContext

LAG_EVERY_MS = 1000.0
KEPT = 20
"""How many joins /status names, and how many times that records were skipped."""
RETENTION = "retention"
"""Why records are skipped: the log begins behind them, by retention or DeleteRecords."""


class WorkerReport:
    """Reads the consumer, and ``owned`` and ``in_flight``, which its delivery keeps."""

    def __init__(
        self,
        consumer: Consumer,
        context: WorkerContext,
        owned: Mapping[TopicPartition, OwnedPartition],
        in_flight: InFlight,
    ) -> None:
        self._consumer, self._context, self._owned, self._in_flight = consumer, context, owned, in_flight
        self._record: TakeoverRecord | None = None
        self._last_joined: GenerationSeen | None = None
        self._lag_at_ms = -LAG_EVERY_MS
        self._lag_age = LagAge()
        self._rebalances = Rebalances()
        self._restart = RestartRecord(context.instance, context.status.started_ms)

    def take_over(self, record: TakeoverRecord) -> None:
        """This member comes by a takeover: that is no return, and has no restart gap."""
        self._record = record

    def turned(self) -> None:
        """The main thread is alive."""
        self._context.status.turned_ms = self._context.clock.mono_ms()

    def moved(self, event: str, partitions: Collection[TopicPartition]) -> None:
        """Partitions were ``assigned``, ``revoked`` or ``lost``."""
        self.membership()
        if event != "assigned":
            for tp in partitions:
                self._restart.left(tp)
                if self._record is not None:
                    self._record.left(tp)
        else:
            for tp in partitions:  # the series is there from the start: increase() does not see a first step
                self._context.metrics.count("records_skipped", (tp.topic, str(tp.partition), RETENTION), 0)
        named = [[tp.topic, tp.partition] for tp in sorted(partitions)]
        self._context.events.emit(event, partitions=named, generation=self._consumer.membership().generation)
        self.show()

    def membership(self) -> None:
        """Emits ``joined`` for each generation joined since the last call.

        The newest one waits for its Sync, which tells a return from a rebalance (KIP-345).
        """
        now = self._consumer.membership()
        self._rebalance(now)
        for joined in now.generations:
            if not self._is_new(joined):
                continue
            if joined == now.generations[-1] and now.state == SYNCING:
                break
            self._last_joined = joined
            returned = now.returned and joined == now.generations[-1]
            kind = "returned" if returned else "follow_up" if joined.follow_up else "joined"
            self._context.metrics.count("rebalances", (kind,))
            self._joined(joined, kind)
            self._context.events.emit(
                "joined",
                generation=joined.generation,
                member_id=now.member_id,
                leader=now.is_leader,
                follow_up=joined.follow_up,
                returned=returned,
            )
        status = self._context.status
        if (status.generation, status.is_leader) != (now.generation, now.is_leader):
            self.show()

    def _joined(self, joined: GenerationSeen, kind: str) -> None:
        status, now_ms = self._context.status, self._context.clock.wall_ms()
        self._restart.joined(now_ms)
        status.joined_ms, status.returned = self._restart.joined_ms, kind == "returned"
        if self._record is not None:
            self._record.joined(joined.generation)
        first = "" if status.joins else "the worker has started"
        join = {"generation": joined.generation, "at_ms": now_ms, "kind": kind}
        status.joins = [*status.joins, {**join, "reason": joined.reason or first}][-KEPT:]

    def _rebalance(self, now: MembershipSnapshot) -> None:
        """Notes when a rebalance begins and ends for this worker, as finely as it polls."""
        took_ms = self._rebalances.observe(now, self._context.clock.wall_ms())
        if took_ms is not None:
            self._context.metrics.observe("rebalance_seconds", took_ms / 1000)
        self._context.status.rebalance = self._rebalances.document()

    def committed_known(self, owned: OwnedPartition) -> None:
        """A partition's committed offset and note are known."""
        if self._record is not None:
            self._record.committed_known(owned)
            return
        self._restart.committed_known(owned.tp, owned.initial_note)
        self._context.status.restart = self._restart.document()

    def _is_new(self, joined: GenerationSeen) -> bool:
        last = self._last_joined
        return last is None or (joined.at_ms, joined.generation) > (last.at_ms, last.generation)

    def first_records(self, owned: OwnedPartition, offset: int, *, quiet: bool = False) -> None:
        """The partition is served again from now on. ``quiet``: there is nothing to read."""
        if owned.had_records:
            return
        owned.had_records = True
        now_ms = self._context.clock.wall_ms()
        self._back(owned.tp, now_ms)
        gap = owned.gap_ms(now_ms)
        if self._record is not None:
            self._record.served()
        if gap is None or owned.initial_note is None:
            return
        taken = self._record is not None and self._record.awaits(owned.tp)
        if not taken:  # otherwise the record has the pause, which ends with the first rows
            labels = (owned.tp.topic, str(owned.tp.partition))
            self._context.metrics.count("unserved_seconds", labels, gap / 1000)
        session = self._context.config.session_timeout_ms
        before = owned.initial_note.instance
        restart = before == self._context.instance
        self._context.events.emit(
            "first_records",
            partition=str(owned.tp),
            offset=offset,
            gap_ms=None if taken else gap,
            session_timeout_ms=session,
            restart=restart,
            before=before,
            quiet=quiet,
            takeover=taken,
        )
        if restart and self._record is None:
            self._gap(owned.tp, gap, session)

    def _back(self, tp: TopicPartition, now_ms: int) -> None:
        """A partition is served; the last of those that this worker had before ends its restart."""
        if not self._restart.served(tp, now_ms):
            return
        self._trace_return()
        self._context.status.restart = self._restart.document()
        for phase, seconds in self._restart.seconds().items():
            self._context.metrics.set("restart_phase_seconds", seconds, (phase,))

    def _trace_return(self) -> None:
        times = self._restart.document()
        if times is not None and self._context.tracing.on:
            made = trace_return(self._context.tracing, self._context.instance, times, self._restart.trace)
            self._restart.traceparent = str(made or "")

    def _gap(self, tp: TopicPartition, gap: int, session: int) -> None:
        metrics, status = self._context.metrics, self._context.status
        if status.last_gap is not None and gap <= status.last_gap["gap_ms"]:
            return
        metrics.set("restart_gap_seconds", gap / 1000)
        metrics.set("restart_gap_session_ratio", gap / session)
        status.last_gap = {
            "partition": str(tp),
            "gap_ms": gap,
            "session_timeout_ms": session,
            "session_share": round(gap / session, 4),
        }

    def quiet(self, polled: Mapping[TopicPartition, Columns]) -> None:
        """A partition that is found to have nothing to read is served: its gap ends without records."""
        for tp, owned in self._owned.items():
            if owned.had_records or not owned.looked_up or tp in polled:
                continue
            end = self._consumer.highwater(tp)
            if end is not None and (owned.committed is None or end <= owned.committed):
                self.first_records(owned, end, quiet=True)

    def batch(self, batch: DeliveryBatch) -> None:
        """A batch was committed."""
        parts, metrics = batch.parts, self._context.metrics
        for tp, part in parts.items():
            labels = (tp.topic, str(tp.partition))
            metrics.count("records_in", labels, part.records)
            metrics.count("bytes_in", labels, part.bytes)
            metrics.count("records_out", labels, part.rows_out)
            metrics.count("records_dead", labels, part.dead)
            metrics.count("records_rejected", labels, part.rejected)
        self._count_by_table()
        metrics.count("batches", ("committed",))
        self._context.messaging.processed({tp.topic for tp in parts}, batch.work_ms / 1000)
        for phase, ms in batch.ms.items():
            metrics.observe("batch_phase_seconds", ms / 1000, (phase,))
        rows = sum(part.rows_out for part in parts.values())
        dead = sum(part.dead for part in parts.values())
        self._context.status.batch(batch.records, rows, dead, batch.ms)
        self._context.events.emit(
            "batch",
            records=batch.records,
            out=rows,
            dead=dead,
            rejected=sum(part.rejected for part in parts.values()),
            by_partition={str(tp): [part.start, part.end] for tp, part in parts.items()},
            ms=batch.ms,
        )
        self._context.events.emit("committed", offsets={str(tp): part.end for tp, part in parts.items()})

    def _count_by_table(self) -> None:
        sink = self._context.sink
        if isinstance(sink, SinkOfTables):
            for table, rows in sink.rows_written.items():
                before = self._context.metrics.value("table_rows", (table,))
                self._context.metrics.count("table_rows", (table,), rows - before)

    def written(self, partitions: Collection[TopicPartition], at_ms: float) -> None:
        """The sink has rows of ``partitions`` since ``at_ms`` (monotonic clock)."""
        if self._record is not None:
            self._record.written(partitions, at_ms)

    def _idle(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those of which there is nothing to write, as far as the client knows."""
        under_way = self._in_flight.ends()
        return [
            tp
            for tp in partitions
            if (owned := self._owned.get(tp)) is None
            or owned.stopped is not None
            or (tp not in under_way and self._consumer.current_lag(tp) == 0)
        ]

    def skipped(self, skipped: SkippedRecords) -> None:
        """Records are gone from the log before they were read."""
        tp, first, end = skipped.partition, skipped.from_offset, skipped.to_offset
        labels = tp.topic, str(tp.partition), RETENTION
        self._context.metrics.count("records_skipped", labels, skipped.records)
        details = {"partition": str(tp), "from": first, "to": end, "cause": RETENTION}
        status = self._context.status
        status.skipped = [*status.skipped, {**details, "at_ms": self._context.clock.wall_ms()}][-KEPT:]
        self._context.events.emit("skipped", **details, records=skipped.records)
        self._context.log.line(
            f"{tp}: skipped {skipped.records} records, offsets {first} to {end - 1}: the log begins at {end} "
            "now (retention, or DeleteRecords). Goes on there"
        )

    def stopped(self, owned: OwnedPartition) -> None:
        """Nothing more is read of a partition."""
        assert owned.stopped is not None
        why = owned.stopped
        self._context.events.emit(
            "partition_stopped", partition=str(owned.tp), reason=why.reason, message=why.message
        )
        self._context.log.line(f"{why.reason}: {why.message}")
        self.show()

    def show(self) -> None:
        """Brings /status up to date. A generation is shown when its Sync is answered, as it is reported."""
        status, now, metrics = self._context.status, self._consumer.membership(), self._context.metrics
        if now.state != SYNCING:
            status.generation, status.member_id = now.generation, now.member_id
            status.is_leader = now.is_leader
        if status.generation >= 0:
            status.holder = status.pod or status.instance
        owned = dict(sorted(self._owned.items()))
        status.assignment = [[tp.topic, tp.partition] for tp in owned]
        status.committed = {str(tp): partition.committed for tp, partition in owned.items()}
        starts, ends = self._in_flight.starts(), self._in_flight.ends()
        status.in_flight = {str(tp): [start, ends[tp]] for tp, start in starts.items()}
        positions = {name: at for name, at in status.committed.items() if at is not None}
        status.positions = {**positions, **{name: span[1] for name, span in status.in_flight.items()}}
        stopped = {tp: partition.stopped for tp, partition in owned.items() if partition.stopped is not None}
        status.stopped = [
            {"partition": str(tp), "reason": why.reason, "message": why.message, "since_ms": why.since_ms}
            for tp, why in stopped.items()
        ]
        reasons = Counter(why.reason for why in stopped.values())
        metrics.replace("stopped_partitions", {(reason,): float(n) for reason, n in reasons.items()})
        metrics.set("generation", status.generation)
        metrics.set("leader", status.is_leader)
        metrics.set("assigned_partitions", len(owned))

    def lag(self) -> None:
        """Brings the lag up to date, at most every ``LAG_EVERY_MS``."""
        if self._record is not None:
            looked_up = all(owned.looked_up or owned.stopped for owned in self._owned.values())
            self._record.turned(self._idle, looked_up=looked_up)
        now = self._context.clock.mono_ms()
        if now - self._lag_at_ms < LAG_EVERY_MS:
            return
        self._lag_at_ms = now
        lag, behind = {}, {}
        self._lag_age.keep(set(self._owned))
        for tp, owned in self._owned.items():
            end = self._consumer.highwater(tp)
            if end is not None and owned.committed is not None:
                lag[tp] = max(0, end - owned.committed)
                behind[tp] = self._lag_age.observe(tp, now, end, owned.committed)
        self._context.status.lag = {str(tp): records for tp, records in sorted(lag.items())}
        self._context.metrics.replace(
            "lag_records", {(tp.topic, str(tp.partition)): float(records) for tp, records in lag.items()}
        )
        self._context.metrics.replace(
            "lag_seconds", {(tp.topic, str(tp.partition)): seconds for tp, seconds in behind.items()}
        )


MOST_SAMPLES = 256


class LagAge:
    """For how long each partition has had records that are not committed.

    Kafka has no such figure, and the records' timestamps may be of any time. So the observed end offsets are
    kept with their times: the first end beyond the committed offset says since when. Records that were there
    when the partition was assigned count from then. Times are monotonic ms.
    """

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, list[tuple[float, int]]] = {}

    def observe(self, tp: TopicPartition, now_ms: float, end: int, committed: int) -> float:
        """Takes in a partition's end and committed offset. Returns for how many seconds it has been
        behind."""
        samples = self._ends.setdefault(tp, [])
        if samples and end < samples[-1][1]:
            samples.clear()  # made anew, or a leader that has lost records
        if not samples or end > samples[-1][1]:
            samples.append((now_ms, end))
        while len(samples) > 1 and samples[0][1] <= committed:
            samples.pop(0)
        if len(samples) > MOST_SAMPLES:
            del samples[1::2]  # a long backlog is reported less finely
        since, first = samples[0]
        return (now_ms - since) / 1000 if first > committed else 0.0

    def keep(self, partitions: set[TopicPartition]) -> None:
        """Forgets all others."""
        for tp in self._ends.keys() - partitions:
            del self._ends[tp]


SETTLED = "stable"
SYNCING = "syncing"
OUTSIDE = ("out", "dead")
"""States of `protocol.membership.State`."""


class Rebalances:
    """When the last rebalance began and ended for this worker, by the membership at each poll.

    The second half of a cooperative rebalance (KIP-429) continues the first. A return is no rebalance.
    """

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._last: tuple[int, int] | None = None

    def observe(self, now: MembershipSnapshot, now_ms: int) -> int | None:
        """Takes in the membership at wall clock ``now_ms``. Returns how long a rebalance took (ms) that has
        just ended; None: none has.
        """
        if now.state in OUTSIDE:
            self._began_ms = None
            return None
        if now.state != SETTLED:
            self._began_ms = now_ms if self._began_ms is None else self._began_ms
            return None
        began_ms, self._began_ms = self._began_ms, None
        if began_ms is None or now.returned:
            return None
        follow_up = bool(now.generations) and now.generations[-1].follow_up
        first_ms = self._last[0] if follow_up and self._last is not None else began_ms
        self._last = (first_ms, now_ms)
        return now_ms - began_ms

    def document(self) -> dict[str, int | None] | None:
        """For /status: the rebalance in progress, else the last one; None before the first."""
        if self._began_ms is not None:
            return {"started_ms": self._began_ms, "ended_ms": None}
        return None if self._last is None else {"started_ms": self._last[0], "ended_ms": self._last[1]}
