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
from slackwater.kafka.producer.transactions.states import TRANSITIONS, Event, State, TransactionState

CALLS = (Event.INIT, Event.BEGIN, Event.SEND, Event.OFFSETS, Event.COMMIT, Event.ABORT)
ALLOWED = {
    State.NEW: {Event.INIT},
    State.INITIALIZING: {Event.INIT},
    State.READY: {Event.BEGIN},
    State.OPEN: {Event.SEND, Event.OFFSETS, Event.COMMIT, Event.ABORT},
    State.COMMITTING: {Event.COMMIT},
    State.FAILED: {Event.ABORT},
    State.ABORTING: {Event.ABORT},
    State.FATAL: set(),
}


def at(state: State) -> TransactionState:
    made = TransactionState()
    made.state = state
    if state is State.FAILED:
        made.error = KafkaTimeoutError("too late")
    if state is State.FATAL:
        made.state = State.NEW
        made.die(ProducerFencedError("of t"))
    return made


@pytest.mark.parametrize(("state", "call"), [*itertools.product(State, CALLS)])
def test_a_call_is_allowed_or_refused_by_the_state(state: State, call: Event) -> None:
    transaction = at(state)
    if call in ALLOWED[state]:
        transaction.follow(call)
        assert transaction.state is TRANSITIONS[state][call]
        return
    kind = {State.FAILED: AbortableTransactionError, State.FATAL: ProducerFencedError}
    with pytest.raises(kind.get(state, IllegalStateError)):
        transaction.follow(call)
    assert transaction.state is state


@pytest.mark.parametrize("state", State)
def test_a_producer_that_is_fenced_stays_fenced(state: State) -> None:
    transaction = at(state)
    transaction.die(ProducerFencedError("of t"))
    transaction.fail(KafkaTimeoutError("later"))
    assert transaction.state is State.FATAL


@pytest.mark.parametrize("state", [State.OPEN, State.COMMITTING])
def test_the_first_failure_is_the_reason(state: State) -> None:
    transaction = at(state)
    transaction.fail(KafkaTimeoutError("first"))
    transaction.fail(KafkaTimeoutError("second"))
    with pytest.raises(AbortableTransactionError, match=r"commit_transaction.*first") as raised:
        transaction.check(Event.COMMIT)
    assert isinstance(raised.value.__cause__, KafkaTimeoutError)


def test_a_transaction_begins_without_the_failure_of_the_one_before() -> None:
    transaction = at(State.FAILED)
    for event in (Event.ABORT, Event.DONE, Event.BEGIN, Event.COMMIT, Event.DONE):
        transaction.follow(event)
    assert transaction.error is None


def test_what_is_fatal_has_a_class_of_its_own() -> None:
    cause = KafkaTimeoutError("x")
    fatal = at(State.OPEN).die(cause)
    assert type(fatal) is FatalTransactionError
    assert fatal.__cause__ is cause
    assert not issubclass(FatalTransactionError, AbortableTransactionError)
