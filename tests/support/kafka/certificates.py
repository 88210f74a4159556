"""Certificates for tests: an authority, and what it signs. Small keys (P-256), made anew each time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


_SIGNS = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip
"""Of an authority; Python 3.13 and later ask for it."""


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, as PEM."""

    cert: str
    key: str
    certificate: x509.Certificate
    private: ec.EllipticCurvePrivateKey

    @property
    def both(self) -> str:
        """Key and certificate in one file, as brokers take it."""
        return self.key + self.cert

    def locked_key(self, password: str) -> str:
        """The key, encrypted."""
        how = serialization.BestAvailableEncryption(password.encode())
        return _key_pem(self.private, how)


class Authority:
    """Signs certificates. ``pem`` is its own."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(_SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = made.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, name: str, *hosts: str, expired: bool = False) -> Issued:
        """A certificate for ``name``, at ``hosts`` (names or addresses)."""
        private = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(private.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * _DAY)
            .not_valid_after(now - _DAY if expired else now + 10 * _DAY)
            # Python 3.13 and later ask for it.
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        return Issued(
            cert=made.public_bytes(serialization.Encoding.PEM).decode(),
            key=_key_pem(private, serialization.NoEncryption()),
            certificate=made,
            private=private,
        )

    def revoke(self, *revoked: Issued) -> str:
        """A revocation list (PEM) with these certificates."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - _DAY)
            .next_update(now + 10 * _DAY)
        )
        for partition in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(partition.certificate.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now - _DAY).build())
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM).decode()


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey, how: serialization.KeySerializationEncryption) -> str:
    made = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
    return made.decode()
