"""The table of actions: every code that comes is in it, nothing is fatal by mistake, unknown is fatal."""

from __future__ import annotations

import pytest

from slackwater.kafka.error_hints import hint
from slackwater.kafka.errors import AuthorizationError, BrokerError, for_code
from slackwater.kafka.protocol.actions import TABLE, Action, action_for
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.support.wire.error_pairs import AUTHORIZATION, INVALID_METADATA, RETRIABLE, pairs

MEMBER_APIS = [m.HeartbeatRequest, m.SyncGroupRequest, m.JoinGroupRequest]
GROUP_APIS = [*MEMBER_APIS, m.OffsetCommitRequest, m.OffsetFetchRequest, m.LeaveGroupRequest]
BY_NAME = {api.__name__.removesuffix("Request"): api for api in TABLE}


@pytest.mark.parametrize(("api", "code"), pairs())
def test_every_named_pair_is_decided(api: str, code: str) -> None:
    assert E[code] in TABLE[BY_NAME[api]]


@pytest.mark.parametrize("api", GROUP_APIS)
def test_a_coordinator_that_moves_or_loads_is_never_fatal(api: type) -> None:
    assert action_for(api, E.NOT_COORDINATOR) is Action.FIND_COORDINATOR
    assert action_for(api, E.COORDINATOR_NOT_AVAILABLE) is Action.FIND_COORDINATOR
    assert action_for(api, E.COORDINATOR_LOAD_IN_PROGRESS) is Action.RETRY


@pytest.mark.parametrize("api", [*MEMBER_APIS, m.OffsetCommitRequest])
def test_a_fenced_instance_id_ends_the_member(api: type) -> None:
    assert action_for(api, E.FENCED_INSTANCE_ID) is Action.FENCED


@pytest.mark.parametrize("api", MEMBER_APIS)
def test_a_lost_identity_makes_a_member_rejoin(api: type) -> None:
    assert action_for(api, E.UNKNOWN_MEMBER_ID) is Action.REJOIN_DROPPING_ID
    assert action_for(api, E.ILLEGAL_GENERATION) is Action.REJOIN_LOSING


def test_a_commit_never_rejoins_by_itself_on_a_lost_identity() -> None:
    for code in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.GROUP_ID_NOT_FOUND):
        assert action_for(m.OffsetCommitRequest, code) is Action.COMMIT_FAILED


@pytest.mark.parametrize("code", [999, -7, E.DELEGATION_TOKEN_EXPIRED, E.VOTER_NOT_FOUND])
def test_unknown_pairs_are_fatal(code: int) -> None:
    for api in TABLE:
        assert action_for(api, code) is Action.FATAL
    assert action_for(m.DescribeGroupsRequest, E.NOT_COORDINATOR) is Action.FATAL


def test_what_java_repeats_is_never_fatal_but_for_damage_in_a_fetch() -> None:
    fatal = {
        (api.__name__, code.name)
        for api, row in TABLE.items()
        for code, action in row.items()
        if code.name in RETRIABLE and action is Action.FATAL
    }
    # Java's FetchCollector raises it, too: the same bytes again are damaged again.
    assert fatal == {("FetchRequest", "CORRUPT_MESSAGE")}


_INVALID_IN_KAFKA_PYTHON = {E.REPLICA_NOT_AVAILABLE, E.UNKNOWN_LEADER_EPOCH}


@pytest.mark.parametrize("code", [code for code in E if code is not E.NONE])
def test_an_error_is_retriable_where_javas_is(code: E) -> None:
    error = for_code(code, "of t-0", api="Fetch")
    assert error.code == code
    assert error.retriable is (code.name in RETRIABLE)
    assert error.invalid_metadata is (code.name in INVALID_METADATA or code in _INVALID_IN_KAFKA_PYTHON)
    assert isinstance(error, AuthorizationError) is (code.name in AUTHORIZATION)
    assert str(error).startswith(f"Fetch of t-0: {code.name} ({int(code)})")


def test_an_unknown_error_code_is_not_retriable() -> None:
    strange = for_code(999, "while testing")
    assert isinstance(strange, BrokerError)
    assert not strange.retriable
    assert str(strange) == "while testing: UNKNOWN_CODE_999 (999)"


_SAID_BY_THE_MEMBER = {
    E.INCONSISTENT_GROUP_PROTOCOL, E.INVALID_SESSION_TIMEOUT, E.GROUP_MAX_SIZE_REACHED,
    E.UNSUPPORTED_ASSIGNOR,
}  # fmt: skip
"""`Membership` explains these with the values of its own options."""


def test_what_is_fatal_says_what_to_do() -> None:
    for name, api in BY_NAME.items():
        for code, action in TABLE[api].items():
            if action is Action.FATAL and code not in _SAID_BY_THE_MEMBER:
                assert hint(code, name), (name, code.name)


@pytest.mark.parametrize(
    ("api", "code", "needed"),
    [
        ("Fetch", E.TOPIC_AUTHORIZATION_FAILED, "Read on the Topic"),
        ("Produce", E.TOPIC_AUTHORIZATION_FAILED, "Write on the Topic"),
        ("Metadata", E.TOPIC_AUTHORIZATION_FAILED, "Describe on the Topic"),
        ("OffsetCommit", E.TOPIC_AUTHORIZATION_FAILED, "Read on the Topic"),
        ("OffsetFetch", E.GROUP_AUTHORIZATION_FAILED, "Describe on the Group"),
        ("JoinGroup", E.GROUP_AUTHORIZATION_FAILED, "Read on the Group"),
        ("InitProducerId", E.CLUSTER_AUTHORIZATION_FAILED, "IdempotentWrite on the Cluster"),
    ],
)
def test_a_refused_authorization_names_operation_and_resource(api: str, code: E, needed: str) -> None:
    assert needed in str(for_code(code, "of x", api=api))
