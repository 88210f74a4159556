"""Reads kubeconfig files: an API server's address and a user's credentials.

Fields and rules: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/ and client-go (clientcmd): of
several files the first that sets a value decides, and a path is relative to the folder of its file.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_LISTS = ("clusters", "contexts", "users")
_FOLDER = "folder of the file"
"""A key, which no file can have, beside each entry."""


@dataclass(frozen=True)
class KubeConfig:
    """One context of the files, with its cluster and its user.

    Attributes:
        server: the API server's URL, without a slash at the end.
        ca: certificates that sign the server's, as PEM; empty: those of the system.
        verify: whether the server's certificate is checked.
        server_name: the name in that certificate where it is not the URL's; else empty.
        proxy: URL of an HTTP proxy; else empty.
        namespace: the context's.
        token: a bearer token; empty: none.
        token_file: the file that holds it instead; None: none.
        basic: user name and password; None: none.
        certificate, key: the user's, as PEM; empty: none.
        plugin: the user's `exec`, which says credentials; None: none.
        plugin_folder: the folder that a relative `command` of the plugin is in.
        context: its name.
    """

    server: str
    ca: str
    verify: bool
    server_name: str
    proxy: str
    namespace: str
    token: str
    token_file: Path | None
    basic: tuple[str, str] | None
    certificate: str
    key: str
    plugin: Mapping[str, Any] | None
    plugin_folder: Path
    context: str


def read(paths: str, context: str = "") -> KubeConfig:
    """One context of these files, separated as in KUBECONFIG; those that do not exist are left out.

    Args:
        paths: the files.
        context: the context's name; empty: the current one.

    Raises:
        ValueError: a file is no kubeconfig, or the context is not in it or incomplete.
        OSError: a file, or one that it names, cannot be read.
    """
    merged = _merged([Path(path).expanduser() for path in paths.split(os.pathsep) if path])
    name = context or merged["current-context"]
    if not name:
        raise ValueError("there is no current-context: set it, or name a context")
    chosen = _entry(merged, "contexts", name)
    cluster = _entry(merged, "clusters", _text(chosen, "cluster"))
    user = _entry(merged, "users", _text(chosen, "user")) if chosen.get("user") else {_FOLDER: Path()}
    if user.get("auth-provider"):
        raise ValueError(
            "users[].user.auth-provider is not supported: use exec with a plugin, such as kubelogin"
        )
    server = _text(cluster, "server").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise ValueError(f"clusters[].cluster.server is {server!r}, which is not a URL")
    token_file = _text(user, "tokenFile")
    username, password = _text(user, "username"), _text(user, "password")
    plugin = user.get("exec")
    if plugin is not None and not isinstance(plugin, Mapping):
        raise ValueError("users[].user.exec is not an object")
    certificate, key = _pem(user, "client-certificate"), _pem(user, "client-key")
    if bool(certificate) != bool(key):
        raise ValueError("users[].user has only one of client-certificate and client-key; it needs both")
    return KubeConfig(
        server=server,
        ca=_pem(cluster, "certificate-authority"),
        verify=not cluster.get("insecure-skip-tls-verify"),
        server_name=_text(cluster, "tls-server-name"),
        proxy=_text(cluster, "proxy-url"),
        namespace=_text(chosen, "namespace") or "default",
        token=_text(user, "token"),
        token_file=user[_FOLDER] / token_file if token_file else None,
        basic=(username, password) if username and password else None,
        certificate=certificate,
        key=key,
        plugin=plugin,
        plugin_folder=user[_FOLDER],
        context=name,
    )


def _merged(paths: list[Path]) -> dict[str, Any]:
    merged: dict[str, Any] = {"current-context": "", **{kind: {} for kind in _LISTS}}
    for path in paths:
        if not path.exists():
            continue
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ValueError(f"{path} is not a kubeconfig")
        merged["current-context"] = merged["current-context"] or _text(document, "current-context")
        for kind in _LISTS:
            for name, entry in _named(document, kind).items():
                merged[kind].setdefault(name, {**entry, _FOLDER: path.absolute().parent})
    return merged


def _named(document: Mapping[str, Any], kind: str) -> dict[str, Mapping[str, Any]]:
    """A list's entries by their names."""
    inner = kind[:-1]
    result: dict[str, Mapping[str, Any]] = {}
    entries = document.get(kind) or []
    if not isinstance(entries, list):
        raise ValueError(f"{kind} is not a list")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get(inner) or {}, dict):
            raise ValueError(f"{kind} has an entry that is not an object with name and {inner}")
        result.setdefault(_text(entry, "name"), entry.get(inner) or {})
    return result


def _entry(merged: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    entry: Mapping[str, Any] | None = merged[kind].get(name)
    if entry is None:
        raise ValueError(f"{kind} has no entry with the name {name!r}")
    return entry


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is not text")
    return value


def _pem(entry: Mapping[str, Any], name: str) -> str:
    """What ``name-data`` holds, else what the file ``name`` holds."""
    data = _text(entry, f"{name}-data")
    if data:
        try:
            return base64.b64decode("".join(data.split()), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise ValueError(f"{name}-data is not PEM in base64") from None
    file = _text(entry, name)
    return (entry[_FOLDER] / file).read_text(encoding="utf-8") if file else ""
