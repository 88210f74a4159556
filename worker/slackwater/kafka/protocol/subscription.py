"""A consumer's subscription (topics or partitions), and the position of each partition.

A partition's position is where the application has got to; how far has been fetched ahead is the
fetcher's. ``version`` counts the jumps (seek, reset, new assignment, another leader), so that what was
fetched before a jump is known to be stale.

A position carries the leader epoch of the record before it (KIP-320). When the partition gets a leader of a
later epoch, that one has to confirm the position before it is read on from: its log may be shorter.

A consumer in standby has no partitions, and fetches some ahead that it may get: ``prefetched``. When one of
them is assigned and starts at a place that was fetched, its state takes over the version of what was fetched.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import Enum
from itertools import count, pairwise
from uuid import UUID

from slackwater.kafka.errors import IllegalArgumentError, IllegalStateError, PartitionNotAssignedError
from slackwater.kafka.protocol.reset import EARLIEST, LATEST
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.kafka.wire.primitives import ZERO_UUID

__all__ = [
    "EARLIEST",
    "LATEST",
    "MOVES",
    "EpochHistory",
    "FetchState",
    "Mode",
    "PartitionState",
    "Subscription",
]

UNKNOWN_EPOCH = -1
_MOST_EPOCHS = 64
"""A leader changes seldom; a broker that claims more epochs has the oldest forgotten."""


class Mode(Enum):
    """How the partitions are chosen; they exclude each other until ``unsubscribe()``."""

    NONE = "none"
    TOPICS = "topics"
    PATTERN = "pattern"
    ASSIGNED = "assigned by the application"
    STANDBY = "nothing yet, in standby"


class FetchState(Enum):
    """Whether a partition can be fetched. The names are those of Java's ``SubscriptionState``."""

    INITIALIZING = "needs its committed offset"
    AWAIT_RESET = "needs an offset by time"
    AWAIT_VALIDATION = "has a position that the leader has to confirm"
    FETCHING = "has a position that can be fetched from"


_PLACED = frozenset({FetchState.AWAIT_RESET, FetchState.AWAIT_VALIDATION, FetchState.FETCHING})
MOVES: dict[FetchState, frozenset[FetchState]] = {
    # A committed offset with a leader epoch (validation) or without (fetching), or none at all (reset).
    FetchState.INITIALIZING: _PLACED,
    # Found by time; another reset; a seek to an offset with its epoch.
    FetchState.AWAIT_RESET: _PLACED,
    # Confirmed; the log was cut off; a later leader, or a seek.
    FetchState.AWAIT_VALIDATION: _PLACED,
    # A seek; out of range; a later leader.
    FetchState.FETCHING: _PLACED,
}
"""All allowed moves. None leads back to INITIALIZING: a new assignment creates a new state object."""


class EpochHistory:
    """The leader epochs of the records that were read of one partition, for commits (KIP-320).

    A committed offset is stored with the leader epoch of the record before it. By that, the next owner of the
    partition can ask the leader whether the log was cut off there meanwhile, and has grown again since.

    From the offset where reading began to the position. Written by one thread at a time, read by any.
    """

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: tuple[tuple[int, int], ...] = ()
        """Up to which position each epoch goes, in order. The first entry holds for its position alone."""

    @property
    def end(self) -> int:
        """The position; -1 where there is none."""
        return self._ends[-1][0] if self._ends else -1

    def begin(self, offset: int, epoch: int) -> None:
        """Reading begins at ``offset``. With an unknown ``epoch``, what is known up to there is kept."""
        known = epoch if epoch != UNKNOWN_EPOCH else self.before(offset)
        kept = [each for each in self._ends if epoch == UNKNOWN_EPOCH != known and each[0] < offset]
        self._ends = (*kept, (offset, known))

    def learn(self, offset: int, epoch: int) -> None:
        """Takes in the epoch that is committed with ``offset``, where reading has begun there without one."""
        if self._ends and self._ends[0] == (offset, UNKNOWN_EPOCH):
            self._ends = ((offset, epoch), *self._ends[1:])

    def extend(self, epochs: Iterable[tuple[int, int]], position: int) -> None:
        """What was read now goes up to ``position``. ``epochs``: of the batches it is from, each with the
        position that it goes up to."""
        if not self._ends:
            return
        ends = list(self._ends)
        for end, epoch in epochs:
            reached = min(end, position)
            if reached > ends[-1][0]:
                if len(ends) > 1 and ends[-1][1] == epoch:
                    ends.pop()
                ends.append((reached, epoch))
        if ends[-1][0] < position:
            # Behind the last batch that is left by compaction or is a marker: the record before is of it.
            ends.append((position, ends[-1][1]))
        self._ends = tuple(ends[-_MOST_EPOCHS:])

    def before(self, offset: int) -> int:
        """The leader epoch of the record before ``offset``; -1 where that is not known."""
        ends = self._ends
        if ends and ends[0][0] == offset:
            return ends[0][1]
        for (begin, _), (end, epoch) in pairwise(ends):
            if begin < offset <= end:
                return epoch
        return UNKNOWN_EPOCH

    def clear(self) -> None:
        """Forgets all: what is read from now on is another log, or another place in it."""
        self._ends = ()


