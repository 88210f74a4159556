"""The version is the same wherever it stands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from setuptools.config.pyprojecttoml import read_configuration

import slackwater
from slackwater.kafka.net.connection_settings import ConnectionSettings
from slackwater_operator.cli.kubectl import plugin
from slackwater_operator.cli.operator_options import parse
from tools import version

ROOT = version.ROOT


def test_both_distributions_and_the_chart_have_the_version() -> None:
    chart = yaml.safe_load((ROOT / "charts/slackwater/Chart.yaml").read_text(encoding="utf-8"))
    operator = tomllib.loads((ROOT / "operator/pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = {
        str(read_configuration(ROOT / "worker/pyproject.toml")["project"]["version"]),
        operator["version"],
        *(name.removeprefix("slackwater==") for name in operator["dependencies"] if "slackwater" in name),
        chart["version"],
        str(chart["appVersion"]),
        slackwater.__version__,
    }
    assert stated == {version.current()}


def test_every_other_place_has_the_version() -> None:
    for path, pattern in version.places():
        stated = {match[2] for match in pattern.finditer(path.read_text(encoding="utf-8"))}
        assert stated <= {version.current()}, f"{path}: run `python -m tools.version`"


def test_a_new_version_is_written_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in {version.SOURCE, *(path for path, _ in version.places())}:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    old = re.escape(version.current())
    monkeypatch.setattr(version, "ROOT", tmp_path)
    monkeypatch.setattr(version, "SOURCE", tmp_path / "worker/slackwater/version.py")
    assert version.main(["7.8.9rc1"]) == 0
    assert version.current() == "7.8.9rc1"
    operator = (tmp_path / "operator/pyproject.toml").read_text(encoding="utf-8")
    assert operator.count("7.8.9rc1") == 2
    assert (tmp_path / "charts/slackwater/Chart.yaml").read_text(encoding="utf-8").count("7.8.9rc1") == 2
    for path in tmp_path.rglob("*.md"):
        assert not re.search(rf"slackwater/(operator|worker):{old}", path.read_text(encoding="utf-8"))
    assert version.write("7.8.9rc1") == []


def test_programs_and_connections_say_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    for program in (lambda: plugin.main(["--version"]), lambda: parse(["--version"], {})):
        with pytest.raises(SystemExit) as ended:
            program()
        assert ended.value.code == 0
        assert capsys.readouterr().out.strip() == version.current()
    assert ConnectionSettings().client_software_version == version.current()
