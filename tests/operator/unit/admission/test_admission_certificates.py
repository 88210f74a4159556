"""When the webhook's certificates are renewed, and that each renewal is trusted all the way through."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from cryptography import x509

from slackwater_operator.admission.certificates import (
    AUTHORITY_MS,
    CERTIFICATE_MS,
    RENEW_AUTHORITY_MS,
    RENEW_CERTIFICATE_MS,
    TRUSTED_FIRST_MS,
    Facts,
    Material,
    Renewal,
    facts_of,
    renewal_due,
    renewed,
)
from slackwater_operator.admission.server import tls_context

HOST = "sw-slackwater-webhook.slackwater.svc"
NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
NO_CHECK_TIME = ssl.VerifyFlags(0x200000)
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME."""


def made(now_ms: int = NOW_MS) -> Material:
    return renewed(None, Renewal.EVERYTHING, HOST, now_ms)


def look(material: Material | None, now_ms: int) -> tuple[Renewal, Material]:
    """One look of a replica."""
    due = renewal_due(facts_of(material, HOST), now_ms)
    return due, renewed(material, due, HOST, now_ms)


def facts(**changes: int | bool) -> Facts:
    values = {
        "authority_made_ms": NOW_MS,
        "authority_ends_ms": NOW_MS + AUTHORITY_MS,
        "certificate_ends_ms": NOW_MS + CERTIFICATE_MS,
        "signed_by_newest": True,
        **changes,
    }
    return Facts(**values)  # type: ignore[arg-type]


# --- the decision


def test_missing_material_requires_a_full_renewal() -> None:
    assert renewal_due(None, NOW_MS) is Renewal.EVERYTHING


def test_a_certificate_is_renewed_at_its_deadline_and_not_before() -> None:
    deadline_ms = NOW_MS + CERTIFICATE_MS - RENEW_CERTIFICATE_MS
    assert renewal_due(facts(), deadline_ms - 1) is Renewal.NOTHING
    assert renewal_due(facts(), deadline_ms) is Renewal.CERTIFICATE


def test_an_authority_is_renewed_at_its_deadline_and_not_before() -> None:
    deadline_ms = NOW_MS + AUTHORITY_MS - RENEW_AUTHORITY_MS
    fresh = facts(certificate_ends_ms=deadline_ms + CERTIFICATE_MS)
    assert renewal_due(fresh, deadline_ms - 1) is Renewal.NOTHING
    assert renewal_due(fresh, deadline_ms) is Renewal.AUTHORITY


def test_an_expired_authority_requires_a_full_renewal() -> None:
    assert renewal_due(facts(), NOW_MS + AUTHORITY_MS - 1) is Renewal.AUTHORITY
    assert renewal_due(facts(), NOW_MS + AUTHORITY_MS) is Renewal.EVERYTHING


def test_a_new_authority_signs_when_it_has_been_trusted_for_an_hour_and_not_before() -> None:
    waiting = facts(signed_by_newest=False)
    assert renewal_due(waiting, NOW_MS + TRUSTED_FIRST_MS - 1) is Renewal.NOTHING
    assert renewal_due(waiting, NOW_MS + TRUSTED_FIRST_MS) is Renewal.CERTIFICATE


def test_a_certificate_of_a_former_authority_that_ends_before_is_renewed_at_its_end() -> None:
    ending = facts(signed_by_newest=False, certificate_ends_ms=NOW_MS + 1_000)
    assert renewal_due(ending, NOW_MS + 999) is Renewal.NOTHING
    assert renewal_due(ending, NOW_MS + 1_000) is Renewal.CERTIFICATE


def test_an_authority_outlives_the_certificates_it_signs() -> None:
    assert RENEW_AUTHORITY_MS > CERTIFICATE_MS > RENEW_CERTIFICATE_MS > TRUSTED_FIRST_MS


# --- what is read from a Secret


def test_material_survives_the_secret() -> None:
    material = made()
    assert Material.from_secret(material.to_secret()) == material
    assert set(material.to_secret()) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}


@pytest.mark.parametrize("data", [{}, {"tls.crt": "YQ=="}, {**made().to_secret(), "ca.key": "%"}])
def test_a_secret_without_all_parts_is_no_material(data: dict[str, str]) -> None:
    assert Material.from_secret(data) is None


def test_fresh_material_needs_nothing() -> None:
    known = facts_of(made(), HOST)
    assert known == facts()
    assert renewal_due(known, NOW_MS) is Renewal.NOTHING


