"""The table of a transactional producer's states: what is allowed where, and what a refused call raises."""

from __future__ import annotations

import itertools

import pytest

from slackwater.kafka.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    IllegalStateError,
    KafkaTimeoutError,
    ProducerFencedError,
)
from slackwater.kafka.producer.transactions.states import (
    TRANSITIONS,
    TransactionEvent,
    TransactionState,
    TransactionStatus,
)

CALLS = (
    TransactionEvent.INIT,
    TransactionEvent.BEGIN,
    TransactionEvent.SEND,
    TransactionEvent.OFFSETS,
    TransactionEvent.COMMIT,
    TransactionEvent.ABORT,
)
ALLOWED = {
    TransactionState.NEW: {TransactionEvent.INIT},
    TransactionState.INITIALIZING: {TransactionEvent.INIT},
    TransactionState.READY: {TransactionEvent.BEGIN},
    TransactionState.OPEN: {
        TransactionEvent.SEND,
        TransactionEvent.OFFSETS,
        TransactionEvent.COMMIT,
        TransactionEvent.ABORT,
    },
    TransactionState.COMMITTING: {TransactionEvent.COMMIT},
    TransactionState.FAILED: {TransactionEvent.ABORT},
    TransactionState.ABORTING: {TransactionEvent.ABORT},
    TransactionState.FATAL: set(),
}


def at(state: TransactionState) -> TransactionStatus:
    made = TransactionStatus()
    made.state = state
    if state is TransactionState.FAILED:
        made.error = KafkaTimeoutError("too late")
    if state is TransactionState.FATAL:
        made.state = TransactionState.NEW
        made.die(ProducerFencedError("of t"))
    return made


@pytest.mark.parametrize(("state", "call"), [*itertools.product(TransactionState, CALLS)])
def test_a_call_is_allowed_or_refused_by_the_state(state: TransactionState, call: TransactionEvent) -> None:
    transaction = at(state)
    if call in ALLOWED[state]:
        transaction.follow(call)
        assert transaction.state is TRANSITIONS[state][call]
        return
    kind = {TransactionState.FAILED: AbortableTransactionError, TransactionState.FATAL: ProducerFencedError}
    with pytest.raises(kind.get(state, IllegalStateError)):
        transaction.follow(call)
    assert transaction.state is state


@pytest.mark.parametrize("state", TransactionState)
def test_a_producer_that_is_fenced_stays_fenced(state: TransactionState) -> None:
    transaction = at(state)
    transaction.die(ProducerFencedError("of t"))
    transaction.fail(KafkaTimeoutError("later"))
    assert transaction.state is TransactionState.FATAL


@pytest.mark.parametrize("state", [TransactionState.OPEN, TransactionState.COMMITTING])
def test_the_first_failure_is_the_reason(state: TransactionState) -> None:
    transaction = at(state)
    transaction.fail(KafkaTimeoutError("first"))
    transaction.fail(KafkaTimeoutError("second"))
    with pytest.raises(AbortableTransactionError, match=r"commit_transaction.*first") as raised:
        transaction.check(TransactionEvent.COMMIT)
    assert isinstance(raised.value.__cause__, KafkaTimeoutError)


def test_a_transaction_begins_without_the_failure_of_the_one_before() -> None:
    transaction = at(TransactionState.FAILED)
    for event in (
        TransactionEvent.ABORT,
        TransactionEvent.DONE,
        TransactionEvent.BEGIN,
        TransactionEvent.COMMIT,
        TransactionEvent.DONE,
    ):
        transaction.follow(event)
    assert transaction.error is None


def test_what_is_fatal_has_a_class_of_its_own() -> None:
    cause = KafkaTimeoutError("x")
    fatal = at(TransactionState.OPEN).die(cause)
    assert type(fatal) is FatalTransactionError
    assert fatal.__cause__ is cause
    assert not issubclass(FatalTransactionError, AbortableTransactionError)
