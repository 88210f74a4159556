"""What a run takes from the file and from the folder of Secrets."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from slackwater_operator.api.v1alpha1.consumer_group import parse
from slackwater_operator.local.report.views import RunError
from slackwater_operator.local.source import Source, read_secrets
from tests.operator.unit.local.group_manifest import manifest

SECURITY = {
    "protocol": "SASL_SSL",
    "mechanism": "PLAIN",
    "credentialsSecret": "kafka-user",
    "caSecret": "kafka-ca",
}


def group_with_security() -> Source:
    kafka = {"bootstrapServers": "127.0.0.1:1", "security": SECURITY}
    return Source(manifest(1, kafka=kafka), Path("/files"), Path("/here"))


def test_secrets_are_read_from_a_folder(tmp_path: Path) -> None:
    for path, value in (
        ("kafka-user/username", "u"),
        ("kafka-user/password", "p"),
        ("kafka-ca/ca.crt", "c"),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(value)
    secrets = read_secrets(group_with_security().group, tmp_path)
    values = {
        secret["metadata"]["name"]: {k: base64.b64decode(v) for k, v in secret["data"].items()}
        for secret in secrets
    }
    assert values == {"kafka-user": {"username": b"u", "password": b"p"}, "kafka-ca": {"ca.crt": b"c"}}
    (tmp_path / "kafka-user" / "password").unlink()
    with pytest.raises(RunError, match=r"kafka-user/password: No such file.*Secret kafka-user"):
        read_secrets(group_with_security().group, tmp_path)


def test_without_a_folder_a_secret_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RunError, match="names Secret kafka-user: give a folder .* with --secrets"):
        read_secrets(group_with_security().group, None)
    assert read_secrets(Source(manifest(1), Path("/"), Path("/")).group, None) == []


def test_the_secrets_for_prometheus_are_read_where_it_is_asked(tmp_path: Path) -> None:
    metric = {"name": "up", "query": "up", "thresholdRange": {"min": 1}}
    analysis = {"metrics": [metric], "prometheus": {"tokenSecret": "login", "caSecret": "login"}}
    group = Source(manifest(1, rollout={"analysis": analysis}), Path("/"), Path("/")).group
    assert read_secrets(group, None) == []
    with pytest.raises(RunError, match=r"analysis\.prometheus names Secret login: give a folder"):
        read_secrets(group, None, analysis=True)
    (tmp_path / "login").mkdir()
    (tmp_path / "login" / "ca.crt").write_text("c")
    with pytest.raises(RunError, match=r"login/token: No such file.*it must contain token of Secret login"):
        read_secrets(group, tmp_path, analysis=True)
    (tmp_path / "login" / "token").write_text("t")
    [secret] = read_secrets(group, tmp_path, analysis=True)
    values = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    assert values == {"token": b"t", "ca.crt": b"c"}
    del metric["query"]
    figures = {**analysis, "metrics": [{**metric, "figure": "Lag"}]}
    group = Source(manifest(1, rollout={"analysis": figures}), Path("/"), Path("/")).group
    assert read_secrets(group, None, analysis=True) == [], "without a query nothing is asked"


def test_the_resource_has_absolute_paths_and_no_namespace() -> None:
    source = Source(manifest(1), Path("/files/flights"), Path("/here"))
    source.manifest["metadata"]["namespace"] = "kafka"
    made = parse(source.resource())
    assert made.spec.pipeline.sink.path == "/here/out"
    assert made.spec.pipeline.handler_path == ("/files/flights", "/files")
    assert made.namespace == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("out/flights", "/here/out/flights"),
        ("../out", "/out"),
        ("/data/flights", "/data/flights"),
        ("file:///data/flights", "file:///data/flights"),
        ("s3://lake/flights", "s3://lake/flights"),
        ("abfss://lake@storage.dfs.core.windows.net/a", "abfss://lake@storage.dfs.core.windows.net/a"),
    ],
)
def test_only_a_relative_path_starts_at_the_current_folder(given: str, expected: str) -> None:
    resource = manifest(1)
    resource["spec"]["pipeline"]["sink"] = {"format": "delta", "path": given, "partitionBy": ["day"]}
    source = Source(resource, Path("/files"), Path("/here"))
    assert source.sink_path == expected
    assert parse(source.resource()).spec.pipeline.sink.path == expected
    assert source.resource()["spec"]["pipeline"]["sink"]["partitionBy"] == ["day"]


def test_another_format_of_the_output_keeps_its_place() -> None:
    resource = manifest(1)
    resource["spec"]["pipeline"]["sink"] = {"format": "parquet", "path": "out", "newColumns": "reject"}
    source = Source(resource, Path("/files"), Path("/here"))
    sink = parse(source.written_as("delta").resource()).spec.pipeline.sink
    assert (sink.format, sink.path, sink.new_columns) == ("delta", "/here/out", "reject")
    assert source.manifest["spec"]["pipeline"]["sink"]["format"] == "parquet"


def test_the_notes_name_what_processes_cannot_use() -> None:
    resource = manifest(1)
    assert Source(resource, Path("/"), Path("/")).notes() == []
    resource["spec"]["pipeline"]["image"] = "a/b:1"
    resource["spec"]["template"] = {"spec": {"nodeSelector": {"disk": "fast"}}}
    notes = Source(resource, Path("/"), Path("/")).notes()
    assert [note.partition(" ")[0] for note in notes] == ["spec.pipeline.image", "of"]
