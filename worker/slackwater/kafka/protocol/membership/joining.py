"""A member of a group, from the Join's answer to the assignment: generations, plans, returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from slackwater.kafka.errors import KafkaError, KafkaProtocolError
from slackwater.kafka.protocol.assignors import Assignor, Racks
from slackwater.kafka.protocol.consumer_protocol import read_assignment
from slackwater.kafka.protocol.membership.application_side import MemberCore
from slackwater.kafka.protocol.membership.leader import Lead, lead_from_join
from slackwater.kafka.protocol.membership.states import (
    NEVER_MS,
    Event,
    MembershipConfig,
    Notice,
    NoticeKind,
    State,
)
from slackwater.kafka.protocol.membership.static_return import Described
from slackwater.kafka.structs import ConsumerGroupMetadata, GenerationSeen, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError

log = logging.getLogger(__name__)

T = TypeVar("T")
_IN_GENERATION = (State.SYNCING, State.ASSIGNING, State.STABLE)


class JoiningMember(MemberCore):
    """What a Join and a Sync bring."""

    def __init__(
        self,
        config: MembershipConfig,
        assignors: Sequence[Assignor],
        owned: Callable[[], Collection[TopicPartition]],
        retry_delay_ms: Callable[[int], float],
    ) -> None:
        super().__init__(config, assignors, owned, retry_delay_ms)
        self._described: Described | None = None
        self._sent_topics: frozenset[str] = frozenset()
        self._joined_topics: frozenset[str] | None = None
        self._joined_with_id = False
        """Of one that joins under the id it has, the leader learns the topics; a return may go unnoticed."""
        self._previous_generation = -1
        self._follow_up_due = -1
        self._last_members: frozenset[str] | None = None
        self._owned_before: frozenset[TopicPartition] = frozenset()
        self._join_sent_at = self._sync_sent_at = -1
        self._heard_at = -1

    @property
    def lost(self) -> frozenset[TopicPartition]:
        """What the application has still and another may own by now: it waits to be told so."""
        if self._missed_a_generation:
            return frozenset(self._owned())
        waiting = (notice.partitions for notice in self.notices if notice.kind is NoticeKind.LOST)
        return frozenset(tp for partitions in waiting for tp in partitions)

    # -- joining -----------------------------------------------------------------------------------

    def _on_joined(self, response: m.JoinGroupResponse, now_ms: int) -> None:
        first = self.member_id == ""
        self._joined_with_id = not first
        # Another generation came and went in between, so what is held may have been another's since. That is
        # told with the assignment, so it is remembered if the Sync is refused and another Join follows.
        if 0 <= self.generation < response.generation_id - 1:
            self._missed_a_generation = True
        if response.member_id != self.member_id:
            self._fence.new_id()
        self._fence.joined()
        self.member_id, self.generation = response.member_id, response.generation_id
        self._joins += 1
        self.leader_id, self.protocol_name = response.leader, response.protocol_name or ""
        self._heard_at = now_ms
        self.timers.succeeded()
        self.timers.beat_next(now_ms)
        self.timers.refresh_session(now_ms)
        self.diagnostics.joined(now_ms)
        self.stats.joined(now_ms - self._join_sent_at, now_ms)
        if self.protocol_name not in self._assignors:
            self._die(
                KafkaProtocolError(f"the group chose {self.protocol_name!r}, which this member did not offer")
            )
            return
        old_leader = self._described is not None and self._described.was_leader(response.leader)
        self._skip_sync = bool(response.skip_assignment) or old_leader
        self.returned = self._skip_sync or (first and self.generation == self._previous_generation)
        follow_up = self._follow_up or self.generation == self._follow_up_due
        if not (self.returned and self._generations and self._generations[-1].generation == self.generation):
            self._generations.append(GenerationSeen(self.generation, follow_up, now_ms))
        self._follow_up, self._follow_up_due = False, -1
        self._move(Event.JOINED)
        self._lead = None
        if old_leader:
            self._lead_again()
        elif self.is_leader:
            self._lead = lead_from_join(response, audit=self._skip_sync, group_id=self.config.group_id)

    def _lead_again(self) -> None:
        """JoinGroup below v9 names a returning leader by its old member.id, so nobody would watch the topics.

        DescribeGroups has told that id, and the members' subscriptions, too.
        """
        assert self._described is not None
        members = dict(self._described.subscriptions)
        mine = members.pop(self._described.member_id, None)
        if mine is not None:
            members[self.member_id] = replace(mine, topics=tuple(sorted(self._sent_topics)))
        self.leader_id = self.member_id
        self._lead = Lead(members, audit=True)
        self._lead.wanted = self._lead.topics

    def plan(self, counts: Mapping[str, int], now_ms: int, racks: Racks | None = None) -> None:
        """Hands in the partition counts of :attr:`wanted_topics`; a topic that does not exist is left out.

        ``racks``: where the replicas of the partitions are, for the assignors that mind (KIP-881).
        """
        lead = self._lead
        if lead is None or lead.wanted is None:
            return
        lead.supply(counts, racks)
        assignor = self._assignors[self.protocol_name]
        if lead.audit:
            self._audit(lead, assignor, now_ms)
            return
        plan = self._ask_assignors(lambda: lead.make_plan(assignor, self.generation, now_ms))
        if plan is None:
            return
        self.timers.rejoin_at = NEVER_MS if plan.rejoin_at_ms is None else plan.rejoin_at_ms
        if self.cooperative and lead.is_partial():
            self._follow_up_due = self.generation + 1
            # Who gives something up joins again. But a static member that restarts before it has been told
            # comes back without a rebalance and holds nothing to give up: then nobody would ask for the next.
            told_by = now_ms + self.config.max_poll_interval_ms
            self.timers.rejoin_at = min(self.timers.rejoin_at, told_by)

    def _audit(self, lead: Lead, assignor: Assignor, now_ms: int) -> None:
        """A leader that came back: does what the members hold still fit (KIP-814)?"""
        held = self._described.held if self._described is not None else None
        if held is None:
            log.debug(
                "group %s: what its members hold is not known, so it is not checked", self.config.group_id
            )
            return
        if self._delayed:
            return  # until the other members have its topics, what is held does not fit
        reason = self._ask_assignors(lambda: lead.misfit(assignor, held, self.generation, now_ms))
        if reason and self.state in _IN_GENERATION:
            self.request_rejoin(reason, now_ms)

    def metadata_changed(self, counts: Mapping[str, int], now_ms: int, racks: Racks | None = None) -> None:
        """The leader's watch: a rejoin when a topic of the group has got or lost partitions.

        Also, if the leader has a rack itself (as in Java), when the ``racks`` of replicas have changed.
        """
        lead = self._lead
        if lead is None or not self.is_leader or self.state not in _IN_GENERATION:
            return  # A Join that is under way brings a plan of its own, made of newer counts.
        if changed := lead.changed(counts):
            self.request_rejoin(f"partitions of {', '.join(changed)} changed", now_ms)
        elif self.config.rack and racks is not None and (moved := lead.moved(racks)):
            self.request_rejoin(f"replicas of {', '.join(moved)} are in other racks now", now_ms)

    def _on_synced(self, response: m.SyncGroupResponse, now_ms: int) -> None:
        try:
            told = read_assignment(response.assignment)
        except DecodeError as exc:
            self._die(
                KafkaProtocolError(f"group {self.config.group_id!r}: the assignment cannot be read: {exc}")
            )
            return
        self._fence.synced()
        self._judge_return(response.assignment, now_ms)
        self._heard_at = now_ms
        self.timers.succeeded()
        self.timers.refresh_session(now_ms)
        self._account(told.partitions, now_ms)
        self._move(Event.SYNCED)
        self._reason, self._skip_sync = "", False
        taken = self._take(told.partitions)
        metadata = ConsumerGroupMetadata(
            self.config.group_id, self.generation, self.member_id, self.config.instance_id
        )
        mine = replace(told, partitions=taken)
        self._ask_assignors(lambda: self._assignors[self.protocol_name].on_assignment(mine, metadata))
        if self.state is State.ASSIGNING:
            self._tell_assignment(taken, now_ms)

    def _judge_return(self, assignment: bytes, now_ms: int) -> None:
        """Whether this Join was a return without a rebalance, and whether the group has to know more."""
        before, described = self._previous_generation, self._described
        if described is not None and not self.returned:
            self.returned = (
                described.stable
                and described.mine == assignment
                and described.protocol == self.protocol_name
                and before in (-1, self.generation)
            )
        known = described.topics if described is not None else None
        if known is None:
            known = self._joined_topics
        if self.returned and known is not None and known != self._sent_topics:
            # The broker has compared the protocol's name only, and stored the new topics (KAFKA-12759). The
            # next Join has the member.id and, by its generation, other bytes: that it takes for a rebalance.
            reason = (
                f"subscribed to {', '.join(sorted(self._sent_topics))} since the return, "
                f"before to {', '.join(sorted(known)) or 'nothing'}"
            )
            if self._waits_for_others():
                self._delayed = reason
                self.timers.delay_rebalance(now_ms)
                log.info(
                    "group %s: %s; the rebalance is left to the members that have other topics yet",
                    self.config.group_id, reason,
                )  # fmt: skip
            else:
                self._rejoin_wanted = reason
        self._joined_topics, self._previous_generation = self._sent_topics, self.generation

    def _waits_for_others(self) -> bool:
        """Whether other members have other topics yet, so that one rebalance after their returns will do.

        Where each of them is restarted with the new topics, each return would cost a rebalance else.
        """
        described = self._described
        return (
            self.config.subscription_change_max_delay_ms > 0
            and described is not None
            and described.stable
            and not described.others_read(self._sent_topics)
        )

    def _on_subscriptions(self, described: Described, now_ms: int) -> None:
        """While a rebalance is delayed: which topics the members of the group have by now."""
        if described.stable and described.others_read(self._topics):
            self.request_rejoin(self._delayed, now_ms)

    def _account(self, assigned: Collection[TopicPartition], now_ms: int) -> None:
        """For the diagnosis and the metrics."""
        lead, members = self._lead, self._last_members
        if lead is not None:
            members = frozenset(one.instance_id or name for name, one in lead.members.items())
        follow_up = bool(self._generations) and self._generations[-1].follow_up
        self.diagnostics.synced(
            returned=self.returned,
            follow_up=follow_up,
            changed=set(assigned) != set(self._owned_before),
            same_members=self._last_members is None or members == self._last_members,
            now_ms=now_ms,
        )
        self._last_members, self._owned_before = members, frozenset(assigned)
        self.stats.synced(
            now_ms - self._sync_sent_at,
            now_ms - self._join_sent_at,
            rebalanced=not self.returned,
            now_ms=now_ms,
        )

    def _take(self, assigned: tuple[TopicPartition, ...]) -> tuple[TopicPartition, ...]:
        """What is read of an assignment. Where that is not all, the leader has to plan anew (as in Java).

        Unless it has planned just that with the topics of now: then it would again, and so on for ever.
        """
        odd = sorted({tp.topic for tp in assigned} - self._topics)
        if odd and self._joined_with_id and self._sent_topics == self._topics:
            log.warning(
                "group %s: the leader assigned partitions of %s to a member that does not subscribe to it: "
                "nobody reads them. Its assignor %s is at fault",
                self.config.group_id,
                ", ".join(odd),
                self.protocol_name,
            )
        elif odd and not self._delayed:
            self._rejoin_wanted = self._rejoin_wanted or (
                f"partitions of {', '.join(odd)} were assigned, which is not subscribed to"
            )
        return tuple(tp for tp in assigned if tp.topic in self._topics)

    def _tell_assignment(self, assigned: tuple[TopicPartition, ...], now_ms: int) -> None:
        held = set(self._owned())
        if self._missed_a_generation and held:
            self.notices.append(Notice(NoticeKind.LOST, tuple(sorted(held))))
            held = set()
        self._missed_a_generation = False
        revoked = tuple(sorted(held - set(assigned)))
        added = tuple(sorted(set(assigned) - held))
        if revoked:
            self.notices.append(Notice(NoticeKind.REVOKED, revoked))
            self._follow_up = True
            self._rejoin_wanted = f"{len(revoked)} partitions were revoked and can be assigned now"
        self.notices.append(Notice(NoticeKind.ASSIGNED, added, blocking=bool(added)))
        self._advance(now_ms)

    def _ask_assignors(self, call: Callable[[], T]) -> T | None:
        """Calls an assignor, which may be the user's: an exception in it ends the member, and says so."""
        try:
            return call()
        except Exception as exc:
            error = KafkaError(f"group {self.config.group_id!r}: an assignor failed: {exc!r}")
            error.__cause__ = exc
            self._die(error)
            return None
