"""The exchange that makes a generation: JoinGroup, the leader's plan, SyncGroup, the assignment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from slackwater.kafka.errors import KafkaError, KafkaProtocolError
from slackwater.kafka.protocol.assignors import Assignor, Racks
from slackwater.kafka.protocol.consumer_protocol import read_assignment
from slackwater.kafka.protocol.diagnostics import Diagnostics
from slackwater.kafka.protocol.membership import requests
from slackwater.kafka.protocol.membership.history import MembershipStats, RebalanceHistory
from slackwater.kafka.protocol.membership.leader import (
    Lead,
    lead_from_description,
    lead_from_join,
    watch_of,
)
from slackwater.kafka.protocol.membership.requests import Lane, Send
from slackwater.kafka.protocol.membership.state_machine import StateMachine
from slackwater.kafka.protocol.membership.states import NET_MARGIN_MS, NEVER_MS, Event, State
from slackwater.kafka.protocol.membership.static_return import Described, ReturnCheck, read_description
from slackwater.kafka.structs import ConsumerGroupMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError

log = logging.getLogger(__name__)

T = TypeVar("T")
_IN_GENERATION = (State.SYNCING, State.ASSIGNING, State.STABLE)


class JoinSync:
    """Builds a member's Joins and Syncs and handles their successful answers.

    ``assignors``: in order of preference. ``stats`` receives the durations of the exchanges.
    """

    def __init__(
        self,
        machine: StateMachine,
        assignors: Sequence[Assignor],
        diagnostics: Diagnostics,
        stats: MembershipStats,
    ) -> None:
        self.returned = False
        """The last Join was a return without a rebalance (KIP-345)."""
        self.join_sent_at = self.sync_sent_at = -1
        self.history = RebalanceHistory(diagnostics)
        self._machine, self._timers, self._config = machine, machine.timers, machine.config
        self._diagnostics, self._stats = diagnostics, stats
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._check = ReturnCheck()
        self._skip_sync = False
        """The group keeps its assignment, so the leader sends an empty Sync (KIP-814)."""
        self._joined_with_id = False
        """The leader learns the topics of a member that joins with its member.id; of a static return it may
        not."""

    @property
    def assignor_names(self) -> list[str]:
        """The assignors that the member offers."""
        return list(self._assignors)

    # -- Join --------------------------------------------------------------------------------------

    def join(self, now_ms: int) -> Send | None:
        """The Join to send; ``None``: an assignor has failed, and the member is dead."""
        machine, config = self._machine, self._config
        protocols = self._call_assignors(self._protocols)
        if protocols is None:
            return None
        # A rejoin that was requested since an earlier, unsuccessful Join is satisfied by this one.
        machine.join_reason, machine.rejoin_reason = machine.join_reason or machine.rejoin_reason or "", None
        self._check.join_sent(machine.topics)
        ahead = None
        if config.instance_id is not None and not machine.member_id:
            ahead = requests.describe_request(config)
        self.join_sent_at = now_ms
        self._timers.request_sent(now_ms, config.join_timeout_ms)
        self._timers.diagnose_at = now_ms + config.slow_join_ms
        request = requests.join_request(config, machine.member_id, protocols, machine.join_reason)
        timeout_ms = config.join_timeout_ms + NET_MARGIN_MS
        return Send(request, Lane.GROUP, timeout_ms, machine.identity, ahead)

    def _protocols(self) -> list[tuple[str, bytes]]:
        """Each assignor's name with the subscription as that assignor encodes it.

        The generation is included even if nothing is owned, as in Java: only bytes that differ from the last
        ones make a broker rebalance for a member that it knows.
        """
        machine = self._machine
        owned = tuple(machine.owned()) if machine.cooperative else ()
        topics, generation = machine.topics, machine.generation
        return [
            (name, requests.subscription_bytes(self._config, topics, owned, generation, data))
            for name, data in (
                (assignor.name, assignor.user_data(topics, generation))
                for assignor in self._assignors.values()
            )
        ]

    def described(self, response: m.DescribeGroupsResponse) -> None:
        """DescribeGroups, which was sent just before the Join, was answered."""
        self._check.described = read_description(response, self._config.instance_id)

    def on_joined(self, response: m.JoinGroupResponse, now_ms: int) -> None:
        """The Join has succeeded."""
        machine = self._machine
        self._joined_with_id = machine.member_id != ""
        machine.joined(response)
        self._timers.succeeded()
        self._timers.beat_next(now_ms)
        self._timers.heard(now_ms)
        self._diagnostics.joined(now_ms)
        self._stats.joined(now_ms - self.join_sent_at, now_ms)
        protocol = machine.protocol_name
        if protocol not in self._assignors:
            machine.die(KafkaProtocolError(f"the group chose {protocol!r}, which this member did not offer"))
            return
        described = self._check.described
        old_leader = described is not None and described.was_leader(response.leader)
        self._skip_sync = bool(response.skip_assignment) or old_leader
        self.returned = self._skip_sync or (
            not self._joined_with_id and self._check.is_same_generation(machine.generation)
        )
        self.history.joined(
            machine.generation,
            now_ms,
            returned=self.returned,
            follow_up=machine.take_follow_up(),
            reason=machine.join_reason,
        )
        machine.move(Event.JOINED)
        machine.lead = None
        if described is not None and old_leader:
            machine.leader_id = machine.member_id
            machine.lead = lead_from_description(described, machine.member_id, self._check.sent_topics)
        elif machine.is_leader:
            machine.lead = lead_from_join(response, audit=self._skip_sync, group_id=self._config.group_id)
        elif not machine.leader_id:
            # The broker assigns, since members of the consumer protocol are in the group (KIP-848). When the
            # last of them has been replaced, nobody is told that it leads: so each watches its own topics.
            machine.lead = watch_of(machine.member_id, machine.topics)

    # -- the leader's plan ---------------------------------------------------------------------------

    def plan(self, counts: Mapping[str, int], now_ms: int, racks: Racks | None) -> None:
        """Plans with the partition counts that the leader wants; see :meth:`Membership.plan`."""
        machine, lead = self._machine, self._machine.lead
        if lead is None or lead.wanted is None:
            return
        lead.supply(counts, racks)
        if not machine.is_leader:
            return
        assignor = self._assignors[machine.protocol_name]
        if lead.audit:
            self._audit(lead, assignor, now_ms)
            return
        plan = self._call_assignors(lambda: lead.make_plan(assignor, machine.generation, now_ms))
        if plan is None:
            return
        self._timers.rejoin_at = NEVER_MS if plan.rejoin_at_ms is None else plan.rejoin_at_ms
        if machine.cooperative and lead.is_partial():
            machine.follow_up_generation = machine.generation + 1
            # A member that revokes partitions joins again. But a static member that restarts before it has
            # been told to revoke returns without a rebalance and with nothing to revoke: then no member would
            # request the next one.
            revoked_by = now_ms + self._config.max_poll_interval_ms
            self._timers.rejoin_at = min(self._timers.rejoin_at, revoked_by)

    def _audit(self, lead: Lead, assignor: Assignor, now_ms: int) -> None:
        """Checks for a leader that returned whether the group's assignment still fits (KIP-814)."""
        machine, described = self._machine, self._check.described
        held = described.held if described is not None else None
        if described is None or held is None or described.precedes(lead.members):
            log.debug(
                "group %s: what its members hold is not known, so it is not checked", self._config.group_id
            )
            return
        if machine.delayed_reason:
            return  # Until the other members have this member's topics, the assignment does not fit.
        reason = self._call_assignors(lambda: lead.misfit(assignor, held, machine.generation, now_ms))
        if reason and machine.state in _IN_GENERATION:
            machine.request_rejoin(reason, now_ms)

    def metadata_changed(self, counts: Mapping[str, int], now_ms: int, racks: Racks | None) -> None:
        """Compares the metadata with the leader's plan; see :meth:`Membership.metadata_changed`."""
        machine, lead = self._machine, self._machine.lead
        if lead is None or machine.state not in _IN_GENERATION:
            return  # A Join that is under way brings a new plan, made of newer counts.
        if changed := lead.changed(counts):
            machine.request_rejoin(f"partitions of {', '.join(changed)} changed", now_ms)
        elif self._config.rack and racks is not None and (moved := lead.moved(racks)):
            machine.request_rejoin(f"replicas of {', '.join(moved)} are in other racks now", now_ms)

    # -- Sync --------------------------------------------------------------------------------------

    def sync(self, now_ms: int) -> Send | None:
        """The Sync to send; ``None``: the leader has no plan yet."""
        machine, config = self._machine, self._config
        lead = machine.lead if machine.is_leader else None
        if lead is not None and lead.plan is None and not self._skip_sync:
            return None
        plan = lead.encoded() if lead is not None and not self._skip_sync else {}
        self.sync_sent_at = now_ms
        limit_ms = config.sync_timeout_ms
        self._timers.request_sent(now_ms, limit_ms)
        request = requests.sync_request(
            config, machine.generation, machine.member_id, machine.protocol_name, plan
        )
        return Send(request, Lane.GROUP, limit_ms + NET_MARGIN_MS, machine.identity)

    def on_synced(self, response: m.SyncGroupResponse, now_ms: int) -> None:
        """The Sync has succeeded."""
        machine, group_id = self._machine, self._config.group_id
        try:
            assignment = read_assignment(response.assignment)
        except DecodeError as exc:
            machine.die(KafkaProtocolError(f"group {group_id!r}: the assignment cannot be read: {exc}"))
            return
        machine.fence.synced()
        self._check_return(response.assignment, now_ms)
        self._timers.succeeded()
        self._timers.heard(now_ms)
        members = machine.lead.names if machine.lead is not None and machine.is_leader else None
        self.history.synced(assignment.partitions, members, now_ms, returned=self.returned)
        self._stats.synced(
            now_ms - self.sync_sent_at,
            now_ms - self.join_sent_at,
            rebalanced=not self.returned,
            now_ms=now_ms,
        )
        if machine.cooperative and not self.returned:
            self._timers.rebalance_may_follow(now_ms)
        machine.move(Event.SYNCED)
        machine.join_reason, self._skip_sync = "", False
        kept = self._drop_unsubscribed(assignment.partitions)
        metadata = ConsumerGroupMetadata(
            group_id, machine.generation, machine.member_id, self._config.instance_id
        )
        mine = replace(assignment, partitions=kept)
        self._call_assignors(lambda: self._assignors[machine.protocol_name].on_assignment(mine, metadata))
        if machine.state is State.ASSIGNING:
            machine.assign(kept, now_ms)

    def _check_return(self, assignment: bytes, now_ms: int) -> None:
        """Detects a return without a rebalance, and requests a rebalance if its topics have changed."""
        machine, check = self._machine, self._check
        if not self.returned:
            self.returned = check.matches_description(assignment, machine.protocol_name, machine.generation)
        reason = check.changed_topics() if self.returned else None
        if reason is not None:
            # The broker has compared the protocol's name only, and stored the new topics (KAFKA-12759). The
            # next Join has the member.id and, by its generation, other bytes: for these it rebalances.
            if self._config.subscription_change_max_delay_ms > 0 and check.others_differ():
                # Each member that is restarted with the new topics would cost a rebalance of its own, so one
                # rebalance follows after their returns.
                machine.delayed_reason = reason
                self._timers.delay_rebalance(now_ms)
                log.info(
                    "group %s: %s; the rebalance is left to the members that have other topics yet",
                    self._config.group_id, reason,
                )  # fmt: skip
            else:
                machine.rejoin_reason = reason
        check.synced(machine.generation)

    def on_subscriptions(self, described: Described, now_ms: int) -> None:
        """DescribeGroups was answered while a rebalance is delayed until all members have the same topics."""
        if described.stable and described.others_subscribe(self._machine.topics):
            self._machine.request_rejoin(self._machine.delayed_reason, now_ms)

    def _drop_unsubscribed(self, assigned: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
        """The assigned partitions of subscribed topics. If others are dropped, a rejoin follows (as in Java).

        No rejoin follows if the leader has planned with the current topics: its plan would be the same.
        """
        machine, check = self._machine, self._check
        odd = sorted({tp.topic for tp in assigned} - machine.topics)
        if odd and self._joined_with_id and check.sent_topics == machine.topics:
            log.warning(
                "group %s: the leader assigned partitions of %s to a member that does not subscribe to it: "
                "nobody reads them. Its assignor %s is at fault",
                self._config.group_id,
                ", ".join(odd),
                machine.protocol_name,
            )
        elif odd and not machine.delayed_reason:
            machine.rejoin_after(f"partitions of {', '.join(odd)} were assigned, which is not subscribed to")
        return tuple(tp for tp in assigned if tp.topic in machine.topics)

    def _call_assignors(self, call: Callable[[], T]) -> T | None:
        """Calls an assignor, which may be the user's: an exception in it ends the member."""
        try:
            return call()
        except Exception as exc:
            error = KafkaError(f"group {self._config.group_id!r}: an assignor failed: {exc!r}")
            error.__cause__ = exc
            self._machine.die(error)
            return None
