"""A ConsumerGroup as the API server gives it, for the builders."""

from __future__ import annotations

from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, parse
from tests.support.operator.bad_resources import changed, good

IMAGE = "registry.example/slackwater-worker:1"


def group(**changes: Any) -> ConsumerGroup:
    """The good resource with `changes` (path -> value), in a namespace and with a uid."""
    served = {"metadata/namespace": "lake", "metadata/uid": "0b7c9d1e-1111-4222-8333-444455556666"}
    return parse(changed(good(), {**served, **changes}))
