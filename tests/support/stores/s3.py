"""An S3 server for tests: moto as a process of its own, with conditional puts.

moto is installed once into ``.cache/moto`` from ``requirements/moto.txt``: its botocore and the packages of
``requirements/dev.txt`` need different versions of python-dateutil.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.support.kafka.jars import CACHE, ROOT, made_once
from tests.support.processes import ServerProcess, reserve_ports
from tests.support.stores.gate import BUCKET

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

LOCK = ROOT / "requirements" / "moto.txt"
_HEADERS = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=test-key-id/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0",
    "Content-Type": "text/plain",
}
"""moto reads who it is, and checks the signature only if it checks credentials."""
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class MotoUnavailable(RuntimeError):
    """moto cannot be installed here; the message says why."""


def installed() -> Path:
    """The Python that has moto. Safe to call from many processes at once. Raises :class:`MotoUnavailable`."""
    key = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    return made_once(CACHE / "moto" / key, _install) / "bin" / "python"


def _install(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "venv"
        done = subprocess.run(
            [ROOT / "setup.sh", "tools", made, LOCK],
            env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise MotoUnavailable(f"moto cannot be installed from {LOCK}:\n{done.stderr[-3000:]}")
        made.rename(folder)


class S3Server:
    """moto's server on a port of ``host``, until the block ends or the test process does.

    It has the bucket ``BUCKET``, and so have the servers of the other stores, which have the same methods.
    """

    scheme = "s3"
    iceberg_scheme = "s3"
    part_mark = "partNumber="
    """What a request has that sends a part of an object."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host

    def __enter__(self) -> S3Server:
        (self.port,) = reserve_ports(1)
        self.url = f"http://{self.host}:{self.port}"
        self._process = ServerProcess(
            "moto", [str(installed()), "-m", "moto.server", "-H", self.host, "-p", str(self.port)]
        )
        self._process.await_ready(lambda: self.request("GET", "/"))
        self.request("PUT", f"/{BUCKET}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The answer to a request. Raises OSError, also where it is an error."""
        request = urllib.request.Request(f"{self.url}{path}", body, _HEADERS, method=method)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())

    @contextlib.contextmanager
    def refusing_credentials(self) -> Iterator[dict[str, str]]:
        """Within the block no credentials are accepted. Gives storage options with those to use."""
        # Requests need credentials of an account that is there, and none is.
        self.request("POST", "/moto-api/reset-auth", b"0")
        try:
            yield {}
        finally:
            self.request("POST", "/moto-api/reset-auth", b"inf")

    def is_copy(self, method: str, path: str) -> bool:
        """Whether a request puts an object in its place that was staged."""
        return method == "POST" and "uploadId=" in path

    def keys(self, prefix: str = "") -> list[str]:
        """The keys of all objects that begin with ``prefix``."""
        keys: list[str] = []
        while True:
            after = f"&start-after={quote(keys[-1], safe='')}" if keys else ""
            listed = ET.fromstring(
                self.request("GET", f"/{BUCKET}?list-type=2&prefix={quote(prefix)}{after}")
            )
            keys += [element.text or "" for element in listed.iter(f"{_XML}Key")]
            if listed.findtext(f"{_XML}IsTruncated") != "true":
                return keys

    def read(self, key: str) -> bytes:
        """The content of an object."""
        return self.request("GET", f"/{BUCKET}/{quote(key)}")

    def delete(self, key: str) -> None:
        """Deletes an object."""
        self.request("DELETE", f"/{BUCKET}/{quote(key)}")

    def file_system(self) -> S3FileSystem:
        """pyarrow's own client, as a reader that knows nothing of Slackwater has it."""
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key="test-key-id", secret_key="test-secret-key", region="us-east-1",
            endpoint_override=f"{self.host}:{self.port}", scheme="http",
        )  # fmt: skip

    def options(self, url: str = "", **more: str) -> dict[str, str]:
        """Storage options of deltalake for this server, or for a gate at ``url``."""
        return {
            "aws_endpoint_url": url or self.url,
            "aws_allow_http": "true",
            "aws_access_key_id": "test-key-id",
            "aws_secret_access_key": "test-secret-key",
            "aws_region": "us-east-1",
            **more,
        }

    def iceberg_properties(self) -> dict[str, str]:
        """Properties of pyiceberg for this server."""
        return {
            "s3.endpoint": self.url,
            "s3.access-key-id": "test-key-id",
            "s3.secret-access-key": "test-secret-key",
            "s3.region": "us-east-1",
        }
