"""The ConsumerGroup's types: what is read, and the one line that each fault becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.runtime.config import worker_config
from slackwater_operator.api.v1alpha1 import crd, validation
from slackwater_operator.api.v1alpha1.consumer_group import ResourceError, load, parse
from tests.support.operator.bad_resources import good

GOOD = """\
apiVersion: slackwater.dev/v1alpha1
kind: ConsumerGroup
metadata: {name: flights}
spec:
  kafka:
    bootstrapServers: 127.0.0.1:9092
    properties: {session.timeout.ms: "30000"}
  topics: [flights]
  pipeline:
    handler: flights.pipeline:transform
    sink: {path: out/flights}
  scaling: {minReplicas: 2, maxReplicas: 12, catchUp: 1m30s, lagPerReplica: 50000}
  rollout: {sessionBudget: 50%}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "group.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def fault(folder: Path, text: str) -> str:
    path = write(folder, text)
    with pytest.raises(ResourceError) as raised:
        load(path)
    message = str(raised.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def test_a_group_is_read_and_gets_the_defaults(tmp_path: Path) -> None:
    group = load(write(tmp_path, GOOD))
    assert group.name == "flights"
    assert group.group_id == "flights"
    assert group.session_timeout_ms == 30_000
    assert group.initial_replicas == 2
    assert group.spec.topics == ("flights",)
    assert group.spec.pipeline.engine == "spark"
    assert group.spec.pipeline.sink.format == "parquet"
    assert group.spec.pipeline.dead_letter_topic is None
    assert group.spec.scaling is not None
    assert group.spec.scaling.catch_up_ms == 90_000
    assert group.spec.scaling.automatic
    assert group.spec.rollout.session_budget == 0.5
    assert group.spec.rollout.max_unavailable == 1


def test_a_worker_is_named_after_the_group(tmp_path: Path) -> None:
    group = load(write(tmp_path, GOOD))
    assert group.instance_id(3) == "flights-3"
    assert group.ordinal("flights-3") == 3
    assert group.ordinal("flights-03") is None
    assert group.ordinal("flights-" + "1" * 5000) is None  # a member of another program: Python refuses int()
    assert group.ordinal("other-3") is None
    assert group.ordinal("flights-3-1") is None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("minReplicas: 2", "minReplica: 2", ":12: spec.scaling.minReplica: unknown field; did you mean"),
        ("  topics:", "  Topics:", ":8: spec.Topics: unknown field; did you mean topics?"),
        ("  topics: [flights]", "  topics: flights", ":8: spec.topics: must be a list"),
        ("  topics: [flights]", "  topics: []", ":8: spec.topics: must have at least 1"),
        ("  topics: [flights]", "  topics: [a, a]", ":8: spec.topics[1]: 'a' is listed twice"),
        ("    handler: flights.pipeline:transform\n", "", ":9: spec.pipeline.handler: is missing; set it"),
        ("flights.pipeline:transform", "flights.pipeline", "has an invalid format; use a value such as"),
        ("catchUp: 1m30s", "catchUp: 90", "spec.scaling.catchUp: the number 90 is not a duration"),
        ("catchUp: 1m30s", "catchUp: fast", "spec.scaling.catchUp: 'fast' is not a duration"),
        ("catchUp: 1m30s", "catchUp: 0s", "spec.scaling.catchUp: '0s' must be between 1s and 24h"),
        ("sessionBudget: 50%", "sessionBudget: 0.5", "is not a percentage; write it like 60%"),
        ("sessionBudget: 50%", "sessionBudget: 150%", "must be more than 0% and at most 100%"),
        ("minReplicas: 2", "minReplicas: 20", "spec.scaling.minReplicas: is 20, but maxReplicas is 12"),
        ("minReplicas: 2", "minReplicas: true", "must be a whole number, but is the boolean true"),
        ("minReplicas: 2", "minReplicas: -1", "is -1, but must be between 0 and 1000"),
        ("  topics:", "  replicas: 13\n  topics:", "spec.replicas: is 13, but spec.scaling allows 2 to 12"),
        ('"30000"', '"5999"', "[session.timeout.ms]: is 5999, but brokers accept 6000 to 1800000"),
        ('"30000"', '"1800001"', "[session.timeout.ms]: is 1800001, but brokers accept"),
        ('"30000"', "30000", '[session.timeout.ms]: must be text, but is the number 30000; write it'),
        ('"30000"', '"half a minute"', "is not a number of milliseconds"),
        ("session.timeout.ms", "group.instance.id", "[group.instance.id]: is set by Slackwater"),
        ("session.timeout.ms", "group.id", "set spec.groupId instead"),
        ("session.timeout.ms", "heartbeat.interval.ms", "must be at most a third of session.timeout.ms"),
        ("127.0.0.1:9092", "127.0.0.1", "spec.kafka.bootstrapServers: '127.0.0.1' has an invalid format"),
        ("name: flights", "name: Flights", "metadata.name: 'Flights' has an invalid format"),
        ("slackwater.dev/v1alpha1", "slackwater.dev/v1", "'slackwater.dev/v1' is not supported; did you"),
        ("    sink: {path: out/flights}", "    sink: out/flights", "must be a mapping (of format, path, "),
        ("rollout: {sessionBudget: 50%}", "rollout: {strategy: Recreate}", "values: Restart, Takeover"),
        ("    sink:", "    engine: no\n    sink:", "must be text, but is the boolean false; write it"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_that_names_the_field(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in GOOD
    assert expected in fault(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize("word", ["n", "y", "yes", "NO", "on", "true"])
def test_a_key_that_yaml_takes_for_a_boolean_is_refused(tmp_path: Path, word: str) -> None:
    message = fault(tmp_path, GOOD.replace("{session.timeout.ms:", "{" + word + ":"))
    assert f"YAML reads the key `{word}` as a boolean" in message
    labelled = "metadata: {name: flights, labels: {" + '"' + word + '": a}}'
    quoted = load(write(tmp_path, GOOD.replace("metadata: {name: flights}", labelled)))
    assert quoted.metadata.labels == {word: "a"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("a: [", "is not YAML"),
        ("a: 1\n---\nb: 2\n", "more than one YAML document"),
        ("a: 1\na: 2\n", ":2: a: is set twice"),
        ("1: 2\n", "the key `1` is not text"),
        ("- 1\n", "must be a mapping"),
        ("a: &x {b: *x}\n", "the alias refers to itself"),
        ("\t a: 1", "is not YAML"),
    ],
)
def test_a_file_that_is_no_resource_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in fault(tmp_path, text)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"nowhere\.yaml: cannot be read: No such file"):
        load(tmp_path / "nowhere.yaml")


def test_a_file_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: \xe4\n")
    with pytest.raises(ResourceError, match="is not UTF-8"):
        load(path)


def test_fields_that_the_api_server_adds_are_ignored() -> None:
    served = {
        **good(),
        "status": {"replicas": 3, "anything": {}},
        "metadata": {
            "name": "flights",
            "namespace": "lake",
            "uid": "u",
            "generation": 4,
            "resourceVersion": "77",
            "creationTimestamp": "2026-11-21T12:00:00Z",
            "deletionTimestamp": "2026-11-21T13:00:00Z",
            "finalizers": ["slackwater.dev/kafka-group"],
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 10_000},
        },
    }
    group = parse(served)
    assert (group.namespace, group.metadata.uid, group.metadata.generation) == ("lake", "u", 4)


@pytest.mark.parametrize("path", ["crds", "charts/slackwater/files/crds"])
def test_the_crd_file_matches_the_types(path: str) -> None:
    file = Path(__file__).parents[4] / path / "consumergroups.slackwater.dev.yaml"
    assert file.read_text(encoding="utf-8") == crd.render(), (
        f"python -m slackwater_operator.api.v1alpha1.crd {path}/{file.name}"
    )


def test_each_field_of_the_crd_has_a_type_and_a_description() -> None:
    version = crd.definition()["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    observed: list[str] = []

    def walk(schema: dict[str, object], path: str) -> None:
        assert schema.get("type"), path
        assert schema.get("description"), path
        observed.append(path)
        properties = schema.get("properties", {})
        assert isinstance(properties, dict)
        for name, subschema in properties.items():
            walk(subschema, f"{path}.{name}")

    walk(spec, "spec")
    assert "spec.pipeline.sink.path" in observed
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"


def test_the_reserved_properties_are_refused_by_the_crd_too() -> None:
    version = crd.definition()["spec"]["versions"][0]
    kafka = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["kafka"]
    rules = [rule["rule"] for rule in kafka["properties"]["properties"]["x-kubernetes-validations"]]
    for name in validation.RESERVED_PROPERTIES:
        assert f"!('{name}' in self)" in rules
    assert worker_config.RESERVED_PROPERTIES.keys() == validation.RESERVED_PROPERTIES.keys()
