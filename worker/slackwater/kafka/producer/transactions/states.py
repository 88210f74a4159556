"""The states of a transactional producer, and which call is allowed in which of them. No I/O.

Everything that decides that is in this file, as in h11's ``_state.py``. What is done is in
:mod:`~slackwater.kafka.producer.transactions.manager`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from slackwater.kafka.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    IllegalStateError,
    KafkaError,
)
from slackwater.kafka.structs import TopicPartition


class TransactionState(Enum):
    """What a transactional producer is doing. The value ends the sentence "the producer ..."."""

    NEW = "has no producer id yet: call init_transactions() first"
    INITIALIZING = "is in init_transactions(), which has not succeeded: call it again"
    READY = "is not in a transaction: call begin_transaction() first"
    OPEN = "is in a transaction: end it by commit_transaction() or abort_transaction()"
    COMMITTING = "is in commit_transaction(), which has not succeeded: call it again"
    FAILED = "is in a transaction that has failed: call abort_transaction()"
    ABORTING = "is in abort_transaction(), which has not succeeded: call it again"
    FATAL = "has failed for good: close it"


class TransactionEvent(Enum):
    """A call of the application, or what came of it. The value is what messages call it."""

    INIT = "init_transactions()"
    BEGIN = "begin_transaction()"
    SEND = "send()"
    OFFSETS = "send_offsets_to_transaction()"
    COMMIT = "commit_transaction()"
    ABORT = "abort_transaction()"
    DONE = "success"
    FAIL = "an error that the transaction does not survive"
    DIE = "an error that the producer does not survive"


_S, _E = TransactionState, TransactionEvent
TRANSITIONS: Mapping[TransactionState, Mapping[TransactionEvent, TransactionState]] = {
    _S.NEW: {_E.INIT: _S.INITIALIZING, _E.DIE: _S.FATAL},
    # After a timeout the same call is repeated, here and in COMMITTING and ABORTING.
    _S.INITIALIZING: {_E.INIT: _S.INITIALIZING, _E.DONE: _S.READY, _E.DIE: _S.FATAL},
    _S.READY: {_E.BEGIN: _S.OPEN, _E.DIE: _S.FATAL},
    _S.OPEN: {
        _E.SEND: _S.OPEN, _E.OFFSETS: _S.OPEN, _E.COMMIT: _S.COMMITTING, _E.ABORT: _S.ABORTING,
        _E.FAIL: _S.FAILED, _E.DIE: _S.FATAL,
    },
    # It may be committed already, so nothing but the same call can follow a timeout.
    _S.COMMITTING: {_E.COMMIT: _S.COMMITTING, _E.DONE: _S.READY, _E.FAIL: _S.FAILED, _E.DIE: _S.FATAL},
    _S.FAILED: {_E.ABORT: _S.ABORTING, _E.FAIL: _S.FAILED, _E.DIE: _S.FATAL},
    _S.ABORTING: {_E.ABORT: _S.ABORTING, _E.DONE: _S.READY, _E.FAIL: _S.ABORTING, _E.DIE: _S.FATAL},
    _S.FATAL: {_E.FAIL: _S.FATAL, _E.DIE: _S.FATAL},
}  # fmt: skip
"""By state, what is possible there, and the state that follows. Any other call is refused."""

SENDING = frozenset({TransactionState.OPEN, TransactionState.COMMITTING})
"""States in which batches are sent."""


class TransactionStatus:
    """The state, the error that has led to it, and what the cluster may know of the open transaction."""

    def __init__(self) -> None:
        self.state = TransactionState.NEW
        self.error: KafkaError | None = None
        """What has failed, in FAILED; why the producer is of no use any more, in FATAL."""
        self.adds_partitions = True
        """The flow before KIP-890: the coordinator is told of each partition before its first batch."""
        self.partitions: set[TopicPartition] = set()
        """The partitions that it was told of."""
        self.wanted: set[TopicPartition] = set()
        """The partitions that it is to be told of."""
        self.touched = False
        """Whether the cluster may know of the transaction, so that it has to be told of its end."""
        self.renew = False
        """Whether the epoch is in doubt, or in use by batches without an outcome: InitProducerId has to renew
        it (KIP-360) before anything else is done."""

    @property
    def sending(self) -> bool:
        """Whether batches are sent now."""
        return self.state in SENDING

    @property
    def abortable(self) -> bool:
        """Whether :data:`TransactionEvent.ABORT` is allowed now."""
        return TransactionEvent.ABORT in TRANSITIONS[self.state]

    def takes(self, tp: TopicPartition) -> bool:
        """Whether batches of a partition may be sent now; it is in ``wanted`` then, if it has to be."""
        if not self.sending:
            return False
        if self.adds_partitions and tp not in self.partitions:
            self.wanted.add(tp)
            return False
        return True

    def ended(self) -> None:
        """The cluster knows of no open transaction of the producer."""
        self.partitions, self.wanted, self.touched = set(), set(), False

    def follow(self, event: TransactionEvent) -> None:
        """Goes to the state that follows. Raises what :meth:`check` does, and changes nothing then."""
        self.check(event)
        self.state = TRANSITIONS[self.state][event]
        if self.state is TransactionState.READY:
            self.error = None

    def check(self, event: TransactionEvent) -> None:
        """Raises if a call is not allowed now.

        In FATAL a :class:`FatalTransactionError`; in FAILED an :class:`AbortableTransactionError`; else an
        :class:`IllegalStateError`, which says what to call.
        """
        if event in TRANSITIONS[self.state]:
            return
        if self.state is TransactionState.FATAL and self.error is not None:
            raise self.error
        text = f"{event.value}: the producer {self.state.value}"
        if self.state is TransactionState.FAILED:
            raise AbortableTransactionError(f"{text}; it has failed because of: {self.error}") from self.error
        raise IllegalStateError(text)

    def fail(self, error: KafkaError) -> None:
        """The transaction has to be aborted. The first error stays the reason; none where nothing is open."""
        if TransactionEvent.FAIL not in TRANSITIONS[self.state]:
            return
        if self.state in SENDING:
            self.error = error
        self.follow(TransactionEvent.FAIL)

    def die(self, error: KafkaError) -> KafkaError:
        """The producer is of no use any more. Returns what all calls raise from now on."""
        if self.state is not TransactionState.FATAL:
            if not isinstance(error, FatalTransactionError):
                fatal = FatalTransactionError(f"the transactional producer has failed: {error}")
                fatal.__cause__ = error
                error = fatal
            self.state, self.error = TransactionState.FATAL, error
        assert self.error is not None
        return self.error
