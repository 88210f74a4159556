"""The rules of a takeover, each at its limits; and the messages and notes that they are told by."""

from __future__ import annotations

import json

import pytest

from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.runtime.delivery.commits import differ
from slackwater.runtime.delivery.partition import CommitNote, OwnedPartition, Signature
from slackwater.runtime.takeover.group_observer import MemberView
from slackwater.runtime.takeover.http_handler import Refused, TakeoverRequests
from slackwater.runtime.takeover.messages import (
    HandoverAnswer,
    HandoverRequest,
    join_address,
    read_order,
    split_address,
)
from slackwater.runtime.takeover.roles import (
    TABLE,
    Role,
    RoleEvent,
    Roles,
    Silence,
    TakeBack,
    Unfenced,
    at_start,
)
from tests.support.workers.fakes import VirtualClock

A, B = TopicPartition("flights", 0), TopicPartition("flights.all-2", 1)


def committed(
    offset: int, pod: str = "", since_ms: int | None = None, instance: str = "flights-3"
) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, CommitNote(100, instance, None, None, pod, since_ms).encode())


# ---- roles


def test_each_role_can_be_come_to_and_left() -> None:
    assert {role for role, _ in TABLE} == set(Role)
    assert set(TABLE.values()) == set(Role) - {Role.STARTING}
    assert {event for _, event in TABLE} == set(RoleEvent)


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("event", list(RoleEvent))
def test_a_role_changes_by_the_table_alone(role: Role, event: RoleEvent) -> None:
    roles = Roles()
    roles.role = role
    if (role, event) in TABLE:
        assert roles.take(event) is TABLE[role, event] is roles.role
    else:
        with pytest.raises(RuntimeError, match=role.value):
            roles.take(event)
        assert roles.role is role


def test_the_roles_lead_to_standby_and_back() -> None:
    roles = Roles()
    way = [
        (RoleEvent.OTHERS, Role.SUCCESSOR),
        (RoleEvent.WARM, Role.STANDBY),
        (RoleEvent.ORDERED, Role.TAKING_OVER),
        (RoleEvent.REFUSED, Role.STANDBY),
        (RoleEvent.ORDERED, Role.TAKING_OVER),
        (RoleEvent.JOINED, Role.RUNNING),
        (RoleEvent.ASKED, Role.HANDING_OVER),
        (RoleEvent.KEPT, Role.RUNNING),
        (RoleEvent.ASKED, Role.HANDING_OVER),
        (RoleEvent.FENCED, Role.SUCCESSOR),
        (RoleEvent.WARM, Role.STANDBY),
        (RoleEvent.SUCCESSOR_GONE, Role.TAKING_OVER),
        (RoleEvent.JOINED, Role.RUNNING),
        (RoleEvent.FENCED, Role.SUCCESSOR),
        (RoleEvent.WARM, Role.STANDBY),
        (RoleEvent.GONE, Role.NEW),
        (RoleEvent.JOINED, Role.RUNNING),
    ]
    for event, role in way:
        assert roles.take(event) is role


def test_who_is_what_at_the_start() -> None:
    absent = MemberView("flights-3", "Stable")
    assert at_start(absent, "flights-b-3", takes_over=True) is RoleEvent.ABSENT
    first = MemberView("flights-3", "Stable", "id", "flights-a-3")
    assert at_start(first, "flights-a-3", takes_over=True) is RoleEvent.OWN
    assert at_start(first, "flights-b-3", takes_over=True) is RoleEvent.OTHERS
    assert at_start(first, "flights-b-3", takes_over=False) is RoleEvent.OWN
    signed = MemberView("flights-3", "Stable", "id", "flights-a-3", (A,), {A: committed(5, "flights-b-3", 7)})
    assert at_start(signed, "flights-a-3", takes_over=True) is RoleEvent.OTHERS
    assert at_start(signed, "flights-b-3", takes_over=True) is RoleEvent.OWN


