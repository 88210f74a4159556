"""A shell in which the kubectl blocks of the documentation are pasted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.controlplane import ControlPlane
from tests.support.controlplane.build import kubectl
from tests.support.docs.blocks import ROOT
from tests.support.waiting import HANG_S


class Shell:
    """Runs a block as a reader would paste it, with the group's namespace as the context's."""

    def __init__(
        self, plane: ControlPlane, namespace: str, folder: Path, names: Mapping[str, str] | None = None
    ) -> None:
        """``folder``: where the blocks run. ``names``: what a reader would replace in a block, and by what,
        such as a namespace or an address."""
        self._folder, self._names = folder, dict(names or {})
        config = folder / "kubeconfig"
        config.write_bytes(plane.kubeconfig.read_bytes())
        path = [Path(sys.executable).parent, kubectl().parent]
        self._environment = {
            **plane.environment(config),
            "PATH": os.pathsep.join([*map(str, path), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("worker", "operator")),
        }
        self(f"kubectl config set-context --current --namespace {namespace}")

    def __call__(self, text: str, timeout_s: float = HANG_S) -> str:
        """What the block prints. Each of its commands must succeed. `-w` is left out."""
        text = text.replace(" -w ", " ")
        for name, value in self._names.items():
            text = text.replace(name, value)
        ended = subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout
