"""spec.pipeline.value in the worker's configuration, and the files of the registry's Secrets."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from slackwater.runtime.config import worker_config as runtime
from slackwater.runtime.config.value_config import RegistryConfig, ValueConfig
from slackwater_operator.local.report.views import RunError
from slackwater_operator.local.source import Source, read_secrets
from slackwater_operator.model import names
from slackwater_operator.specs.statefulset import revision
from tests.operator.unit.specs.built_group import IMAGE, group
from tests.support.operator.bad_resources import good

REGISTRY = {
    "url": "https://a:8081, https://b:8081/path/",
    "subject": "flights-value",
    "credentialsSecret": "user",
    "caSecret": "ca",
    "clientCertificateSecret": "mine",
}


def read(value: dict[str, Any]) -> ValueConfig | None:
    made = revision(group(**{"spec/pipeline/value": value}), worker_image=IMAGE)
    return runtime.parse(json.loads(made.config_map["data"]["worker.yaml"])).value


def test_the_worker_reads_what_the_resource_says() -> None:
    assert read({"format": "json", "schema": "a INT"}) == ValueConfig("json", schema="a INT")
    assert read({"format": "avro", "schemaFile": "/a", "readerSchema": "{}"}) == ValueConfig(
        "avro", schema_file="/a", reader_schema="{}"
    )
    assert read({"format": "protobuf", "message": "M", "registry": REGISTRY}) == ValueConfig(
        "protobuf",
        message="M",
        registry=RegistryConfig(
            ("https://a:8081", "https://b:8081/path"),
            subject="flights-value",
            version="latest",
            username_file=f"{names.CONFIG_FOLDER}/registry/username",
            password_file=f"{names.CONFIG_FOLDER}/registry/password",
            ca_file=f"{names.CONFIG_FOLDER}/registry/ca.crt",
            cert_file=f"{names.CONFIG_FOLDER}/registry/tls.crt",
            key_file=f"{names.CONFIG_FOLDER}/registry/tls.key",
        ),
    )


def test_without_a_value_there_is_no_section() -> None:
    made = revision(group(), worker_image=IMAGE)
    assert "value" not in json.loads(made.config_map["data"]["worker.yaml"])


def test_the_registrys_secrets_are_files_beside_those_of_kafka() -> None:
    made = revision(
        group(
            **{
                "spec/pipeline/value": {"format": "avro", "registry": REGISTRY},
                "spec/pipeline/key": {
                    "format": "avro",
                    "registry": {**REGISTRY, "credentialsSecret": "other"},
                },
                "spec/kafka/security": {"protocol": "SSL", "caSecret": "ca"},
            }
        ),
        worker_image=IMAGE,
    )
    document = runtime.parse(json.loads(made.config_map["data"]["worker.yaml"]))
    assert document.key is not None
    assert document.key.registry is not None
    assert document.key.registry.username_file == f"{names.CONFIG_FOLDER}/key-registry/username"
    (volume,) = [one for one in made.template["spec"]["volumes"] if one["name"] == names.CONFIG_VOLUME]
    shown = {
        item["path"]: (source["secret"]["name"], item["key"])
        for source in volume["projected"]["sources"][1:]
        for item in source["secret"]["items"]
    }
    files = {"username": "user", "password": "user", "ca.crt": "ca", "tls.crt": "mine", "tls.key": "mine"}
    assert shown == {
        "kafka/ca.crt": ("ca", "ca.crt"),
        **{f"registry/{key}": (secret, key) for key, secret in files.items()},
        **{f"key-registry/{key}": (secret.replace("user", "other"), key) for key, secret in files.items()},
    }


def test_a_local_run_reads_them_from_files(tmp_path: Path) -> None:
    made = group(
        **{
            "spec/pipeline/value": {"format": "avro", "registry": {**REGISTRY, "caSecret": "user"}},
            "spec/kafka/security": {"protocol": "SSL", "caSecret": "user"},
        }
    )
    for secret, keys in {"user": ("username", "password", "ca.crt"), "mine": ("tls.crt", "tls.key")}.items():
        (tmp_path / secret).mkdir()
        for key in keys:
            (tmp_path / secret / key).write_text(f"{secret} {key}")
    secrets = {one["metadata"]["name"]: one["data"] for one in read_secrets(made, tmp_path)}
    assert {name: sorted(data) for name, data in secrets.items()} == {
        "user": ["ca.crt", "password", "username"],
        "mine": ["tls.crt", "tls.key"],
    }
    assert base64.b64decode(secrets["mine"]["tls.key"]) == b"mine tls.key"
    (tmp_path / "mine" / "tls.key").unlink()
    with pytest.raises(RunError, match="tls.key of Secret mine .spec.pipeline.value.registry."):
        read_secrets(made, tmp_path)


def test_a_local_run_finds_the_schemas_file_beside_the_resource(tmp_path: Path) -> None:
    value = {"format": "avro", "schemaFile": "schemas/flight.avsc"}
    source = Source(good(**{"spec/pipeline/value": value}), tmp_path, Path("/elsewhere"))
    assert source.resource()["spec"]["pipeline"]["value"] == {
        "format": "avro",
        "schemaFile": str(tmp_path.resolve() / "schemas/flight.avsc"),
    }
