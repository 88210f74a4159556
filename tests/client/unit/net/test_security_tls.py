"""TLS on loopback: which certificates are accepted, what a bad file is called, and files that change."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka import Security
from slackwater.kafka.errors import KafkaConnectionError, SslAuthenticationError
from slackwater.kafka.net.connection import TlsFailure
from slackwater.kafka.net.connection_settings import ConnectionSettings
from slackwater.kafka.net.connection_setup import open_connection
from slackwater.kafka.net.security.tls import TlsContexts, explain
from tests.support.kafka.certificates import Authority, Issued
from tests.support.wire.scripted import Peer

SETTINGS = ConnectionSettings(request_timeout_ms=5_000, connect_timeout_ms=5_000)
OURS, OTHER = Authority("ours"), Authority("another")
BROKER = OURS.issue("broker", "localhost", "127.0.0.1")
CLIENT = OURS.issue("client")


@contextlib.asynccontextmanager
async def tls_broker(folder: Path, certificate: Issued, *, client_ca: str = "") -> AsyncIterator[int]:
    """Answers ApiVersions over TLS; ``client_ca``: and wants a certificate that this one has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    both = folder / "broker.pem"
    both.write_text(certificate.both)
    context.load_cert_chain(both)
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_ca)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await Peer(reader, writer).negotiate()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def connect(port: int, host: str = "127.0.0.1", **options: Any) -> None:
    """One connection, as SecureConnect makes it; raises what it would."""
    wanted = Security(protocol="SSL", **options)
    contexts = TlsContexts(wanted)
    try:
        connection = await open_connection(host, port, SETTINGS, tls=contexts.of(contexts.read()))
    except TlsFailure as failure:
        raise explain(failure, host, f"{host}:{port}", wanted) from failure
    await connection.close()


async def test_a_certificate_signed_by_the_authority_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(f"# näme of the authority\n{OTHER.pem}\n{OURS.pem}")
    async with tls_broker(tmp_path, BROKER) as port:
        await connect(port, ca=OURS.pem)
        await connect(port, ca=file)
        await connect(port, ca=str(file), host="localhost")
        context = ssl.create_default_context(cadata=OURS.pem)
        await connect(port, ssl_context=context)


@pytest.mark.parametrize(
    ("certificate", "options", "says"),
    [
        (BROKER, {"ca": OTHER.pem}, "certificate is not signed by ca"),
        (BROKER, {}, "not signed by the system's certificate authorities"),
        (
            OURS.issue("b", "kafka.example"),
            {"ca": OURS.pem},
            "not valid for '127.0.0.1'.*check_hostname=False",
        ),
        (OURS.issue("b", "127.0.0.1", expired=True), {"ca": OURS.pem}, "not valid now .*has expired"),
        (BROKER, {"ca": OURS.pem, "crl": OURS.revoke(BROKER)}, "not valid now .*revoked"),
    ],
    ids=["authority", "system", "name", "expired", "revoked"],
)
async def test_an_invalid_certificate_is_refused_with_the_reason(
    tmp_path: Path, certificate: Issued, options: dict[str, str], says: str
) -> None:
    async with tls_broker(tmp_path, certificate) as port:
        with pytest.raises(SslAuthenticationError, match=says) as raised:
            await connect(port, **options)
        assert not raised.value.retriable
        assert f"127.0.0.1:{port}" in str(raised.value)


async def test_any_name_is_taken_without_the_check_but_not_any_certificate(tmp_path: Path) -> None:
    async with tls_broker(tmp_path, OURS.issue("b", "kafka.example")) as port:
        await connect(port, ca=OURS.pem, check_hostname=False)
        with pytest.raises(SslAuthenticationError, match="not signed"):
            await connect(port, ca=OTHER.pem, check_hostname=False)


async def test_a_certificate_that_is_not_revoked_is_accepted(tmp_path: Path) -> None:
    list_file = tmp_path / "crl.pem"
    list_file.write_text(OURS.revoke(CLIENT))
    async with tls_broker(tmp_path, BROKER) as port:
        await connect(port, ca=OURS.pem, crl=list_file)


