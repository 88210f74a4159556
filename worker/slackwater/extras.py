"""The optional parts of the distributions, and what to say where one is not installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec


class NotInstalledError(ImportError):
    """A part of Slackwater is used whose packages are not installed. The message says which extra to add."""


@dataclass(frozen=True)
class Extra:
    """Packages that only some users need.

    Attributes:
        requirement: what pip installs them by: ``slackwater[NAME]``.
        modules: those that must be there; imported by nobody here.
    """

    requirement: str
    modules: tuple[str, ...]

    def problem(self, part: str) -> str:
        """Why ``part``, the subject of a sentence, cannot be used, and what to do; empty: it can.

        Looks the modules up without importing them, but the parents of a dotted name.
        """
        missing = [name for name in self.modules if not _is_there(name)]
        return self.lacks(part, *missing) if missing else ""

    def lacks(self, part: str, *modules: str) -> str:
        """The sentence of :meth:`problem` for these modules."""
        names = " and ".join([", ".join(modules[:-1]), modules[-1]] if modules[1:] else modules)
        verb = "are" if modules[1:] else "is"
        return f"{part} needs {names}, which {verb} not installed: pip install '{self.requirement}'"

    def require(self, part: str) -> None:
        """Raises :class:`NotInstalledError` where ``part`` cannot be used."""
        problem = self.problem(part)
        if problem:
            raise NotInstalledError(problem)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent is missing
        return False


ARROW = Extra("slackwater[arrow]", ("pyarrow",))
CLI = Extra("slackwater[cli]", ("yaml",))
WORKER = Extra("slackwater[worker]", ("prometheus_client", "pyarrow", "yaml"))
SPARK = Extra("slackwater[spark]", (*WORKER.modules, "pandas", "pyspark"))
OTEL = Extra("slackwater[otel]", ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"))
AVRO = Extra("slackwater[avro]", ("fastavro",))
PROTOBUF = Extra("slackwater[protobuf]", ("google.protobuf",))
DELTA = Extra("slackwater[delta]", ("deltalake",))
ICEBERG = Extra("slackwater[iceberg]", ("pyiceberg", "sqlalchemy"))
GLUE = Extra("slackwater[glue]", (*ICEBERG.modules, "boto3"))
OBJECT_STORES = Extra("slackwater[object-stores]", ("obstore",))
POSTGRES = Extra("slackwater[postgres]", ("psycopg",))

ALL = (ARROW, CLI, WORKER, SPARK, OTEL, AVRO, PROTOBUF, DELTA, ICEBERG, GLUE, OBJECT_STORES, POSTGRES)
"""Of ``slackwater``; in the order in which :func:`explained` looks."""


def explained(error: ModuleNotFoundError) -> str:
    """What to say of an import that failed; empty where the module is of none of the extras."""
    name = error.name or ""
    for extra in ALL:
        for module in extra.modules:
            if name == module or name.startswith(f"{module}.") or module.startswith(f"{name}."):
                return extra.lacks("this command", name)
    return ""
