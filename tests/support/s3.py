"""An S3 server for tests: moto as a process of its own, with conditional puts, and a gate in front of it.

moto is installed once into ``.cache/moto`` from ``requirements/moto.txt``: its botocore and the packages of
``requirements/dev.txt`` need different versions of python-dateutil.
"""

from __future__ import annotations

import hashlib
import http.client
import http.server
import subprocess
import tempfile
import threading
import urllib.request
import venv
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.support.kafka.jars import CACHE, ROOT, made_once
from tests.support.processes import OwnedProcess, reserve_ports
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

BUCKET = "lake"
"""The bucket of the tests of sinks."""
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
        venv.create(made, with_pip=True)
        done = subprocess.run(
            [made / "bin" / "pip", "install", "--quiet", "--require-hashes", "-r", LOCK],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise MotoUnavailable(f"moto cannot be installed from {LOCK}:\n{done.stderr[-3000:]}")
        made.rename(folder)


class S3Server:
    """moto's server on a port of ``host``, until the block ends or the test process does."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host

    def __enter__(self) -> S3Server:
        (self.port,) = reserve_ports(1)
        self.url = f"http://{self.host}:{self.port}"
        self._output = tempfile.TemporaryFile()
        self._process = OwnedProcess(
            [str(installed()), "-m", "moto.server", "-H", self.host, "-p", str(self.port)],
            output=self._output.fileno(),
        )
        wait_until(self._answers, "moto answers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._output.close()

    def _answers(self) -> bool:
        if not self._process.running():
            self._output.seek(0)
            raise AssertionError(f"moto has ended: {self._output.read().decode()[-3000:]}")
        try:
            self.request("GET", "/")
        except OSError:
            return False
        return True

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The answer to a request. Raises OSError, also where it is an error."""
        request = urllib.request.Request(f"{self.url}{path}", body, _HEADERS, method=method)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())

    def make_bucket(self, name: str) -> None:
        """Makes a bucket."""
        self.request("PUT", f"/{name}")

    def check_credentials(self, check: bool) -> None:
        """Whether requests need credentials of an account that is there; none is."""
        self.request("POST", "/moto-api/reset-auth", b"0" if check else b"inf")

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """The keys of all objects that begin with ``prefix``."""
        keys: list[str] = []
        while True:
            after = f"&start-after={quote(keys[-1], safe='')}" if keys else ""
            listed = ET.fromstring(
                self.request("GET", f"/{bucket}?list-type=2&prefix={quote(prefix)}{after}")
            )
            keys += [element.text or "" for element in listed.iter(f"{_XML}Key")]
            if listed.findtext(f"{_XML}IsTruncated") != "true":
                return keys

    def download(self, bucket: str, prefix: str, folder: Path) -> Path:
        """Copies all objects whose keys begin with ``prefix/`` into ``folder``."""
        for key in self.keys(bucket, f"{prefix}/"):
            target = folder / key.removeprefix(f"{prefix}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self.request("GET", f"/{bucket}/{quote(key)}"))
        return folder

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


class S3Gate:
    """A proxy in front of an S3 server that calls ``passing(number, method, path)`` for each request, in a
    thread of its own, before it goes on.

    ``passing`` returns ``PASS``; ``REFUSE``: the server does not get the request; or ``LOSE``: it does, and
    its answer is lost. In both cases the client's connection ends.
    """

    PASS, REFUSE, LOSE = "pass", "refuse", "lose"

    def __init__(self, server: S3Server, passing: Callable[[int, str, str], str]) -> None:
        self._server, self._passing = server, passing
        self._lock = threading.Lock()
        self.count = 0

    def __enter__(self) -> S3Gate:
        gate = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

            def __getattr__(self, name: str) -> Callable[[], None]:
                if not name.startswith("do_"):
                    raise AttributeError(name)
                return lambda: gate._forward(self)

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _forward(self, client: http.server.BaseHTTPRequestHandler) -> None:
        body = client.rfile.read(int(client.headers.get("Content-Length") or 0))
        with self._lock:
            # Within the lock: while one request is held up, the client's others are, too.
            self.count += 1
            action = self._passing(self.count, client.command, client.path)
        if action == self.REFUSE:
            client.close_connection = True
            return
        server = http.client.HTTPConnection("127.0.0.1", self._server.port)
        try:
            server.request(client.command, client.path, body, dict(client.headers))
            answer = server.getresponse()
            content = answer.read()
        finally:
            server.close()
        if action == self.LOSE:
            client.close_connection = True
            return
        client.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                client.send_header(name, value)
        length = answer.headers["Content-Length"] if client.command == "HEAD" else str(len(content))
        client.send_header("Content-Length", length or "0")
        client.end_headers()
        client.wfile.write(content)
