"""Credential plugins of a kubeconfig: programs that print an ExecCredential."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.kubernetes.errors import KubeConfigError
from tests.operator.unit.kubernetes.kubeconfig_files import V1, access_to, written


def plugin(folder: Path, body: str) -> str:
    """A program that runs ``body`` with python, and says its name."""
    path = written(folder / "plugin.sh", f"#!/bin/sh\nexec python3 -c '{body}'\n")
    path.chmod(0o755)
    return "./plugin.sh"


def prints(status: dict[str, Any], version: str = V1) -> str:
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    return f"print({json.dumps(answer)})"


async def test_a_plugin_is_run_anew_for_each_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        'import json, os, sys; info = json.loads(os.environ["KUBERNETES_EXEC_INFO"]); '
        'open("calls", "a").write("x"); '
        'print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": {"token": '
        '"-".join([os.environ["ROLE"], sys.argv[1], info["spec"]["cluster"]["server"], '
        'open("calls").read()])}}))'
    )
    command = plugin(tmp_path, body)
    (tmp_path / "plugin.sh").write_text((tmp_path / "plugin.sh").read_text().rstrip() + ' "$@"\n')
    monkeypatch.chdir(tmp_path)
    exec_ = {
        "apiVersion": V1,
        "command": command,
        "args": ["get"],
        "env": [{"name": "ROLE", "value": "reader"}],
        "provideClusterInfo": True,
    }
    access = await access_to(monkeypatch, tmp_path, {"exec": exec_})
    assert await access.authorization() == "Bearer reader-get-http://localhost:1-x"
    await access.renew()
    assert await access.authorization() == "Bearer reader-get-http://localhost:1-xx"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise SystemExit(3)", "ended with exit code 3"),
        ("print(1)", "printed no ExecCredential"),
        (prints({"token": "t"}, "v2"), "speaks v2"),
        (prints({"clientCertificateData": "c"}), "neither a token nor a certificate with its key"),
    ],
)
async def test_a_plugin_that_fails_is_reported(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = plugin(tmp_path, body)
    with pytest.raises(KubeConfigError, match=said):
        await access_to(monkeypatch, tmp_path, {"exec": {"apiVersion": V1, "command": command}})


async def test_a_plugin_that_is_not_there_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exec_ = {"apiVersion": V1, "command": "./none", "installHint": "brew install it"}
    with pytest.raises(KubeConfigError, match="none does not exist: brew install it"):
        await access_to(monkeypatch, tmp_path, {"exec": exec_})
