"""The images that the node runs: built by buildah from ``images/``, kept as OCI archives in ``.cache/node``.

No registry is asked: the base image is made of Debian's packages of Python 3.11, by mmdebstrap, in place of
``python:3.11-slim-bookworm``. An image is built again when what goes into it has changed; buildah keeps the
layers that have not.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.support.controlplane.build import CACHE, ROOT, alone, crane
from tests.support.docs.blocks import blocks
from tests.support.node.debian import NodeUnavailable
from tests.support.node.host import unmount
from tests.support.operator import containerfile

FOLDER = CACHE / "node"
ARCHIVES = FOLDER / "images"
VERSION = "0.1.0"
REGISTRY = "registry.example"
"""The registry's name in README and examples."""
PAUSE = "registry.local/pause:1"
OPERATOR = f"docker.io/slackwater/operator:{VERSION}"
WORKER = f"docker.io/slackwater/worker:{VERSION}"

RELEASED = ROOT / "tests" / "e2e" / "chart" / "released"
"""The chart of the release before."""
S3_URL = "http://s3.data.svc.cluster.local"
"""Where the node's S3 is, for pods."""

_UNRELEASED = {"0.0.1": "924a464"}
"""The commits of charts that have no tag."""
_BASE_PACKAGES = ("ca-certificates", "netbase", "python3.11", "python3.11-venv", "python3-pip", "tzdata")
_BASE_HEADERS = ("libpython3.11-dev",)
"""python:3.11 has Python's headers, and the build of the record parser needs them."""
_BASE_HASH = hashlib.sha256(repr((*_BASE_PACKAGES, *_BASE_HEADERS)).encode()).hexdigest()[:12]
_BASE = FOLDER / f"base-{_BASE_HASH}"
_RUN = Path("/run/slackwater-buildah")
_TIMEOUT_S = 3600.0
_DIGITS = 12
"""Of the hash in an archive's name."""
_BUILD = (
    "--isolation=oci", "--runtime=runc", "--network=host", "--layers", "--pull-never", "--format=oci",
)  # fmt: skip
# What lets pip and apt reach their indexes from here. Mounted for the build alone: it stays out of the image.
_HOST_FILES = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Build:
    """How an image is made: its name, the Containerfile's text, the folder it copies from.

    ``sources``: what of ``context`` goes into it, below it. ``arguments``: of the build. ``after``: the image
    it begins with, where that is one of these.
    """

    name: str
    text: str
    context: Path
    sources: tuple[str, ...] = ()
    target: str = ""
    after: Build | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def archive(self) -> Path:
        """Where the image is kept, named by what decides its content."""
        slug = self.name.rpartition("/")[2].replace(":", "-")
        return ARCHIVES / f"{slug}-{self._digest()}.tar"

    def _digest(self) -> str:
        said = hashlib.sha256(repr((self.name, self.text, self.target, dict(self.arguments))).encode())
        if self.after is not None:
            said.update(self.after._digest().encode())
        for path in self.files():
            said.update(str(path.relative_to(self.context)).encode() + b"\0" + path.read_bytes())
        return said.hexdigest()[:_DIGITS]

    def files(self) -> list[Path]:
        """What the build copies, in a fixed order: what .dockerignore leaves of ``sources``."""
        ignore = self.context / ".dockerignore"
        rules = ignore.read_text(encoding="utf-8") if ignore.exists() else "**/__pycache__"
        places = [self.context / source for source in self.sources]
        files = (path for place in places for path in (place, *place.rglob("*")))
        return sorted(
            path
            for path in files
            if path.is_file()
            and not containerfile.ignored(rules, PurePosixPath(path.relative_to(self.context)))
        )


def own(name: str, base: Build, *folders: str, environment: Mapping[str, str] | None = None) -> Build:
    """A user's image, as docs/install.md says: the worker's with ``folders`` of examples/ in /app.

    ``environment``: variables of all its containers. Its label makes images of two names two images.
    """
    copied = "".join(f"COPY {folder} /app/{folder}\n" for folder in folders)
    variables = "".join(f"ENV {name}={value}\n" for name, value in (environment or {}).items())
    text = f"FROM {base.name}\n{copied}{variables}LABEL build={name}\n"
    return Build(name, text, ROOT / "examples", folders, after=base)