def test_the_holder_is_who_signed_last_as_this_member() -> None:
    notes = {
        A: committed(5, "flights-a-3", 7),
        B: committed(5, "flights-b-3", 8),
        TopicPartition("c", 0): committed(5, "flights-c-9", 99, instance="flights-9"),
        TopicPartition("d", 0): committed(5),
        TopicPartition("e", 0): OffsetAndMetadata(1, "no note"),
    }
    member = MemberView("flights-3", "Stable", "id", "flights-z-3", tuple(notes), notes)
    assert member.holder == "flights-b-3"
    assert MemberView("flights-3", "Stable", "id", "flights-z-3").holder == "flights-z-3"
    assert not MemberView("flights-3", "Stable").stable, "the member is not in it"
    assert not MemberView("flights-3", "PreparingRebalance", "id").stable


# ---- silence


def test_a_worker_is_gone_after_three_tries_and_two_seconds() -> None:
    silence = Silence()
    assert not silence.gone(1e9), "nobody has asked"
    silence.probed(False, 1_000)
    silence.probed(False, 1_500)
    assert not silence.gone(9_000), "two tries"
    silence.probed(False, 2_000)
    assert not silence.gone(2_999)
    assert silence.gone(3_000)
    silence.probed(True, 3_100)
    assert silence.answered
    assert not silence.gone(9_000)
    silence.probed(False, 3_200)
    assert not silence.answered


@pytest.mark.parametrize(("session_ms", "still_ms"), [(6_000, 3_000), (15_000, 3_000), (45_000, 9_000)])
def test_a_membership_is_taken_back_when_nothing_was_committed_for_long(
    session_ms: int, still_ms: int
) -> None:
    rule = TakeBack(session_ms)
    for asked in (0, 500, 1_000):
        rule.silence.probed(False, asked)
    rule.observe("a", 100)
    rule.observe("b", 1_000)
    rule.observe("b", 1_000 + still_ms - 1)
    assert rule.due(100_000) == "", "what was seen last is what counts, not the time"
    rule.observe("b", 1_000 + still_ms)
    assert f"committed nothing for {still_ms // 1000} s" in rule.due(1_000 + still_ms)
    rule.observe("c", 100_000)
    assert rule.due(100_001) == ""


def test_a_membership_is_not_taken_back_from_a_successor_that_answers() -> None:
    rule = TakeBack(6_000)
    rule.observe("a", 0)
    rule.observe("a", 60_000)
    assert rule.due(60_000) == "", "nobody has asked"
    for asked in range(0, 60_000, 500):
        rule.silence.probed(asked % 1_500 == 0, asked)
    assert rule.due(60_000) == ""


def test_a_membership_without_observations_is_not_taken_back() -> None:
    rule = TakeBack(6_000)
    for asked in (0, 500, 1_000):
        rule.silence.probed(False, asked)
    assert rule.due(60_000) == ""


def test_who_was_not_fenced_goes_on_at_the_deadline() -> None:
    rule = Unfenced(1_000, 5_000)
    assert rule.due(5_999) == ""
    assert "within 5000 ms" in rule.due(6_000)
    rule.silence.probed(True, 5_900)
    assert rule.due(6_000) == "", "its successor lives"
    assert rule.due(10_999) == ""
    assert "within 10000 ms" in rule.due(11_000)
    rule.silence.probed(False, 11_000)
    assert rule.due(11_000)


def test_who_was_not_fenced_goes_on_before_that_where_nobody_can_come() -> None:
    rule = Unfenced(1_000, 5_000)
    for asked in (1_000, 1_500, 2_000):
        rule.silence.probed(False, asked)
    assert rule.due(2_999) == ""
    assert rule.due(3_000) == "its successor is gone"
    rule = Unfenced(1_000, 5_000)
    rule.withdrawn = True
    assert rule.due(1_000) == "its successor has withdrawn"


# ---- offsets that were handed over


@pytest.mark.parametrize("there", [None, committed(6), committed(5, "flights-a-3", 9)])
def test_what_was_left_is_compared_with_what_is_committed(there: OffsetAndMetadata | None) -> None:
    assert differ(committed(5), there)
    assert not differ(committed(5), committed(5))


# ---- signatures in the notes


def test_a_signature_is_later_than_the_one_before() -> None:
    assert Signature("b", 100).after([CommitNote(1, "i", None, None, "a", 500)]).since_ms == 501
    assert Signature("b", 100).after([CommitNote(1, "i", None, None, "a", 50)]).since_ms == 100
    assert Signature("b", 100).after([]).since_ms == 100


