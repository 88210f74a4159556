"""A real Prometheus for the tests, and what Prometheus Operator would tell it to scrape.

The CRDs (PodMonitor, PrometheusRule) are that project's own, out of its Go module. Its controller is not run:
what it makes of a PodMonitor is `scrape_config`, after `generatePodMonitorConfig` in its `promcfg.go`.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.controlplane import build
from tests.support.processes import ServerProcess, reserve_ports
from tests.support.waiting import HANG_S

MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
CHECKSUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
KINDS = ("podmonitors", "prometheusrules")
Manifest = Mapping[str, Any]


def crds() -> list[Path]:
    """Prometheus Operator's CustomResourceDefinitions. Raises :class:`build.ToolsUnavailable`."""
    done = subprocess.run(
        [str(build.find_go()), "mod", "download", "-json", MODULE],
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise build.ToolsUnavailable(f"{MODULE} cannot be had: {done.stderr[-500:]}")
    said = json.loads(done.stdout)
    if said["Sum"] != CHECKSUM:
        raise build.ToolsUnavailable(f"{MODULE} is not what was pinned: {said['Sum']}")
    folder = Path(said["Dir"]) / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{kind}.yaml" for kind in KINDS]


def scrape_config(monitor: Manifest, kubeconfig: Path) -> Iterator[dict[str, Any]]:
    """The scrape configurations that a PodMonitor stands for, an endpoint each.

    Raises ValueError for what is not translated here.
    """
    namespace, name = monitor["metadata"]["namespace"], monitor["metadata"]["name"]
    spec = monitor["spec"]
    _only(spec, {"selector", "namespaceSelector", "podMetricsEndpoints"})
    _only(spec["selector"], {"matchLabels"})
    where = spec.get("namespaceSelector", {})
    discovered: dict[str, Any] = {"role": "pod", "kubeconfig_file": str(kubeconfig)}
    if not where.get("any"):
        discovered["namespaces"] = {"names": where.get("matchNames", [namespace])}
    for at, endpoint in enumerate(spec["podMetricsEndpoints"]):
        _only(endpoint, {"port", "path", "interval", "scrapeTimeout", "honorLabels", "relabelings"})
        yield {
            "job_name": f"podMonitor/{namespace}/{name}/{at}",
            "honor_labels": endpoint.get("honorLabels", False),
            "metrics_path": endpoint.get("path", "/metrics"),
            "kubernetes_sd_configs": [discovered],
            "relabel_configs": [
                *_kept(spec["selector"]["matchLabels"], endpoint["port"]),
                *_named(f"{namespace}/{name}", endpoint["port"]),
                *(_relabelling(rule) for rule in endpoint.get("relabelings", [])),
            ],
        }


def _only(manifest: Manifest, known: set[str]) -> None:
    if unknown := set(manifest) - known:
        raise ValueError(f"not translated: {sorted(unknown)}")


def _kept(labels: Mapping[str, str], port: str) -> Iterator[dict[str, Any]]:
    phase = "__meta_kubernetes_pod_phase"
    yield {"source_labels": [phase], "regex": "(Failed|Succeeded)", "action": "drop"}
    for key, value in sorted(labels.items()):
        label = re.sub(r"[^a-zA-Z0-9_]", "_", key)
        sources = [f"__meta_kubernetes_pod_label_{label}", f"__meta_kubernetes_pod_labelpresent_{label}"]
        yield {"source_labels": sources, "regex": f"({value});true", "action": "keep"}
    yield {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": port, "action": "keep"}


def _named(job: str, port: str) -> Iterator[dict[str, Any]]:
    for source, target in (
        ("namespace", "namespace"),
        ("pod_container_name", "container"),
        ("pod_name", "pod"),
    ):
        yield {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": target}
    yield {"target_label": "job", "replacement": job}
    yield {"target_label": "endpoint", "replacement": port}


def _relabelling(rule: Manifest) -> dict[str, Any]:
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label", "regex": "regex",
             "action": "action", "replacement": "replacement"}  # fmt: skip
    return {names[key]: value for key, value in rule.items()}


@dataclass(frozen=True)
class Web:
    """How a Prometheus is served, with TLS, and how it is asked.

    Attributes:
        config: of `--web.config.file`.
        headers: of the requests.
        context: of TLS.
    """

    config: Manifest
    headers: Mapping[str, str]
    context: ssl.SSLContext


class Prometheus:
    """A running Prometheus. Made by :func:`prometheus`."""

    def __init__(self, url: str, log: Path, web: Web | None = None) -> None:
        self.url = url
        self._log = log
        self._headers = dict(web.headers) if web is not None else {}
        self._context = web.context if web is not None else None

    def log(self) -> str:
        """What it has written."""
        return self._log.read_text(errors="replace")

    def _get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        request = urllib.request.Request(f"{self.url}{path}?{query}", headers=self._headers)
        with urllib.request.urlopen(request, timeout=HANG_S, context=self._context) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an instant query: `metric` and `value`. A scalar is one without labels."""
        data = self._get("/api/v1/query", query=expr)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        samples: list[dict[str, Any]] = data["result"]
        return samples

    def values_since(self, expr: str, since_s: float) -> list[str]:
        """All values of all series since ``since_s`` (wall clock), every two seconds, as a panel draws it."""
        now_s = str(time.time())
        data = self._get("/api/v1/query_range", query=expr, start=str(since_s), end=now_s, step="2")
        return [value for series in data["result"] for _, value in series["values"]]

    def value(self, expr: str) -> float | None:
        """The value of the first series; None where there is none."""
        samples = self.query(expr)
        return float(samples[0]["value"][1]) if samples else None

    def targets(self) -> list[dict[str, Any]]:
        """What it scrapes, with its labels and health."""
        targets: list[dict[str, Any]] = self._get("/api/v1/targets", state="active")["activeTargets"]
        return targets

    def rules(self) -> list[dict[str, Any]]:
        """Its alerting rules, with the health of their last evaluation."""
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]


@contextmanager
def prometheus(
    directory: Path,
    scrapes: Sequence[Manifest],
    rules: Sequence[Manifest] = (),
    *,
    interval: str = "2s",
    web: Web | None = None,
) -> Iterator[Prometheus]:
    """Starts a Prometheus on loopback with these scrape configurations and rule groups, for the block.
    Without ``web`` it has neither TLS nor authentication."""
    directory.mkdir(parents=True, exist_ok=True)
    (port,) = reserve_ports(1)
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": list(rules)}))
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [str(directory / "rules.yaml")],
        "scrape_configs": list(scrapes),
    }
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    discovers = any("kubernetes_sd_configs" in scrape for scrape in config["scrape_configs"])
    checked = subprocess.run(
        [str(build.promtool(discovers=discovers)), "check", "config", str(directory / "prometheus.yaml")],
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (directory / "web.yaml").write_text(yaml.safe_dump(web.config if web is not None else {}))
    process = ServerProcess(
        "Prometheus",
        [
            str(build.prometheus(discovers=discovers)), f"--config.file={directory / 'prometheus.yaml'}",
            f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            f"--web.config.file={directory / 'web.yaml'}", "--log.level=warn",
        ],
        log=directory / "log", cwd=directory,
    )  # fmt: skip
    scheme = "http" if web is None else "https"
    server = Prometheus(f"{scheme}://127.0.0.1:{port}", directory / "log", web)
    process.await_ready(lambda: server.query("vector(1)"))
    try:
        yield server
    finally:
        process.kill()
