"""Pages whose blocks of shell run in order, in an empty folder, beside a dev broker of their own."""

from __future__ import annotations

SCRIPTS = (
    "docs/reference/devbroker.md",
    "docs/tutorials/first-consumer.md",
    "docs/tutorials/first-pipeline.md",
)
