"""`slackwater-operator`: takes the Lease, watches, and runs the groups until SIGTERM.

Exit codes: 0 stopped in order; 1 an error; 2 bad arguments or configuration; 3 the Lease was lost, so that
another replica may lead now: the process ends at once, whatever it was doing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from slackwater.cli import flush_output
from slackwater.clock import SYSTEM_CLOCK
from slackwater.runtime.errors import ConfigError
from slackwater.tracing.opening import tracing_of
from slackwater.tracing.settings import TraceSettings
from slackwater.tracing.spans import NO_TRACING, Tracing
from slackwater_operator.cli.operator_options import Options, options_of, parser
from slackwater_operator.controller.controller import Controller
from slackwater_operator.controller.settings import Settings
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeConfigError
from slackwater_operator.kubernetes.events import Events
from slackwater_operator.kubernetes.lease import Lease, LeaseLost, LeaseSettings, LeaseWatchdog
from slackwater_operator.kubernetes.object_api import Object
from slackwater_operator.kubernetes.store import Key, Store, Unread
from slackwater_operator.kubernetes.watch import Watches
from slackwater_operator.telemetry import logs
from slackwater_operator.telemetry.http_server import HealthServer, Verdict
from slackwater_operator.telemetry.metrics import OperatorMetrics
from slackwater_operator.telemetry.pages import group_page, overview_page

if TYPE_CHECKING:
    from slackwater_operator.admission.webhook import AdmissionWebhook

logger = logging.getLogger(__name__)

LEASE_LOST = 3
TRACES_CLOSE_MS = 1_000.0
"""How long the last spans may take to be sent."""
SILENT_S = 60.0
"""A loop that made no progress for that long hangs: the kubelet may start the process anew."""
LEASE_REQUEST_S = 3.0
DEEPEST = 25_000
"""The recursion limit: an object of the API server nests up to 10,000 levels (encoding/json of Go), of which
copying takes two frames each. With Python's default of 1,000, one such object would end every watch."""
STACK_BYTES = 16 << 20
"""Of a thread. Python's JSON parser takes some 200 bytes of it for a level."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the subcommand, or without one the operator until SIGTERM or SIGINT. Returns the exit code."""
    commands = parser(os.environ)
    args = commands.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    if args.command:
        return _run_command(args)
    options = options_of(commands, args, os.environ)
    allow_deep_objects()
    tracing = _tracing(options)
    logs.set_up(options.log_level, options.log_format, tracing.fields)
    try:
        return asyncio.run(_run(options, tracing))
    except (KubeConfigError, OSError) as error:
        print(f"slackwater-operator: error: {error}", file=sys.stderr)
        return 2
    finally:
        tracing.close(TRACES_CLOSE_MS)


def allow_deep_objects() -> None:
    """Lets this process read, in any thread that starts later, each object that the API server stores."""
    sys.setrecursionlimit(DEEPEST)
    threading.stack_size(STACK_BYTES)


def _run_command(args: argparse.Namespace) -> int:
    try:
        return int(args.run(args))
    except ConfigError as error:
        print(f"slackwater-operator: error: {error}", file=sys.stderr)
        return error.exit_code
    finally:
        flush_output()


def _tracing(options: Options) -> Tracing:
    """Every trace is recorded: takeovers and restarts are few."""
    wanted = TraceSettings(options.traces_endpoint, 1.0) if options.traces_endpoint else None
    described = {"service.name": "slackwater-operator", "service.instance.id": options.identity}
    return tracing_of(wanted, described, os.environ, logger.warning)


async def _run(options: Options, tracing: Tracing) -> int:
    operator = await Operator.connect(options, tracing)
    try:
        return await operator.run()
    finally:
        await operator.close()


