"""The arguments of `slackwater-operator`; each can be given in the environment, too."""

from __future__ import annotations

import argparse
import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slackwater import completion
from slackwater.cli import Parser
from slackwater.extras import OTEL
from slackwater.tracing.opening import disabled
from slackwater.tracing.settings import ENDPOINT
from slackwater.version import VERSION
from slackwater_operator.cli import check

PREFIX = "SLACKWATER_"
LEASE = "slackwater-operator"
ANSWER_MAX_BYTES = 8 * 1024 * 1024
"""Metadata of about 190,000 partitions. Objects take up to 32 times that (`slackwater.kafka.wire`), which has
to fit into the chart's memory limit."""
LEVELS = ("debug", "info", "warning", "error")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LEASE_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the operator was asked to do.

    Attributes:
        namespaces: to watch; empty: all.
        worker_image: of groups that name none; empty: such groups are degraded.
        pod_monitors: whether a group gets a PodMonitor where that kind is served.
        lease: name of the Lease; empty: no election, this process leads.
        lease_namespace: where it is; empty: the pod's own, or the kubeconfig's.
        identity: who holds it.
        http_host: to listen on; empty: all addresses, IPv4 and IPv6.
        http_port: to listen on; 0: any.
        admission_webhook: the name of the webhook's Service, Secret and ValidatingWebhookConfiguration;
            empty: no webhook is served.
        admission_port: it listens on, at `http_host`; 0: any.
        own_namespace: the pod's; empty: the kubeconfig's.
        round_ms: how often a Kafka cluster is asked about all its groups.
        busy_round_ms: how often about those in which something is under way.
        receive_message_max_bytes: the largest answer of a broker that is read.
        traces_endpoint: the URL of a collector that takes OTLP over HTTP; empty: no traces are sent.
        prometheus_url: of the Prometheus that the queries of rollouts' analyses are sent to; empty: none.
        log_level: the least that is logged.
        log_format: `text` or `json`.
    """

    namespaces: tuple[str, ...]
    worker_image: str
    pod_monitors: bool
    lease: str
    lease_namespace: str
    identity: str
    http_host: str
    http_port: int
    admission_webhook: str
    admission_port: int
    own_namespace: str
    round_ms: int
    busy_round_ms: int
    receive_message_max_bytes: int
    traces_endpoint: str
    prometheus_url: str
    log_level: str
    log_format: str


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Reads the arguments, and the environment for those that are not given.

    Args:
        arguments: without the program's name.
        environment: `SLACKWATER_HTTP_PORT` stands for `--http-port`, and so on; `SLACKWATER_NAMESPACE` may
            name
            several, separated by commas. `POD_NAME` and `POD_NAMESPACE` are who and where we are.

    Raises:
        SystemExit: 2 after one line that says what is wrong; 0 after `--help`.
    """
    options = parser(environment)
    return options_of(options, options.parse_args(arguments), environment)


def options_of(
    options: argparse.ArgumentParser, args: argparse.Namespace, environment: Mapping[str, str]
) -> Options:
    """What ``options``, the parser, has read, checked.

    Raises:
        SystemExit: 2 after one line that says what is wrong.
    """
    named = args.namespace or [
        namespace.strip() for namespace in environment.get(PREFIX + "NAMESPACE", "").split(",")
    ]
    namespaces = tuple(dict.fromkeys(namespace for namespace in named if namespace))
    for namespace in namespaces:
        if not _NAME.fullmatch(namespace):
            options.error(
                f"--namespace {namespace}: not a valid namespace name (give the option once for each "
                "namespace)"
            )
    if not _LEASE_NAME.fullmatch(args.lease):
        options.error(f"--lease {args.lease}: not a valid Lease name")
    if args.admission_webhook and not _NAME.fullmatch(args.admission_webhook):
        options.error(f"--admission-webhook {args.admission_webhook}: not a valid Service name")
    if args.traces_endpoint and not re.fullmatch(ENDPOINT, args.traces_endpoint):
        options.error(
            f"--traces-endpoint {args.traces_endpoint}: not a collector's URL, such as http://otel-collector:4318"
        )
    if args.prometheus_url and not re.fullmatch(ENDPOINT, args.prometheus_url):
        options.error(f"--prometheus-url {args.prometheus_url}: not a URL, such as http://prometheus:9090")
    if args.traces_endpoint and not disabled(environment) and (problem := OTEL.problem("--traces-endpoint")):
        options.error(problem)
    if args.lease_namespace and not _NAME.fullmatch(args.lease_namespace):
        options.error(f"--lease-namespace {args.lease_namespace}: not a valid namespace name")
    return Options(
        namespaces=namespaces,
        worker_image=args.worker_image,
        pod_monitors=not args.no_pod_monitors,
        lease="" if args.no_leader_election else args.lease,
        lease_namespace=args.lease_namespace or environment.get("POD_NAMESPACE", ""),
        identity=args.identity or environment.get("POD_NAME") or _own_name(),
        http_host=args.http_host,
        http_port=args.http_port,
        admission_webhook=args.admission_webhook,
        admission_port=args.admission_port,
        own_namespace=environment.get("POD_NAMESPACE", ""),
        round_ms=args.round_ms,
        busy_round_ms=args.busy_round_ms,
        receive_message_max_bytes=args.receive_message_max_bytes,
        traces_endpoint=args.traces_endpoint,
        prometheus_url=args.prometheus_url,
        log_level=args.log_level,
        log_format=args.log_format,
    )


def parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser of the operator's command line, with the defaults that ``environment`` gives.

    A subcommand sets ``run``, which takes the arguments and returns the exit code.
    """
    made = Parser(
        prog="slackwater-operator",
        allow_abbrev=False,
        description="Manages the ConsumerGroups of a Kubernetes cluster. Each option can also be set in "
        f"the environment: {PREFIX}HTTP_PORT is --http-port.",
        epilog="Without COMMAND the operator runs until SIGTERM.",
    )
    given = _Environment(made, environment)
    made.add_argument("--version", action="version", version=VERSION, help="print the version")
    made.add_argument(
        "--namespace", action="append", metavar="NS", help="a namespace to watch (repeatable; default: all)"
    )
    given.text(
        "--worker-image", "", "IMAGE", "default worker image, for ConsumerGroups without spec.pipeline.image"
    )
    given.flag("--no-pod-monitors", "create no PodMonitors for groups")
    given.text("--lease", LEASE, "NAME", "name of the leader election Lease")
    given.text("--lease-namespace", "", "NS", "namespace of the Lease (default: the pod's own)")
    given.text("--identity", "", "NAME", "this replica's name in the Lease (default: the pod's name)")
    given.flag("--no-leader-election", "lead without a Lease; only with a single replica")
    given.text(
        "--http-host", "", "HOST", "address of /healthz, /readyz and /metrics (default: all addresses)"
    )
    given.number("--http-port", 8080, "PORT", "their port (0: any free port)", least=0, most=65535)
    given.text(
        "--admission-webhook",
        "",
        "NAME",
        "serve an admission webhook, whose Service, Secret and ValidatingWebhookConfiguration have this name",
    )
    given.number("--admission-port", 9443, "PORT", "its port (0: any free port)", least=0, most=65535)
    given.number(
        "--round-ms", 5000, "MS", "interval at which Kafka is queried for all groups", least=500, most=60_000
    )
    given.number(
        "--busy-round-ms",
        500,
        "MS",
        "interval for groups with an operation in progress",
        least=100,
        most=60_000,
    )
    given.number(
        "--receive-message-max-bytes",
        ANSWER_MAX_BYTES,
        "BYTES",
        "largest accepted broker response; the memory limit should be 40 times this",
        least=1 << 20,
        most=1 << 28,
    )
    given.text(
        "--traces-endpoint",
        "",
        "URL",
        "send traces of takeovers and restarts to this OpenTelemetry collector (OTLP over HTTP)",
    )
    given.text("--prometheus-url", "", "URL", "send the queries of spec.rollout.analysis to this Prometheus")
    given.choice("--log-level", "info", LEVELS, "lowest level that is logged")
    given.choice("--log-format", "text", ("text", "json"), "format of the log (on stderr)")
    subparsers = made.add_subparsers(dest="command", metavar="COMMAND")
    check.register(subparsers)
    completion.register(subparsers, made.prog, lambda: parser({}))
    return made


class _Environment:
    """Adds options whose default is in the environment."""

    def __init__(self, parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
        self._parser = parser
        self._environment = environment

    def text(self, option: str, default: str, shown: str, description: str) -> None:
        self._parser.add_argument(option, default=self._of(option, default), metavar=shown, help=description)

    def flag(self, option: str, description: str) -> None:
        value = self._of(option, "").lower()
        if value not in ("", "0", "1", "false", "true"):
            self._parser.error(f"{self._name(option)}={value} must be true or false")
        self._parser.add_argument(
            option, action="store_true", default=value in ("1", "true"), help=description
        )

    def choice(self, option: str, default: str, among: Sequence[str], description: str) -> None:
        value = self._of(option, default)
        if value not in among:
            self._parser.error(f"{self._name(option)}={value} must be one of {', '.join(among)}")
        self._parser.add_argument(option, default=value, choices=among, help=f"{description} ({default})")

    def number(
        self, option: str, default: int, shown: str, description: str, *, least: int, most: int
    ) -> None:
        def checked(value: str) -> int:
            if not value.isdecimal() or not least <= int(value) <= most:
                raise argparse.ArgumentTypeError(f"{value} must be a number between {least} and {most}")
            return int(value)

        try:
            preset = checked(self._of(option, str(default)))
        except argparse.ArgumentTypeError as error:
            self._parser.error(f"{self._name(option)}={error}")
        self._parser.add_argument(
            option, type=checked, default=preset, metavar=shown, help=f"{description} ({default})"
        )

    def _of(self, option: str, default: str) -> str:
        return self._environment.get(self._name(option)) or default

    @staticmethod
    def _name(option: str) -> str:
        return PREFIX + option.removeprefix("--").replace("-", "_").upper()


def _own_name() -> str:
    """Outside of a pod two processes of a machine must not take each other for themselves."""
    return f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(3)}"
