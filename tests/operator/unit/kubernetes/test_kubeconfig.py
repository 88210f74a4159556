"""kubeconfig files and credential plugins, as `Access` uses them."""

from __future__ import annotations

import base64
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
from tests.operator.unit.kubernetes.kubeconfig_files import V1, access_to, document, written
from tests.support.controlplane.certificates import Authority
from tests.support.waiting import HANG_S

PEM = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"


def test_the_first_file_that_sets_a_value_decides(tmp_path: Path) -> None:
    first = written(tmp_path / "one", {**document({"token": "a"}), "current-context": ""})
    two = written(tmp_path / "two", document({"token": "b"}, name="sea"))
    three = written(tmp_path / "three", document({"token": "c"}))
    paths = os.pathsep.join(map(str, [tmp_path / "none", first, two, three]))
    assert kubeconfig.read(paths).token == "b", "the first current-context is two's"
    assert kubeconfig.read(paths, "air").token == "a", "the first entry of a name counts"
    read = kubeconfig.read(paths, "sea")
    assert (read.server, read.namespace, read.verify) == ("http://localhost:1", "flights", True)


async def test_credentials_are_renewed_in_the_context_that_was_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl config use-context` while a process runs: its server must not get another cluster's token."""
    air, sea = document({"token": "a"}), document({"token": "s"}, name="sea")
    both = {name: air[name] + sea[name] for name in ("contexts", "clusters", "users")}
    file = written(tmp_path / "config", {**both, "current-context": "air"})
    monkeypatch.setenv("KUBECONFIG", str(file))
    access = await Access.find()
    written(file, {**both, "current-context": "sea"})
    await access.renew()
    assert await access.authorization() == "Bearer a"


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
