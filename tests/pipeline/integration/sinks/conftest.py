"""What several tests of sinks have: object stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stores.choice import STORES
from tests.support.stores.objects import StoreServer
from tests.support.stores.s3 import S3Server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """The run's S3 server."""
    with S3Server() as server:
        yield server


@pytest.fixture(scope="module", params=STORES.values())
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """Each of the object stores; a test that is for some of them says which (``indirect``)."""
    if request.param is S3Server:
        yield request.getfixturevalue("s3")
        return
    with request.param() as server:
        yield server
