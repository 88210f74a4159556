"""TLS: contexts from PEM, rebuilt when a file has changed, and explanations of failures."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slackwater.kafka.errors import KafkaConnectionError, KafkaError, SslAuthenticationError
from slackwater.kafka.net.connection import TlsFailure
from slackwater.kafka.net.security.settings import SASL_PLAINTEXT, Security

_CERTIFICATE = re.compile(
    rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----(?:(?!-----).)++"
    rb"-----END (?:TRUSTED |X509 )?CERTIFICATE-----",
    re.S,
)
"""Read up to the next dashes only: a file may begin any number of certificates and end none."""
_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH, _EXPIRED, _NOT_YET_VALID, _REVOKED = 62, 64, 10, 9, 23
"""OpenSSL's X509_V_ERR_* numbers (x509_vfy.h)."""
_ABOUT_OUR_CERTIFICATE = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE", "DECRYPT_ERROR")


@dataclass(frozen=True, slots=True)
class Material:
    """The PEM texts in use, read from files or options."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None = field(repr=False)
    crl: bytes | None


class TlsContexts:
    """Provides the context for the next connection. Not thread-safe."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._made: tuple[Material, ssl.SSLContext] | None = None

    def read(self) -> Material:
        """Reads the files. Raises :class:`SslAuthenticationError` that names the one which cannot be read."""
        wanted = self._security
        return Material(
            ca=_pem("ca", wanted.ca),
            cert=_pem("cert", wanted.cert),
            key=_pem("key", wanted.key),
            crl=_pem("crl", wanted.crl),
        )

    def of(self, material: Material) -> ssl.SSLContext:
        """The context for ``material``; the previous one if nothing has changed.

        Raises :class:`SslAuthenticationError` that names the file and the problem.
        """
        if self._security.ssl_context is not None:
            return self._security.ssl_context
        if self._made is None or self._made[0] != material:
            self._made = material, _context(self._security, material)
        return self._made[1]


def is_text(source: str | os.PathLike[str]) -> bool:
    """Whether this is PEM text rather than the path of a file with it."""
    return isinstance(source, str) and "-----BEGIN" in source


def named(field_name: str, source: str | os.PathLike[str] | None) -> str:
    """The name of a PEM in messages: its file, or its option if it was given as text."""
    return field_name if source is None or is_text(source) else f"{field_name} file {os.fspath(source)}"


def _pem(field_name: str, source: str | os.PathLike[str] | None) -> bytes | None:
    if source is None:
        return None
    if is_text(source):
        return str(source).encode()
    try:
        return Path(source).read_bytes()
    except OSError as exc:
        raise SslAuthenticationError(
            f"{named(field_name, source)} cannot be read: {exc.strerror or exc}"
        ) from exc


def _context(wanted: Security, material: Material) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = wanted.check_hostname
    if wanted.ciphers is not None:
        try:
            context.set_ciphers(wanted.ciphers)
        except ssl.SSLError:
            raise SslAuthenticationError(
                f"ciphers={wanted.ciphers!r}: OpenSSL supports none of these"
            ) from None
    if material.ca is None:
        context.load_default_certs()
    else:
        _trust(context, named("ca", wanted.ca), material.ca)
    if material.cert is not None:
        _identify(context, wanted, material.cert, material.key)
    if material.crl is not None:
        _revoke(context, named("crl", wanted.crl), material.crl)
    return context


def _revoke(context: ssl.SSLContext, name: str, pem: bytes) -> None:
    if b"-----BEGIN X509 CRL-----" not in pem:
        raise SslAuthenticationError(f"{name} contains no revocation list in PEM (-----BEGIN X509 CRL-----)")
    with _as_file(pem) as path:
        try:
            context.load_verify_locations(cafile=path)
        except ssl.SSLError as exc:
            raise SslAuthenticationError(f"{name} cannot be read: {_words(exc)}") from None
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _trust(context: ssl.SSLContext, name: str, pem: bytes) -> None:
    certificates = _CERTIFICATE.findall(pem)
    if not certificates:
        raise SslAuthenticationError(f"{name} contains no certificate in PEM (-----BEGIN CERTIFICATE-----)")
    try:
        context.load_verify_locations(cadata=b"\n".join(certificates).decode("ascii"))
    except (ssl.SSLError, ValueError) as exc:
        raise SslAuthenticationError(
            f"{name} contains a certificate that cannot be read: {_words(exc)}"
        ) from None