def product(root: Path = ROOT, version: str = VERSION) -> dict[str, Build]:
    """``operator``, ``worker``, ``worker-delta`` and ``worker-spark`` of the checkout at ``root``."""
    base = _base()
    folder = root / "images"
    operator, worker = (
        (folder / f"{part}.Containerfile").read_text(encoding="utf-8") for part in ("operator", "worker")
    )
    arguments = {"PYTHON": base.name}
    copied = ("LICENSE", "images", "requirements", "worker")

    def build(name: str, text: str, sources: Sequence[str], target: str = "") -> Build:
        return Build(f"docker.io/slackwater/{name}", text, root, tuple(sources), target, base, arguments)

    return {
        "operator": build(f"operator:{version}", operator, (*copied, "operator")),
        "worker": build(f"worker:{version}", worker, copied),
        "worker-delta": build(f"worker:{version}-delta", worker, copied, "delta"),
        "worker-spark": build(f"worker:{version}-spark", worker, copied, "spark"),
    }


def pause() -> Build:
    """The image of the container that holds a pod's namespaces."""
    source = Path(__file__).with_name("pause.c")
    folder = FOLDER / "pause"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, folder / "pause.c")
    if not (folder / "pause").exists() or (folder / "pause").stat().st_mtime < source.stat().st_mtime:
        _run(["gcc", "-Os", "-static", "-s", "-o", str(folder / "pause"), str(folder / "pause.c")])
    text = 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n'
    return Build(PAUSE, text, folder, (".",))


def _base() -> Build:
    name = f"localhost/python:{_BASE_HASH}"
    text = (
        "FROM scratch\nADD base.tar /\n"
        "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8\n"
        'CMD ["python3"]\n'
    )
    return Build(name, text, _BASE)


def users(tag: str) -> Build:
    """The image of examples/orders under the name that the examples have."""
    return own(f"{REGISTRY}/orders:{tag}", product()["worker"], "orders")


def spark_users() -> Build:
    """The image of the tutorial on the Spark worker, with the handler of examples/enrichment besides."""
    base = product()["worker-spark"]
    (block,) = [block for block in blocks("dockerfile") if block.title == "flights.Containerfile"]
    text = block.text.replace(f"{REGISTRY}/slackwater/worker:{VERSION}-spark", base.name)
    name, folders = f"{REGISTRY}/flights:1.0", ("flights", "enrichment")
    text += "COPY enrichment /app/enrichment\n"
    return Build(name, text, ROOT / "examples", folders, after=base)


def delta_users() -> Build:
    """The image of examples/flights for sinks that need no Spark; its S3 is :data:`S3_URL`."""
    place = {"AWS_ENDPOINT_URL": S3_URL, "AWS_ALLOW_HTTP": "true"}
    keys = {"AWS_ACCESS_KEY_ID": "test-key-id", "AWS_SECRET_ACCESS_KEY": "test-secret-key"}
    return own(f"{REGISTRY}/flights:1.5", product()["worker-delta"], "flights", environment={**place, **keys})


def previous() -> tuple[Build, Build]:
    """Operator and image of examples/orders of the release before, whose chart is in :data:`RELEASED`: built
    from its commit. Raises :class:`NodeUnavailable` where this clone does not have it.
    """
    (package,) = RELEASED.glob("*.tgz")
    version = package.stem.rpartition("-")[2]
    source = FOLDER / f"source-{version}"
    with alone(FOLDER):
        if not source.exists():
            with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
                archive, unpacked = Path(scratch) / "source.tar", Path(scratch) / "source"
                commit = _UNRELEASED.get(version, f"v{version}")
                _run(["git", "-C", str(ROOT), "archive", f"--output={archive}", commit])
                unpacked.mkdir()
                _run(["tar", "-xf", str(archive), "-C", str(unpacked)])
                unpacked.rename(source)
    parts = product(source, version)
    return parts["operator"], own(f"{REGISTRY}/orders:{version}", parts["worker"], "orders")


def all_images() -> list[Build]:
    """What the tests of the node run."""
    parts = product()
    groups = [users("1.0"), users("1.1"), delta_users(), spark_users()]
    return [pause(), parts["operator"], parts["worker"], *groups, *previous()]


def made(build: Build) -> Path:
    """The image's OCI archive; built first where it is not there. Raises :class:`NodeUnavailable`."""
    if build.archive.exists():
        return build.archive
    with alone(FOLDER):
        try:
            return _archived(build)
        finally:
            _unmount_storage()


def push(build: Build, target: str) -> None:
    """Pushes an image to the registry of ``target``, ``HOST:PORT/NAME``, by plain HTTP."""
    archive = made(build)
    with tempfile.TemporaryDirectory(dir=FOLDER) as layout:
        _run(["tar", "-xf", str(archive), "-C", layout])
        _run([str(crane()), "push", "--insecure", layout, target])