@pytest.mark.parametrize("part", ["authorities", "authority_key"])
@pytest.mark.parametrize("text", [b"", b"no PEM", None])
def test_a_broken_authority_is_replaced_with_everything(part: str, text: bytes | None) -> None:
    material, foreign = made(), made()
    values = {**vars(material), part: getattr(foreign, part) if text is None else text}
    assert facts_of(Material(**values), HOST) is None


@pytest.mark.parametrize("part", ["certificate", "key"])
@pytest.mark.parametrize("text", [b"", b"no PEM", None])
def test_a_broken_certificate_is_replaced_alone(part: str, text: bytes | None) -> None:
    material, foreign = made(), made()
    values = {**vars(material), part: getattr(foreign, part) if text is None else text}
    due, after = look(Material(**values), NOW_MS)
    assert due is Renewal.CERTIFICATE
    assert after.authorities == material.authorities
    trusted(after, material.authorities)


def test_a_certificate_of_another_name_is_replaced() -> None:
    assert renewal_due(facts_of(made(), "other.slackwater.svc"), NOW_MS) is Renewal.CERTIFICATE


# --- what is made


def trusted(material: Material, bundle: bytes) -> None:
    """A TLS handshake in memory that verifies what the API server does, but for times, which are virtual."""
    client_tls = ssl.create_default_context(cadata=bundle.decode())
    client_tls.verify_flags |= ssl.VERIFY_X509_STRICT | NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_tls.wrap_bio(to_client, to_server, server_hostname=HOST)
    server = tls_context(material).wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert client.getpeercert(binary_form=True)


def test_the_api_server_trusts_a_new_certificate() -> None:
    material = made()
    trusted(material, material.authorities)
    with pytest.raises(ssl.SSLCertVerificationError):
        trusted(made(), material.authorities)


def test_a_renewed_certificate_keeps_authority_and_trust() -> None:
    before = made()
    later_ms = NOW_MS + CERTIFICATE_MS - RENEW_CERTIFICATE_MS
    due, after = look(before, later_ms)
    assert due is Renewal.CERTIFICATE
    assert (after.authorities, after.authority_key) == (before.authorities, before.authority_key)
    assert after.certificate != before.certificate
    assert facts_of(after, HOST) == facts(certificate_ends_ms=later_ms + CERTIFICATE_MS)
    trusted(after, before.authorities)


@pytest.mark.long
def test_replicas_are_trusted_through_five_years_of_renewals() -> None:
    """The previous look's bundle trusts what is served now, and today's bundle what was served then."""
    served, bundles = [made()], []
    renewals: list[Renewal] = []
    for at_ms in range(NOW_MS, NOW_MS + 5 * 365 * DAY_MS, DAY_MS):
        due, material = look(served[-1], at_ms)
        known = facts_of(material, HOST)
        assert known is not None
        assert known.certificate_ends_ms > at_ms
        bundles.append(material.authorities)
        if due is not Renewal.NOTHING:
            renewals.append(due)
            for bundle in bundles[-2:]:
                trusted(served[-1], bundle)
                trusted(material, bundle)
        served = [served[-1], material]
        bundles = bundles[-2:]
    assert Renewal.EVERYTHING not in renewals
    assert renewals.count(Renewal.AUTHORITY) >= 5
    assert renewals.count(Renewal.CERTIFICATE) > 20
    assert len(x509.load_pem_x509_certificates(bundles[-1])) <= 2


def test_an_operator_that_was_away_for_months_renews_at_once() -> None:
    away_ms = NOW_MS + CERTIFICATE_MS + DAY_MS
    due, after = look(made(), away_ms)
    assert due is Renewal.CERTIFICATE
    assert look(after, away_ms)[0] is Renewal.NOTHING
    due, after = look(made(), NOW_MS + AUTHORITY_MS - DAY_MS)
    assert due is Renewal.AUTHORITY
    assert look(after, NOW_MS + AUTHORITY_MS - DAY_MS)[0] is Renewal.NOTHING


def test_no_certificate_outlives_its_authority() -> None:
    _, after = look(made(), NOW_MS + AUTHORITY_MS - DAY_MS)
    known = facts_of(after, HOST)
    assert known is not None
    assert known.certificate_ends_ms == NOW_MS + AUTHORITY_MS
    assert not known.signed_by_newest
