"""Faults of the Kafka client."""

from __future__ import annotations

from tests.mutants.fault import Fault

_KAFKA = "worker/slackwater/kafka"
_UNIT = "tests/client/unit"

FAULTS = (
    Fault(
        "static-member-leaves-when-its-poll-is-late",
        f"{_KAFKA}/protocol/membership/member.py",
        "        if self.config.instance_id is None:\n            self.departed_member_id = self.member_id\n",
        "        self.departed_member_id = self.member_id\n",
        (f"{_UNIT}/protocol/membership/test_membership_timers.py",),
    ),
    Fault(
        "missed-generation-is-not-noticed",
        f"{_KAFKA}/protocol/membership/state_machine.py",
        "if 0 <= self.generation < response.generation_id - 1:",
        "if 0 <= self.generation < response.generation_id - 2:",
        (f"{_UNIT}/protocol/membership/test_membership.py",),
    ),
    Fault(
        "answer-to-a-heartbeat-of-before",
        f"{_KAFKA}/protocol/membership/member.py",
        "        if send.identity != self.identity:\n            return\n        if code in (ErrorCode.NONE,",
        "        if code in (ErrorCode.NONE,",
        (f"{_UNIT}/protocol/membership/test_membership.py",),
    ),
    Fault(
        "batch-that-is-given-up-leaves-no-gap",
        f"{_KAFKA}/producer/queue.py",
        "        if self._idempotent and numbered and not self._transactional:",
        "        if self._idempotent and numbered and batch.in_flight:",
        (f"{_UNIT}/producer/test_producer_queue.py",),
    ),
    Fault(
        "several-batches-in-flight-in-a-new-epoch",
        f"{_KAFKA}/producer/queue.py",
        "(self._max_in_flight if self._begun else 1)",
        "self._max_in_flight",
        (f"{_UNIT}/producer/test_producer_queue.py",),
    ),
    Fault(
        "batch-is-sent-after-its-deadline",
        f"{_KAFKA}/producer/sender.py",
        "        batches = self._not_late(batches)\n",
        "",
        (f"{_UNIT}/producer/test_producer_sender.py",),
    ),
    Fault(
        "abort-waits-for-batches-that-are-not-sent-again",
        f"{_KAFKA}/producer/sender.py",
        "return self._transaction is not None and not self._transaction.sending",
        "return False",
        (f"{_UNIT}/producer/test_transactions.py",),
    ),
    Fault(
        "transaction-is-committed-without-its-offsets",
        f"{_KAFKA}/producer/transactions/manager.py",
        "                self._sender.transaction_failed(error)\n                if isinstance",
        "                if isinstance",
        (f"{_UNIT}/producer/test_transactions.py",),
    ),
    Fault(
        "epoch-stays-after-an-abort-of-the-first-flow",
        f"{_KAFKA}/producer/transactions/manager.py",
        "self.state.renew = self.state.adds_partitions",
        "pass",
        (f"{_UNIT}/producer/test_transactions.py",),
    ),
    Fault(
        "commit-is-sent-after-a-later-one",
        f"{_KAFKA}/consumer/offsets/group_offsets.py",
        "        if latest > number:\n            raise OvertakenError(latest)\n",
        "",
        (f"{_UNIT}/consumer/offsets/test_commit_order.py",),
    ),
    Fault(
        "commit-for-a-partition-that-went-and-came-back",
        f"{_KAFKA}/consumer/offsets/group_offsets.py",
        "return all(tp in had and has.get(tp) is had[tp] for tp in offsets)",
        "return all(tp in had and tp in has for tp in offsets)",
        (f"{_UNIT}/consumer/offsets/test_commit_repeats.py",),
    ),
    Fault(
        "position-moves-past-records-that-were-not-given",
        f"{_KAFKA}/consumer/fetch/buffer.py",
        "position = columns.next_offset if done else rows.next_offset",
        "position = columns.next_offset",
        (f"{_UNIT}/consumer/fetch/test_fetch_buffer.py",),
    ),
    Fault(
        "fetched-records-are-dropped-out-of-range",
        f"{_KAFKA}/consumer/fetch/fetcher.py",
        "        if self._buffer.held_chunks(state.tp):",
        "        if not self._buffer.total_bytes:",
        (f"{_UNIT}/consumer/fetch/test_fetcher.py",),
    ),
    Fault(
        "aborted-transaction-of-one-record-is-read",
        f"{_KAFKA}/records/transactions.py",
        "self._coming[0][0] <= last_offset",
        "self._coming[0][0] < last_offset",
        (f"{_UNIT}/records/test_records_edges.py",),
    ),
    Fault(
        "frame-as-large-as-the-staging-buffer",
        f"{_KAFKA}/wire/frame.py",
        "elif size + 4 > STAGING_BYTES:",
        "elif size > STAGING_BYTES:",
        (f"{_UNIT}/net/test_net_framing.py",),
    ),
    Fault(
        "partition-is-given-before-its-owner-gives-it-up",
        f"{_KAFKA}/protocol/assignors/sticky.py",
        "if tp not in contested and owners.get(tp, member) == member]",
        "if tp not in contested]",
        (f"{_UNIT}/protocol/assignors/test_assignors.py",),
    ),
    Fault(
        "reservation-outlives-its-deadline",
        f"{_KAFKA}/protocol/assignors/delayed.py",
        "if reservation.until_ms > group.now_ms",
        "if reservation.until_ms >= group.now_ms",
        (f"{_UNIT}/protocol/assignors/test_assignors_delayed.py",),
    ),
    Fault(
        "shorter-throttle-ends-a-longer-one",
        f"{_KAFKA}/net/connection.py",
        "            until = max(until, self._muted.when())\n",
        "",
        (f"{_UNIT}/net/test_net_throttle.py",),
    ),
)
