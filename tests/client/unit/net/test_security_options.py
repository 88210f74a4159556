"""The options of the way to a cluster: kafka-python's names, Java's, ours; and what does not go together."""

from __future__ import annotations

import inspect
import ssl
from pathlib import Path
from typing import Any

import kafka.consumer.group
import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from slackwater.kafka import Security, security_from_properties
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.net.security import jaas as security_jaas
from slackwater.kafka.net.security.options import KEYWORDS, from_keywords
from slackwater.kafka.net.security.settings import PLAIN_TEXT, TokenProvider

SECRET = "hunter2"
LOGIN = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
USER = {"sasl_plain_username": "u", "sasl_plain_password": SECRET}
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{PLAIN_MODULE} required username="u" password="{SECRET}";'
PEM = "-----BEGIN CERTIFICATE----- QUJD REVG -----END CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----QUJD-----END PRIVATE KEY-----"


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def token(self) -> str:
        return "t"


def test_every_option_of_kafka_python_that_is_about_security_is_known() -> None:
    theirs = set(kafka.consumer.group.KafkaConsumer.DEFAULT_CONFIG)
    about = {name for name in theirs if name.startswith(("sasl_", "ssl_", "security_"))}
    kerberos = {name for name in about if "kerberos" in name}
    assert about - kerberos <= set(KEYWORDS)
    ConsumerConfig.from_keywords(
        {name: kafka.consumer.group.KafkaConsumer.DEFAULT_CONFIG[name] for name in about}
    )


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, PLAIN_TEXT),
        ({"security_protocol": "ssl"}, Security(protocol="SSL")),
        (
            {**LOGIN, **USER, "ssl_cafile": "ca.pem"},
            Security(protocol="SASL_SSL", mechanism="PLAIN", username="u", password=SECRET, ca="ca.pem"),
        ),
        (
            {**LOGIN, "sasl_username_file": "/u", "sasl_password_file": "/p", "ssl_check_hostname": False},
            Security(
                protocol="SASL_SSL",
                mechanism="PLAIN",
                username_file="/u",
                password_file="/p",
                check_hostname=False,
            ),
        ),
        (
            {
                "security_protocol": "SSL",
                "ssl_certfile": "c",
                "ssl_keyfile": "k",
                "ssl_password": SECRET,
                "ssl_crlfile": "r",
                "ssl_ciphers": "HIGH",
            },
            Security(protocol="SSL", cert="c", key="k", key_password=SECRET, crl="r", ciphers="HIGH"),
        ),
        (
            {**LOGIN, "sasl_jaas_config": JAAS},
            Security(protocol="SASL_SSL", mechanism="PLAIN", username="u", password=SECRET),
        ),
        ({"security": Security(protocol="SSL"), "ssl_check_hostname": True}, Security(protocol="SSL")),
    ],
)
def test_keywords_make_a_security(options: dict[str, Any], wanted: Security) -> None:
    made, rest = from_keywords({**options, "client_id": "x", "sasl_kerberos_name": None})
    assert made == wanted
    assert rest == {"client_id": "x", "sasl_kerberos_name": None}


def test_a_token_provider_of_kafka_python_is_accepted() -> None:
    assert isinstance(Tokens(), TokenProvider)
    options = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    provider = Tokens()
    made, _ = from_keywords({**options, "sasl_oauth_token_provider": provider})
    assert made.token_provider is provider


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"security_protocol": "TLS"}, "security_protocol='TLS': write one of PLAINTEXT, SSL"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism is missing.*Kerberos is not supported"),
        ({**LOGIN, "sasl_mechanism": "GSSAPI"}, "sasl_mechanism='GSSAPI'.*Kerberos"),
        ({**LOGIN, "sasl_mechanism": "scram"}, "sasl_mechanism='scram'"),
        (LOGIN, "sasl_plain_username is missing: sasl_mechanism=PLAIN needs it"),
        ({**LOGIN, "sasl_plain_username": "u"}, "sasl_plain_password is missing"),
        ({**LOGIN, **USER, "sasl_password_file": "f"}, "sasl_plain_password and sasl_password_file are both"),
        ({**LOGIN, **USER, "sasl_plain_username": ""}, "sasl_plain_username is empty"),
        ({**LOGIN, **USER, "sasl_plain_password": 5}, "sasl_plain_password must be text, not int"),
        ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism cannot be used with security_protocol=PLAINTEXT"),
        (USER, "sasl_plain_username cannot be used"),
        ({**USER, "security_protocol": "SSL"}, "set security_protocol to SASL_SSL"),
        ({"ssl_cafile": "x"}, "ssl_cafile cannot be used with security_protocol=PLAINTEXT"),
        (
            {**LOGIN, **USER, "security_protocol": "SASL_PLAINTEXT", "ssl_cafile": "x"},
            "ssl_cafile cannot be used",
        ),
        ({"security_protocol": "SSL", "ssl_keyfile": "x"}, "ssl_keyfile is set without ssl_certfile"),
        ({"security_protocol": "SSL", "ssl_password": SECRET}, "ssl_password is set without ssl_certfile"),
        (
            {"security_protocol": "SSL", "ssl_check_hostname": "no"},
            "ssl_check_hostname must be True or False",
        ),
        (
            {"security_protocol": "SSL", "ssl_context": ssl.create_default_context(), "ssl_cafile": "x"},
            "ssl_context replaces ssl_cafile",
        ),
        ({**LOGIN, "sasl_mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs sasl_oauth_token_provider"),
        (
            {**LOGIN, "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": object()},
            "an object with a method token",
        ),
        ({**LOGIN, **USER, "sasl_mechanism": "OAUTHBEARER"}, "sasl_plain_username cannot be used with"),
        (
            {**LOGIN, **USER, "sasl_oauth_token_provider": Tokens()},
            "sasl_oauth_token_provider cannot be used",
        ),
        ({"security": Security(), "ssl_cafile": "x"}, "security and ssl_cafile are both set"),
        ({"security": Security(), "sasl_jaas_config": JAAS}, "security and sasl_jaas_config are both set"),
        ({"security": "SSL"}, "security must be a Security, not str"),
        ({"security_protocl": "SSL"}, "did you mean 'security_protocol'"),
        ({"sasl_kerberos_name": "kafka/x"}, "sasl_kerberos_name='kafka/x' is not supported"),
    ],
)
def test_conflicting_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says) as raised:
        ConsumerConfig.from_keywords(options)
    assert SECRET not in str(raised.value)


