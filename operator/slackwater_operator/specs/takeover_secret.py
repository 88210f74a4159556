"""The Secret whose key the requests of a takeover are signed with."""

from __future__ import annotations

import base64
import re
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.model import names

KEY_BYTES = 32
"""As long as SHA-256's output, beyond which a longer HMAC key gains nothing (RFC 2104, section 3)."""

_HEX = re.compile(r"[0-9a-f]{64}")


def takeover_secret(group: ConsumerGroup, key: str) -> dict[str, Any]:
    """The Secret, to be created and never written again.

    Immutable: the pods of a group have to have the same key, and one that started later would have another.

    Args:
        group: the resource.
        key: `KEY_BYTES` random bytes in hex.

    Raises:
        ValueError: `key` is something else.
    """
    if not _HEX.fullmatch(key):
        raise ValueError(f"a takeover key is {KEY_BYTES} bytes in hex")
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": names.metadata(group, names.takeover_secret(group.name)),
        "type": "Opaque",
        "immutable": True,
        "data": {names.TAKEOVER_KEY: base64.b64encode(key.encode()).decode()},
    }


def volume_source(name: str) -> dict[str, Any]:
    """The source of the worker's projected volume that puts the group's key at `names.KEY_FILE`."""
    items = [{"key": names.TAKEOVER_KEY, "path": names.KEY_PATH}]
    return {"secret": {"name": names.takeover_secret(name), "items": items}}