class Operator:
    """One process of the operator: waits for the Lease, then leads until it is stopped."""

    def __init__(self, options: Options, kube: Kube, lease_kube: Kube, tracing: Tracing = NO_TRACING) -> None:
        """Use `connect`.

        Args:
            options: what was asked for.
            kube: for the groups.
            lease_kube: for the Lease alone: no other request may keep it waiting.
            tracing: for the traces of takeovers and restarts.
        """
        self._tracing = tracing
        self._options = options
        self._kube = kube
        self._lease_kube = lease_kube
        self._metrics = OperatorMetrics()
        self._store = Store()
        self._watches = Watches(
            kube, self._store, namespaces=options.namespaces, on_unread=self._report_unread
        )
        self._events = Events(kube, instance=options.identity)
        self._admission = _admission(options, kube, self._metrics)
        self._health = HealthServer(
            self._metrics, self._healthy, self._ready, self._overview_page, self._group_page
        )
        self._stop = asyncio.Event()
        self._leads = False
        self._controller: Controller | None = None
        self._lease = (
            Lease(
                lease_kube,
                LeaseSettings(
                    namespace=options.lease_namespace or kube.access.namespace,
                    name=options.lease,
                    identity=options.identity,
                ),
            )
            if options.lease
            else None
        )

    @classmethod
    async def connect(cls, options: Options, tracing: Tracing = NO_TRACING) -> Operator:
        """Finds the API server, which need not answer yet.

        Raises:
            KubeConfigError: it can't be found out where it is.
        """
        kube = await Kube.connect()
        return cls(options, kube, Kube(kube.access, request_timeout_s=LEASE_REQUEST_S), tracing)

    async def run(self) -> int:
        """Runs until a signal. Returns the exit code.

        Raises:
            OSError: the port for HTTP cannot be had.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        await self._health.start(self._options.http_host, self._options.http_port)
        logger.info("http on port %d; this is %s", self._health.port, self._options.identity)
        admission = asyncio.create_task(self._admission.run()) if self._admission is not None else None
        try:
            return await self._lead_in_turn()
        finally:
            if admission is not None:
                admission.cancel()
                await asyncio.gather(admission, return_exceptions=True)

    async def close(self) -> None:
        """Closes what is open."""
        await self._health.close()
        await self._lease_kube.close()
        await self._kube.close()

    # --- inside ---------------------------------------------------------------------------------------------

    async def _lead_in_turn(self) -> int:
        """Waits for the Lease, then leads."""
        if self._lease is None:
            return await self._lead()
        if not await self._unless_stopped(self._lease.acquire()):
            return 0
        watchdog = LeaseWatchdog(self._lease, LEASE_LOST)
        try:
            return await self._lead()
        finally:
            watchdog.stop()
            await self._lease.release()

    async def _lead(self) -> int:
        self._leads = True
        self._metrics.leading(True)
        try:
            await self._unless_stopped(self._work())
        except* LeaseLost as lost:
            _end_at_once(str(lost.exceptions[0]))
        finally:
            self._leads = False
            self._metrics.leading(False)
        logger.info("stopping")
        return 0

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._lease is not None:
                tasks.create_task(self._lease.hold())
            tasks.create_task(self._watches.run())
            tasks.create_task(self._events.run())
            tasks.create_task(self._control())

    async def _control(self) -> None:
        """Starts the controller when the Store is synchronized: else missing objects would seem deleted."""
        await self._store.wait_synced()
        gc.freeze()  # what the imports and the first lists made stays: not looked at again at each collection
        options = self._options
        self._controller = Controller(
            self._kube,
            self._store,
            self._events,
            self._metrics,
            Settings(
                worker_image=options.worker_image,
                pod_monitors=options.pod_monitors,
                round_ms=options.round_ms,
                busy_round_ms=options.busy_round_ms,
                receive_message_max_bytes=options.receive_message_max_bytes,
                prometheus_url=options.prometheus_url,
            ),
            may_act=self._may_act,
            tracing=self._tracing,
        )
        await self._controller.run()

    def _overview_page(self) -> bytes:
        resources = [group for key in self._store.groups() if (group := self._store.group(key)) is not None]
        now_ms = SYSTEM_CLOCK.wall_ms()
        return overview_page(self._options.identity, leads=self._leads, resources=resources, now_ms=now_ms)

    def _group_page(self, namespace: str, name: str) -> bytes | None:
        key = Key(namespace, name)
        resource = self._store.group(key)
        if resource is None:
            return None
        session = self._controller.session(key) if self._controller is not None else None
        workers = session.workers if session is not None else {}
        return group_page(resource, workers, SYSTEM_CLOCK.wall_ms())

    def _may_act(self) -> bool:
        return self._leads and (self._lease is None or self._lease.leads)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Does the work until it is over, or a signal has come: then it is cancelled. True: it is over."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            working.result()
            return True
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        return False

    def _healthy(self) -> Verdict:
        if not self._leads:
            return True, "waiting for the Lease"
        if self._watches.silent_s() > SILENT_S:
            return False, f"kopf's event loop has not responded for {self._watches.silent_s():.0f} s"
        if self._controller is not None and self._controller.silent_s() > SILENT_S:
            return False, f"no reconciliation has completed for {self._controller.silent_s():.0f} s"
        return True, "leading"

    def _ready(self) -> Verdict:
        if not self._leads:
            holder = self._lease.holder if self._lease else ""
            return True, f"waiting; {holder or 'no replica'} leads"
        unread = self._store.all_unread()
        if not self._store.synced:
            refused = [str(each) for each in unread if each.status]
            return False, f"leading, but {'; '.join(refused) or 'the caches are not synchronized yet'}"
        if len(unread) == max(len(self._options.namespaces), 1):
            return False, f"leading, but {'; '.join(map(str, unread))}"
        return True, "; ".join([f"leading {len(self._store.groups())} groups", *map(str, unread)])

    def _report_unread(self, namespace: str, unread: Unread | None) -> None:
        """Reports a namespace whose objects cannot all be read, and one that can be again."""
        self._metrics.watch_refused(namespace, (unread.access, unread.reason) if unread is not None else None)
        reason, text, kind = watch_event(namespace, unread)
        (logger.warning if unread is not None else logger.info)("%s", text)
        self._events.post(self._own_object(), reason, text, kind=kind)

    def _own_object(self) -> Object:
        """What Events about the operator itself are about: its Lease; without one, its Pod."""
        if self._lease is not None:
            return self._lease.stored
        namespace = self._options.own_namespace or self._kube.access.namespace
        metadata = {"name": self._options.identity, "namespace": namespace}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def watch_event(namespace: str, unread: Unread | None) -> tuple[str, str, Literal["Normal", "Warning"]]:
    """The Event's reason, message and type where a namespace cannot be read, or (None) can be again."""
    where = f"namespace {namespace}" if namespace else "all namespaces"
    if unread is None:
        return "WatchRestored", f"all objects in {where} can be read again", "Normal"
    to_do = (
        "grant the operator's ServiceAccount these rights (the chart's Role and RoleBinding, rbac.create), "
        "or remove the namespace from watchNamespaces"
        if unread.status == 403
        else "correct what the API server reports"
    )
    text = f"{unread}; its ConsumerGroups are not reconciled, others are; {to_do}; the operator retries"
    return "WatchRefused", text, "Warning"


def _admission(options: Options, kube: Kube, metrics: OperatorMetrics) -> AdmissionWebhook | None:
    if not options.admission_webhook:
        return None
    from slackwater_operator.admission.webhook import AdmissionWebhook

    return AdmissionWebhook(
        kube,
        metrics,
        name=options.admission_webhook,
        namespace=options.own_namespace or kube.access.namespace,
        host=options.http_host,
        port=options.admission_port,
        worker_image=options.worker_image,
    )


def _end_at_once(reason: str) -> NoReturn:
    """Ends the process without clean-up: nothing in progress may continue."""
    logger.error("%s; ending", reason)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(LEASE_LOST)


if __name__ == "__main__":
    sys.exit(main())
