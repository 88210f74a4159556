"""What strategy Takeover adds to a worker's pod: who it is, the key, and where its configuration says so."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from slackwater.runtime.config import worker_config as runtime
from slackwater.runtime.takeover.signing import read_key
from slackwater_operator.model import names
from slackwater_operator.policies.resource_policies import rollout_policy, takeover_policy
from slackwater_operator.specs.preflight_job import preflight_job
from slackwater_operator.specs.statefulset import Revision, revision
from slackwater_operator.specs.worker_config import takeover_secret
from tests.operator.unit.specs.built_group import IMAGE, group
from tests.support.controlplane.kubelet.environment import environment

TAKEOVER = {"spec/rollout/strategy": "Takeover"}
KEY = "0123456789abcdef" * 4
STRATEGIES = ["Restart", "Takeover"]


def of(**changes: Any) -> Revision:
    return revision(group(**changes), worker_image=IMAGE)


def variables(pod: dict[str, Any]) -> dict[str, str]:
    """A worker's environment as a kubelet makes it."""
    return environment(pod["spec"]["containers"][0], pod, {})


def pod_of(made: Revision, name: str, ordinal: int) -> dict[str, Any]:
    """A pod as the StatefulSet controller makes it of the template."""
    labels = {**made.template["metadata"]["labels"], names.POD_INDEX_LABEL: str(ordinal)}
    metadata = {**made.template["metadata"], "name": name, "labels": labels}
    return {**made.template, "metadata": metadata, "status": {"podIP": "10.0.0.7"}}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("pod", "ordinal"), [("flights-3", 3), ("flights-a-3", 3), ("flights-b-12", 12)])
def test_a_worker_knows_which_member_it_is_and_in_which_pod(strategy: str, pod: str, ordinal: int) -> None:
    environment = variables(pod_of(of(**{"spec/rollout/strategy": strategy}), pod, ordinal))
    assert environment[names.ORDINAL_VARIABLE] == str(ordinal)
    assert environment[names.INSTANCE_ID_VARIABLE] == names.member_of("flights", pod) == f"flights-{ordinal}"
    assert environment[names.POD_NAME_VARIABLE] == pod
    assert environment[names.POD_IP_VARIABLE] == "10.0.0.7"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_preflight_goes_by_its_own_name(strategy: str) -> None:
    made_for = group(**{"spec/rollout/strategy": strategy})
    job = preflight_job(made_for, revision(made_for, worker_image=IMAGE))
    template = job["spec"]["template"]
    environment = variables(
        {**template, "metadata": {**template["metadata"], "name": "flights-preflight-x-y7"}}
    )
    assert environment[names.INSTANCE_ID_VARIABLE] == "flights-preflight-x-y7"
    assert environment[names.POD_NAME_VARIABLE] == "flights-preflight-x-y7"
    assert names.ORDINAL_VARIABLE not in environment
    assert [variable["name"] for variable in template["spec"]["containers"][0]["env"]].count(
        names.INSTANCE_ID_VARIABLE
    ) == 1


def test_a_preflight_has_the_key_as_a_worker_has() -> None:
    """The operator makes the Secret before the Job (planner/takeover/test_plan_takeover.py)."""
    made_for = group(**TAKEOVER, **{"spec/kafka/security": {"protocol": "SSL", "caSecret": "ca"}})
    made = revision(made_for, worker_image=IMAGE)
    job = preflight_job(made_for, made)["spec"]["template"]["spec"]
    (volume,) = [volume for volume in job["volumes"] if volume["name"] == names.CONFIG_VOLUME]
    secrets = {
        source["secret"]["name"]: source["secret"]
        for source in volume["projected"]["sources"]
        if "secret" in source
    }
    assert set(secrets) == {"flights-takeover", "ca"}
    assert not [name for name, secret in secrets.items() if "optional" in secret], "it fails without"
    assert not [source for source in sources(made) if "optional" in source.get("secret", {})]


def sources(made: Revision) -> list[dict[str, Any]]:
    (volume,) = [
        volume for volume in made.template["spec"]["volumes"] if volume["name"] == names.CONFIG_VOLUME
    ]
    result: list[dict[str, Any]] = volume["projected"]["sources"]
    return result


def config(made: Revision) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(made.config_map["data"][names.CONFIG_KEY])
    return result


def test_the_key_is_where_the_configuration_says() -> None:
    made = of(**TAKEOVER)
    secret = takeover_secret(group(**TAKEOVER), KEY)
    (source,) = [source["secret"] for source in sources(made) if "secret" in source]
    assert source["name"] == secret["metadata"]["name"] == "flights-takeover"
    ((key, path),) = [(item["key"], item["path"]) for item in source["items"]]
    assert config(made)["takeover"] == {"keyFile": f"{names.CONFIG_FOLDER}/{path}"}
    read = runtime.parse(config(made)).takeover
    assert read is not None
    assert read.key_file == names.KEY_FILE
    assert names.KEY_FILE == "/etc/slackwater/takeover/key"
    assert base64.b64decode(secret["data"][key]).decode() == KEY
    assert names.can_hand_over(made.template)


def test_without_the_strategy_there_is_no_key() -> None:
    made = of()
    assert [source for source in sources(made) if "secret" in source] == []
    assert "takeover" not in config(made)
    assert runtime.parse(config(made)).takeover is None
    assert not names.can_hand_over(made.template)


def test_the_operator_waits_for_the_deadline_that_the_worker_keeps() -> None:
    changes = {**TAKEOVER, "spec/delivery/drainTimeout": "40s"}
    deadline_ms = runtime.parse(config(of(**changes))).takeover_deadline_ms
    policy = takeover_policy(group(**changes), rollout_policy(group(**changes)))
    assert policy.deadline_ms == deadline_ms == 45_000


def test_the_key_that_is_made_is_one_that_the_worker_takes() -> None:
    secret = takeover_secret(group(**TAKEOVER), KEY)
    assert read_key(base64.b64decode(secret["data"][names.TAKEOVER_KEY]).decode()) == bytes.fromhex(KEY)


def test_the_strategy_beside_secrets_of_kafka() -> None:
    security = {"protocol": "SSL", "caSecret": "ca"}
    made = of(**TAKEOVER, **{"spec/kafka/security": security})
    assert [source["secret"]["name"] for source in sources(made) if "secret" in source] == [
        "ca",
        "flights-takeover",
    ]
    paths = [item["path"] for source in sources(made) for part in source.values() for item in part["items"]]
    assert len(set(paths)) == len(paths) == 3


def test_a_secret_can_not_be_changed() -> None:
    secret = takeover_secret(group(**TAKEOVER), KEY)
    assert (secret["type"], secret["immutable"]) == ("Opaque", True)
    assert set(secret["data"]) == {names.TAKEOVER_KEY}


@pytest.mark.parametrize("key", ["", KEY[:-1], KEY + "0", KEY.upper(), "x" * 64, KEY + "\n"])
def test_only_a_whole_key_is_taken(key: str) -> None:
    with pytest.raises(ValueError, match="32 bytes in hex"):
        takeover_secret(group(**TAKEOVER), key)
