"""Which pod is which member, in which set; and that what is built agrees with it."""

from __future__ import annotations

import pytest

from slackwater_operator.api.v1alpha1.consumer_group import MAX_NAME, MAX_NAME_TAKEOVER
from slackwater_operator.api.v1alpha1.spec.scaling import MAX_REPLICAS
from slackwater_operator.model import names
from slackwater_operator.specs.statefulset import statefulset
from tests.operator.unit.specs.built_group import group

LABEL = 63
"""The longest value of a label, and of a host name's part."""
REVISION_HASH = 10
"""The longest hash that the StatefulSet controller puts behind a set's name (`controller-revision-hash`): a
32-bit number in decimal."""


@pytest.mark.parametrize(
    ("group_name", "pod", "member", "suffix", "ordinal"),
    [
        ("flights", "flights-3", "flights-3", "", 3),
        ("flights", "flights-a-3", "flights-3", "a", 3),
        ("flights", "flights-b-0", "flights-0", "b", 0),
        ("flights", "flights-b-120", "flights-120", "b", 120),
        # A group that is called as another's set.
        ("flights-a", "flights-a-3", "flights-a-3", "", 3),
        ("flights-a", "flights-a-b-3", "flights-a-3", "b", 3),
        ("flights-a", "flights-a-a-3", "flights-a-3", "a", 3),
        ("a", "a-a-1", "a-1", "a", 1),
        ("flights-3", "flights-3-3", "flights-3-3", "", 3),
    ],
)
def test_a_pod_is_one_member_of_one_set(
    group_name: str, pod: str, member: str, suffix: str, ordinal: int
) -> None:
    assert names.member_of(group_name, pod) == member
    assert names.set_of(group_name, pod) == suffix
    assert names.ordinal_of(group_name, pod) == ordinal
    assert names.pod(group_name, ordinal, suffix) == pod


@pytest.mark.parametrize(
    "other",
    ["flights-c-3", "flights-03", "flights-a-03", "flights-a", "flights", "flights-preflight-x-1",
     "flights-a-b-3", "xflights-3", "flights-3-", "flights--3", "flightsa-3", "flights-3\n"],
)  # fmt: skip
def test_a_name_that_is_none_of_the_groups_stays_what_it_is(other: str) -> None:
    assert names.member_of("flights", other) == other
    assert names.set_of("flights", other) == ""
    assert names.ordinal_of("flights", other) is None


def test_all_pods_of_an_ordinal_are_the_member_that_the_resource_names() -> None:
    for suffix in names.SETS:
        assert names.member_of("flights", names.pod("flights", 3, suffix)) == group().instance_id(3)
        assert names.member_of("flights", names.member_of("flights", names.pod("flights", 3, suffix))) == (
            "flights-3"
        )


def test_the_sets_of_a_group() -> None:
    assert names.set_names("flights") == ("flights", "flights-a", "flights-b")
    assert len(set(names.set_names("flights"))) == len(names.SETS)
    assert names.takeover_secret("flights") == "flights-takeover"


@pytest.mark.parametrize(("longest", "suffix"), [(MAX_NAME, ""), (MAX_NAME_TAKEOVER, "b")])
def test_the_longest_names_fit_into_labels(longest: int, suffix: str) -> None:
    """A pod's labels `controller-revision-hash` (SET-HASH) and `statefulset.kubernetes.io/pod-name`."""
    changes = {"metadata/name": "f" * longest, "spec/rollout/strategy": "Takeover" if suffix else "Restart"}
    made = group(**changes)
    name = statefulset(made, template={}, replicas=1, suffix=suffix)["metadata"]["name"]
    assert len(name) + len("-") + REVISION_HASH == LABEL
    assert len(names.pod(made.name, MAX_REPLICAS - 1, suffix)) <= LABEL


def test_who_has_the_key_can_hand_over() -> None:
    assert names.can_hand_over({"metadata": {"annotations": {names.TAKEOVER: "true"}}})
    assert not names.can_hand_over({"metadata": {"annotations": {names.TAKEOVER: "false"}}})
    assert not names.can_hand_over({"metadata": {"annotations": None}})
    assert not names.can_hand_over({"metadata": {}})
