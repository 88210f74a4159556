"""Azure's blob storage for tests: Azurite, Microsoft's emulator, as a process of its own.

Its npm packages are pinned in ``tools/azurite/package-lock.json`` and installed once into ``.cache/azurite``.
It checks signatures and conditions, and has no hierarchical namespace.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from pyarrow.fs import AzureFileSystem

from tests.support.kafka.jars import CACHE, ROOT, made_once
from tests.support.processes import ServerProcess, listens, reserve_ports
from tests.support.stores.gate import BUCKET
from tests.support.stores.objects import Objects

SOURCE = ROOT / "tools" / "azurite"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of Azurite's one account, as its documentation has it."""
_INSTALL_TIMEOUT_S = 900.0


class AzuriteUnavailable(RuntimeError):
    """Azurite cannot be had here; the message says what is missing and what to do."""


def installed() -> Path:
    """Azurite's program for blobs. Safe to call from many processes at once.

    Raises :class:`AzuriteUnavailable`.
    """
    key = hashlib.sha256((SOURCE / "package-lock.json").read_bytes()).hexdigest()[:12]
    folder = made_once(CACHE / "azurite" / key, _install)
    return folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def _install(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "azurite"
        made.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(SOURCE / name, made / name)
        done = subprocess.run(
            # No package's script is run.
            [
                _program("npm"), "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund",
                "--loglevel=error",
            ],
            cwd=made, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise AzuriteUnavailable(f"npm cannot install Azurite:\n{(done.stdout + done.stderr)[-3000:]}")
        made.rename(folder)


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise AzuriteUnavailable(f"{name} is not on the PATH; install Node.js 20 or later, with npm")
    return path


class AzureServer:
    """Azurite on a port of 127.0.0.1, until the block ends or the test process does."""

    scheme = "az"
    iceberg_scheme = "abfs"
    part_mark = "comp=block&"

    def __enter__(self) -> AzureServer:
        (self.port,) = reserve_ports(1)
        self._folder = tempfile.TemporaryDirectory()
        self._process = ServerProcess(
            "Azurite",
            [
                _program("node"), str(installed()), "--blobHost", "127.0.0.1", "--blobPort", str(self.port),
                "--inMemoryPersistence", "--silent", "--disableTelemetry",
                # A client may have a newer version of the API than Azurite.
                "--skipApiVersionCheck",
            ],
            cwd=Path(self._folder.name),
        )  # fmt: skip
        self._process.await_ready(lambda: listens(self.port))
        objects = Objects(f"{self.scheme}://{BUCKET}", self.options())
        self.keys, self.read, self.delete = objects.keys, objects.read, objects.delete
        self.file_system().create_dir(BUCKET)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._folder.cleanup()

    @contextlib.contextmanager
    def refusing_credentials(self) -> Iterator[dict[str, str]]:
        """Gives storage options with another key."""
        yield {"azure_storage_account_key": base64.b64encode(b"test-secret-key" * 4).decode()}

    def is_copy(self, method: str, path: str) -> bool:
        """Whether a request puts an object in its place that was staged: it is a write of its own."""
        return method == "PUT" and "comp=" not in path

    def file_system(self) -> AzureFileSystem:
        """pyarrow's own client, as a reader that knows nothing of Slackwater has it."""
        authority = f"127.0.0.1:{self.port}"
        return AzureFileSystem(
            ACCOUNT, account_key=KEY, blob_storage_authority=authority, dfs_storage_authority=authority,
            blob_storage_scheme="http", dfs_storage_scheme="http",
        )  # fmt: skip

    def options(self, url: str = "", **more: str) -> dict[str, str]:
        """Storage options for this server, or for a gate at ``url``."""
        return {
            "azure_storage_endpoint": f"{url or f'http://127.0.0.1:{self.port}'}/{ACCOUNT}",
            "azure_allow_http": "true",
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            **more,
        }

    def iceberg_properties(self) -> dict[str, str]:
        """Properties of pyiceberg for this server."""
        return {
            "adls.account-name": ACCOUNT,
            "adls.account-key": KEY,
            "adls.blob-storage-authority": f"127.0.0.1:{self.port}",
            "adls.dfs-storage-authority": f"127.0.0.1:{self.port}",
            "adls.blob-storage-scheme": "http",
            "adls.dfs-storage-scheme": "http",
        }