def docker(registry: str, arguments: Sequence[str]) -> None:
    """``docker build -f FILE -t NAME FOLDER`` and ``docker push NAME``; ``registry`` stands for
    :data:`REGISTRY`, which has the product's images for a build.
    """
    with alone(FOLDER):
        try:
            match list(arguments):
                case ["build", *rest]:
                    for build in product().values():
                        if _has(build):
                            _buildah("tag", build.name, build.name.replace("docker.io", REGISTRY))
                    _buildah("build", *_BUILD, *_mounts(), *rest)
                case ["push", name]:
                    place = name.replace(REGISTRY, registry)
                    _buildah("push", "--quiet", "--tls-verify=false", name, f"docker://{place}")
                case _:
                    raise ValueError(f"docker {arguments}")
        finally:
            _unmount_storage()


def _archived(build: Build) -> Path:
    archive = build.archive
    if not archive.exists():
        started = time.monotonic()
        _built(build)
        ARCHIVES.mkdir(parents=True, exist_ok=True)
        unfinished = archive.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        _buildah("push", "--quiet", build.name, f"oci-archive:{unfinished}:{build.name}")
        unfinished.rename(archive)
        for older in ARCHIVES.glob(f"{archive.stem[:-_DIGITS]}{'?' * _DIGITS}.tar"):
            if older != archive:
                older.unlink()
        print(f"built {build.name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return archive


def _built(build: Build) -> None:
    """The image is in buildah's storage, under its name."""
    if build.after is not None and not _has(build.after):
        _built(build.after)
    if build.context == _BASE:
        _make_base_root(build.context)
    arguments = [f"--build-arg={name}={value}" for name, value in build.arguments.items()]
    target = [f"--target={build.target}"] if build.target else []
    print(f"building {build.name}", file=sys.stderr, flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".Containerfile") as file:
        file.write(build.text)
        file.flush()
        _buildah(
            "build", *_BUILD, *_mounts(), *arguments, *target, f"--file={file.name}", f"--tag={build.name}",
            f"--label=slackwater.dev/content={build._digest()}", str(build.context),
        )  # fmt: skip


def _has(build: Build) -> bool:
    """Whether buildah's storage has just this build of the image."""
    template = '{{index .OCIv1.Config.Labels "slackwater.dev/content"}}'
    done = subprocess.run(
        [*_storage(), "inspect", "--type=image", f"--format={template}", build.name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() == build._digest()


def _make_base_root(folder: Path) -> None:
    """``folder/base.tar``: Debian bookworm with Python 3.11, by the machine's package sources."""
    target = folder / "base.tar"
    if target.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.sources"))]
    places += sorted(Path("/etc/apt/sources.list.d").glob("*.list"))
    sources = "\n".join(path.read_text() for path in places if path.exists())
    links = "; ".join(
        f'ln -s /usr/bin/python3.11 "$1/usr/local/bin/{name}"' for name in ("python", "python3")
    )
    dropped = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale")]
    # As the base that it stands for: without the folder the setup of Java's package fails.
    links += '; mkdir -p "$1/usr/share/man/man1"'
    # pip refuses to install into Debian's Python otherwise; that of the base takes packages.
    links += '; rm -f "$1/usr/lib/python3.11/EXTERNALLY-MANAGED"'
    unfinished = folder / "unfinished.tar"
    _run(
        [
            "mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar",
            f"--include={','.join((*_BASE_PACKAGES, *_BASE_HEADERS))}", *dropped,
            f"--customize-hook={links}",
            '--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin',
            "bookworm", str(unfinished), "-",
        ],
        stdin=sources,
    )  # fmt: skip
    unfinished.rename(target)


def _mounts() -> list[str]:
    return [f"--volume={path}:{path}:ro" for path in _HOST_FILES if Path(path).exists()]


def _unmount_storage() -> None:
    """buildah keeps its storage mounted, and a build that failed its container's root."""
    unmount(str(FOLDER.resolve() / "buildah"), str(_RUN))
    shutil.rmtree(_RUN, ignore_errors=True)


def _storage() -> list[str]:
    return [
        "buildah",
        f"--root={FOLDER / 'buildah'}",
        f"--runroot={_RUN}",
        "--storage-driver=overlay",
    ]


def _buildah(*arguments: str) -> str:
    return _run(["nice", "-n", "10", *_storage(), *arguments])


def _run(command: Sequence[str], stdin: str = "") -> str:
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-4000:]
        raise NodeUnavailable(f"{' '.join(command[:6])} ... failed with {done.returncode}:\n{said}")
    return done.stdout
