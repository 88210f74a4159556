"""What the webhook refuses: what the operator cannot read, in the words of the condition."""

from __future__ import annotations

import logging
from typing import Any

import kopf
import pytest

from slackwater_operator.admission import webhook
from slackwater_operator.admission.webhook import AdmissionWebhook, refusal
from slackwater_operator.controller.snapshots.builder import read
from slackwater_operator.telemetry.metrics import OperatorMetrics
from tests.support.operator.bad_resources import NOT_FOR_PODS, UNREADABLE, Bad, changed, good

IMAGE = "slackwater/worker:0.1.0"
BAD = [*UNREADABLE, *NOT_FOR_PODS]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.what)
def test_a_bad_resource_is_refused_with_the_text_of_the_condition(bad: Bad) -> None:
    text = refusal(bad.document, None, IMAGE)
    assert text == read(bad.document, (), IMAGE).error
    assert bad.says in text


def test_a_good_resource_is_admitted() -> None:
    assert refusal(good(), None, IMAGE) == ""
    assert refusal(good(**{"spec/suspend": True}), good(), IMAGE) == ""


def test_fields_that_the_api_server_adds_are_admitted() -> None:
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


# --- what kopf is told


class Reviews(OperatorMetrics):
    """Remembers the results of reviews."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[str] = []

    def reviewed(self, result: str) -> None:
        self.results.append(result)


@pytest.fixture
def reviews() -> Reviews:
    return Reviews()


@pytest.fixture
def handler(reviews: Reviews) -> AdmissionWebhook:
    kube: Any = None
    return AdmissionWebhook(
        kube, reviews, name="sw-webhook", namespace="sw", host="", port=0, worker_image=IMAGE
    )


def test_a_refusal_is_an_error_for_the_user_and_one_line_of_the_log(
    handler: AdmissionWebhook, reviews: Reviews, caplog: pytest.LogCaptureFixture
) -> None:
    bad = changed(BAD[0].document, {"spec/kafka/properties/a\nb": "c"})
    with caplog.at_level(logging.INFO), pytest.raises(kopf.AdmissionError) as refused:
        handler._validate(new=bad, old=None)
    assert refused.value.code == 422
    assert str(refused.value) == read(bad, (), IMAGE).error
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "\n" not in record.getMessage()
    handler._validate(new=good(), old=None)
    assert reviews.results == ["refused", "admitted"]


def test_a_bug_in_the_check_admits_and_is_counted_and_logged(
    handler: AdmissionWebhook,
    reviews: Reviews,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bug(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(webhook, "read_resource", bug)
    handler._validate(new=good(), old=None)
    assert reviews.results == ["failed"]
    (record,) = caplog.records
    assert record.getMessage() == "admission webhook: ConsumerGroup None/flights was admitted unchecked"
    assert record.exc_info


def test_the_log_has_no_error_of_kopf_for_a_refusal() -> None:
    def logged(message: str) -> bool:
        record = logging.LogRecord("kopf.objects", logging.ERROR, "", 0, message, (), None)
        return bool(webhook._NOT_AN_ERROR.filter(record))

    assert not logged("Webhook 'consumergroups' failed permanently: ConsumerGroup flights: spec.x")
    assert logged("Handler 'consumergroups' failed permanently: a bug")