class PartitionState:
    """One assigned partition.

    ``fetched``: whether a fetch of it was answered since it was assigned. Before, the end of a partition that
    was prefetched is of a time before that.
    ``leader_epoch``: of the record before the position, -1 where it is not known. ``validated_epoch``: of the
    last leader that the position was found to be good with. ``topic_id``: of the topic that the position was
    reached in; zero: not known. ``replaced_id``: of the topic of this name that was read before, if any.
    ``epochs``: of the records that were read before the position.
    """

    __slots__ = (
        "epochs", "fetched", "highwater", "last_stable_offset", "leader_epoch", "log_start_offset", "paused",
        "position", "replaced_id", "reset_to", "state", "topic_id", "tp", "validated_epoch", "version",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, version: int) -> None:
        self.tp = tp
        self.state = FetchState.INITIALIZING
        self.version = version
        self.position: int | None = None
        self.reset_to: int | None = None
        self.leader_epoch = -1
        self.epochs = EpochHistory()
        self.validated_epoch = -1
        self.topic_id = self.replaced_id = ZERO_UUID
        self.paused = False
        self.fetched = False
        self.highwater: int | None = None
        self.last_stable_offset: int | None = None
        self.log_start_offset: int | None = None

    def move(self, following: FetchState) -> None:
        """Raises :class:`IllegalStateError` for a move that the table does not have."""
        if following not in MOVES[self.state]:
            raise IllegalStateError(f"{self.tp} cannot go from {self.state.name} to {following.name}")
        self.state = following


