"""kubeconfig files and credential plugins, as `Access` uses them."""

from __future__ import annotations

import base64
import json
import os
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from slackwater_operator.kubernetes import kubeconfig
from slackwater_operator.kubernetes.access import Access
from slackwater_operator.kubernetes.errors import KubeConfigError
from tests.support.controlplane.certificates import Authority
from tests.support.waiting import HANG_S

PEM = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
V1 = "client.authentication.k8s.io/v1"


def document(user: dict[str, Any] | None = None, *, name: str = "air", **cluster: Any) -> dict[str, Any]:
    return {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "flights"}}],
        "clusters": [{"name": name, "cluster": {"server": "http://localhost:1/", **cluster}}],
        "users": [{"name": name, "user": user or {}}],
    }


def written(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


async def access_to(
    monkeypatch: pytest.MonkeyPatch, folder: Path, user: dict[str, Any], **cluster: Any
) -> Access:
    monkeypatch.setenv("KUBECONFIG", str(written(folder / "config", document(user, **cluster))))
    return await Access.find()


def plugin(folder: Path, body: str) -> str:
    """A program that runs ``body`` with python, and says its name."""
    path = written(folder / "plugin.sh", f"#!/bin/sh\nexec python3 -c '{body}'\n")
    path.chmod(0o755)
    return "./plugin.sh"


def prints(status: dict[str, Any], version: str = V1) -> str:
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    return f"print({json.dumps(answer)})"


def test_the_first_file_that_sets_a_value_decides(tmp_path: Path) -> None:
    first = written(tmp_path / "one", {**document({"token": "a"}), "current-context": ""})
    two = written(tmp_path / "two", document({"token": "b"}, name="sea"))
    three = written(tmp_path / "three", document({"token": "c"}))
    paths = os.pathsep.join(map(str, [tmp_path / "none", first, two, three]))
    assert kubeconfig.read(paths).token == "b", "the first current-context is two's"
    assert kubeconfig.read(paths, "air").token == "a", "the first entry of a name counts"
    read = kubeconfig.read(paths, "sea")
    assert (read.server, read.namespace, read.verify) == ("http://localhost:1", "flights", True)


def test_files_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    written(tmp_path / "certs" / "ca.pem", PEM)
    written(tmp_path / "certs" / "user.pem", "certificate")
    config = written(
        tmp_path / "certs" / "config",
        document(
            {
                "client-certificate": "user.pem",
                "client-key-data": base64.b64encode(b"key").decode() + "\n",
                "tokenFile": "token",
            },
            **{"certificate-authority": "ca.pem", "tls-server-name": "api", "proxy-url": "http://proxy:1"},
        ),
    )
    read = kubeconfig.read(str(config))
    assert (read.ca, read.certificate, read.key) == (PEM, "certificate", "key")
    assert read.token_file == tmp_path / "certs" / "token"
    assert (read.server_name, read.proxy) == ("api", "http://proxy:1")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("clusters: 7\n", "clusters is not a list"),
        ("a: [", "is not YAML"),
        ("[]", "is not a kubeconfig"),
        ({}, "there is no current-context"),
        ({"current-context": "air"}, "contexts has no entry with the name 'air'"),
        ({**document(), "clusters": []}, "clusters has no entry with the name 'air'"),
        ({**document(), "users": []}, "users has no entry with the name 'air'"),
        ({**document(), "users": [7]}, "users has an entry that is not an object"),
        (document(server=""), "which is not a URL"),
        (document(server=7), "server is not text"),
        (document(**{"certificate-authority-data": "%"}), "certificate-authority-data is not PEM in base64"),
        (document(**{"certificate-authority": "none.pem"}), "none.pem"),
        (document({"client-key-data": "QQ=="}), "it needs both"),
        (document({"tokenFile": "none"}), "none"),
        (document({"auth-provider": {"name": "oidc"}}), "kubelogin"),
        (document({"exec": 7}), "exec is not an object"),
        (document({"exec": {"command": "x"}}), "exec.apiVersion is None"),
        (document({"exec": {"apiVersion": V1}}), "exec.command is missing"),
        (
            document({"exec": {"apiVersion": V1, "command": "./none", "installHint": "brew install it"}}),
            "none does not exist: brew install it",
        ),
    ],
)
async def test_an_error_says_what_is_wrong(
    content: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "config", content)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(KubeConfigError, match="cannot be used") as raised:
        await Access.find()
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


async def test_credentials_become_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = await access_to(monkeypatch, tmp_path, {"username": "ada", "password": "x:y"})
    assert await access.authorization() == "Basic " + base64.b64encode(b"ada:x:y").decode()
    assert access.namespace == "flights"
    access = await access_to(monkeypatch, tmp_path, {"token": "t", "tokenFile": "none"})
    assert await access.authorization() == "Bearer t"
    access = await access_to(monkeypatch, tmp_path, {})
    assert await access.authorization() == ""


async def test_a_token_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = written(tmp_path / "token", "first\n")
    access = await access_to(monkeypatch, tmp_path, {"tokenFile": "token"})
    assert await access.authorization() == "Bearer first"
    token.write_text("second\n")
    await access.renew()
    assert await access.authorization() == "Bearer second"


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


async def test_the_users_certificate_and_the_servers_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    serving, user = authority.issue("server"), authority.issue("ada")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(serving.certificate, serving.key)

    async def who(request: web.Request) -> web.Response:
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        return web.Response(text=dict(pair for (pair,) in subject)["commonName"])

    application = web.Application()
    application.router.add_get("/", who)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        (address,) = runner.addresses
        files = {"client-certificate": str(user.certificate), "client-key": str(user.key)}
        server = {"server": f"https://127.0.0.1:{address[1]}"}

        async def asked(**cluster: Any) -> str:
            access = await access_to(monkeypatch, tmp_path, files, **server, **cluster)
            async with access.session(timeout_s=HANG_S) as session, session.get(access.server) as response:
                return await response.text()

        assert await asked(**{"certificate-authority": str(authority.certificate)}) == "ada"
        assert await asked(**{"insecure-skip-tls-verify": True}) == "ada"
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await asked()
    finally:
        await runner.cleanup()
