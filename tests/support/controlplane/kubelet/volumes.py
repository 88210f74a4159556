"""A pod's volumes as folders, their files renewed when the source changes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from tests.support.controlplane.api import ApiError, Json
from tests.support.controlplane.kubelet.environment import MissingReference, contents, field_of, resource_of

Fetch = Callable[[str, str], Awaitable[Json | None]]
"""(``configmaps`` or ``secrets``, name) -> the object in the pod's namespace."""
IssueToken = Callable[[Json], Awaitable[str]]
"""A ``serviceAccountToken`` source -> a token that is bound to the pod."""

Files = dict[str, tuple[bytes, int]]
"""Path in the volume -> content and mode."""

TOKEN_RENEWED_AT = 0.8
DEFAULT_MODE = 0o644
_serial = itertools.count()


class UnsupportedVolume(Exception):
    """A kind of volume that this kubelet cannot make."""


class Volumes:
    """The volumes of one pod under ``folder``."""

    def __init__(self, folder: Path, pod: Json, fetch: Fetch, issue_token: IssueToken) -> None:
        self._folder = folder
        self._pod = pod
        self._fetch = fetch
        self._issue_token = issue_token
        self._written: dict[str, Files] = {}
        self._specs: dict[str, Json] = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}

    async def make(self) -> None:
        """Makes what is not there yet. Raises :class:`MissingReference`, :class:`UnsupportedVolume`."""
        await asyncio.gather(*(self._make_one(name) for name in self._specs))

    async def changed(self, kind: str, name: str) -> None:
        """Writes the volumes anew that have something of this ConfigMap or Secret."""
        for volume, spec in self._specs.items():
            if (kind, name) in set(_references(spec)):
                with contextlib.suppress(MissingReference):  # as the kubelet: what is gone stays as it was
                    await self._write(volume)

    async def pod_changed(self, pod: Json) -> None:
        """Writes the volumes anew that show the pod's labels and annotations."""
        self._pod = pod
        for volume, spec in self._specs.items():
            if any("downwardAPI" in source for source in _sources(spec)) and volume in self._written:
                await self._write(volume)

    async def renew_tokens(self) -> None:
        """Renews the tokens of projected volumes before they expire; runs until cancelled."""
        lives = {
            volume: source["serviceAccountToken"].get("expirationSeconds", 3600)
            for volume, spec in self._specs.items()
            for source in _sources(spec)
            if "serviceAccountToken" in source
        }
        while lives:
            await asyncio.sleep(TOKEN_RENEWED_AT * min(lives.values()))
            for volume in lives:
                with contextlib.suppress(ApiError):  # its ServiceAccount is gone
                    await self._write(volume)

    def path(self, mount: Json) -> Path:
        """The file or folder of the host that a ``volumeMount`` shows."""
        spec = self._specs[mount["name"]]
        base = Path(spec["hostPath"]["path"]) if "hostPath" in spec else self._folder / mount["name"]
        inside = mount.get("subPath", "")
        if not inside:
            return base
        if "emptyDir" in spec and not (base / inside).exists():
            (base / inside).mkdir(parents=True)
        return Path(base / inside).resolve()

    def remove(self) -> None:
        """Removes all of it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _make_one(self, name: str) -> None:
        spec = self._specs[name]
        if "hostPath" in spec:
            return
        (self._folder / name).mkdir(parents=True, exist_ok=True)
        if "emptyDir" in spec:
            (self._folder / name).chmod(0o777)
        elif name not in self._written:
            await self._write(name)

    async def _write(self, name: str) -> None:
        spec = self._specs[name]
        files: Files = {}
        for source in _sources(spec):
            files.update(await self._files_of(source, _mode_of(spec)))
        if self._written.get(name) != files:
            write_atomically(self._folder / name, files)
            self._written[name] = files

    async def _files_of(self, source: Json, mode: int) -> Files:
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            return {wanted["path"]: ((await self._issue_token(wanted)).encode(), mode)}
        if "downwardAPI" in source:
            return self._downward(source["downwardAPI"], mode)
        for field, kind in (("configMap", "configmaps"), ("secret", "secrets")):
            if field in source:
                reference = source[field]
                name = reference.get("name") or reference.get("secretName", "")
                data = contents(kind, reference, {(kind, name): await self._fetch(kind, name)})
                return _chosen(data, reference, mode, f"{kind} {name}")
        raise UnsupportedVolume(f"this kubelet has no volumes of the kind {', '.join(sorted(source))}")

    def _downward(self, source: Json, mode: int) -> Files:
        files: Files = {}
        for item in source.get("items", []):
            if "fieldRef" in item:
                value = field_of(self._pod, item["fieldRef"]["fieldPath"])
            else:
                reference = item["resourceFieldRef"]
                value = resource_of(_container(self._pod, reference["containerName"]), reference)
            files[item["path"]] = (value.encode(), item.get("mode", mode))
        return files


def _container(pod: Json, name: str) -> Json:
    container: Json = next(container for container in pod["spec"]["containers"] if container["name"] == name)
    return container


def _sources(spec: Json) -> list[Json]:
    """The sources of a volume: those of a projected one, else itself."""
    if "projected" in spec:
        return list(spec["projected"].get("sources", []))
    source = {key: value for key, value in spec.items() if key != "name"}
    return [] if set(source) & {"emptyDir", "hostPath"} else [source]


def _mode_of(spec: Json) -> int:
    kind = next(key for key in spec if key != "name")
    return int(spec[kind].get("defaultMode", DEFAULT_MODE))


def _references(spec: Json) -> Iterable[tuple[str, str]]:
    for source in _sources(spec):
        if "configMap" in source:
            yield ("configmaps", source["configMap"]["name"])
        if "secret" in source:
            yield ("secrets", source["secret"].get("name") or source["secret"].get("secretName", ""))


def _chosen(data: Mapping[str, bytes], reference: Json, mode: int, what: str) -> Files:
    if "items" not in reference:
        return {key: (value, mode) for key, value in data.items()}
    files: Files = {}
    for item in reference["items"]:
        if item["key"] in data:
            files[item["path"]] = (data[item["key"]], item.get("mode", mode))
        elif not reference.get("optional"):
            raise MissingReference(f"{what} references non-existent key {item['key']}")
    return files


def write_atomically(folder: Path, files: Files) -> None:
    """All files change in one step, as the kubelet's: ``NAME -> ..data/NAME``, ``..data -> ..SERIAL``."""
    old = folder / "..data"
    before = old.resolve() if old.is_symlink() else None
    new = folder / f"..{os.getpid()}-{next(_serial)}"
    new.mkdir()
    for name, (content, mode) in files.items():
        target = new / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
    pointer = folder / "..data_new"
    pointer.symlink_to(new.name)
    pointer.replace(old)
    tops = {PurePosixPath(name).parts[0] for name in files}
    for path in folder.iterdir():
        if not path.name.startswith("..") and path.name not in tops:
            path.unlink()
    for top in tops:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(f"..data/{top}")
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)