def test_a_sign_of_life_moves_nothing_and_keeps_what_the_note_says() -> None:
    owned = OwnedPartition(A, signature=Signature("flights-b-3", 9))
    note = CommitNote(100, "flights-3", (0, 3, 8), 90, "flights-a-3", 5)
    owned.set_committed(7, note.encode())
    sign = owned.sign_of(500, "flights-3")
    assert sign is not None
    assert sign.offset == 7
    decoded = CommitNote.decode(sign.metadata)
    assert decoded == CommitNote(100, "flights-3", (0, 3, 8), 90, "flights-b-3", 9, 500)
    owned.stored(sign)
    assert (owned.silent_ms(700), owned.initial_note) == (200, note)
    commit = CommitNote.decode(owned.commit_of(8, 900, "flights-3").metadata)
    assert commit == CommitNote(900, "flights-3", None, None, "flights-b-3", 9)


def test_what_others_noted_is_not_signed_over() -> None:
    owned = OwnedPartition(A, signature=Signature("flights-b-3", 9))
    for offset, metadata in ((None, ""), (4, "foreign"), (4, CommitNote(1, "flights-5").encode())):
        owned.set_committed(offset, metadata)
        assert owned.sign_of(500, "flights-3") is None


def test_without_takeovers_a_note_is_as_it_was() -> None:
    owned = OwnedPartition(A)
    owned.set_committed(4, CommitNote(1, "flights-3").encode())
    assert json.loads(owned.commit_of(5, 9, "flights-3").metadata) == {"at": 9, "instance": "flights-3"}


@pytest.mark.parametrize("wrong", [{"pod": 7}, {"since": "x"}, {"alive": True}, {"drain": 1.5}])
def test_a_note_with_a_field_that_cannot_be_is_read_without_it(wrong: dict[str, object]) -> None:
    decoded = CommitNote.decode(json.dumps({"at": 1, "instance": "i", **wrong}))
    assert decoded == CommitNote(1, "i")


# ---- messages


def test_addresses_are_parsed() -> None:
    for host in ("10.1.2.3", "fd00::7", "pod.example"):
        assert split_address(join_address(host, 8080)) == (host, 8080)
    for wrong in ("", "8080", ":8080", "host:", "host:0", "host:65536", "host:\uff11", "host:8 "):
        with pytest.raises(ValueError, match="not host:port"):
            split_address(wrong)


def test_orders_are_parsed() -> None:
    assert read_order(b'{"predecessor": "10.1.2.3:8080"}') == ("10.1.2.3:8080", "")
    assert read_order(b'{"predecessor": "10.1.2.3:8080", "target": "a/b"}') == ("10.1.2.3:8080", "a/b")
    assert read_order(b'{"predecessor": ""}') == ("", "")
    for wrong in (b"", b"[]", b"{}", b'{"predecessor": null}', b'{"predecessor": "x"}', b"\xff"):
        with pytest.raises(ValueError, match="body|predecessor|host:port"):
            read_order(wrong)


def test_a_request_names_where_its_sender_answers() -> None:
    request = HandoverRequest("flights-3", "flights-b-3", "10.1.2.4:8080", 5_000)
    assert HandoverRequest.read(request.encode(), "10.9.9.9") == request
    for listens in ("0.0.0.0", "::", ""):
        anywhere = HandoverRequest("flights-3", "flights-b-3", join_address(listens, 8080), 5_000)
        assert HandoverRequest.read(anywhere.encode(), "10.9.9.9").address == "10.9.9.9:8080"
        assert HandoverRequest.read(anywhere.encode(), "fd00::1").address == "[fd00::1]:8080"


@pytest.mark.parametrize(
    "change",
    [
        {"by": None},
        {"instance": 3},
        {"address": "x"},
        {"deadline_ms": 0},
        {"deadline_ms": "5"},
        {"deadline_ms": True},
    ],
)
def test_an_incomplete_request_is_refused(change: dict[str, object]) -> None:
    document = json.loads(HandoverRequest("flights-3", "flights-b-3", "10.1.2.4:8080", 5_000).encode())
    with pytest.raises(ValueError, match=f"{next(iter(change))}|host:port"):
        HandoverRequest.read(json.dumps({**document, **change}).encode(), "10.9.9.9")


