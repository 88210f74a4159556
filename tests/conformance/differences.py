"""What an old broker answers otherwise than the rows say, and why.

A row that is named here runs on that broker all the same, and must fail there in the way that is
written down: a broker that answers as the row says, or in yet another way, is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Differs:
    """``answers``: what the row's failure has to match (a pattern). ``reason``: what the broker does."""

    answers: str
    reason: str


_OLDEST_PRODUCE = Differs(r"assert False", "Produce 0-2 are served; KIP-896 took them away with 4.0")
_REFRESHED = Differs(
    r"[ab] is still a member after \d+ ms",
    "the coordinator before 4.0 starts a member's session anew with each Join and Sync, also in Stable",
)

_BOTH: Mapping[str, Differs] = {
    **{f"test_oldest_produce_closes_the_connection[{version}]": _OLDEST_PRODUCE for version in range(3)},
    "test_timed_row[session_expires]": _REFRESHED,
}
_ONLY_3_9: Mapping[str, Differs] = {
    "test_commit_to_no_such_group": Differs(
        r"assert 22 ==", "ILLEGAL_GENERATION at v9 as before it; GROUP_ID_NOT_FOUND came with 4.0"
    ),
    # The Sync after the Join starts the session anew, by the new timeout.
    "test_timed_row[return_starts_the_clock_with_the_old_timeout]": _REFRESHED,
}
_ONLY_2_8: Mapping[str, Differs] = {
    "test_delete_topics": Differs(
        r"assert 3 == <ErrorCode.UNKNOWN_TOPIC_ID",
        "with ZooKeeper a deleted topic is there a little longer, without a name to its id",
    ),
    "test_errors_depend_on_the_situation_of_the_member[unknown_instance]": Differs(
        r"assert 0 == <ErrorCode.UNKNOWN_MEMBER_ID",
        "a known member.id with an instance id that nobody has is let through",
    ),
    "test_all_return_at_once_without_a_rebalance": Differs(
        r"assert 0 == 1",
        "JoinGroup ends at v7: a returning leader is named by its old id (KIP-814 is of 3.2)",
    ),
    "test_timed_row[return_starts_the_clock_with_the_old_timeout]": Differs(
        r"assert {'a'} == {'a', 'c'}", "a static return keeps the old session timeout, heartbeats or not"
    ),
    "test_timed_row[echo_of_a_return_before_sync]": Differs(
        r"no echo", "a pod that returns in place of one that owed its Sync owes none"
    ),
}
_ONLY_4_3: Mapping[str, Differs] = {
    "test_a_classic_member_whose_subscription_cannot_be_read_is_refused": Differs(
        r"assert -1 == ", "UNKNOWN_SERVER_ERROR; INCONSISTENT_GROUP_PROTOCOL came with 4.4"
    ),
}

DIFFERENCES: Mapping[tuple[str, str], Differs] = {
    **{("kafka-4.3", row): how for row, how in _ONLY_4_3.items()},
    **{("kafka-3.9", row): how for row, how in {**_BOTH, **_ONLY_3_9}.items()},
    **{("kafka-2.8", row): how for row, how in {**_BOTH, **_ONLY_2_8}.items()},
}
"""(broker, row) -> how it differs there. A row is a test's name with its parameters, but for the broker."""
