"""The admin client for code that is not asyncio's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from slackwater.kafka.admin.async_admin import AsyncAdmin
from slackwater.kafka.net.threads import LoopThread, warn_unclosed

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[KafkaAdmin, P], T]:
    """The method of :class:`KafkaAdmin` that waits for :class:`AsyncAdmin`'s."""

    @functools.wraps(method)
    def call(self: KafkaAdmin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._admin, *args, **kwargs))

    return call


class KafkaAdmin:
    """:class:`AsyncAdmin` with calls that block; each method is that of the same name there.

    ``options``: :class:`AsyncAdmin`'s. Raises :class:`NoBrokersAvailable`, which names what was tried.
    """

    def __init__(self, bootstrap_servers: str | Iterable[str] = "localhost:9092", **options: Any) -> None:
        self._thread = LoopThread("slackwater-admin")
        try:
            self._admin = self._thread.run(_start(bootstrap_servers, options))
        except BaseException:
            self._thread.stop()
            raise

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def close(self) -> None:
        """Closes all connections. May be called again."""
        if self._thread.running:
            self._run(self._admin.close())
        self._thread.stop()

    def __del__(self) -> None:
        admin: AsyncAdmin | None = getattr(self, "_admin", None)
        if admin is not None and self._thread.running:
            warn_unclosed(self)
            self._thread.stop_after(admin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    create_topics = _blocking(AsyncAdmin.create_topics)
    delete_topics = _blocking(AsyncAdmin.delete_topics)
    list_topics = _blocking(AsyncAdmin.list_topics)
    describe_topics = _blocking(AsyncAdmin.describe_topics)
    wait_for_topic = _blocking(AsyncAdmin.wait_for_topic)
    wait_for_topic_deleted = _blocking(AsyncAdmin.wait_for_topic_deleted)
    describe_cluster = _blocking(AsyncAdmin.describe_cluster)
    describe_features = _blocking(AsyncAdmin.describe_features)
    describe_configs = _blocking(AsyncAdmin.describe_configs)
    alter_configs = _blocking(AsyncAdmin.alter_configs)
    list_groups = _blocking(AsyncAdmin.list_groups)
    describe_groups = _blocking(AsyncAdmin.describe_groups)
    delete_groups = _blocking(AsyncAdmin.delete_groups)
    remove_members = _blocking(AsyncAdmin.remove_members)
    list_offsets = _blocking(AsyncAdmin.list_offsets)
    committed_offsets = _blocking(AsyncAdmin.committed_offsets)
    committed_offsets_of_groups = _blocking(AsyncAdmin.committed_offsets_of_groups)


async def _start(bootstrap_servers: str | Iterable[str], options: dict[str, Any]) -> AsyncAdmin:
    return await AsyncAdmin(bootstrap_servers, **options).start()