# -- Java's names ----------------------------------------------------------------------------------

TRUST = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}
TLS = {"security.protocol": "SSL", **TRUST}


@pytest.mark.parametrize(
    ("properties", "wanted"),
    [
        (TLS, Security(protocol="SSL", ca="/ca.pem")),
        (
            {
                **TLS,
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "/k.pem",
                "ssl.key.password": SECRET,
            },
            Security(protocol="SSL", ca="/ca.pem", cert="/k.pem", key_password=SECRET),
        ),
        (
            {**TLS, "ssl.endpoint.identification.algorithm": ""},
            Security(protocol="SSL", ca="/ca.pem", check_hostname=False),
        ),
        (
            {**TLS, "ssl.endpoint.identification.algorithm": "https", "ssl.protocol": "TLSv1.3"},
            Security(protocol="SSL", ca="/ca.pem"),
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": f"{SCRAM_MODULE} required username='u' password='{SECRET}';",
            },
            Security(protocol="SASL_SSL", mechanism="SCRAM-SHA-512", username="u", password=SECRET),
        ),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username.file": "/u",
                "sasl.password.file": "/p",
            },
            Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username_file="/u", password_file="/p"),
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": PEM,
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": PEM,
                "ssl.keystore.key": KEY,
                "ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
            },
            Security(
                protocol="SSL",
                ca="-----BEGIN CERTIFICATE-----\nQUJDREVG\n-----END CERTIFICATE-----\n",
                cert="-----BEGIN CERTIFICATE-----\nQUJDREVG\n-----END CERTIFICATE-----\n",
                key="-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----\n",
            ),
        ),
        ({"ssl.truststore.type": "PEM", "ssl.key.password": "", "ssl.protocol": ""}, PLAIN_TEXT),
    ],
)
def test_javas_properties_make_a_security(properties: dict[str, str], wanted: Security) -> None:
    assert ConsumerConfig.from_properties({**properties, "group.id": "g"}).security == wanted
    assert security_from_properties(properties) == wanted


def test_javas_names_and_keywords_together() -> None:
    made = ConsumerConfig.from_properties(
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, **USER
    ).security
    assert made == Security(protocol="SASL_SSL", mechanism="PLAIN", username="u", password=SECRET)


