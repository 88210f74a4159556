"""A broker whose answers are damaged: the group goes on over new connections, or ends with a clear line."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.commands import Command, run
from tests.support.proxies import DamagingProxy
from tests.support.workers.local_run_site import LocalRunSite

LONGEST_S = 100.0
"""For ten seconds of trying, and a Python that starts."""


@pytest.mark.long
def test_damaged_answers_cost_connections_but_no_record(site: LocalRunSite) -> None:
    site.change("replicas: 1", "replicas: 2")
    site.produce([200] * 4000)
    with (
        DamagingProxy(site.bootstrap, good=6, share=0.05, seed=11) as proxy,
        Command(*site.arguments("--bootstrap", proxy.address)) as command,
    ):
        command.until_true(lambda: sum(proxy.damaged.values()) >= 30, "30 answers were damaged")
        site.produce([200] * 400)
        proxy.damages = False
        command.until_true(lambda: site.committed() == site.ends, "everything is committed")
        command.signal(signal.SIGINT)
        ended = command.ended()
        command.until_nothing_is_left()
    assert ended.code == 0, ended
    site.check_complete()
    for log in (site.work / "logs").glob("*.err"):
        assert "Traceback" not in log.read_text(), log.read_text()[-3000:]
    assert "Traceback" not in ended.stderr


def test_a_broker_that_only_sends_garbage_ends_the_run_with_a_line(
    site: LocalRunSite, tmp_path: Path
) -> None:
    site.produce([100] * 20)
    with DamagingProxy(site.bootstrap, good=0, share=1.0, seed=3) as proxy:
        ended = run(*site.arguments("--bootstrap", proxy.address))
        assert ended.seconds < LONGEST_S
        assert ended.code == 1, ended
        assert "no broker could be reached" in ended.error, ended
        assert proxy.address in ended.error, ended
        assert "Traceback" not in ended.stderr, ended
        assert sum(proxy.damaged.values()) > 0
    site.check_nothing_done()


def test_a_worker_reports_a_broker_that_sends_garbage_after_the_handshake(site: LocalRunSite) -> None:
    """The worker waits for its start timeout, then names the broker that does not answer correctly."""
    site.produce([100] * 20)
    with DamagingProxy(site.bootstrap, good=1, share=1.0, seed=4) as proxy:
        file = site.folder / "worker.yaml"
        file.write_text(
            f"""\
groupId: {site.name}
topics: [{site.name}]
bootstrapServers: {proxy.address}
handler: handlers:keep
handlerPath: [{site.folder}]
engine: arrow
sink: {{format: parquet, path: {site.out}}}
startTimeoutMs: 3000
"""
        )
        ended = run("worker", "--config", file, environment={"SLACKWATER_INSTANCE_ID": "w-0"})
        assert ended.seconds < LONGEST_S
        assert ended.code == 1, ended
        assert proxy.address in ended.error, ended
        assert "Traceback" not in ended.stderr, ended
        assert sum(proxy.damaged.values()) > 0
    site.check_nothing_done()
