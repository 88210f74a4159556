"""What the webhook refuses: what the operator cannot read, in the words of the condition."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater_operator.admission.webhook import refusal
from slackwater_operator.controller.snapshots.builder import read
from tests.support.operator.bad_resources import NOT_FOR_PODS, UNREADABLE, Bad, changed, good

IMAGE = "slackwater/worker:0.1.0"
BAD = [*UNREADABLE, *NOT_FOR_PODS]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.what)
def test_it_is_refused_with_the_text_of_the_condition(bad: Bad) -> None:
    text = refusal(bad.document, None, IMAGE)
    assert text == read(bad.document, (), IMAGE).error
    assert bad.says in text


def test_a_good_one_is_admitted() -> None:
    assert refusal(good(), None, IMAGE) == ""
    assert refusal(good(**{"spec/suspend": True}), good(), IMAGE) == ""


def test_what_the_api_server_adds_is_no_matter() -> None:
    added: dict[str, Any] = {
        "metadata/creationTimestamp": "2026-01-02T03:04:05Z",
        "metadata/generateName": "flights",
        "metadata/managedFields": [{"manager": "kubectl"}],
        "metadata/generation": 1,
    }
    assert refusal(changed(good(), added), None, IMAGE) == ""


def test_an_update_that_leaves_an_invalid_spec_as_it_is_is_admitted() -> None:
    invalid = BAD[0].document
    labelled = changed(invalid, {"metadata/labels": {"a": "b"}, "metadata/finalizers": []})
    assert refusal(labelled, invalid, IMAGE) == ""


def test_an_invalid_spec_is_corrected_but_not_changed_to_another_invalid_one() -> None:
    invalid, other = BAD[0].document, BAD[1].document
    assert refusal(good(), invalid, IMAGE) == ""
    assert refusal(other, invalid, IMAGE) == read(other, (), IMAGE).error
    assert refusal(invalid, good(), IMAGE) == read(invalid, (), IMAGE).error
