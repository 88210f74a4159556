"""Values of the latest schema of a subject, and of later ones that have all of its fields."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import pyarrow.compute as pc

from slackwater.pipeline.growth import Growth, takes
from slackwater.pipeline.values.registry.wire import HEADER_BYTES
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.pipeline.values.registry.client import Registry

MOST_SEEN = 10_000
"""How many ids are remembered: whoever writes to the topic can name any."""
log = logging.getLogger(__name__)


class Decoder(Protocol):
    """A :class:`~slackwater.pipeline.values.ValueDecoder`."""

    @property
    def type(self) -> pa.StructType: ...

    def decode(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]: ...

    def close(self) -> None: ...


class FollowingDecoder:
    """Decodes by what ``make`` makes of the subject's latest schema, and makes it anew for a batch with the
    id of a schema that was not seen before.

    A producer registers a schema before it writes with it, so the latest one has the new fields by then. It
    is taken if each field of the present one is in it, with its type or a wider one; otherwise the present
    one stays until the worker starts again, since the handler may read what is missing.
    """

    def __init__(self, make: Callable[[Decoder | None], Decoder], registry: Registry) -> None:
        """``make``: gets the present decoder, if there is one. Raises what it raises."""
        self._make, self._registry = make, registry
        self._decoder = make(None)
        self._seen: set[bytes | None] = set()

    @property
    def type(self) -> pa.StructType:
        """Of the values that were decoded last."""
        return self._decoder.type

    def decode(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """See :class:`~slackwater.pipeline.values.ValueDecoder`."""
        headers = set(pc.binary_slice(values, 0, HEADER_BYTES).unique().to_pylist())
        if not headers <= self._seen:
            self._registry.begin()
            self._follow()
            if len(self._seen) > MOST_SEEN:
                self._seen.clear()
            self._seen |= headers
        return self._decoder.decode(values)

    def _follow(self) -> None:
        try:
            latest = self._make(self._decoder)
        except ConfigError as exc:
            if exc.field != "value.registry.subject":
                raise
            log.warning("a value names a new schema, and the subject's latest one is not used: %s", exc)
            return
        if latest.type == self.type:
            return
        if takes(latest.type, Growth(dates=True).grown(self.type, latest.type)):
            log.info("values have the fields of the subject's latest schema from now on")
            self._decoder = latest
        else:
            log.warning(
                "the subject's latest schema lacks fields of the one that this worker uses, or has other "
                "types for them: it is used when the worker starts again"
            )

    def close(self) -> None:
        """Closes the connections to the registry."""
        self._decoder.close()
