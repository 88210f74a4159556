"""What the watches report before they begin."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeForbidden
from slackwater_operator.kubernetes.store import Store, Unread
from slackwater_operator.kubernetes.watch import Watches
from tests.support.virtual_time import run_virtually


class FakeKube:
    """An API server that does not tell which kinds it has while it is `closed`."""

    access = None

    def __init__(self) -> None:
        self.closed = True

    async def served(self, *_: Any, **__: Any) -> bool:
        if self.closed:
            raise KubeForbidden(403, "Forbidden", "GET /apis/slackwater.dev/v1alpha1: forbidden")
        return False


def test_a_discovery_that_is_forbidden_is_reported_as_a_missing_right() -> None:
    async def story() -> None:
        news: list[tuple[str, Unread | None]] = []
        kube, store = FakeKube(), Store()
        watches = Watches(
            cast(Kube, kube), store, namespaces=("a", "b"), on_unread=lambda *each: news.append(each)
        )
        task = asyncio.create_task(watches.run())
        await asyncio.sleep(60)
        assert not task.done()
        assert [(name, unread.status if unread else 0) for name, unread in news] == [("a", 403), ("b", 403)]
        assert "/apis/slackwater.dev/v1alpha1" in str(store.unread("a"))
        task.cancel()

    run_virtually(story())
