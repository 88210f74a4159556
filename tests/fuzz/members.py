"""What members of a group send each other: subscriptions, assignments, assignors' user data."""

from __future__ import annotations

import functools
from random import Random

from slackwater.kafka.protocol.assignors import BUILT_IN, MemberSubscription
from slackwater.kafka.protocol.assignors.ownership import encode_sticky
from slackwater.kafka.protocol.consumer_protocol import (
    decode_subscription,
    encode_assignment,
    encode_subscription,
    read_assignment,
)
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.errors import DecodeError
from tests.fuzz.engine import Broken, Input
from tests.fuzz.mutate import mutated

TOPICS = {"a": 3, "b": 1, "ü": 5}
_ROOM_BYTES = 256 * 1024
_OBJECT_BYTES = 1000


def _partitions(rng: Random) -> list[TopicPartition]:
    every = [TopicPartition(topic, n) for topic, count in TOPICS.items() for n in range(count + 1)]
    return rng.sample(every, rng.randrange(len(every)))


@functools.cache
def _sticky() -> list[bytes]:
    rng = Random(2)
    return [encode_sticky(_partitions(rng), rng.randrange(-1, 9)) for _ in range(12)] + [b"\0\0\0\7"]


@functools.cache
def _subscriptions() -> list[bytes]:
    rng = Random(3)
    return [
        encode_subscription(
            MemberSubscription(
                tuple(rng.sample(list(TOPICS), rng.randrange(1, 4))),
                tuple(_partitions(rng)),
                rng.randrange(-1, 9),
                rng.choice([None, b"", *_sticky()]),
                rng.choice([None, "", "rack-1"]),
            ),
            version,
        )
        for version in (0, 1, 2, 3)
        for _ in range(8)
    ]


@functools.cache
def _assignments() -> list[bytes]:
    rng = Random(4)
    return [encode_assignment(_partitions(rng), rng.choice([None, b"x"])) for _ in range(12)]


class Members:
    """The "consumer" protocol's bytes: read, or :class:`DecodeError`."""

    name = "members"

    def make(self, rng: Random) -> Input:
        kind = rng.choice(["subscription", "assignment"])
        stored = _subscriptions() if kind == "subscription" else _assignments()
        if rng.random() < 0.05:
            return Input(rng.randbytes(int(rng.random() * 120)), kind)
        return Input(mutated(rng, stored[int(rng.random() * len(stored))], stored), kind)

    def check(self, given: Input) -> bool:
        try:
            if given.kind == "subscription":
                read = decode_subscription(given.data)
                again = decode_subscription(encode_subscription(read))
                same = (set(again.topics), set(again.owned)) == (set(read.topics), set(read.owned))
            else:
                assigned = read_assignment(given.data)
                back = read_assignment(encode_assignment(assigned.partitions, assigned.user_data))
                same = set(back.partitions) == set(assigned.partitions)
        except DecodeError:
            return False
        if not same:
            raise Broken("what was read is not what is read when it is sent")
        return True

    def memory_bytes(self, given: Input) -> int:
        return _ROOM_BYTES + _OBJECT_BYTES * len(given.data)


class Assignors:
    """Every assignor with members that say anything at all: each partition has one owner who wants it."""

    name = "assignors"

    def make(self, rng: Random) -> Input:
        stored = _sticky()
        parts = [
            mutated(rng, rng.choice(stored), stored) if rng.random() < 0.7 else rng.choice(stored)
            for _ in range(rng.randrange(1, 5))
        ]
        return Input(b"".join(parts), rng.choice(list(BUILT_IN)), (parts, rng.getrandbits(32)))

    def check(self, given: Input) -> bool:
        parts, seed = given.options
        rng = Random(seed)
        members = {
            f"m{n}": MemberSubscription(
                tuple(rng.sample([*TOPICS, "gone"], rng.randrange(1, 5))),
                tuple(_partitions(rng)),
                rng.randrange(-1, 4),
                part,
                rng.choice([None, "r1", "r2"]),
                rng.choice([None, f"i{n}"]),
            )
            for n, part in enumerate(parts)
        }
        plan = BUILT_IN[given.kind]().assign(TOPICS, members)
        _check_plan(plan, members)
        return True

    def memory_bytes(self, given: Input) -> int:
        return _ROOM_BYTES + _OBJECT_BYTES * len(given.data)


def _check_plan(plan: dict[str, list[TopicPartition]], members: dict[str, MemberSubscription]) -> None:
    if set(plan) != set(members):
        raise Broken(f"a plan for {sorted(plan)}")
    given = [tp for owned in plan.values() for tp in owned]
    if len(given) != len(set(given)):
        raise Broken("a partition was given twice")
    for member, owned in plan.items():
        for tp in owned:
            if tp.topic not in members[member].topics or not 0 <= tp.partition < TOPICS.get(tp.topic, 0):
                raise Broken(f"{member} was given {tp}")
    wanted = {topic for member in members.values() for topic in member.topics}
    count = sum(TOPICS[topic] for topic in wanted if topic in TOPICS)
    if len(given) > count:
        raise Broken("more partitions than there are")
