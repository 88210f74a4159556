"""The certificates of a control plane: one authority, and a key pair for each part."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = datetime.timedelta(days=2)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into ``folder``; its own is ``folder/ca.crt``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("slackwater-test-ca")
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = _write_certificate(folder / "ca.crt", certificate)

    def issue(
        self,
        user: str,
        groups: Sequence[str] = (),
        *,
        server_names: Sequence[str] = (),
        server_addresses: Sequence[str] = (),
    ) -> KeyPair:
        """A certificate that is ``user`` in ``groups`` to the API server.

        It serves for ``localhost``, 127.0.0.1, ``server_names`` and ``server_addresses`` as well.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(name) for name in ("localhost", *server_names)]
        addresses = [
            x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", *server_addresses)
        ]
        certificate = (
            self._builder(_name(user, groups), key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            # Python 3.13 and later ask for it.
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.SubjectAlternativeName([*names, *addresses]),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        stem = user.replace(":", "-")
        return KeyPair(
            _write_certificate(self._folder / f"{stem}.crt", certificate),
            _write_key(self._folder / f"{stem}.key", key),
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + VALID_FOR)
        )


def service_account_keys(folder: Path) -> KeyPair:
    """The key that signs ServiceAccounts' tokens, with its public half in place of a certificate."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = folder / "service-account.pub"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return KeyPair(public, _write_key(folder / "service-account.key", key))


def _name(user: str, groups: Sequence[str] = ()) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
            x509.NameAttribute(NameOID.COMMON_NAME, user),
        ]
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_certificate(path: Path, certificate: x509.Certificate) -> Path:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return path


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return path
