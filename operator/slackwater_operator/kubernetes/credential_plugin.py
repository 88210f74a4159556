"""Runs a kubeconfig's credential plugin (`exec`), such as those of EKS, GKE, AKS and kubelogin.

Its contract: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slackwater_operator.kubernetes.kubeconfig import KubeConfig

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_TIMEOUT_S = 300.0
"""A plugin may wait until a person has logged in with a browser."""


@dataclass(frozen=True)
class Credentials:
    """What a plugin said: a bearer token, or the PEM of a certificate and its key; the others are empty."""

    token: str = ""
    certificate: str = ""
    key: str = ""


async def credentials(config: KubeConfig) -> Credentials:
    """Runs the plugin of ``config``, which has one.

    Raises:
        ValueError: its settings are incomplete, it failed or was not answered in time, or its output is no
            ExecCredential.
        OSError: it cannot be started.
    """
    plugin = config.plugin or {}
    version, command = plugin.get("apiVersion"), plugin.get("command")
    if version not in _VERSIONS:
        raise ValueError(f"users[].user.exec.apiVersion is {version!r}; must be {' or '.join(_VERSIONS)}")
    if not isinstance(command, str) or not command:
        raise ValueError("users[].user.exec.command is missing")
    if "/" in command:
        command = str(config.plugin_folder / command)
    arguments = [str(argument) for argument in plugin.get("args") or []]
    try:
        process = await asyncio.create_subprocess_exec(
            command, *arguments, env=_environment(config, plugin), stdout=asyncio.subprocess.PIPE
        )
    except FileNotFoundError:
        hint = plugin.get("installHint") or "install it, or correct users[].user.exec.command"
        raise ValueError(f"the credential plugin {command} does not exist: {hint}") from None
    try:
        output, _ = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ValueError(f"the credential plugin {command} took more than {_TIMEOUT_S:.0f} s") from None
    if process.returncode:
        raise ValueError(f"the credential plugin {command} ended with exit code {process.returncode}")
    return _credentials(output, command, str(version))


def _environment(config: KubeConfig, plugin: Mapping[str, Any]) -> dict[str, str]:
    interactive = plugin.get("interactiveMode") != "Never" and sys.stdin is not None and sys.stdin.isatty()
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.get("provideClusterInfo"):
        cluster: dict[str, Any] = {"server": config.server, "insecure-skip-tls-verify": not config.verify}
        if config.ca:
            cluster["certificate-authority-data"] = base64.b64encode(config.ca.encode()).decode()
        if config.server_name:
            cluster["tls-server-name"] = config.server_name
        if config.proxy:
            cluster["proxy-url"] = config.proxy
        spec["cluster"] = cluster
    info = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": spec}
    own = {str(entry["name"]): str(entry["value"]) for entry in plugin.get("env") or []}
    return {**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(info)}


def _credentials(output: bytes, command: str, version: str) -> Credentials:
    try:
        answer = json.loads(output)
        status = answer["status"]
        made = Credentials(
            status.get("token") or "",
            status.get("clientCertificateData") or "",
            status.get("clientKeyData") or "",
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"the credential plugin {command} printed no ExecCredential with a status") from None
    if answer.get("apiVersion") != version:
        raise ValueError(f"the credential plugin {command} speaks {answer.get('apiVersion')}, not {version}")
    if not made.token and not (made.certificate and made.key):
        raise ValueError(
            f"the credential plugin {command} gave neither a token nor a certificate with its key"
        )
    return made