class Subscription:
    """One consumer's subscription. Changed on the client's loop, but for positions; read from anywhere."""

    def __init__(self) -> None:
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: TopicPattern | None = None
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.prefetched: dict[TopicPartition, PartitionState] = {}
        """Partitions that are fetched ahead of an assignment, and not polled before it."""
        self._versions = count(1)

    # -- choosing --------------------------------------------------------------------------------

    def _choose(self, mode: Mode) -> None:
        if self.mode is Mode.STANDBY:
            raise IllegalStateError(
                "this consumer is in standby: take_over() joins the group with what it stands by for, "
                "unsubscribe() ends the standby"
            )
        if mode is Mode.STANDBY and self.mode is not Mode.NONE:
            raise IllegalStateError(
                f"this consumer reads {self.mode.value}; call unsubscribe() before stand_by()"
            )
        if self.mode not in (Mode.NONE, mode):
            raise IllegalStateError(
                f"this consumer reads {self.mode.value}; call unsubscribe() before it reads by {mode.value}: "
                "subscribe() by topics, subscribe() by pattern and assign() exclude each other"
            )
        self.mode = mode

    def subscribe_topics(self, topics: Iterable[str]) -> None:
        """Reads these topics, as a member of the group."""
        names = _checked(topics)
        self._choose(Mode.TOPICS)
        self.topics = names

    def subscribe_pattern(self, pattern: str | re.Pattern[str]) -> None:
        """Reads the topics whose names the pattern matches from their beginning (:class:`TopicPattern`)."""
        compiled = TopicPattern(pattern)
        self._choose(Mode.PATTERN)
        self.pattern = compiled

    def subscribe_at_broker(self) -> None:
        """Reads the topics that a broker finds, which are those of the partitions that it assigns."""
        self._choose(Mode.PATTERN)
        self.topics, self.pattern = frozenset(tp.topic for tp in self.partitions), None

    def stand_by(self, topics: Iterable[str], pattern: str | re.Pattern[str] | None) -> None:
        """Is going to read these topics, or those that the pattern matches. Nothing is assigned before."""
        names, compiled = _checked(topics), None if pattern is None else TopicPattern(pattern)
        self._choose(Mode.STANDBY)
        self.topics, self.pattern = names, compiled

    def end_standby(self) -> None:
        """Reads as a member of the group what it stood by for. What is prefetched stays."""
        if self.mode is not Mode.STANDBY:
            raise IllegalStateError("this consumer is not in standby; call stand_by() first")
        self.mode = Mode.TOPICS if self.pattern is None else Mode.PATTERN

    def match(self, topics: Iterable[str]) -> bool:
        """Takes the topics that match the pattern; true if that changes them."""
        assert self.pattern is not None
        matching = frozenset(topic for topic in topics if self.pattern.matches(topic))
        changed, self.topics = matching != self.topics, matching
        return changed

    def assign_by_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads these partitions, outside of group management."""
        wanted = list(partitions)
        self._choose(Mode.ASSIGNED)
        self.topics = frozenset(tp.topic for tp in wanted)
        self._set(wanted)

    def unsubscribe(self) -> None:
        """Reads nothing."""
        self.mode, self.topics, self.pattern = Mode.NONE, frozenset(), None
        self.partitions, self.prefetched = {}, {}

    @property
    def by_group(self) -> bool:
        """Whether the group gives the partitions."""
        return self.mode in (Mode.TOPICS, Mode.PATTERN)

    # -- the assignment ------------------------------------------------------------------------------

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that the group gives."""
        self._set([*self.partitions, *partitions])

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions that the group takes."""
        gone = set(partitions)
        self._set([tp for tp in self.partitions if tp not in gone])
        self.keep_ahead(self.prefetched.keys() - gone)

    def _set(self, wanted: Iterable[TopicPartition]) -> None:
        # A new dict each time: another thread may be walking the old one.
        fresh: dict[TopicPartition, PartitionState] = {}
        for tp in sorted(set(wanted)):
            known = self.partitions.get(tp)
            fresh[tp] = known if known is not None else PartitionState(tp, self._next_version())
        self.partitions = fresh
        if self.mode is Mode.PATTERN and self.pattern is None:
            self.topics = frozenset(tp.topic for tp in fresh)

    def _next_version(self) -> int:
        return next(self._versions)

    def get(self, tp: TopicPartition) -> PartitionState:
        """Raises :class:`PartitionNotAssignedError` when ``tp`` is not assigned."""
        state = self.partitions.get(tp)
        if state is None:
            raise PartitionNotAssignedError(f"{tp} is not assigned to this consumer")
        return state

    # -- fetched ahead of an assignment --------------------------------------------------------------

    def fetch_ahead(self, tp: TopicPartition, offset: int) -> None:
        """Has a partition fetched from ``offset`` on that is not assigned. What was fetched is stale."""
        state = PartitionState(tp, self._next_version())
        state.move(FetchState.FETCHING)
        state.position = offset
        self.prefetched = {**self.prefetched, tp: state}

    def keep_ahead(self, partitions: Collection[TopicPartition]) -> None:
        """Of what is prefetched keeps these partitions, and no other."""
        if self.prefetched.keys() - partitions:
            self.prefetched = {tp: state for tp, state in self.prefetched.items() if tp in partitions}

    def is_ahead(self, state: PartitionState) -> bool:
        """Whether this is one that is prefetched."""
        return self.prefetched.get(state.tp) is state

    def current(self, tp: TopicPartition, version: int) -> PartitionState | None:
        """The state that something of this version was fetched for; ``None``: it is stale."""
        for known in (self.partitions, self.prefetched):
            state = known.get(tp)
            if state is not None and state.version == version:
                return state
        return None

    def adopt(self, state: PartitionState) -> None:
        """Starts an assigned partition where it is prefetched, with what was fetched there."""
        ahead = self.prefetched[state.tp]
        state.move(FetchState.FETCHING)
        state.position, state.leader_epoch, state.reset_to = ahead.position, ahead.leader_epoch, None
        state.validated_epoch, state.topic_id = ahead.validated_epoch, ahead.topic_id
        assert state.position is not None, "it is fetched from there"
        state.epochs.begin(state.position, state.leader_epoch)
        state.highwater, state.log_start_offset = ahead.highwater, ahead.log_start_offset
        state.last_stable_offset = ahead.last_stable_offset
        # The last step: from here on another thread may be given what was fetched.
        state.version = ahead.version
        self.keep_ahead(self.prefetched.keys() - {state.tp})

    def follow_ahead(self, state: PartitionState, leader_epoch: int) -> None:
        """Takes in the leader epoch of what is prefetched: of a later leader it is fetched anew, since nobody
        knows yet whether that one has what the other gave."""
        if leader_epoch > state.validated_epoch:
            if state.validated_epoch >= 0:
                state.leader_epoch = -1
                self.fetch_again(state)
            state.validated_epoch = leader_epoch

    # -- positions -----------------------------------------------------------------------------------

    def in_state(self, state: FetchState) -> list[PartitionState]:
        """The partitions in a state."""
        return [
            partition_state for partition_state in self.partitions.values() if partition_state.state is state
        ]

    def seek(
        self, tp: TopicPartition, offset: int, leader_epoch: int = -1, topic_id: UUID = ZERO_UUID
    ) -> None:
        """Sets the position by the application's will, in the topic with this id (zero: not known).

        With a ``leader_epoch`` the leader must confirm it.
        """
        if offset < 0:
            raise IllegalArgumentError(f"offset {offset} of {tp} is negative")
        state = self.get(tp)
        state.replaced_id = ZERO_UUID
        self.start_at(state, offset, leader_epoch, topic_id=topic_id)

    def start_at(
        self,
        state: PartitionState,
        offset: int,
        leader_epoch: int = -1,
        validated_epoch: int = -1,
        topic_id: UUID = ZERO_UUID,
    ) -> None:
        """Sets the position by the committed offset, or by a leader's answer, of the topic with this id.

        ``validated_epoch``: of the leader whose answer it is, which need not be asked again.
        """
        self.keep_ahead(self.prefetched.keys() - {state.tp})
        must_validate = leader_epoch >= 0 and validated_epoch < 0
        state.move(FetchState.AWAIT_VALIDATION if must_validate else FetchState.FETCHING)
        state.position, state.leader_epoch, state.reset_to = offset, leader_epoch, None
        state.epochs.begin(offset, leader_epoch)
        state.validated_epoch = validated_epoch
        state.topic_id = topic_id
        state.version = self._next_version()

    def follow_leader(self, state: PartitionState, leader_epoch: int) -> None:
        """Takes in the partition's leader epoch by the metadata: a later one has to confirm the position.

        What was fetched from the old leader and not handed over is stale then, as in Java: it may be gone.
        """
        if state.state is FetchState.FETCHING and leader_epoch > state.validated_epoch:
            if state.leader_epoch < 0:
                state.validated_epoch = leader_epoch
                return
            self.suspend(state)

    def suspend(self, state: PartitionState) -> None:
        """The position has to be confirmed before it is read on from."""
        state.move(FetchState.AWAIT_VALIDATION)
        state.version = self._next_version()

    def confirm(self, state: PartitionState, leader_epoch: int) -> None:
        """The leader of this epoch (-1: one that cannot be asked) has the log up to the position."""
        state.move(FetchState.FETCHING)
        state.validated_epoch = max(state.validated_epoch, leader_epoch)

    def reading(self, state: PartitionState, leader_epoch: int, topic_id: UUID) -> None:
        """The position is being fetched from a leader of this epoch, of the topic with this id."""
        if state.validated_epoch < 0:
            state.validated_epoch = leader_epoch
        if state.topic_id == ZERO_UUID:
            state.topic_id = topic_id

    def is_other_topic(self, state: PartitionState, topic_id: UUID) -> bool:
        """Whether the topic that was read is gone, and another one has its name (KIP-516)."""
        return state.topic_id != ZERO_UUID and topic_id not in (ZERO_UUID, state.topic_id)

    def replaced(self, state: PartitionState) -> None:
        """The topic that was read is gone: goes to the beginning of the other one of its name."""
        state.replaced_id = state.topic_id
        self.reset(state.tp, EARLIEST)

    def topic_id(self, tp: TopicPartition, offset: int) -> UUID:
        """The id of the topic that an offset to commit was reached in; zero: not known.

        An offset behind the position in a topic that has replaced another was reached in the one before: the
        application commits what it was given earlier.
        """
        state = self.partitions.get(tp)
        if state is None:
            return ZERO_UUID
        if state.replaced_id != ZERO_UUID and offset > (state.position or 0):
            return state.replaced_id
        return state.topic_id

    def fetch_again(self, state: PartitionState) -> None:
        """What was fetched and not handed over counts no more; the position stays."""
        state.version = self._next_version()

    def reset(self, tp: TopicPartition, timestamp: int) -> None:
        """Has the position looked up by time (``EARLIEST``, ``LATEST``)."""
        state = self.get(tp)
        self.keep_ahead(self.prefetched.keys() - {tp})
        state.move(FetchState.AWAIT_RESET)
        state.epochs.clear()
        state.reset_to = timestamp
        state.version = self._next_version()

    def epoch_before(self, tp: TopicPartition, offset: int) -> int:
        """The leader epoch of the record before ``offset``, if it was read here; else -1."""
        state = self.partitions.get(tp)
        return state.epochs.before(offset) if state is not None else -1

    def consumed(self) -> dict[TopicPartition, tuple[int, int]]:
        """Position and leader epoch of all partitions that have one: what a commit without offsets stores.

        While a new leader is asked to confirm a position, too: what was handed over was handed over, and the
        epoch that is stored with it has the next owner ask again.
        """
        return {
            tp: (partition_state.position, partition_state.leader_epoch)
            for tp, partition_state in self.partitions.items()
            if partition_state.position is not None
            and partition_state.state in (FetchState.FETCHING, FetchState.AWAIT_VALIDATION)
        }


def _checked(topics: Iterable[str]) -> frozenset[str]:
    names = list(topics)
    if bad := [name for name in names if not isinstance(name, str) or not name]:
        raise IllegalArgumentError(f"a topic must be a non-empty string, not {bad[0]!r}")
    return frozenset(names)
