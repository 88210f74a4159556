"""The ConfigMap that keeps what a revision was made from, so that a user can go back to it.

A StatefulSet's ControllerRevisions have the pod template alone, and go with their StatefulSet after a rollout
by takeover.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names

KEY = "revision.json"
"""Its key: a JSON object of `spec` and `restartedAt`."""
HISTORY_LIMIT = 10
"""So many revisions are kept, as a StatefulSet keeps them by revisionHistoryLimit."""
NOT_PART = ("replicas", "scaling", "rollout", "maintenance", "suspend", "deletionPolicy")
"""Fields of the spec that are not part of a revision, except for rollout.strategy."""


def revision_source(resource: Mapping[str, Any]) -> dict[str, Any]:
    """What a ConsumerGroup's revision is made from: the part of its spec, and the annotation restartedAt."""
    whole = resource.get("spec") or {}
    spec = {name: value for name, value in whole.items() if name not in NOT_PART}
    strategy = (whole.get("rollout") or {}).get("strategy")
    if strategy:
        spec["rollout"] = {"strategy": strategy}
    annotations = resource["metadata"].get("annotations") or {}
    return {"spec": spec, "restartedAt": annotations.get(names.RESTARTED_AT)}


def revision_record(
    group: ConsumerGroup, revision: str, source: Mapping[str, Any], *, number: int
) -> dict[str, Any]:
    """The ConfigMap.

    Args:
        group: the resource.
        revision: the revision's hash.
        source: of `revision_source`.
        number: larger than those of earlier revisions.
    """
    metadata = names.metadata(group, names.revision_record(group.name, revision))
    metadata["labels"] = {**metadata["labels"], names.REVISION_LABEL: revision}
    metadata["annotations"] = {names.REVISION_NUMBER: str(number)}
    data = {KEY: json.dumps(source, sort_keys=True)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
