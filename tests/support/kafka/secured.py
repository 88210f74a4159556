"""A real Kafka that wants TLS and logins, at listeners of every kind."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.support.kafka.certificates import Authority, Issued
from tests.support.kafka.cluster import KafkaCluster
from tests.support.waiting import HANG_S

USER, PASSWORD = "alice", "alice's secret; 100%"
REAUTH_MS = 3_000
"""How long a login counts at the listener REAUTH."""

LISTENERS = {
    "TLS": "SSL",
    "MTLS": "SSL",  # wants a client's certificate
    "ELSEWHERE": "SSL",  # its certificate is for another host
    "EXPIRED": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "REAUTH": "SASL_PLAINTEXT",
    "LOGIN_TLS": "SASL_SSL",
}
_MODULES = "org.apache.kafka.common.security"
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class SecuredKafka:
    """One broker with :data:`LISTENERS` besides the plain one; a context manager.

    :data:`USER` logs in with :data:`PASSWORD` by PLAIN and SCRAM; OAUTHBEARER takes any unsecured token.
    ``authority`` signed the broker's certificates, and is the one that it trusts for clients'. ``host``: the
    address that it listens on. ``names``: further ones that its certificates are for.
    """

    def __init__(
        self,
        config: dict[str, str] | None = None,
        *,
        brokers: int = 1,
        host: str = "127.0.0.1",
        names: tuple[str, ...] = ("localhost",),
    ) -> None:
        self.authority = Authority("the brokers' authority")
        self.folder = Path(tempfile.mkdtemp(prefix="slackwater-secured-"))
        self.ca_file = self.write("ca.pem", self.authority.pem)
        here = self.authority.issue("broker", *names, host)
        elsewhere = self.authority.issue("broker", "kafka.example")
        expired = self.authority.issue("broker", *names, host, expired=True)
        certificates = {"ELSEWHERE": elsewhere, "EXPIRED": expired}
        properties = dict(config or {})
        for listener, protocol in LISTENERS.items():
            prefix = f"listener.name.{listener.lower()}"
            if protocol.endswith("SSL"):
                properties.update(self._tls(listener, prefix, certificates.get(listener, here)))
            if protocol.startswith("SASL"):
                properties.update(_logins(prefix))
        properties["listener.name.mtls.ssl.client.auth"] = "required"
        for mechanism in ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer"):
            properties[f"listener.name.reauth.{mechanism}.connections.max.reauth.ms"] = str(REAUTH_MS)
        users = [
            f'--add-scram={mechanism}=[name={USER},password="{PASSWORD}",iterations=4096]'
            for mechanism in _SCRAM
        ]
        self.cluster = KafkaCluster(
            brokers, properties, listeners=LISTENERS, format_arguments=tuple(users), host=host
        )

    def _tls(self, listener: str, prefix: str, certificate: Issued) -> dict[str, str]:
        keys = self.write(f"{listener}.pem", certificate.both)
        return {
            f"{prefix}.ssl.keystore.type": "PEM",
            f"{prefix}.ssl.keystore.location": str(keys),
            f"{prefix}.ssl.truststore.type": "PEM",
            f"{prefix}.ssl.truststore.location": str(self.ca_file),
        }

    def write(self, name: str, text: str) -> Path:
        """A file in the broker's folder, replaced at once."""
        target = self.folder / name
        temporary = target.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(target)
        return target

    def at(self, listener: str) -> str:
        """``host:port`` of a listener."""
        return self.cluster.listener(listener)

    def set_password(self, user: str, password: str) -> None:
        """Stores a user's password for SCRAM-SHA-512, as an administrator does."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, info, password.encode())
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(HANG_S)

    def __enter__(self) -> Self:
        try:
            self.cluster.__enter__()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _logins(prefix: str) -> dict[str, str]:
    plain = f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    tokens = f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    return {
        f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{prefix}.plain.sasl.jaas.config": plain,
        **{
            f"{prefix}.{mechanism.lower()}.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;"
            for mechanism in _SCRAM
        },
        f"{prefix}.oauthbearer.sasl.jaas.config": tokens,
    }
