"""A TCP proxy in front of the API server, which can hang or be gone as a real one can."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.proxies.switched import SwitchedProxy


class ApiProxy(SwitchedProxy):
    """Can be hung, cut and opened again."""

    def kubeconfig(self, original: Path, folder: Path) -> Path:
        """A copy of `original` whose server is this proxy."""
        config = json.loads(original.read_text())
        host, port = self.host_and_port
        for cluster in config["clusters"]:
            cluster["cluster"]["server"] = f"https://{host}:{port}"
        path = folder / f"{original.name}-by-proxy"
        path.write_text(json.dumps(config))
        return path
