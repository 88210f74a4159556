"""What the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.support.devbroker import DevBroker


@pytest.fixture
def site(devbroker: DevBroker, tmp_path: Path) -> Site:
    """A resource whose topic is there and empty."""
    found = Site(devbroker.bootstrap, tmp_path)
    found.make_topic()
    return found
