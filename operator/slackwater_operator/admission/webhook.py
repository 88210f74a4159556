"""The admission webhook of one replica: kopf answers the reviews, and the operator's own parser checks.

Every replica serves, whichever leads. A check that fails admits the ConsumerGroup: the operator reads it
again, and reports in the condition Degraded what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import kopf

from slackwater.fields import FieldError
from slackwater.kafka.untrusted import one_line
from slackwater_operator.admission.certificate_store import CertificateStore
from slackwater_operator.admission.certificates import Material
from slackwater_operator.admission.server import WebhookServer, tls_context
from slackwater_operator.api.v1alpha1.consumer_group import API_VERSION, KIND
from slackwater_operator.api.v1alpha1.yaml_file import ResourceError
from slackwater_operator.kubernetes import kinds
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeConfigError, KubeError
from slackwater_operator.kubernetes.kopf_thread import KopfThread, log_in, quiet_settings
from slackwater_operator.specs.statefulset import read_resource
from slackwater_operator.telemetry.metrics import OperatorMetrics

logger = logging.getLogger(__name__)

UNPROCESSABLE = 422
RETRY_S = 2.0
CHECKS_AT_ONCE = 4
LOGGED_CHARACTERS = 500
HANDLER = "consumergroups"


def refusal(new: Mapping[str, Any], old: Mapping[str, Any] | None, worker_image: str) -> str:
    """Why a ConsumerGroup is refused: the message of the condition with reason InvalidSpec; "": it is not.

    An update that does not change the spec is admitted, even if that spec is invalid: otherwise nobody could
    remove a finalizer or set a label.

    Args:
        new: the resource as it is to be.
        old: as it is now; None: it is being created.
        worker_image: the image of groups that name none.
    """
    if old is not None and old.get("spec") == new.get("spec"):
        return ""
    try:
        read_resource(new, worker_image=worker_image)
    except (ResourceError, FieldError) as error:
        return str(error)
    return ""


class _NotAnError(logging.Filter):
    """Drops kopf's log line of a refusal, which it calls an error of the handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it."""
        return not str(record.msg).startswith(f"Webhook {HANDLER!r} failed permanently")


_NOT_AN_ERROR = _NotAnError()


class AdmissionWebhook:
    """Serves as long as `run` runs. Nothing in here ends the operator."""

    def __init__(
        self,
        kube: Kube,
        metrics: OperatorMetrics,
        *,
        name: str,
        namespace: str,
        host: str,
        port: int,
        worker_image: str,
    ) -> None:
        """Does nothing yet.

        Args:
            kube: the way to the API server.
            metrics: counts the reviews.
            name: of the Service, the Secret and the ValidatingWebhookConfiguration.
            namespace: of Service and Secret.
            host: an address of this machine; "": all.
            port: to listen on; 0: any.
            worker_image: the image of groups that name none.
        """
        self._kube, self._metrics = kube, metrics
        self._worker_image = worker_image
        self._host, self._port = host, port
        self._server: WebhookServer | None = None
        self._certified = asyncio.Event()
        self._store = CertificateStore(kube, name=name, namespace=namespace, on_new=self._use)

    @property
    def port(self) -> int:
        """The port that it listens on; 0: it does not yet."""
        return self._server.port if self._server is not None else 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._store.run())
                    tasks.create_task(self._serve())
            except ExceptionGroup:
                logger.exception("admission webhook: stopped; restarting it")
            await asyncio.sleep(RETRY_S)

    def _use(self, material: Material, ends_ms: int) -> None:
        tls = tls_context(material)
        self._metrics.admission_certificate(ends_ms)
        if self._server is None:
            self._server = WebhookServer(self._host, self._port, tls, self._failed)
            self._certified.set()
        self._server.tls = tls

    async def _serve(self) -> None:
        await self._certified.wait()
        assert self._server is not None
        logging.getLogger("kopf.objects").addFilter(_NOT_AN_ERROR)
        while True:
            await self._until_served()
            settings = quiet_settings()
            settings.admission.server = self._server
            settings.execution.max_workers = CHECKS_AT_ONCE
            await KopfThread(self._registry(), settings).run()
            await asyncio.sleep(RETRY_S)

    async def _until_served(self) -> None:
        """kopf looks for the kinds once, and answers no review of a kind that it did not find."""
        while True:
            try:
                if await self._kube.served(API_VERSION, KIND, fresh=True):
                    return
            except (KubeError, KubeConfigError) as error:
                logger.debug("admission webhook: %s", error)
            await asyncio.sleep(RETRY_S)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()
        log_in(registry, self._kube.access)
        group, _, version = API_VERSION.partition("/")
        kopf.on.validate(
            group,
            version,
            str(kinds.plural_of(API_VERSION, KIND)),
            registry=registry,
            id=HANDLER,
            operations=["CREATE", "UPDATE"],
        )(self._validate)
        return registry

    def _validate(self, **review: Any) -> None:
        """On one of kopf's threads."""
        new, old = review["new"], review["old"]
        try:
            problem = refusal(new, old, self._worker_image)
        except Exception:
            metadata = new.get("metadata") or {}
            logger.exception(
                "admission webhook: ConsumerGroup %s/%s was admitted unchecked",
                metadata.get("namespace"),
                metadata.get("name"),
            )
            self._failed()
            return
        self._metrics.reviewed("refused" if problem else "admitted")
        if problem:
            logger.info("admission webhook: refused: %s", one_line(problem, LOGGED_CHARACTERS))
            raise kopf.AdmissionError(problem, code=UNPROCESSABLE)

    def _failed(self) -> None:
        self._metrics.reviewed("failed")
