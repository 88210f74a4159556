"""The catalog of an Iceberg table: its properties, the connection, and what an error of pyiceberg means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slackwater import extras
from slackwater.pipeline.sinks.reasons import advice_of, reason_of
from slackwater.runtime.errors import ConfigError, SinkError, WorkerError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TYPES = ("rest", "sql", "glue")
"""The catalogs that refuse a commit whose requirements do not hold any more, as the tests show."""
_REFUSED = {
    "hive": "pyiceberg's lock in the metastore may end before its commit, which then undoes another",
    "dynamodb": "whether it refuses the second of two commits is not tested",
    "bigquery": "whether it refuses the second of two commits is not tested",
}
"""Catalogs of pyiceberg that would not keep each record once, or may not, and why."""
DEFAULTS = {
    "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
    "s3.connect-timeout": "5",
    "s3.request-timeout": "30",
}
"""Properties that the user may set otherwise: no call may wait for minutes, and no store needs a package
beside pyarrow (pyiceberg would take adlfs for Azure)."""
_DATABASE_LIMITS = {"connect_timeout": "5", "tcp_user_timeout": "30000"}
"""Of PostgreSQL's client: s, ms."""
_CONNECT_TRIES = 3
"""Several workers create the tables of a new SQL catalog at the same time; all but one fail."""
_SECRET = re.compile(r"key$|token$|secret|password|credential|connection-string|authorization", re.IGNORECASE)
_URL_SECRET = re.compile(r"://[^/@\s]*:([^/@\s]+)@|[?&]password=([^&\s]+)")
_ADVICE = (
    (r"No default path|no warehouse", "set warehouse in sink.options to where its files shall be"),
    (r"No space left|quota", "free some space or set another warehouse"),
    (
        r"Permission denied|Read-only file system|Operation not permitted",
        "give this user the right to write there",
    ),
    (r"does not support endpoint", "the catalog takes no commits by this protocol; set uri to one that does"),
    (r"must specify a region", "set client.region in sink.options"),
    (r"NoSuchBucket|bucket does not exist|does not exist", "create what is missing, or correct sink.options"),
    (
        r"(?<![\w./-])40[13](?![\w/-]|\.\d)|"
        r"AccessDenied|ACCESS_DENIED|Forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|"
        r"unauthorized|Not ?Authorized|password authentication|invalid_(client|scope)|credentials|"
        r"ExpiredToken|security token",
        "check the credentials (environment or sink.options) and their rights",
    ),
    (
        r"timed? ?out|connect|NameResolution|unable to open database",
        "check that the catalog and the store can be reached from here, and sink.options",
    ),
)


