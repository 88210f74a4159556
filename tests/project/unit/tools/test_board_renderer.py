"""The page that draws the dashboards for the pictures: what it is installed from."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "tools" / "board_renderer"


def test_every_package_is_pinned_by_its_hash_and_no_registry_is_named() -> None:
    text = (FOLDER / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved"' not in text
    lock = json.loads(text)["packages"]
    assert len(lock) > 300
    assert all(package.get("integrity", "").startswith("sha512-") for path, package in lock.items() if path)


def test_the_lock_is_of_this_package() -> None:
    package = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
    root = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))["packages"][""]
    for section in ("dependencies", "devDependencies"):
        assert package[section] == root[section]
        assert all(version[0].isdigit() for version in package[section].values()), "an exact version"
