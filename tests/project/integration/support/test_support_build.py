"""What cannot be built is said, with what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.controlplane import build


def test_without_go_the_build_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.ToolsUnavailable, match="no `go` on the PATH. Install it"):
        build.binaries()
    (tmp_path / "go").write_text("#!/bin/sh\necho go1.19.8\n")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(build.ToolsUnavailable, match=r"go is go1\.19\.8"):
        build.binaries()