class IcebergCatalog:
    """The catalog that ``options`` name, and ``table`` in it. What options lack comes from pyiceberg's
    environment variables and its file.

    Raises ConfigError for what cannot be used.
    """

    def __init__(self, table: str, options: Mapping[str, str]) -> None:
        self.identifier = tuple(table.split("."))
        if len(self.identifier) < 2 or any(part != part.strip() or not part for part in self.identifier):
            raise ConfigError(
                f"{table!r} names no table: give NAMESPACE.TABLE, such as lake.flights", field="sink.table"
            )
        self.address, self.title = table, f"the Iceberg table {table}"
        given = dict(options)
        self._name = given.pop("name", "") or "default"
        if "py-catalog-impl" in given:
            raise ConfigError("must not be set; set type", field="sink.options.py-catalog-impl")
        self._properties = {**DEFAULTS, **self._configured(), **given}
        self._type = self._type_of()
        if self.is_sql:
            self._properties["uri"] = _database(self._properties["uri"])
        if self._type == "glue":
            self._check_glue()
        auth = self._properties.get("auth")
        if isinstance(auth, Mapping) and auth.get("type") == "oauth2":
            # pyiceberg asks for its token without a limit on waiting.
            raise ConfigError(
                "must not be oauth2; set credential, oauth2-server-uri and scope",
                field="sink.options.auth.type",
            )
        self._secrets = _secrets(self._properties)
        self._catalog: Catalog | None = None

    def _configured(self) -> dict[str, Any]:
        """What pyiceberg's environment variables and its file say about the catalog."""
        from pyiceberg.utils.config import Config

        try:
            return dict(Config().get_catalog_config(self._name) or {})
        except Exception as exc:
            raise ConfigError(f"pyiceberg's configuration cannot be read: {reason_of(exc)}") from None

    def _type_of(self) -> str:
        uri = str(self._properties.get("uri") or "")
        kind = str(self._properties.get("type") or ("rest" if uri.startswith("http") else "sql")).lower()
        if kind not in TYPES:
            why = f": {_REFUSED[kind]}" if kind in _REFUSED else ""
            raise ConfigError(f"must be {', '.join(TYPES)}, not {kind}{why}", field="sink.options.type")
        if not uri and kind != "glue":
            raise ConfigError(
                f"is missing: give the catalog's address, here or as PYICEBERG_CATALOG__"
                f"{self._name.upper()}__URI",
                field="sink.options.uri",
            )
        return kind

    def _check_glue(self) -> None:
        if problem := extras.GLUE.problem("glue"):
            raise ConfigError(problem, field="sink.options.type")
        if len(self.identifier) != 2 or self.address != self.address.lower():
            raise ConfigError(
                f"{self.address!r} names no table of Glue: give DATABASE.TABLE in lower case",
                field="sink.table",
            )

    @property
    def is_sql(self) -> bool:
        """Whether the catalog is tables of a database."""
        return self._type == "sql"

    @property
    def is_rest(self) -> bool:
        """Whether the catalog is a server that says itself where files go."""
        return self._type == "rest"

    def connected(self) -> Catalog:
        """The catalog; connects the first time. Raises SinkError, ConfigError."""
        if self._catalog is None:
            for left in reversed(range(_CONNECT_TRIES)):
                try:
                    self._catalog = self._connect()
                    break
                except ModuleNotFoundError as exc:
                    raise ConfigError(
                        f"the catalog needs the package {exc.name}, which is not installed",
                        field="sink.options.uri",
                    ) from None
                except Exception as exc:
                    if not self.is_sql or not left:
                        raise self.error("connect to the catalog of", exc) from None
        assert self._catalog is not None
        return self._catalog

    def _connect(self) -> Catalog:
        if self.is_rest:
            from slackwater.pipeline.sinks.iceberg.rest import BoundedRestCatalog

            return BoundedRestCatalog(self._name, **self._properties)
        if self._type == "glue":
            from slackwater.pipeline.sinks.iceberg.glue import BoundedGlueCatalog

            return BoundedGlueCatalog(self._name, **self._properties)
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog(self._name, **self._properties)

    def error(self, what: str, exc: BaseException) -> WorkerError:
        """What to raise where the sink cannot do ``what`` because of ``exc``; to be raised ``from None``, as
        ``exc`` may tell credentials."""
        reason = self.reason(exc)
        advice = advice_of(_ADVICE, reason)
        return SinkError(f"the sink cannot {what} {self.title}: {reason}{'; ' + advice if advice else ''}")

    def reason(self, exc: BaseException | None) -> str:
        """The message on one line, without SQL and credentials."""
        # SQLAlchemy adds the statement, its parameters and a link.
        return reason_of(exc, self._secrets, until=r"\n?\[SQL: |\n?\(Background on this error")


def _database(uri: str) -> str:
    """A database's URL: with the driver that is installed, and limits on waiting where it has none."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(uri)
        if url.drivername in ("postgresql", "postgres"):
            url = url.set(drivername="postgresql+psycopg")
        url.get_dialect()
    except ArgumentError:
        raise ConfigError(
            "is no URL of a database, such as postgresql://HOST/NAME", field="sink.options.uri"
        ) from None
    if url.get_backend_name() == "postgresql":
        url = url.update_query_dict({**_DATABASE_LIMITS, **url.query})
    return url.render_as_string(hide_password=False)


def _secrets(properties: Mapping[str, Any]) -> list[str]:
    """Values that no message may show."""
    secrets = [str(value) for name, value in properties.items() if _SECRET.search(name)]
    for value in properties.values():
        secrets += [part for match in _URL_SECRET.findall(str(value)) for part in match]
    # A credential is ID:SECRET.
    secrets += [value.partition(":")[2] for value in secrets if ":" in value]
    return [value for value in secrets if len(value) > 3]
