"""Where a table in an object store is: its address, obstore's options, and what an error of obstore means."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from slackwater import extras
from slackwater.pipeline.sinks.reasons import reason_of, store_advice
from slackwater.runtime.errors import ConfigError, SinkError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = {"s3": "aws", "s3a": "aws", "gs": "google", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""By scheme what the names of its options begin with, as with format delta."""
DEFAULTS = {"connect_timeout": "5s", "timeout": "30s", "max_retries": "4", "retry_timeout": "60s"}
"""The same as with format delta: no call may wait for minutes."""
_CLIENT = {
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
    "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only",
    "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
    "randomize_addresses", "read_timeout", "timeout", "user_agent",
}  # fmt: skip
"""Options that obstore takes apart from those of a store."""
_RETRY = {"max_retries", "retry_timeout"}
_CONDITIONS = {"conditional_put", "copy_if_not_exists"}
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


class StoreAddress:
    """``url`` and storage ``options`` as a user gives them. Raises ConfigError for what cannot be used."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        scheme, _, rest = url.partition("://")
        if scheme not in SCHEMES or not rest.partition("/")[0]:
            raise ConfigError(
                f"{url} cannot hold Parquet files: give a folder, file:///..., or an address that begins "
                f"with {', '.join(f'{name}://' for name in SCHEMES)}"
                + (
                    ". On HDFS use format delta, or format spark with the path in options"
                    if scheme == "hdfs"
                    else ""
                ),
                field="sink.path",
            )
        self.url = url.rstrip("/")
        self._scheme = scheme
        self.copies_later = SCHEMES[scheme] == "azure"
        """Whether a copy within the store may be made after it was confirmed (Azure's Copy Blob)."""
        self._secrets = [
            value for value in options.values() if len(value) > 3 and value.lower() not in ("true", "false")
        ]
        self._store, self._client, self._retry = self._sorted(options)

    def _sorted(self, options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The options of the store, the HTTP client and retries, under obstore's names."""
        prefix = f"{SCHEMES[self._scheme]}_"
        store: dict[str, Any] = {}
        client: dict[str, Any] = {**DEFAULTS}
        for name, value in os.environ.items():
            # obstore reads the environment for the store's own options.
            key = name.lower()
            if key.startswith(prefix) and key.removeprefix(prefix) in _CLIENT:
                client[key.removeprefix(prefix)] = value
            if key.startswith(prefix) and key.removeprefix(prefix) in _CONDITIONS:
                raise _condition(name, "environment")
        for name, value in options.items():
            key = name.lower().removeprefix(prefix)
            if key in _CONDITIONS:
                raise _condition(name, "sink.options")
            if key in _CLIENT or key in _RETRY:
                client[key] = value
            else:
                store[name] = value
        retries = {
            "max_retries": _integer(client.pop("max_retries")),
            "retry_timeout": _duration(client.pop("retry_timeout")),
        }
        if SCHEMES[self._scheme] == "aws":
            store |= {"conditional_put": "etag", "copy_if_not_exists": "multipart"}
        return store, client, retries

    def open(self) -> ObjectStore:
        """The store, with paths below the address. It makes no request. Raises ConfigError."""
        if problem := extras.OBJECT_STORES.problem(f"parquet in {self.url}"):
            raise ConfigError(problem, field="sink.path")
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        try:
            # By keywords of their own: the types of the options depend on the address.
            given: dict[str, Any] = {
                "config": self._store,
                "client_options": self._client,
                "retry_config": self._retry,
            }
            store: ObjectStore = from_url(self.url, **given)
            return store
        except (BaseError, ValueError, TypeError) as exc:
            raise ConfigError(
                f"the options do not fit {self.url}: {self._reason(exc)}", field="sink.options"
            ) from None

    def error(self, what: str, exc: BaseException) -> SinkError:
        """What to raise where the sink cannot do ``what`` because of ``exc``; to be raised ``from None``, as
        ``exc`` may tell storage options."""
        reason = self._reason(exc)
        advice = store_advice(reason)
        return SinkError(f"the sink cannot {what}: {reason}{'; ' + advice if advice else ''}")

    def _reason(self, exc: BaseException) -> str:
        return reason_of(exc, self._secrets, until="Debug source:")


def _condition(name: str, field: str) -> ConfigError:
    return ConfigError(
        f"{name} must not be set: the sink sets it, so that no two workers can make the same commit",
        field=field,
    )


def _integer(text: str) -> int:
    if not re.fullmatch(r"\d{1,6}", text):
        raise ConfigError(f"max_retries is {text!r}, not a number", field="sink.options")
    return int(text)


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,9})\s?(ms|s|m|h)", text)
    if match is None:
        raise ConfigError(f"retry_timeout is {text!r}, not a time such as 60s", field="sink.options")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])
