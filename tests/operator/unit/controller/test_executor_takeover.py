"""What the executor does for a takeover: the key that is made once, the order to a standby, the two sets."""

from __future__ import annotations

import base64
import copy
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from slackwater_operator.api.v1alpha1.status.group_status import GroupStatus
from slackwater_operator.controller.execution.executor import Executor, Outcome
from slackwater_operator.controller.session import new_session
from slackwater_operator.kubernetes.errors import KubeConflict, KubeForbidden
from slackwater_operator.kubernetes.store import Key, Store
from slackwater_operator.model import names
from slackwater_operator.planner.actions import Action, CreateSecret, Plan, RequestTakeover, SetReplicas
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.specs.worker_config import takeover_secret
from slackwater_operator.workers.client import PodAddress, WorkerStatuses
from tests.operator.unit.planner.simulation.simulated_cluster import Posted
from tests.operator.unit.specs.built_group import group
from tests.support.workers.takeover_worker import TakeoverWorker

GROUP = group(**{"spec/rollout/strategy": "Takeover"})
KEY = Key(GROUP.namespace, GROUP.name)
SECRET = "flights-takeover"
FIRST, SECOND = "0f" * 32, "f0" * 32
Object = dict[str, Any]


class Api:
    """The API server's Secrets and StatefulSets, as `Kube` shows them."""

    def __init__(self) -> None:
        self.secrets: dict[str, Object] = {}
        self.patches: list[tuple[str, Object]] = []
        self.reads = 0
        self.forbidden = False

    async def create(self, manifest: Object) -> Object:
        name = manifest["metadata"]["name"]
        if self.forbidden:
            raise KubeForbidden(403, "Forbidden", "POST secrets: no right")
        if name in self.secrets:
            raise KubeConflict(409, "AlreadyExists", f'secrets "{name}" already exists')
        return self.put(manifest)

    def put(self, manifest: Object) -> Object:
        made = copy.deepcopy(manifest)
        made["metadata"]["resourceVersion"] = str(100 + len(self.secrets))
        self.secrets[made["metadata"]["name"]] = made
        return made

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        assert (api_version, kind, namespace) == ("v1", "Secret", GROUP.namespace)
        self.reads += 1
        return copy.deepcopy(self.secrets.get(name))

    async def patch(self, api_version: str, kind: str, namespace: str, name: str, body: Object) -> Object:
        self.patches.append((name, body))
        metadata = {"name": name, "namespace": namespace, "labels": {names.GROUP_LABEL: GROUP.name},
                    "resourceVersion": str(len(self.patches))}  # fmt: skip
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": body["spec"]}


class Rig:
    """An executor, and what it works on."""

    def __init__(self, worker: TakeoverWorker, workers: WorkerStatuses) -> None:
        self.api, self.store, self.worker = Api(), Store(), worker
        kube: Any = self.api
        nobody: Any = None
        self.events = Posted()
        events: Any = self.events
        self._executor = Executor(kube, self.store, nobody, workers, events, jitter=lambda: 1.0)
        self.session = new_session(KEY, now_ms=0, window_ms=1, down_window_ms=1, settle_ms=1)

    async def do(self, *actions: Action, uid: str = GROUP.metadata.uid) -> Outcome:
        port = self.worker.port
        actions = tuple(
            replace(action, port=port) if isinstance(action, RequestTakeover) else action
            for action in actions
        )
        snapshot = GroupSnapshot(now_ms=0, namespace=KEY.namespace, name=KEY.name, uid=uid, generation=1,
                      memory=GroupStatus(), group=GROUP)  # fmt: skip
        return await self._executor.execute(self.session, snapshot, Plan(actions), now_ms=0)

    def key(self, name: str = SECRET) -> str:
        return base64.b64decode(self.api.secrets[name]["data"]["key"]).decode()

    @property
    def version(self) -> str | None:
        return self.store.secret_version(KEY.namespace, SECRET)

    def pod(self, uid: str) -> None:
        metadata = {"name": "flights-b-3", "namespace": KEY.namespace, "uid": uid, "resourceVersion": "1",
                    "labels": {names.GROUP_LABEL: KEY.name}}  # fmt: skip
        self.store.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})


TELL = RequestTakeover("flights-b-3", "uid-b-3", "127.0.0.1", "10.1.2.3:8080")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    worker, workers = TakeoverWorker(bytes.fromhex(FIRST)), WorkerStatuses(timeout_s=2.0)
    worker.status.pod = TELL.pod
    with worker.serve():
        workers.heard(PodAddress(TELL.pod, TELL.ip, worker.port), worker.status.process)
        yield Rig(worker, workers)
        await workers.close()


# --- the key


async def test_the_secret_is_made_with_random_bytes_and_never_written_again(rig: Rig) -> None:
    assert await rig.do(CreateSecret(SECRET)) == Outcome(1)
    first = rig.key()
    assert len(bytes.fromhex(first)) == 32
    assert names.is_owned(rig.api.secrets[SECRET], GROUP.metadata.uid)
    assert rig.version == "100"
    assert await rig.do(CreateSecret(SECRET)) == Outcome(1)
    assert rig.key() == first
    del rig.api.secrets[SECRET]
    assert await rig.do(CreateSecret(SECRET)) == Outcome(1)
    assert rig.key() != first


