"""Keeps the webhook's certificates in one Secret that all replicas share, and the `caBundle` up to date."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from typing import Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.admission.certificates import (
    Facts,
    Material,
    Renewal,
    facts_of,
    renewal_due,
    renewed,
)
from slackwater_operator.kubernetes.client import Kube
from slackwater_operator.kubernetes.errors import KubeConfigError, KubeConflict, KubeError

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 15.0
REGISTRATION = "admissionregistration.k8s.io/v1"
MISSING = "the chart creates it with admissionWebhook.enabled: upgrade the release"
CONFIGURATION = "ValidatingWebhookConfiguration"


class CertificateStore:
    """The Secret and the ValidatingWebhookConfiguration, which the chart creates.

    Replicas need no leader: a Secret is replaced only at the version that was read, so the second of two
    renewals is a conflict, and its replica takes the first one's.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        name: str,
        namespace: str,
        on_new: Callable[[Material, int], None],
        clock_ms: Callable[[], int] = SYSTEM_CLOCK.wall_ms,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """Does nothing yet.

        Args:
            kube: the way to the API server.
            name: of the Secret, the Service and the ValidatingWebhookConfiguration.
            namespace: of Secret and Service.
            on_new: takes each new content of the Secret, and when its certificate ends (ms since 1970).
            clock_ms: the wall clock.
            look_every_s: how often Secret and configuration are read.
        """
        self._kube, self._name, self._namespace = kube, name, namespace
        self._on_new, self._clock_ms, self._look_every_s = on_new, clock_ms, look_every_s
        self._host = f"{name}.{namespace}.svc"
        self._used: Material | None = None
        self._problem = ""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                problem = await self.look()
            except (KubeError, KubeConfigError) as error:
                problem = str(error)
            except Exception as error:
                logger.exception("admission webhook: %s", error or type(error).__name__)
                problem = ""
            if problem and problem != self._problem:
                logger.warning("admission webhook: %s", problem)
            self._problem = problem
            await asyncio.sleep(self._look_every_s)

    async def look(self) -> str:
        """Renews what is due, hands over what is new, and sees that the API server trusts it.

        Returns:
            What is missing, with what to do; "" where all is well.

        Raises:
            KubeError: the API server does not give or take the objects.
        """
        secret = await self._kube.get("v1", "Secret", self._namespace, self._name)
        if secret is None:
            return f"Secret {self._namespace}/{self._name} does not exist; {MISSING}"
        material = Material.from_secret(secret.get("data") or {})
        facts = facts_of(material, self._host)
        due = renewal_due(facts, self._clock_ms())
        if due is not Renewal.NOTHING or material is None:
            material = renewed(material, due, self._host, self._clock_ms())
            facts = facts_of(material, self._host)
            secret["data"] = {**(secret.get("data") or {}), **material.to_secret()}
            try:
                await self._kube.replace(secret)
            except KubeConflict:
                return await self.look()  # another replica was faster: what it made is read, and used
            logger.info("admission webhook: made %s in Secret %s/%s", due.value, self._namespace, self._name)
        self._hand_over(material, facts)
        return await self._trust(material)

    def _hand_over(self, material: Material, facts: Facts | None) -> None:
        if material == self._used:
            return
        assert facts is not None
        self._on_new(material, facts.certificate_ends_ms)
        self._used = material

    async def _trust(self, material: Material) -> str:
        """Sets the `caBundle` where it is another. All other fields are the chart's."""
        configuration = await self._kube.get(REGISTRATION, CONFIGURATION, "", self._name)
        if configuration is None:
            return f"{CONFIGURATION} {self._name} does not exist; {MISSING}"
        bundle = base64.b64encode(material.authorities).decode()
        webhooks: list[dict[str, Any]] = configuration.get("webhooks") or []
        if all(webhook["clientConfig"].get("caBundle") == bundle for webhook in webhooks):
            return ""
        await self._kube.apply(
            {
                "apiVersion": REGISTRATION,
                "kind": CONFIGURATION,
                "metadata": {
                    "name": self._name,
                    "resourceVersion": configuration["metadata"]["resourceVersion"],
                },
                "webhooks": [
                    {"name": webhook["name"], "clientConfig": {"caBundle": bundle}} for webhook in webhooks
                ],
            }
        )
        logger.info("admission webhook: set the caBundle of %s %s", CONFIGURATION, self._name)
        return ""
