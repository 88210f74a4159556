"""The table of actions: no pair is fatal by mistake, and what is unknown is fatal."""

from __future__ import annotations

import pytest

from slackwater.kafka.errors import BrokerError, for_code
from slackwater.kafka.protocol.actions import TABLE, Action, action_for
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E

MEMBER_APIS = [m.HeartbeatRequest, m.SyncGroupRequest, m.JoinGroupRequest]
GROUP_APIS = [*MEMBER_APIS, m.OffsetCommitRequest, m.OffsetFetchRequest, m.LeaveGroupRequest]


@pytest.mark.parametrize("api", GROUP_APIS)
def test_a_coordinator_that_moves_or_loads_is_never_fatal(api: type) -> None:
    assert action_for(api, E.NOT_COORDINATOR) is Action.FIND_COORDINATOR
    assert action_for(api, E.COORDINATOR_NOT_AVAILABLE) is Action.FIND_COORDINATOR
    assert action_for(api, E.COORDINATOR_LOAD_IN_PROGRESS) is Action.RETRY


@pytest.mark.parametrize("api", [*MEMBER_APIS, m.OffsetCommitRequest])
def test_a_fence_is_a_fence(api: type) -> None:
    assert action_for(api, E.FENCED_INSTANCE_ID) is Action.FENCED


@pytest.mark.parametrize("api", MEMBER_APIS)
def test_lost_identities(api: type) -> None:
    assert action_for(api, E.UNKNOWN_MEMBER_ID) is Action.REJOIN_DROPPING_ID
    assert action_for(api, E.ILLEGAL_GENERATION) is Action.REJOIN_LOSING


def test_a_commit_never_rejoins_by_itself_on_a_lost_identity() -> None:
    for code in (E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.GROUP_ID_NOT_FOUND):
        assert action_for(m.OffsetCommitRequest, code) is Action.COMMIT_FAILED


@pytest.mark.parametrize("code", [999, -7, E.GROUP_AUTHORIZATION_FAILED, E.INVALID_REQUEST])
def test_unknown_pairs_are_fatal(code: int) -> None:
    for api in TABLE:
        assert action_for(api, code) is Action.FATAL
    assert action_for(m.DescribeGroupsRequest, E.NOT_COORDINATOR) is Action.FATAL


def test_what_the_protocol_guide_calls_retriable_is_retried_where_it_is_in_the_table() -> None:
    keeps_trying = {Action.RETRY, Action.REFRESH_METADATA, Action.FIND_COORDINATOR, Action.NEW_SESSION}
    for api, row in TABLE.items():
        for code, action in row.items():
            if for_code(code).retriable:
                assert action in keeps_trying, (api, code)


def test_errors_know_their_code() -> None:
    for code in E:
        if code is not E.NONE:
            assert for_code(code).code == code
            assert code.name in str(for_code(code, "while testing"))
    strange = for_code(999, "while testing")
    assert isinstance(strange, BrokerError)
    assert not strange.retriable
    assert "UNKNOWN_CODE_999" in str(strange)