LOGIN_PROPERTIES = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"security.protocol": "SASL_SSL"}, r"sasl\.mechanism is missing: security\.protocol=SASL_SSL"),
        ({"sasl.mechanism": "PLAIN"}, r"sasl\.mechanism cannot be used with security\.protocol=PLAINTEXT"),
        (LOGIN_PROPERTIES, r"username in sasl\.jaas\.config is missing.*\(or sasl\.username\.file\)"),
        (
            {**LOGIN_PROPERTIES, "sasl.jaas.config": f'{SCRAM_MODULE} required username="u" password="p";'},
            r"login module of SCRAM-SHA-256 or SCRAM-SHA-512, but sasl\.mechanism is PLAIN",
        ),
        (
            {**LOGIN_PROPERTIES, "sasl.jaas.config": JAAS, "sasl.password.file": "/p"},
            r"sasl\.jaas\.config and sasl\.password\.file are both set",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/x.jks"}, "type is JKS.*keytool"),
        ({**TLS, "ssl.truststore.type": "PKCS12"}, "type is PKCS12.*openssl pkcs12"),
        ({**TLS, "ssl.truststore.password": SECRET}, r"ssl\.truststore\.password cannot be used with"),
        ({**TLS, "ssl.truststore.certificates": PEM}, r"location and ssl\.truststore\.certificates are both"),
        ({"security.protocol": "SSL", "ssl.truststore.certificates": PEM}, "Java rejects it, too"),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.certificates": "/ca"},
            "must contain the text, not a path",
        ),
        (
            {**TLS, "ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": PEM},
            r"certificate\.chain is set without ssl\.keystore\.key",
        ),
        (
            {**TLS, "ssl.keystore.type": "PEM", "ssl.keystore.key": KEY},
            r"ssl\.keystore\.key is set without ssl\.keystore\.certificate\.chain",
        ),
        (
            {**TLS, "ssl.keystore.type": "PEM", "ssl.keystore.location": "/k", "ssl.keystore.key": KEY},
            r"ssl\.keystore\.location and ssl\.keystore\.key are both set",
        ),
        (
            {
                **TLS,
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "/k",
                "ssl.keystore.password": SECRET,
            },
            r"a key's is ssl\.key\.password",
        ),
        ({**TLS, "ssl.endpoint.identification.algorithm": "ldap"}, "https checks the broker's name"),
        ({**TLS, "ssl.enabled.protocols": "TLSv1.1"}, "TLS 1.2 and 1.3 are used"),
        ({**TLS, "ssl.key.password": SECRET}, r"ssl\.key\.password is set without ssl\.keystore\.location"),
        ({"security.protcol": "SSL"}, r"unknown property 'security\.protcol'; did you mean 'security\.proto"),
        ({"sasl.login.class": "x"}, r"sasl\.login\.class=x is not supported"),
    ],
)
def test_invalid_java_properties_are_refused(properties: dict[str, str], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says) as raised:
        ConsumerConfig.from_properties(properties)
    assert SECRET not in str(raised.value)


def test_a_security_excludes_the_single_options() -> None:
    with pytest.raises(KafkaConfigurationError, match=r"session\.timeout\.ms is not a connection option"):
        security_from_properties({"session.timeout.ms": "1"})


# -- JAAS ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "username", "password"),
    [
        (JAAS, "u", SECRET),
        (f"{PLAIN_MODULE} required username=u password=p;", "u", "p"),
        (
            f'\n {SCRAM_MODULE}\n REQUIRED password="a \\"b\\" = ; \\\\"\n username = "x y" ; \n',
            "x y",
            'a "b" = ; \\',
        ),
        (f"{PLAIN_MODULE} required username='' password='it''s';", None, None),
        (f"{PLAIN_MODULE} required username='a\"b' password='';", 'a"b', ""),
    ],
)
def test_a_jaas_configuration_is_parsed(text: str, username: str | None, password: str | None) -> None:
    if username is None:
        with pytest.raises(KafkaConfigurationError, match="invalid format"):
            security_jaas.parse(text)
        return
    login = security_jaas.parse(text)
    assert isinstance(login, security_jaas.JaasLogin)
    assert (login.username, login.password) == (username, password)
    assert SECRET not in repr(login)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "invalid format"),
        (JAAS.removesuffix(";"), "invalid format"),
        (JAAS.replace("required", "perhaps"), "invalid format"),
        (JAAS.replace('="u"', ' "u"'), "invalid format"),
        (JAAS.replace(f'"{SECRET}"', f'"{SECRET}'), "quotation mark is not closed"),
        (JAAS + JAAS, "more than one login module"),
        (JAAS.replace("PlainLoginModule", "Krb5LoginModule"), "Krb5LoginModule is not supported"),
        (JAAS.replace('username="u" ', ""), "the option username is missing"),
        (JAAS.replace('username="u"', 'username="u" tokenauth="true"'), "option tokenauth is not supported"),
    ],
)
def test_an_invalid_jaas_configuration_is_refused(text: str, says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says) as raised:
        security_jaas.parse(text)
    assert SECRET not in str(raised.value)


# -- secrets ---------------------------------------------------------------------------------------


def test_no_secret_shows() -> None:
    made = Security(
        protocol="SASL_SSL",
        mechanism="PLAIN",
        username="u",
        password=SECRET,
        cert=f"-----BEGIN {SECRET}",
        key=f"-----BEGIN {SECRET}",
        key_password=SECRET,
    )
    assert SECRET not in repr(made)
    assert SECRET not in repr(ConsumerConfig(security=made))
    assert "username='u'" in repr(made)


def test_securities_with_equal_fields_are_equal() -> None:
    security = Security(protocol="SASL_SSL", mechanism="PLAIN", username="u", password="a")
    assert security == Security(protocol="SASL_SSL", mechanism="PLAIN", username="u", password="a")
    assert security != Security(protocol="SASL_SSL", mechanism="PLAIN", username="u", password="b")
    assert len({security, Security(protocol="SASL_SSL", mechanism="PLAIN", username="u", password="a")}) == 1
    assert Security(protocol="SSL", ca=Path("x")).tls


def test_every_field_of_security_is_documented() -> None:
    text = inspect.getdoc(Security) or ""
    missing = [name for name in inspect.signature(Security).parameters if f"``{name}" not in text]
    assert not missing
