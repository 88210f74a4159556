"""What several tests of sinks have: an S3 server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.s3 import BUCKET, S3Server


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        server.make_bucket(BUCKET)
        yield server