def _identify(context: ssl.SSLContext, wanted: Security, cert: bytes, key: bytes | None) -> None:
    asked = False

    def password() -> str:
        # Always given, since OpenSSL would otherwise ask on the terminal.
        nonlocal asked
        asked = True
        return wanted.key_password or ""

    cert_name = named("cert", wanted.cert)
    key_name = named("key", wanted.key) if key is not None else cert_name
    if not _CERTIFICATE.search(cert):
        raise SslAuthenticationError(
            f"{cert_name} contains no certificate in PEM (-----BEGIN CERTIFICATE-----)"
        )
    if b"PRIVATE KEY-----" not in (cert if key is None else key):
        raise SslAuthenticationError(
            f"{key_name} contains no private key in PEM (-----BEGIN PRIVATE KEY-----)"
        )
    with contextlib.ExitStack() as files:
        cert_path = files.enter_context(_as_file(cert))
        key_path = None if key is None else files.enter_context(_as_file(key))
        try:
            context.load_cert_chain(cert_path, key_path, password)
        except (ssl.SSLError, ValueError) as exc:
            if getattr(exc, "reason", "") == "KEY_VALUES_MISMATCH":
                why = f"the key of {key_name} does not belong to the certificate of {cert_name}"
            elif asked and wanted.key_password is None:
                why = f"{key_name} is encrypted: set key_password"
            elif asked:
                why = f"{key_name} cannot be decrypted with key_password"
            else:
                why = f"{cert_name} and {key_name} cannot be used: {_words(exc)}"
            raise SslAuthenticationError(why) from None


@contextlib.contextmanager
def _as_file(pem: bytes) -> Iterator[str]:
    """A path that OpenSSL reads ``pem`` from: in memory where the system can, since it may be a key."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        handle = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(handle), "wb") as file:
                file.write(pem)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(pem)
        file.flush()
        yield file.name


def _words(exc: Exception) -> str:
    reason = getattr(exc, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(exc)


# -- what a failure means --------------------------------------------------------------------------


def explain(failure: TlsFailure, host: str, where: str, wanted: Security) -> KafkaError:
    """The error to raise for a failure of TLS with the broker at ``where``.

    A certificate that was not accepted is an :class:`SslAuthenticationError`; anything else is a
    connection error.
    """
    reason = failure.reason
    if isinstance(reason, ssl.SSLCertVerificationError):
        return SslAuthenticationError(f"{where}: {_verification(reason, host, wanted)}")
    words = getattr(reason, "reason", None) or ""
    if "ALERT" in words and any(word in words for word in _ABOUT_OUR_CERTIFICATE):
        said = f"the broker ended TLS ({_words(reason)})"
        if wanted.cert is None and wanted.ssl_context is None:
            hint = "it may require a client certificate: set cert and key"
        else:
            hint = f"check that the broker trusts the certificate of {named('cert', wanted.cert)}"
        return SslAuthenticationError(f"{where}: {said}; {hint}")
    plain = SASL_PLAINTEXT if wanted.sasl else "PLAINTEXT"
    return KafkaConnectionError(
        f"{where}: no TLS connection ({_words(reason)}); if the port has no TLS, protocol is {plain}"
    )


def _verification(reason: ssl.SSLCertVerificationError, host: str, wanted: Security) -> str:
    code, words = reason.verify_code, reason.verify_message
    if code in (_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH):
        return (
            f"the broker's certificate is not valid for {host!r} ({words}): connect by a name that it "
            "contains, or have it reissued with this name; check_hostname=False accepts any name"
        )
    if code in (_EXPIRED, _NOT_YET_VALID, _REVOKED):
        return (
            f"the broker's certificate is not valid now ({words}): have it renewed, or check this "
            "machine's clock"
        )
    trusted = (
        named("ca", wanted.ca) if wanted.ca is not None else ("the system's certificate authorities (set ca)")
    )
    return f"the broker's certificate is not signed by {trusted} ({words})"