async def test_a_client_shows_its_certificate(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_text(CLIENT.cert)
    (tmp_path / "tls.key").write_text(CLIENT.locked_key("open"))
    async with tls_broker(tmp_path, BROKER, client_ca=OURS.pem) as port:
        await connect(port, ca=OURS.pem, cert=CLIENT.cert, key=CLIENT.key)
        await connect(port, ca=OURS.pem, cert=CLIENT.both)
        await connect(
            port, ca=OURS.pem, cert=tmp_path / "tls.crt", key=tmp_path / "tls.key", key_password="open"
        )


@pytest.mark.parametrize("options", [{}, {"cert": OTHER.issue("x").both}])
async def test_a_client_certificate_that_the_broker_refuses_is_reported(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """asyncio's server hangs up without a word; what Kafka's does is in the integration tests."""
    async with tls_broker(tmp_path, BROKER, client_ca=OURS.pem) as port:
        with pytest.raises(KafkaConnectionError, match="may not have accepted this client's certificate"):
            await connect(port, ca=OURS.pem, **options)


async def test_a_port_without_tls_is_reported() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\0\0\0\4nope")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        with pytest.raises(KafkaConnectionError, match="if the port has no TLS, protocol is PLAINTEXT"):
            await connect(server.sockets[0].getsockname()[1], ca=OURS.pem)


async def test_a_tls_port_asked_in_plain_text_is_reported(tmp_path: Path) -> None:
    async with tls_broker(tmp_path, BROKER) as port:
        with pytest.raises(KafkaConnectionError, match=r"speaks TLS; set security_protocol|closed the conn"):
            await open_connection("127.0.0.1", port, SETTINGS)


# -- files -----------------------------------------------------------------------------------------

DER = b"\x30\x82\x01\x0a\x02\x82"


@pytest.mark.parametrize(
    ("files", "options", "says"),
    [
        ({}, {"ca": "ca.pem"}, "ca file {}/ca.pem cannot be read: No such file"),
        ({"ca.pem": "hello"}, {"ca": "ca.pem"}, "ca file {}/ca.pem contains no certificate in PEM"),
        ({"ca.pem": ""}, {"ca": "ca.pem"}, "ca file {}/ca.pem contains no certificate in PEM"),
        # In quadratic time this takes an hour.
        ({"ca.pem": "-----BEGIN CERTIFICATE-----\n" * 200_000}, {"ca": "ca.pem"}, "contains no certificate"),
        (
            {"ca.pem": "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----"},
            {"ca": "ca.pem"},
            "ca file {}/ca.pem contains a certificate that cannot be read",
        ),
        ({"c": "x", "k": CLIENT.key}, {"cert": "c", "key": "k"}, "cert file {}/c contains no certificate"),
        ({"c": CLIENT.cert, "k": "x"}, {"cert": "c", "key": "k"}, "key file {}/k contains no private key"),
        ({"c": CLIENT.cert}, {"cert": "c"}, "cert file {}/c contains no private key"),
        ({"c": CLIENT.cert}, {"cert": "c", "key": "k"}, "key file {}/k cannot be read"),
        (
            {"c": CLIENT.cert, "k": OTHER.issue("x").key},
            {"cert": "c", "key": "k"},
            "the key of key file {}/k does not belong to the certificate of cert file {}/c",
        ),
        (
            {"c": CLIENT.cert, "k": CLIENT.locked_key("open")},
            {"cert": "c", "key": "k"},
            "key file {}/k is encrypted: set key_password",
        ),
        (
            {"c": CLIENT.cert, "k": CLIENT.locked_key("open")},
            {"cert": "c", "key": "k", "key_password": "shut"},
            "key file {}/k cannot be decrypted with key_password",
        ),
        ({"r": CLIENT.cert}, {"crl": "r"}, "crl file {}/r contains no revocation list"),
        ({}, {"ciphers": "NONSENSE"}, "ciphers='NONSENSE': OpenSSL supports none"),
    ],
)
def test_a_bad_file_is_named(
    tmp_path: Path, files: dict[str, str], options: dict[str, str], says: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    paths = {k: v if k in ("ciphers", "key_password") else str(tmp_path / v) for k, v in options.items()}
    contexts = TlsContexts(Security(protocol="SSL", **paths))  # type: ignore[arg-type]
    with pytest.raises(SslAuthenticationError, match=re.escape(says.replace("{}", str(tmp_path)))) as raised:
        contexts.of(contexts.read())
    assert "shut" not in str(raised.value)


def test_a_file_in_another_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.der").write_bytes(DER)
    contexts = TlsContexts(Security(protocol="SSL", ca=tmp_path / "ca.der"))
    with pytest.raises(SslAuthenticationError, match=r"ca\.der contains no certificate in PEM"):
        contexts.of(contexts.read())


def test_a_context_is_made_anew_when_a_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(OURS.pem)
    contexts = TlsContexts(Security(protocol="SSL", ca=file))
    first = contexts.of(contexts.read())
    assert contexts.of(contexts.read()) is first
    file.write_text(OURS.pem)
    assert contexts.of(contexts.read()) is first, "the same content"
    file.write_text(OTHER.pem)
    second = contexts.of(contexts.read())
    assert second is not first
    assert [cert["subject"] for cert in second.get_ca_certs()] == [((("commonName", "another"),),)]


async def test_new_connections_use_new_files(tmp_path: Path) -> None:
    """A CA that is mounted as Kubernetes does it: a symbolic link that is replaced."""
    for name, text in (("old", OTHER.pem), ("new", OURS.pem)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ca.crt").write_text(text)
    link = tmp_path / "data"
    link.symlink_to("old")
    wanted = Security(protocol="SSL", ca=link / "ca.crt")
    contexts = TlsContexts(wanted)
    async with tls_broker(tmp_path, BROKER) as port:
        with pytest.raises(TlsFailure):
            await open_connection("127.0.0.1", port, SETTINGS, tls=contexts.of(contexts.read()))
        (tmp_path / "next").symlink_to("new")
        (tmp_path / "next").replace(link)
        connection = await open_connection("127.0.0.1", port, SETTINGS, tls=contexts.of(contexts.read()))
        await connection.close()