async def test_a_secret_that_is_somebody_elses_is_not_used(rig: Rig) -> None:
    theirs = takeover_secret(group(**{"metadata/uid": "another"}), FIRST)
    rig.api.put(theirs)
    for action in (CreateSecret(SECRET), TELL):
        outcome = await rig.do(action)
        assert outcome.done == 0
        assert outcome.problem is not None
        assert outcome.problem[0] == "NameTaken"
        assert "delete or rename it" in outcome.problem[1]
    assert rig.worker.requests == 0
    assert rig.key() == FIRST


@pytest.mark.parametrize("data", [None, {}, {"key": ""}, {"key": "!"}, {"key": "Zm9v"}, {"other": "Zm9v"}])
async def test_a_secret_without_a_key_says_what_to_do(rig: Rig, data: dict[str, str] | None) -> None:
    rig.api.put({**takeover_secret(GROUP, FIRST), "data": data})
    outcome = await rig.do(CreateSecret(SECRET))
    assert outcome.problem is not None
    assert outcome.problem[0] == "NoTakeoverKey"
    assert "delete the Secret (the operator creates it again)" in outcome.problem[1]


async def test_a_missing_permission_is_reported(rig: Rig) -> None:
    rig.api.forbidden = True
    assert await rig.do(CreateSecret(SECRET)) == Outcome(1), "what needs no Secret goes on"
    [(reason, message)] = rig.session.refusals.problems
    assert reason == "Forbidden"
    assert "refused to create Secret flights-takeover (403)" in message
    assert rig.events.said == [(reason, message)]


# --- the order


async def test_a_standby_is_told_with_the_key_read_once(rig: Rig) -> None:
    rig.api.put(takeover_secret(GROUP, FIRST))
    rig.pod("uid-b-3")
    assert await rig.do(TELL) == Outcome(1)
    assert await rig.do(RequestTakeover("flights-b-3", "uid-b-3", "127.0.0.1")) == Outcome(1)
    assert rig.worker.orders == ["10.1.2.3:8080", ""]
    assert rig.api.reads == 1


async def test_the_key_that_was_made_is_not_read(rig: Rig) -> None:
    await rig.do(CreateSecret(SECRET))
    rig.worker.key = bytes.fromhex(rig.key())
    assert await rig.do(TELL) == Outcome(1)
    assert rig.api.reads == 0


async def test_a_new_secret_is_read_when_the_old_key_is_refused(rig: Rig) -> None:
    rig.api.put(takeover_secret(GROUP, FIRST))
    assert await rig.do(TELL) == Outcome(1)
    rig.api.put(takeover_secret(GROUP, SECOND))
    rig.worker.key = bytes.fromhex(SECOND)
    assert await rig.do(TELL) == Outcome(1)
    assert (rig.api.reads, rig.worker.requests) == (2, 3)
    assert await rig.do(TELL) == Outcome(1)
    assert (rig.api.reads, rig.worker.requests) == (2, 4)


async def test_a_pod_with_a_key_that_differs_from_the_secret_says_what_to_do(rig: Rig) -> None:
    rig.api.put(takeover_secret(GROUP, SECOND))
    outcome = await rig.do(TELL)
    assert outcome.done == 0
    assert outcome.problem is None  # a turn tries again
    assert "flights-b-3 could not be asked to take over: the worker rejected the signature" in outcome.error
    assert "set spec.rollout.strategy to Restart until all workers have restarted" in outcome.error
    assert rig.worker.requests == 1  # the same key once more would say nothing new


async def test_a_worker_that_may_not_take_over_yet_ends_the_reconciliation(rig: Rig) -> None:
    rig.api.put(takeover_secret(GROUP, FIRST))
    rig.worker.takeover_requests.refuse_orders("warming")
    outcome = await rig.do(TELL, CreateSecret(SECRET))
    error = "flights-b-3 could not be asked to take over: warming; the operator retries"
    assert outcome == Outcome(0, None, error, backs_off=True)


async def test_a_new_pod_of_the_same_name_is_not_told(rig: Rig) -> None:
    rig.api.put(takeover_secret(GROUP, FIRST))
    rig.pod("uid-of-another")
    outcome = await rig.do(TELL)
    assert outcome.done == 0
    assert "was replaced by another pod" in outcome.error
    assert rig.worker.requests == 0


async def test_without_the_secret_no_worker_is_told(rig: Rig) -> None:
    outcome = await rig.do(TELL)
    assert outcome.problem is not None
    assert outcome.problem[0] == "NoTakeoverKey"
    rig.session.problems = (outcome.problem,)
    await rig.do(TELL)
    assert rig.events.said == [outcome.problem]
    assert rig.worker.requests == 0
    assert rig.version == ""  # so that the next turn makes it


# --- the sets


async def test_a_step_of_a_set_is_a_single_patch(rig: Rig) -> None:
    """Two would let a pod that is not meant come or go in between."""
    await rig.do(SetReplicas("flights-b", "uid", 2, start=8), SetReplicas("flights-a", "uid-a", 8))
    assert rig.api.patches == [
        ("flights-b", {"metadata": {"uid": "uid"}, "spec": {"replicas": 2, "ordinals": {"start": 8}}}),
        ("flights-a", {"metadata": {"uid": "uid-a"}, "spec": {"replicas": 8}}),
    ]
    await rig.do(SetReplicas("flights-b", "uid", 10, start=0))
    assert rig.api.patches[-1][1]["spec"] == {"replicas": 10, "ordinals": {"start": 0}}
    # The next turn sees its own write.
    specs = {
        statefulset["metadata"]["name"]: statefulset["spec"] for statefulset in rig.store.statefulsets(KEY)
    }
    assert specs == {"flights-a": {"replicas": 8}, "flights-b": {"replicas": 10, "ordinals": {"start": 0}}}
