"""Patterns of topics: what matches, in which time, and what is refused with a reason."""

from __future__ import annotations

import re
from typing import Any

import pytest

from slackwater.fields import FieldError
from slackwater.kafka.errors import IllegalArgumentError
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.topic_pattern import MAX_PROGRAM, TopicPattern
from slackwater_operator.api.v1alpha1.validation import check_pattern, whole_pattern

LONG = "a" * 249
"""Python's `re` would try 2**248 ways to split it by `(a+)+b`, and never end."""


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+$b", "(.*a){60}b", "([a-z]+)*!"])
def test_a_pattern_that_backtracks_elsewhere_takes_linear_time(pattern: str) -> None:
    for text in (pattern, whole_pattern(pattern)):
        assert not TopicPattern(text).matches(LONG)
    subscription = Subscription()
    subscription.subscribe_pattern(re.compile(pattern))
    assert not subscription.match([LONG])
    check_pattern(pattern, dead_letter_topic=LONG, output_topics={"sink": LONG})


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("orders", "orders.new", "my.orders"),
        (r"orders\Z", "orders", "orders.new"),
        (r"orders\z", "orders", "orders.new"),
        ("orders$", "orders", "orders.new"),
        (r"orders\..*", "orders.new", "orders"),
        (r"\\Z|orders", "orders", "Z"),
        ("orders|returns", "returns", "turns"),
        (r"\w{1,3}\Z", "abc", "abcd"),
        (re.compile("ORDERS", re.IGNORECASE), "orders", "returns"),
        (re.compile("a.b|c", re.ASCII | re.DOTALL | re.MULTILINE | re.IGNORECASE), "C", "b"),
        ("", "anything", None),
    ],
)
def test_names_are_matched_from_their_beginning(
    pattern: str | re.Pattern[str], matching: str, other: str | None
) -> None:
    made = TopicPattern(pattern)
    assert made.matches(matching)
    assert re.match(str(made.text).replace(r"\z", r"\Z"), matching, re.IGNORECASE)
    assert other is None or not made.matches(other)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(oops", "missing )"),
        ("(?=orders)", "no lookarounds"),
        ("(?<!test)orders", "no lookarounds"),
        (r"(a)\1", "no lookarounds, backreferences"),
        ("a{,3}", "write {0,3} instead"),
        ("a++", "bad repetition operator"),
        ("a" * (MAX_PROGRAM + 1), f"{MAX_PROGRAM} are the limit"),
        (r"(\pL{1000}|\PL{1000}){1}" * 500, "too large"),
        ("\u0436", r"no topic's name has the character '\u0436'"),
        ("\ud800", r"no topic's name has the character '\ud800'"),
        (re.compile("a b", re.VERBOSE), "re.VERBOSE, which RE2 does not have"),
        (re.compile(b"a"), "that re.compile made of a string"),
        (b"a", "must be a string"),
        (7, "must be a string"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_cannot_be_matched_is_refused_with_the_reason(pattern: Any, reason: str) -> None:
    with pytest.raises(IllegalArgumentError) as raised:
        TopicPattern(pattern)
    assert reason in str(raised.value)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize("pattern", ["a)(?:b", "(a", "a\\", "[^a]{1000}"])
def test_a_resource_is_told_which_field_it_is(pattern: str) -> None:
    with pytest.raises(FieldError, match=r"spec\.topicPattern"):
        check_pattern(pattern, "", {})
