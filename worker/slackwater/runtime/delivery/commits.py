"""Commits: of batches, of positions without records, and offsets that a predecessor has committed.

A broker's answer to a commit is one of three outcomes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from slackwater.kafka.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalGenerationError,
    KafkaError,
    KafkaTimeoutError,
    RebalanceInProgressError,
    TopicRecreatedError,
    UnknownMemberIdError,
)
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.delivery.partition import OwnedPartition, Signature
from slackwater.runtime.errors import FencedError, WorkerError
from slackwater.runtime.interfaces import Consumer
from slackwater.runtime.worker_context import WorkerContext

COMMIT_TIMEOUT_MS = 2000
"""How long a commit may keep the main thread from polling; one without an answer is repeated after a poll."""
HANDLED_EVERY_MS = 2000
"""How often commits say how far records are handled whose rows wait. The operator takes a group's rates over
20 s."""
SIGN_CHECKS = 4
"""How often, in the time between two notes, the worker checks whether a sign of life is due."""


class CommitOutcome(Enum):
    """``DONE``: stored, but for offsets of a topic that was recreated, which have no place any more.
    ``AGAIN``: not known to be stored; poll, then repeat. ``GONE``: not ours any more."""

    DONE = "done"
    AGAIN = "again"
    GONE = "gone"


def fenced() -> FencedError:
    """The error of a worker whose instance id another process has taken."""
    return FencedError(
        "another process has joined the group with this worker's instance id; this worker stops. "
        "Give each worker its own SLACKWATER_INSTANCE_ID"
    )


class DeliveryCommits:
    """Commits for the partitions in ``owned``, which the delivery keeps: of batches, and without records.

    The note in each commit says until when a partition was served, by which process, and that it lives.
    """

    def __init__(
        self, consumer: Consumer, context: WorkerContext, owned: Mapping[TopicPartition, OwnedPartition]
    ) -> None:
        self._consumer, self._context, self._owned = consumer, context, owned
        self._clock, self._instance = context.clock, context.instance
        self._refresh_ms = max(1000, context.config.session_timeout_ms // 10)
        self._sign_at_ms = 0.0
        self._handled_at_ms = 0.0
        self.drain_ms: int | None = None
        """Since when (wall clock) the partitions are drained; None: they are not."""
        self.drain_trace = ""
        """The trace of the restart for which they are drained; "": none."""

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> CommitOutcome:
        """Commits ``offsets``, if there are any, and waits for the answer. Raises FencedError, or WorkerError
        for what no repetition mends."""
        if not offsets:
            return CommitOutcome.DONE
        before, log, outcome = self._clock.mono_ms(), self._context.log, CommitOutcome.AGAIN
        kind = ""
        try:
            self._consumer.commit(offsets, timeout_ms=COMMIT_TIMEOUT_MS)
            outcome = CommitOutcome.DONE
        except FencedInstanceIdError as exc:
            kind = "fenced"
            raise fenced() from exc
        except (CommitFailedError, IllegalGenerationError, UnknownMemberIdError) as exc:
            kind, outcome = "rebalanced", CommitOutcome.GONE
            log.seldom("gone", f"the commit was refused: {exc}")
        except RebalanceInProgressError:
            # CompletingRebalance: the broker takes commits again after this member's poll has synced
            kind = "rebalancing"
        except TopicRecreatedError as exc:
            # The others' offsets are stored. poll() raises it too, and the partition is stopped there.
            kind, outcome = "recreated", CommitOutcome.DONE
            log.seldom("recreated", str(exc))
        except KafkaError as exc:
            kind = "other"
            if not exc.retriable:
                raise WorkerError(f"the broker refuses the commit: {exc}") from exc
            log.seldom("commit", f"the commit is not confirmed yet and will be retried: {exc}")
        finally:
            seconds = (self._clock.mono_ms() - before) / 1000
            if kind:
                self._context.metrics.count("commit_failures", (kind,))
            else:
                self._context.metrics.observe("commit_seconds", seconds)
            self._context.messaging.settled(seconds, kind)
        if outcome is CommitOutcome.DONE:
            for tp, offset in offsets.items():
                self._owned[tp].stored(offset)
        return outcome

    def take_back_begun(self, partitions: Collection[TopicPartition]) -> None:
        """Says that this process does not end with what it has begun of ``partitions``."""
        offsets = {}
        for tp in partitions:
            owned = self._owned.get(tp)
            if owned is not None and (offset := owned.not_begun_of()) is not None:
                owned.begun, offsets[tp] = None, offset
        self.commit(offsets)

    # ---- service

    def served(self, owned: OwnedPartition, offset: int, rejected: int | None = None) -> OffsetAndMetadata:
        """The commit of what was served up to ``offset`` until now; ``rejected``: of
        :class:`~slackwater.runtime.delivery.partition.CommitNote`, None: as before."""
        now = self._clock.wall_ms()
        return owned.commit_of(offset, now, self._instance, self.drain_ms, rejected, self.drain_trace)

    def due(self, but: Collection[TopicPartition] = ()) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commits that are due for partitions without new records: they say that a partition is still served
        (in a drain: was served until now), or up to where it is read. None for those in ``but``, which are in
        flight.

        Without the first, a restart gap would count from a quiet partition's last record.
        """
        now, offsets = self._clock.wall_ms(), {}
        for tp, owned in self._owned.items():
            if tp in but or not owned.looked_up or owned.stopped is not None:
                continue
            end = self._read_to(owned)
            if end is not None:
                offsets[tp] = self.served(owned, end)
            elif owned.committed is not None and owned.had_records and self._is_old(owned, now):
                offsets[tp] = self.served(owned, owned.committed)
        return offsets

    def handled(self, spans: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Says from time to time how far records are handled whose rows wait to be written. ``spans``: where
        they begin, which is committed, and where they end."""
        mono = self._clock.mono_ms()
        if not spans or mono < self._handled_at_ms:
            return
        self._handled_at_ms = mono + HANDLED_EVERY_MS
        now, owned, instance = self._clock.wall_ms(), self._owned, self._instance
        self.commit({tp: owned[tp].handled_of(*span, now, instance) for tp, span in spans.items()})

    def _is_old(self, owned: OwnedPartition, now: int) -> bool:
        note, drain = owned.note, self.drain_ms
        old = note is None or note.at_ms is None or now - note.at_ms >= self._refresh_ms
        return old or (drain is not None and note is not None and note.drain_ms != drain)

    def _read_to(self, owned: OwnedPartition) -> int | None:
        """The position of a partition without records in flight, if all of it is read and that is not what is
        committed.

        There it is behind what is no record of ours: a transaction's markers, aborted records. Not committed
        they would be lag for ever. Or nothing is committed yet: with ``auto.offset.reset`` ``latest`` whoever
        comes next would begin at a later end. (Java's auto-commit stores positions, too.)
        """
        end = self._consumer.highwater(owned.tp)
        if end in (None, owned.committed) or self._consumer.current_lag(owned.tp) != 0:
            return None
        try:
            position = self._consumer.position(owned.tp, timeout_ms=0)
        except KafkaTimeoutError:  # to be confirmed by a leader first
            return None
        return position if owned.committed is None or position > owned.committed else None

    # ---- which pod it is

    def signature(self) -> Signature | None:
        """For partitions that are assigned now; None: the pod is called as the member."""
        return Signature(self._context.pod, self._clock.wall_ms()) if self._context.pod else None

    def set_committed(self, owned: OwnedPartition, committed: OffsetAndMetadata | None) -> None:
        """Takes in what is committed of a partition; it is to be signed soon."""
        offset, metadata = (committed.offset, committed.metadata) if committed else (None, "")
        owned.set_committed(offset, metadata, self._consumer.cluster_id())
        note = owned.initial_note
        if owned.signature is not None and note is not None and note.instance == self._instance:
            owned.signature = owned.signature.after([note])
        self._sign_at_ms = 0.0

    def sign(self) -> None:
        """Commits, at first and from time to time, who holds the partitions and that it lives: a pod that
        comes in this one's place finds out by that, and one that has handed over does not take it back.
        """
        mono = self._clock.mono_ms()
        if not self._context.takes_over or self.drain_ms is not None or mono < self._sign_at_ms:
            return
        self._sign_at_ms = mono + self._refresh_ms / SIGN_CHECKS
        now, offsets = self._clock.wall_ms(), {}
        for tp, owned in self._owned.items():
            if owned.looked_up and (not owned.signed or owned.silent_ms(now) >= self._refresh_ms):
                owned.signed = True
                if (signed := owned.sign_of(now, self._instance)) is not None:
                    offsets[tp] = signed
        self.commit(offsets)

    # ---- the handover

    def offsets_for_successor(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What is committed, without partitions that nothing was committed of."""
        return {
            tp: OffsetAndMetadata(owned.committed, owned.metadata)
            for tp, owned in self._owned.items()
            if owned.committed is not None
        }

    @property
    def since_ms(self) -> int:
        """Since when this process signs what it has committed (wall clock); 0: it has not.

        A signature that was never committed does not count: it is later than the one that was found, which is
        that of the process that has fenced this one.
        """
        signed = [
            owned.signature.since_ms
            for owned in self._owned.values()
            if owned.signature is not None
            and (note := owned.note) is not None
            and note.since_ms == owned.signature.since_ms
        ]
        return max(signed, default=0)

    def still_owner(self) -> bool:
        """Asks the broker, by a commit that changes nothing, whether this process is still the member;
        False: it does not say. Raises FencedError if it is not.
        """
        return self.commit(self.offsets_for_successor()) is CommitOutcome.DONE


@dataclass(frozen=True)
class HandedOverOffsets:
    """Committed offsets that a predecessor has handed over.

    They are used at once, because looking them up first would lengthen the pause. While the handler has the
    first records they are compared with the broker's: a predecessor that believed its successor dead may have
    committed more after its answer, or a rebalance may have come in between. From the join on the broker
    refuses the predecessor's commits, so the broker's offsets are final by then. Nothing is written before
    that comparison.

    ``generation``: the group's when they were left. In another one the partitions may have been others' in
    between, and the client asks for the committed offsets itself.
    """

    offsets: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    generation: int = -1


def differ(left: OffsetAndMetadata, committed: OffsetAndMetadata | None) -> bool:
    """Whether what a predecessor has ``left`` as committed is not what is ``committed``."""
    return committed is None or (committed.offset, committed.metadata) != (left.offset, left.metadata)
