"""What goes over the connections of one client, for whoever counts it."""

from __future__ import annotations


class Traffic:
    """Told of what connections do, on the client's loop. This one counts nothing.

    ``node``: the broker's id, -1 while a connection is being opened. Sizes are in bytes, with frames'
    headers; times in ms.
    """

    def opened(self) -> None:
        """A socket is connected."""

    def closed(self) -> None:
        """A socket is closed."""

    def sent(self, node: int, size_bytes: int) -> None:
        """A request was written."""

    def received(self, node: int, size_bytes: int, took_ms: float) -> None:
        """An answer came, so long after its request was written."""

    def logged_in(self, took_ms: float, *, again: bool) -> None:
        """A login was accepted; ``again``: one on a connection that had logged in before (KIP-368)."""

    def login_failed(self, *, again: bool) -> None:
        """A login was refused, or did not come about."""


NOT_COUNTED = Traffic()
