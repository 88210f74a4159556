"""The webhook's certificates: when they are renewed, and how. No clock and no I/O.

The certificate that the replicas serve must fit the authorities that the API server trusts (`caBundle`).
A new authority is trusted for an hour before it signs what is served, and a former one stays trusted until
it ends. So a renewal never makes the API server distrust a replica that serves the previous certificate.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS

CERTIFICATE_MS = 90 * _DAY_MS
"""How long a served certificate is valid."""
RENEW_CERTIFICATE_MS = 30 * _DAY_MS
"""How long before its end it is renewed."""
AUTHORITY_MS = 365 * _DAY_MS
"""How long an authority is valid."""
RENEW_AUTHORITY_MS = 120 * _DAY_MS
"""How long before its end an authority gets its successor: longer than a certificate is valid."""
TRUSTED_FIRST_MS = _HOUR_MS
"""How long a new authority is in the `caBundle` before it signs what is served. API servers and replicas take
over what changed within seconds."""
BACKDATED_MS = _HOUR_MS
"""A certificate is valid from this long before it was made: clocks of nodes differ."""


class Renewal(Enum):
    """What has to be made anew."""

    NOTHING = "nothing"
    CERTIFICATE = "the certificate"
    AUTHORITY = "the authority"
    EVERYTHING = "authority and certificate"


@dataclass(frozen=True)
class Material:
    """The Secret's content, as PEM.

    Attributes:
        authorities: certificates of the authorities that are trusted (`ca.crt`), the newest first.
        authority_key: the key of the newest one (`ca.key`).
        certificate: what is served (`tls.crt`).
        key: its key (`tls.key`).
    """

    authorities: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def from_secret(cls, data: Mapping[str, str]) -> Self | None:
        """From a Secret's `data`; None where a part is missing or not base64."""
        try:
            parts = [base64.b64decode(data[name], validate=True) for name in _KEYS]
        except (KeyError, TypeError, binascii.Error):
            return None
        return cls(*parts)

    def to_secret(self) -> dict[str, str]:
        """As a Secret's `data`."""
        parts = (self.authorities, self.authority_key, self.certificate, self.key)
        return {name: base64.b64encode(part).decode() for name, part in zip(_KEYS, parts, strict=True)}


_KEYS = ("ca.crt", "ca.key", "tls.crt", "tls.key")


@dataclass(frozen=True)
class Facts:
    """What decides about a renewal; times in ms since 1970.

    Attributes:
        authority_made_ms: when the newest authority was made.
        authority_ends_ms: when it ends.
        certificate_ends_ms: when the served certificate ends; 0: there is none that can be served.
        signed_by_newest: whether the newest authority signed it, not a former one.
    """

    authority_made_ms: int
    authority_ends_ms: int
    certificate_ends_ms: int
    signed_by_newest: bool


def renewal_due(facts: Facts | None, now_ms: int) -> Renewal:
    """What has to be made anew now.

    Args:
        facts: from `facts_of`; None: there is no authority that can be used.
        now_ms: wall clock.
    """
    if facts is None or now_ms >= facts.authority_ends_ms:
        return Renewal.EVERYTHING
    if now_ms >= facts.authority_ends_ms - RENEW_AUTHORITY_MS:
        return Renewal.AUTHORITY
    if facts.signed_by_newest:
        due_ms = facts.certificate_ends_ms - RENEW_CERTIFICATE_MS
    else:
        due_ms = min(facts.authority_made_ms + TRUSTED_FIRST_MS, facts.certificate_ends_ms)
    return Renewal.CERTIFICATE if now_ms >= due_ms else Renewal.NOTHING


def facts_of(material: Material | None, host: str) -> Facts | None:
    """The facts about a Secret's content; None where its authority cannot be used.

    Args:
        material: the content; None: there is none.
        host: the name that the API server calls, which the certificate must have.
    """
    if material is None:
        return None
    try:
        authorities = x509.load_pem_x509_certificates(material.authorities)
        authority_key = _load_key(material.authority_key)
    except (ValueError, TypeError):
        return None
    newest = authorities[0]
    if authority_key.public_key() != newest.public_key():
        return None
    ends_ms, issuer = _served(material, authorities, host)
    return Facts(
        authority_made_ms=_ms(newest.not_valid_before_utc) + BACKDATED_MS,
        authority_ends_ms=_ms(newest.not_valid_after_utc),
        certificate_ends_ms=ends_ms,
        signed_by_newest=issuer is None or issuer == newest,
    )


def renewed(material: Material | None, renewal: Renewal, host: str, now_ms: int) -> Material:
    """The content with what has to be made anew.

    Args:
        material: the content so far.
        renewal: from `renewal_due`.
        host: the name that the API server calls.
        now_ms: wall clock.
    """
    if renewal is Renewal.NOTHING and material is not None:
        return material
    if renewal is Renewal.EVERYTHING or material is None:
        authority, authority_key = _new_authority(now_ms)
        return _issued([authority], authority_key, host, now_ms)
    authorities = x509.load_pem_x509_certificates(material.authorities)
    valid = [authorities[0], *(ca for ca in authorities[1:] if _ms(ca.not_valid_after_utc) > now_ms)]
    issued = _issued(valid, _load_key(material.authority_key), host, now_ms)
    if renewal is Renewal.CERTIFICATE:
        return issued
    authority, authority_key = _new_authority(now_ms)
    return Material(
        _pem(authority) + issued.authorities, _key_pem(authority_key), issued.certificate, issued.key
    )


def _served(
    material: Material, authorities: Sequence[x509.Certificate], host: str
) -> tuple[int, x509.Certificate | None]:
    """When the served certificate ends, and which authority signed it; (0, None): it cannot be served."""
    try:
        certificate = x509.load_pem_x509_certificate(material.certificate)
        if _load_key(material.key).public_key() != certificate.public_key():
            return 0, None
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return 0, None
    issuer = next((ca for ca in authorities if _signed(certificate, ca)), None)
    if issuer is None or host not in names.get_values_for_type(x509.DNSName):
        return 0, None
    return _ms(certificate.not_valid_after_utc), issuer


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _new_authority(now_ms: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"slackwater admission webhook authority {_time(now_ms):%Y-%m-%d}")
    builder = (
        _builder(key, name, now_ms, now_ms + AUTHORITY_MS)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return builder.sign(key, hashes.SHA256()), key


def _issued(
    authorities: Sequence[x509.Certificate],
    authority_key: ec.EllipticCurvePrivateKey,
    host: str,
    now_ms: int,
) -> Material:
    """A new certificate by the first of the authorities, which it does not outlive."""
    authority = authorities[0]
    key = ec.generate_private_key(ec.SECP256R1())
    ends_ms = min(now_ms + CERTIFICATE_MS, _ms(authority.not_valid_after_utc))
    signer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        # Not the host's name: a common name has at most 64 characters.
        _builder(key, _name("slackwater admission webhook"), now_ms, ends_ms)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False)
    )
    certificate = builder.sign(authority_key, hashes.SHA256())
    return Material(
        authorities=b"".join(map(_pem, authorities)),
        authority_key=_key_pem(authority_key),
        certificate=_pem(certificate),
        key=_key_pem(key),
    )


def _builder(
    key: ec.EllipticCurvePrivateKey, name: x509.Name, now_ms: int, ends_ms: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_time(now_ms - BACKDATED_MS))
        .not_valid_after(_time(ends_ms))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic curve key")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC)


def _ms(at: datetime) -> int:
    return int(at.timestamp()) * 1000
