"""A worker's configuration from a ConsumerGroup's file, for `slackwater try` and `slackwater dlq`."""

from __future__ import annotations

import argparse
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

from slackwater.runtime.errors import ConfigError
from slackwater.tools import group_config
from slackwater_operator.api.v1alpha1.yaml_file import ResourceError
from slackwater_operator.local.report.views import RunError
from tests.operator.unit.local.group_manifest import manifest

SECURITY = {
    "protocol": "SASL_SSL",
    "mechanism": "PLAIN",
    "credentialsSecret": "kafka-user",
    "caSecret": "kafka-ca",
}


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    group_config.add_options(parser)
    return parser.parse_args(given)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's entry point as its project declares it, whatever is installed here."""
    project = tomllib.loads((Path(__file__).parents[4] / "operator" / "pyproject.toml").read_text())
    declared = project["project"]["entry-points"][group_config.ENTRY_POINTS]
    points = [EntryPoint(name, value, group_config.ENTRY_POINTS) for name, value in declared.items()]
    monkeypatch.setattr(
        group_config,
        "entry_points",
        lambda group, name: [point for point in points if (point.group, point.name) == (group, name)],
    )


@pytest.mark.usefixtures("installed")
def test_paths_and_secrets_are_those_of_this_machine(tmp_path: Path) -> None:
    for path in ("kafka-user/username", "kafka-user/password", "kafka-ca/ca.crt"):
        (tmp_path / "secrets" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "secrets" / path).write_text("x")
    file = tmp_path / "group.yaml"
    kafka = {
        "bootstrapServers": "kafka:9092",
        "security": SECURITY,
        "properties": {"fetch.max.bytes": "9999"},
    }
    file.write_text(yaml.safe_dump(manifest(1, kafka=kafka)))
    secrets = tmp_path / "secrets"
    config = group_config.config_of(arguments("-f", str(file), "--secrets", str(secrets)))
    assert config.bootstrap_servers == "kafka:9092"
    assert config.properties["fetch.max.bytes"] == "9999"
    assert config.handler_path == (str(tmp_path), str(tmp_path.parent))
    assert config.security.protocol == "SASL_SSL"
    assert config.security.username_file == str(secrets / "kafka-user/username")
    assert config.security.password_file == str(secrets / "kafka-user/password")
    assert config.security.ca_file == str(secrets / "kafka-ca/ca.crt")
    elsewhere = group_config.config_of(
        arguments("-f", str(file), "--secrets", str(secrets), "--bootstrap", "localhost:1")
    )
    assert elsewhere.bootstrap_servers == "localhost:1"
    with pytest.raises(RunError, match="names Secret kafka-user: give a folder"):
        group_config.config_of(arguments("-f", str(file)))


@pytest.mark.usefixtures("installed")
def test_a_wrong_resource_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "group.yaml"
    document = manifest(1)
    document["spec"]["topicz"] = ["x"]
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ResourceError, match=r"group.yaml.*topicz"):
        group_config.config_of(arguments("-f", str(file)))


def test_without_the_operators_package_a_workers_file_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_config, "entry_points", lambda group, name: [])
    with pytest.raises(ConfigError, match="-f needs the package slackwater-operator.*--config"):
        group_config.config_of(arguments("-f", "group.yaml"))