def test_an_answer_comes_back_as_it_was() -> None:
    left = {A: committed(5), B: OffsetAndMetadata(0, "")}
    answer = HandoverAnswer(7, left, 100, 120, {A: 30, B: 4}, 50, "a boot", 9_000)
    document = json.loads(json.dumps(answer.document()))
    assert document["offsets"].keys() == {"flights-0", "flights.all-2-1"}
    assert HandoverAnswer.parse(document) == answer


def test_an_answer_of_an_older_worker_says_nothing_of_when_partitions_were_served() -> None:
    document = HandoverAnswer(7, {A: committed(5)}, 100, 120, {A: 30}, 50).document()
    for name in ("unserved_ms", "took_ms", "clock", "sent_ms"):
        del document[name]
    assert HandoverAnswer.parse(document) == HandoverAnswer(7, {A: committed(5)}, 100, 120)


@pytest.mark.parametrize(
    "change",
    [
        {"generation": None},
        {"offsets": []},
        {"offsets": {"flights": [1, ""]}},
        {"offsets": {"flights-0": [1]}},
        {"offsets": {"flights-0": [-1, ""]}},
        {"offsets": {"flights-0": [True, ""]}},
        {"offsets": {"flights-0": [1, None]}},
        {"committed_ms": "now"},
        {"unserved_ms": [30]},
        {"unserved_ms": {"flights": 30}},
        {"unserved_ms": {"flights-0": -1}},
        {"took_ms": "long"},
        {"clock": 3},
        {"sent_ms": -1},
    ],
)
def test_an_invalid_answer_is_refused(change: dict[str, object]) -> None:
    document = HandoverAnswer(7, {A: committed(5)}, 100, 120).document()
    with pytest.raises(ValueError, match="must be|not a partition"):
        HandoverAnswer.parse({**document, **change})


# ---- requests


def test_orders_are_taken_when_they_are_wanted() -> None:
    requests = TakeoverRequests(VirtualClock())
    with pytest.raises(Refused, match="still starting"):
        requests.order("")
    requests.accept_orders()
    requests.order("10.1.2.3:8080")
    requests.order("")
    assert requests.peek_order() == ""
    assert requests.next_order() == ""
    assert requests.next_order() is None
    requests.order("")
    requests.refuse_orders("no longer")
    assert requests.next_order() is None
    with pytest.raises(Refused, match="no longer"):
        requests.order("")


def test_a_handover_is_asked_for_once() -> None:
    requests = TakeoverRequests(VirtualClock())
    request = HandoverRequest("flights-3", "flights-b-3", "10.1.2.4:8080", 5_000)
    with pytest.raises(Refused, match="still starting"):
        requests.request_handover(request)
    with pytest.raises(Refused, match="no handover"):
        requests.withdraw("flights-b-3")
    requests.accept_handovers()
    asked = requests.request_handover(request)
    assert requests.next_handover() is asked
    assert requests.next_handover() is None
    assert asked.wait(0) is None
    assert requests.withdraw("flights-b-3") == {"withdrawn": "flights-b-3"}
    assert requests.withdrawn
    assert requests.request_handover(request) is asked
    assert not requests.withdrawn, "it has thought better of it"
    requests.refuse_handovers("this worker stops")
    with pytest.raises(Refused, match="this worker stops"):
        asked.wait(0)
    requests.accept_handovers()
    assert requests.next_handover() is None
    assert requests.request_handover(request) is not asked


def test_an_answer_is_not_taken_back_by_a_refusal() -> None:
    requests = TakeoverRequests(VirtualClock())
    requests.accept_handovers()
    asked = requests.request_handover(HandoverRequest("flights-3", "flights-b-3", "10.1.2.4:8080", 5_000))
    answer = HandoverAnswer(7, {}, 1, 2)
    asked.answer(answer)
    requests.refuse_handovers("another pod is the member now")
    assert asked.wait(0) is answer
