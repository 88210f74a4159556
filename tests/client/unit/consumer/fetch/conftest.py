"""Ends what the tests of fetching have begun."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.client.unit.consumer.fetch.fetch_bench import BENCHES


@pytest.fixture(autouse=True)
async def closed_fetchers() -> AsyncIterator[None]:
    yield
    while BENCHES:
        await BENCHES.pop().fetcher.close()
