"""Runs seeds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from slackwater.kafka.consumer import core
from tests.client.simulation.checks import Broken
from tests.client.simulation.scenario import draw
from tests.client.simulation.site import Site
from tests.client.simulation.story import StoryHandler
from tests.support.virtual_time import Livelock, SealedLoop


@dataclass(slots=True)
class Outcome:
    """How a seed ended. ``broken``: ``None`` if all held.

    ``peak``: the most requests that a pod sent in a virtual second.
    """

    seed: int
    broken: Broken | None
    counts: Counter[str]
    virtual_s: float
    peak: int
    trouble: tuple[str, ...] = ()
    protocol: str = "classic"
    story: list[str] = field(default_factory=list)

    @property
    def message(self) -> str:
        """What went wrong, and how to see it again."""
        command = f"python -m tests.client.simulation --replay {self.seed}"
        if self.trouble:
            command += f" --trouble {','.join(self.trouble)}"
        if self.protocol != "classic":
            command += f" --protocol {self.protocol}"
        return f"seed {self.seed}: {self.broken}\nreplay: {command}"


def run(
    seed: int, *, tell: bool = False, trouble: tuple[str, ...] = (), protocol: str = "classic"
) -> Outcome:
    """Runs one seed to its end; ``trouble`` and ``protocol``: see :func:`.scenario.draw`."""
    loop = SealedLoop()
    site = Site(loop, draw(seed, trouble, protocol), tell=tell)
    broken: Broken | None = None
    loop.set_exception_handler(lambda _, context: _unhandled(site, context))
    try:
        with _logged(site), patch.object(core, "Cluster", site.cluster):
            try:
                loop.run_until_complete(site.run())
            except Broken as exc:
                broken = exc
            except Livelock as exc:
                broken = Broken("busy loop", str(exc))
            site.over = True
            _sweep(loop)
    finally:
        loop.close()
    checks = site.checks
    return Outcome(
        seed, broken, checks.counts, loop.time() - 1000, checks.peak, trouble, protocol, site.story.lines
    )


def _unhandled(site: Site, context: dict[str, Any]) -> None:
    exc = context.get("exception")
    site.checks.fail("unhandled", f"{context.get('message')}: {exc!r}")


def _sweep(loop: asyncio.AbstractEventLoop) -> None:
    while tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Livelock):
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


@contextlib.contextmanager
def _logged(site: Site) -> Iterator[None]:
    """The client's log goes into the story, or nowhere."""
    logger = logging.getLogger("slackwater")
    disabled, level, propagate = logging.root.manager.disable, logger.level, logger.propagate
    handler = StoryHandler(site.story)
    if site.story.on:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    else:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
