"""The renderer of the dashboards is installed once, and what is missing is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.chromium import grafana


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is the whole PATH."""
    monkeypatch.setattr(grafana, "CACHE", tmp_path / "cache")
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}")
    return folder


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def test_without_npm_the_message_says_what_to_install(programs: Path) -> None:
    with pytest.raises(grafana.GrafanaUnavailable, match=r"npm is not on the PATH; install Node\.js"):
        grafana.renderer()


def test_an_installation_that_fails_leaves_nothing_and_says_why(programs: Path) -> None:
    program(programs, "node", "exit 0")
    program(programs, "npm", "echo no route to the registry; exit 1")
    with pytest.raises(grafana.GrafanaUnavailable, match="failed with 1:\nno route to the registry"):
        grafana.renderer()
    assert [path.name for path in (grafana.CACHE / "board-renderer").iterdir()] == ["lock"]


def test_it_is_installed_once(programs: Path) -> None:
    log = programs.parent / "log"
    for name in ("npm", "node"):
        program(programs, name, f'echo {name} "$1" >> {log}')
    first = grafana.renderer()
    assert grafana.renderer() == first
    assert log.read_text().splitlines() == ["npm ci", "node build.js", "npm prune"]
    assert (first / "shot.js").read_text() == (grafana.SOURCE / "shot.js").read_text()
    assert (first / "src" / "app.jsx").is_file()
