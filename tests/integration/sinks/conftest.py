"""What several tests of sinks have: object stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stores.choice import STORES
from tests.support.stores.objects import StoreServer
from tests.support.stores.s3 import S3Server


@pytest.fixture(scope="module", params=STORES.values())
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """Each of the object stores; a test that is for some of them says which (``indirect``)."""
    with request.param() as server:
        yield server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server
