"""Observes many groups of a Kafka cluster at once.

A round's requests grow with the brokers, not with the groups: one DescribeGroups and one OffsetFetch
(KIP-709) to each coordinator, one ListOffsets to each leader for the partitions of all groups together, and
now and then Metadata, and the configs of groups of the consumer protocol. What one group's answer lacks (no
right to read it, a topic that does not exist) is missing in that group's snapshot alone.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from slackwater.clock import SYSTEM_CLOCK, Clock
from slackwater.kafka.admin import EARLIEST, LATEST, groups as group_requests
from slackwater.kafka.admin.attempts import Attempts
from slackwater.kafka.admin.configs import alter_configs, describe_configs
from slackwater.kafka.admin.results import ConfigResource, PerItem, ResourceType
from slackwater.kafka.errors import (
    FencedInstanceIdError,
    GroupIdNotFoundError,
    KafkaConnectionError,
    KafkaError,
    UnknownMemberIdError,
    for_code,
)
from slackwater.kafka.net import Cluster
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.protocol.metadata import Topic
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.kafka.wire.errors import ErrorCode
from slackwater_operator.kafka.group_requests import Asking, Committed
from slackwater_operator.model.group import INTERVAL_CONFIG, SESSION_CONFIG, GroupView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot

K = TypeVar("K", bound=Hashable)

REQUEST_TIMEOUT_MS = 5_000
"""So long that a process that gets little of its CPU does not take itself for cut off."""
TOPICS_MAX_AGE_MS = 10_000.0
"""How long the topics' partitions are taken as known: a change of them is to be told within half a minute,
and a group at rest is looked at every ten seconds only."""
TOPICS_RETRY_MS = 3_000.0
"""The same while a topic is missing or has an error: it may have been created by now."""
TOPICS_FORGOTTEN_MS = 300_000.0
"""A topic that no group has been asked for with for this long is left out of Metadata."""
SESSIONS_MAX_AGE_MS = 60_000.0
"""How long the session timeout of a group's configs is taken as known, or as not to be had."""
CONFIG_TIMEOUT_MS = 1_000
"""Of a change of a group's configs: a step waits for it."""
HASTENED_MS = 1
"""The interval of assignments of a group that is hastened. Not 0, which a user may have set."""
_OF_THE_GROUP = 8
"""The source of a config that was set for a group (Java's DescribeConfigsResponse.ConfigSource)."""
HASTENED_FOR_MS = 10_000.0
"""How long it stays so, at least: most workers have drained by then."""


@dataclass(frozen=True)
class GroupWanted(Generic[K]):
    """A group to look at.

    Attributes:
        key: whatever the caller finds the answer by.
        group_id: Kafka's group.id.
        topics: its topics.
        checked_topics: topics that it does not read, but that have to exist (for its dead letters).
        topic_pattern: in place of `topics`: a regular expression that names match from their beginning
            (`TopicPattern`, as the workers subscribe); internal topics are left out.
        offset_reset: the workers' auto.offset.reset: where the group starts without a committed offset.
        read_committed: whether the workers read with isolation.level read_committed: what they can read ends
            where the oldest open transaction begins, so that is what their lag counts to.
    """

    key: K
    group_id: str
    topics: tuple[str, ...] = ()
    checked_topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    offset_reset: str = "earliest"
    read_committed: bool = False


@dataclass
class _Facts:
    """What a round has learned of all groups together."""

    groups: Mapping[str, GroupView | KafkaError]
    committed: Mapping[str, Committed | KafkaError]
    ends: Mapping[bool, Mapping[TopicPartition, int | KafkaError]]
    """By whether only committed transactions are read."""
    coordinators: Mapping[str, int]
    handled: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    starts: dict[TopicPartition, int | KafkaError] = field(default_factory=dict)


class ClusterObserver:
    """Looks at groups of one cluster over one set of connections. Several rounds may run at the same time."""

    def __init__(
        self, cluster: Cluster, *, round_timeout_ms: int = 8_000, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Takes over a cluster, which `start` starts and `close` closes.

        What a broker has not answered `round_timeout_ms` after a round's begin is missing in its snapshots.
        """
        self._cluster, self._clock = cluster, clock
        self._timeout_s = round_timeout_ms / 1000
        self._backoff = Backoff(100, 1_000, random.Random(0))
        self._wanted_ms: dict[str, float] = {}
        self._all_wanted_ms = float("-inf")
        self._topics_ms = float("-inf")
        self._topics_wall_ms: int | None = None
        self._matching: dict[str, list[str]] = {}
        self._sessions: dict[str, tuple[float, int | None]] = {}
        """Of groups of the consumer protocol: when they were asked for, and the session timeout in ms."""
        self._hastened: dict[str, float] = {}
        """Groups whose interval of assignments was shortened, and when."""
        # Not the cluster's own metadata: while that is asked for, it lacks topics for a moment.
        self._known: Mapping[str, Topic] = {}

    @classmethod
    async def connect(
        cls,
        bootstrap_servers: str,
        *,
        client_id: str = "slackwater-observer",
        timeout_ms: int = 5_000,
        **options: Any,
    ) -> Self:
        """Connects. `options` are those of `slackwater.kafka.net.cluster.Cluster`.

        Raises:
            NoBrokersAvailable: none of the servers answers within `timeout_ms`.
            KafkaError: none may be talked to (authentication, versions).
        """
        settings: dict[str, Any] = {
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "connect_timeout_ms": REQUEST_TIMEOUT_MS,
            **options,
        }
        cluster = Cluster(bootstrap_servers, client_id=client_id, **settings)
        try:
            await cluster.start(timeout_ms)
        except BaseException:
            await cluster.close()
            raise
        return cls(cluster)

    @property
    def requests(self) -> Counter[str]:
        """Requests sent so far by API (`DescribeGroups`), those of connecting among them."""
        return self._cluster.settings.requests

    async def observe(self, wanted: Sequence[GroupWanted[K]]) -> dict[K, KafkaSnapshot]:
        """One round over `wanted`.

        Raises:
            KafkaError: no broker has answered anything.
        """
        at_ms = self._clock.wall_ms()
        asking = Asking(self._cluster, asyncio.get_running_loop().time() + self._timeout_s)
        failed = await self._refresh_topics(asking, wanted)
        if failed is not None and not self._known:
            raise failed
        partitions = {group.key: self.partitions(group) for group in wanted}
        facts = await self._ask(asking, wanted, partitions)
        if not asking.answers and wanted:
            raise failed or _first_error(facts)
        return {group.key: self._snapshot(at_ms, group, partitions[group.key], facts) for group in wanted}

    async def identify(self) -> str:
        """Kafka's id of the cluster; "" where it tells none.

        Raises:
            KafkaError: no broker answers.
        """
        failed = await Asking(self._cluster, asyncio.get_running_loop().time() + self._timeout_s).refresh()
        if failed is not None:
            raise failed
        return self._cluster.metadata.cluster_id or ""

    def partitions(self, wanted: GroupWanted[K]) -> tuple[TopicPartition, ...]:
        """The partitions of a group's topics, in order, as far as they are known now."""
        return tuple(
            TopicPartition(name, number)
            for name in self._topics(wanted)
            for number in sorted(self._known[name].partitions)
        )

    async def remove_members(self, group_id: str, members: Mapping[str, str]) -> dict[str, str]:
        """Removes static members by one LeaveGroup; returns the error of each that could not be removed.

        ``members``: instance id -> the member id observed for it, "" if it is not known. A member that is
        gone already is no error. Nor is one that has another member id now (FENCED_INSTANCE_ID): a process
        has joined as it since, and stays until the next observation has been planned with.
        """
        attempts = Attempts(REQUEST_TIMEOUT_MS, self._backoff)
        try:
            outcomes = await group_requests.remove_members(
                self._cluster,
                attempts,
                group_id,
                members,
                "scaled down",
                {instance_id: member_id for instance_id, member_id in members.items() if member_id},
            )
        except KafkaError as error:
            return dict.fromkeys(members, str(error))
        return {
            instance_id: str(error)
            for instance_id, error in outcomes.errors.items()
            if not isinstance(error, UnknownMemberIdError | FencedInstanceIdError)
        }

    async def hasten_assignments(self, group_id: str) -> str:
        """Has brokers assign the partitions of a group of the consumer protocol whenever a member leaves,
        until it has been Stable for a while. Gives why they do not; "" if they do. What a user has set stays.
        """
        group = ConfigResource(ResourceType.GROUP, group_id)
        try:
            attempts = Attempts(CONFIG_TIMEOUT_MS, self._backoff)
            configs = (await describe_configs(self._cluster, attempts, [group])).unwrap()[group]
            interval = configs.get(INTERVAL_CONFIG)
            if interval is None:
                return f"Kafka before 4.3 has no {INTERVAL_CONFIG}"
            if interval.value == "0":
                return ""
            if interval.source == _OF_THE_GROUP and interval.value != str(HASTENED_MS):
                return f"{INTERVAL_CONFIG} is set to {interval.value} for the group"
            (await self._set_interval([group], HASTENED_MS)).unwrap()
        except KafkaError as error:
            return f"{INTERVAL_CONFIG} of the group cannot be changed: {error}"
        self._hastened[group_id] = self._clock.mono_ms()
        return ""

    async def delete_group(self, group_id: str) -> str:
        """Deletes a group with its offsets. Gives why that is not done; "" if it is, or was gone already."""
        attempts = Attempts(REQUEST_TIMEOUT_MS, self._backoff)
        try:
            outcomes = await group_requests.delete(self._cluster, attempts, [group_id])
        except KafkaError as error:
            return str(error)
        error_of_group = outcomes.errors.get(group_id)
        gone = error_of_group is None or isinstance(error_of_group, GroupIdNotFoundError)
        return "" if gone else str(error_of_group)

    async def close(self) -> None:
        """Closes the connections."""
        await self._cluster.close()

    # ---- topics

    async def _refresh_topics(self, asking: Asking, wanted: Iterable[GroupWanted[K]]) -> KafkaError | None:
        """Asks for metadata where it is too old for `wanted`; gives why that failed.

        What is known changes at once when all has been answered: other rounds run meanwhile.
        """
        now, known = self._clock.mono_ms(), self._known
        new = False
        for group in wanted:
            if group.topic_pattern is not None:
                new |= now - self._all_wanted_ms > TOPICS_FORGOTTEN_MS
                self._all_wanted_ms = now
            for topic in (*group.topics, *group.checked_topics):
                new |= topic not in known
                self._wanted_ms[topic] = now
        self._wanted_ms = {t: ms for t, ms in self._wanted_ms.items() if now - ms <= TOPICS_FORGOTTEN_MS}
        failing = any(t in known and known[t].error_code for t in self._wanted_ms)
        age = now - self._topics_ms
        if not new and age < (TOPICS_RETRY_MS if failing else TOPICS_MAX_AGE_MS):
            return None
        everything = now - self._all_wanted_ms <= TOPICS_FORGOTTEN_MS
        self._cluster.track(self._wanted_ms, all_topics=everything)
        failed = await asking.refresh()
        if failed is not None:
            return failed
        topics = dict(self._cluster.metadata.topics)
        unnamed = self._wanted_ms.keys() - topics.keys()
        if everything and unnamed:
            # The answer for all topics leaves these out: asked for by name, the broker says why.
            self._cluster.track(unnamed)
            failed = await asking.refresh()
            self._cluster.track(self._wanted_ms, all_topics=True)
            answered = self._cluster.metadata.topics if failed is None else self._known
            topics |= {name: answered[name] for name in unnamed if name in answered}
        self._known = topics
        self._matching.clear()
        if failed is None:
            self._topics_ms, self._topics_wall_ms = now, self._clock.wall_ms()
        return failed

    def _missing(self, wanted: GroupWanted[K]) -> tuple[str, ...]:
        """The topics that the brokers say do not exist; one that was not asked for yet is not among them."""
        known = self._known
        names = {*wanted.topics, *wanted.checked_topics}
        return tuple(
            name
            for name in sorted(names)
            if name in known and known[name].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )

    def _topics(self, wanted: GroupWanted[K]) -> list[str]:
        known = self._known
        if wanted.topic_pattern is None:
            return [name for name in sorted(wanted.topics) if name in known]
        # Once for each metadata: a pattern can be slow, and there can be many names.
        matching = self._matching.get(wanted.topic_pattern)
        if matching is None:
            pattern = TopicPattern(wanted.topic_pattern)
            matching = sorted(n for n, topic in known.items() if not topic.is_internal and pattern.matches(n))
            self._matching[wanted.topic_pattern] = matching
        return matching

    def _topic_problems(self, wanted: GroupWanted[K]) -> list[str]:
        known, topics = self._known, self._topics(wanted)
        if wanted.topic_pattern is not None and not topics:
            return [f"no topic matches {wanted.topic_pattern!r}; create one, or correct topicPattern"]
        problems = [
            f"no broker has reported topic {name} yet" for name in sorted(wanted.topics) if name not in known
        ]
        missing = self._missing(wanted)
        problems += [f"topic {name} does not exist; create it" for name in missing]
        for name in topics:
            code = known[name].error_code
            if code and name not in missing and not known[name].partitions:
                problems.append(str(for_code(code, f"topic {name}")))
        return problems

    # ---- a round

    async def _ask(
        self,
        asking: Asking,
        wanted: Sequence[GroupWanted[K]],
        partitions: Mapping[K, tuple[TopicPartition, ...]],
    ) -> _Facts:
        groups = list(dict.fromkeys(group.group_id for group in wanted))
        kinds = sorted({group.read_committed for group in wanted})
        unions = {
            kind: list(
                dict.fromkeys(
                    p for group in wanted if group.read_committed is kind for p in partitions[group.key]
                )
            )
            for kind in kinds
        }
        await asking.find(groups)  # so that the two below need not both ask
        described, committed, ends = await asyncio.gather(
            asking.describe(groups),
            asking.committed(groups),
            asyncio.gather(*(asking.offsets(unions[kind], LATEST, read_committed=kind) for kind in kinds)),
        )
        await self._refresh_configs(asking, described)
        await self._set_intervals_back(described)
        by_kind = dict(zip(kinds, ends, strict=True))
        facts = _Facts(described, committed, by_kind, asking.coordinators, asking.handled)
        fresh = [
            p
            for group in wanted
            for p in partitions[group.key]
            if _is_fresh(facts.committed.get(group.group_id), p)
        ]
        facts.starts = await asking.offsets(dict.fromkeys(fresh), EARLIEST, read_committed=False)
        return facts

    async def _refresh_configs(self, asking: Asking, described: Mapping[str, GroupView | KafkaError]) -> None:
        now = self._clock.mono_ms()
        due = [
            group_id
            for group_id, group in described.items()
            if isinstance(group, GroupView)
            and group.consumer_protocol
            and now - self._sessions.get(group_id, (float("-inf"), None))[0] >= SESSIONS_MAX_AGE_MS
        ]
        if not due:
            return
        try:
            configs = await asking.configs(due, (SESSION_CONFIG, INTERVAL_CONFIG))
        except KafkaError:  # the other answers are good; the next round asks again
            return
        for group_id in due:
            config = configs.get(group_id, {})
            self._sessions[group_id] = now, config.get(SESSION_CONFIG)
            if config.get(INTERVAL_CONFIG) == HASTENED_MS:  # an operator has ended before it was set back
                self._hastened.setdefault(group_id, now)

    async def _set_intervals_back(self, described: Mapping[str, GroupView | KafkaError]) -> None:
        now = self._clock.mono_ms()
        due = [
            group_id
            for group_id, since_ms in self._hastened.items()
            if now - since_ms >= HASTENED_FOR_MS
            and isinstance(group := described.get(group_id), GroupView)
            and (group.stable or group.memberless)
        ]
        for group_id in due:
            del self._hastened[group_id]
        if due:  # what fails is found with the group's session, and tried again
            await self._set_interval([ConfigResource(ResourceType.GROUP, group_id) for group_id in due], None)

    async def _set_interval(
        self, groups: Iterable[ConfigResource], value_ms: int | None
    ) -> PerItem[ConfigResource, None]:
        """None: back to the broker's."""
        value = None if value_ms is None else str(value_ms)
        changes = {group: {INTERVAL_CONFIG: value} for group in groups}
        attempts = Attempts(CONFIG_TIMEOUT_MS, self._backoff)
        return await alter_configs(self._cluster, attempts, changes, validate_only=False)

    def _snapshot(
        self, at_ms: int, wanted: GroupWanted[K], partitions: tuple[TopicPartition, ...], facts: _Facts
    ) -> KafkaSnapshot:
        problems = self._topic_problems(wanted)
        group = facts.groups[wanted.group_id]
        if isinstance(group, KafkaError):
            problems.append(f"group {wanted.group_id}: {group}")
        ends = _known(partitions, facts.ends[wanted.read_committed], problems)
        committed = facts.committed[wanted.group_id]
        positions: dict[TopicPartition, int] = {}
        if isinstance(committed, KafkaError):
            problems.append(str(committed))
        else:
            positions = _known((p for p in partitions if p in committed), committed, problems)
            fresh = [p for p in partitions if p not in committed]
            starts = _known(fresh, facts.starts, problems) if fresh else {}
            if wanted.offset_reset != "earliest":
                # Where a member starts depends on when it asks: known only where there is nothing to read.
                starts = {p: start for p, start in starts.items() if start == ends.get(p)}
            positions.update(starts)
            if not isinstance(group, KafkaError) and not group.memberless:
                # Without members nobody has these records any more: they will be handled again.
                handled = facts.handled.get(wanted.group_id, {})
                positions.update({p: handled[p] for p in positions if p in handled})
        view = None if isinstance(group, KafkaError) else group
        return KafkaSnapshot(
            at_ms,
            view,
            partitions,
            ends,
            positions,
            tuple(dict.fromkeys(problems)),
            None if view is None else facts.coordinators.get(wanted.group_id),
            frozenset(self._cluster.metadata.brokers),
            self._cluster.metadata.cluster_id or "",
            self._missing(wanted),
            self._topics_wall_ms,
            self._sessions.get(wanted.group_id, (0.0, None))[1],
        )


def _is_fresh(committed: Committed | KafkaError | None, partition: TopicPartition) -> bool:
    return isinstance(committed, dict) and partition not in committed


def _known(
    partitions: Iterable[TopicPartition],
    answers: Mapping[TopicPartition, int | KafkaError],
    problems: list[str],
) -> dict[TopicPartition, int]:
    """The offsets that are known; why the others are not goes to `problems`."""
    offsets: dict[TopicPartition, int] = {}
    for partition in partitions:
        offset = answers.get(partition)
        if isinstance(offset, int):
            offsets[partition] = offset
        else:
            problems.append(
                f"the broker's response does not contain {partition}" if offset is None else str(offset)
            )
    return offsets


def _first_error(facts: _Facts) -> KafkaError:
    for outcomes in (facts.groups, facts.committed):
        for outcome in outcomes.values():
            if isinstance(outcome, KafkaError):
                return outcome
    return KafkaConnectionError("no broker has responded")
