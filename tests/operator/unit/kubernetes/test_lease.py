"""Leader election with virtual time: the deadline to the second, and what two processes make of one Lease."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from slackwater_operator.kubernetes.errors import KubeConflict, KubeError, KubeForbidden, KubeUnavailable
from slackwater_operator.kubernetes.lease import Lease, LeaseLost, LeaseSettings
from tests.support.virtual_time import run_virtually

Object = dict[str, Any]
LATENCY_S = 0.05


class FakeApi:
    """One Lease with the API server's rules for resourceVersions; `way` says what happens to requests."""

    def __init__(self) -> None:
        self.stored: Object | None = None
        self.version = 100
        self.renewals: list[float] = []
        self.way: Callable[[], Awaitable[None]] = self._open

    async def _open(self) -> None:
        await asyncio.sleep(LATENCY_S)

    async def hang(self) -> None:
        """No answer, ever."""
        await asyncio.sleep(10**6)

    async def refuse(self) -> None:
        """The connection is refused."""
        raise KubeUnavailable(0, "Unreachable", "connection refused")

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        await self.way()
        return copy.deepcopy(self.stored)

    async def create(self, manifest: Object) -> Object:
        await self.way()
        if self.stored is not None:
            raise KubeConflict(409, "AlreadyExists", "exists")
        return self._store(manifest)

    async def replace(self, manifest: Object) -> Object:
        await self.way()
        if self.stored is None:
            raise KubeError(404, "NotFound", "gone")
        if manifest["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise KubeConflict(409, "Conflict", "changed")
        return self._store(manifest)

    def _store(self, manifest: Object) -> Object:
        self.version += 1
        self.stored = copy.deepcopy(manifest)
        self.stored["metadata"]["resourceVersion"] = str(self.version)
        self.renewals.append(asyncio.get_running_loop().time())
        return copy.deepcopy(self.stored)


def lease(api: FakeApi, identity: str = "a") -> Lease:
    return Lease(
        api,
        LeaseSettings(namespace="ns", name="operator", identity=identity),
        wall_ms=lambda: 1_700_000_000_123,
    )


def now() -> float:
    return asyncio.get_running_loop().time()


def spec(api: FakeApi) -> Object:
    assert api.stored is not None
    spec: Object = api.stored["spec"]
    return spec


def test_a_lease_that_is_not_there_is_made_with_times_in_utc() -> None:
    async def story() -> None:
        api = FakeApi()
        ours = lease(api)
        await ours.acquire()
        assert ours.leads
        assert spec(api) == {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "acquireTime": "2023-11-14T22:13:20.123000Z",
            "renewTime": "2023-11-14T22:13:20.123000Z",
            "leaseTransitions": 0,
        }

    run_virtually(story())


@pytest.mark.parametrize("how", ["hang", "refuse"])
def test_the_holder_leads_until_the_deadline_and_not_a_moment_longer(how: str) -> None:
    async def story() -> None:
        api = FakeApi()
        ours = lease(api)
        await ours.acquire()
        holding = asyncio.create_task(ours.hold())
        await asyncio.sleep(30.5)
        assert ours.leads
        api.way = getattr(api, how)
        deadline_s = api.renewals[-1] - LATENCY_S + 10  # counted from when it was sent
        assert ours.deadline_s == pytest.approx(deadline_s)
        await asyncio.sleep(deadline_s - now() - 1)
        assert ours.leads
        assert not holding.done()
        with pytest.raises(LeaseLost, match=r"ns/operator could not be renewed within 10 s"):
            await holding
        assert now() == pytest.approx(deadline_s, abs=0.001)
        assert not ours.leads

    run_virtually(story())


@pytest.mark.parametrize("how", ["hang", "refuse"])
def test_an_api_server_back_a_second_before_the_deadline_keeps_the_leader(how: str) -> None:
    async def story() -> None:
        api = FakeApi()
        ours = lease(api)
        await ours.acquire()
        holding = asyncio.create_task(ours.hold())
        way = api.way
        await asyncio.sleep(4.5)
        api.way = getattr(api, how)
        await asyncio.sleep(ours.deadline_s - now() - (4 if how == "hang" else 1.5))
        api.way = way
        await asyncio.sleep(60)
        assert ours.leads
        assert not holding.done()
        holding.cancel()

    run_virtually(story())


def test_a_holder_that_dies_is_followed_within_the_lease_and_not_before() -> None:
    async def story() -> None:
        api = FakeApi()
        first, second = lease(api, "a"), lease(api, "b")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        candidate = asyncio.create_task(second.acquire())
        await asyncio.sleep(100)
        assert not candidate.done()
        holding.cancel()
        died_s = api.renewals[-1]
        await asyncio.sleep(died_s + 14.9 - now())
        assert not candidate.done()
        await candidate
        assert died_s + 15 <= now() <= died_s + 15 + 2.1
        assert spec(api)["holderIdentity"] == "b"
        assert spec(api)["leaseTransitions"] == 1
        assert second.holder == "b"

    run_virtually(story())


def test_never_two_leaders_while_the_holder_is_cut_off() -> None:
    async def story() -> None:
        api = FakeApi()
        cut = FakeApi()
        first = lease(cut, "a")
        cut.stored, cut._store = None, api._store  # type: ignore[method-assign]
        await first.acquire()
        cut.stored = api.stored
        holding = asyncio.create_task(first.hold())
        cut.way = cut.hang
        second = lease(api, "b")
        candidate = asyncio.create_task(second.acquire())
        over_s = None
        while not candidate.done():
            assert not (first.leads and second.leads)
            if not first.leads and over_s is None:
                over_s = now()
            await asyncio.sleep(0.05)
        assert over_s is not None
        assert now() - over_s >= 4
        with pytest.raises(LeaseLost):
            await holding

    run_virtually(story())


def test_a_released_lease_is_taken_at_the_next_attempt() -> None:
    async def story() -> None:
        api = FakeApi()
        first, second = lease(api, "a"), lease(api, "b")
        await first.acquire()
        candidate = asyncio.create_task(second.acquire())
        await asyncio.sleep(5)
        assert not candidate.done()
        await first.release()
        assert not first.leads
        at_s = now()
        await candidate
        assert now() - at_s <= 1.1

    run_virtually(story())


def test_release_does_not_wait_for_an_api_server_that_hangs() -> None:
    async def story() -> None:
        api = FakeApi()
        ours = lease(api)
        await ours.acquire()
        api.way = api.hang
        at_s = now()
        await ours.release()
        assert now() - at_s == pytest.approx(2.0)
        assert not ours.leads

    run_virtually(story())


def test_of_two_candidates_at_once_a_single_one_gets_the_lease() -> None:
    async def story() -> None:
        api = FakeApi()
        both = [lease(api, "a"), lease(api, "b")]
        tasks = [asyncio.create_task(candidate.acquire()) for candidate in both]
        await asyncio.sleep(0.5)
        assert sorted(task.done() for task in tasks) == [False, True]
        assert [candidate.leads for candidate in both].count(True) == 1
        for task in tasks:
            task.cancel()

    run_virtually(story())


def test_an_edit_of_the_lease_by_others_does_not_end_the_leader() -> None:
    async def story() -> None:
        api = FakeApi()
        ours = lease(api)
        await ours.acquire()
        holding = asyncio.create_task(ours.hold())
        await asyncio.sleep(1)
        assert api.stored is not None
        touched = copy.deepcopy(api.stored)
        touched["metadata"]["annotations"] = {"seen": "yes"}
        api._store(touched)
        await asyncio.sleep(60)
        assert ours.leads
        assert not holding.done()
        assert api.stored["metadata"]["annotations"] == {"seen": "yes"}
        assert len(api.renewals) > 25
        holding.cancel()

    run_virtually(story())


def test_a_lease_with_a_new_holder_ends_the_leader_at_its_next_renewal() -> None:
    async def story() -> None:
        api = FakeApi()
        ours = lease(api)
        await ours.acquire()
        holding = asyncio.create_task(ours.hold())
        await asyncio.sleep(1)
        assert api.stored is not None
        taken = copy.deepcopy(api.stored)
        taken["spec"]["holderIdentity"] = "thief"
        api._store(taken)
        with pytest.raises(LeaseLost, match="held by thief"):
            await holding
        assert not ours.leads

    run_virtually(story())


def test_a_lease_deleted_under_the_leader_is_made_again() -> None:
    async def story() -> None:
        api = FakeApi()
        ours = lease(api)
        await ours.acquire()
        holding = asyncio.create_task(ours.hold())
        await asyncio.sleep(1)
        api.stored = None
        await asyncio.sleep(30)
        assert not holding.done()
        assert spec(api)["holderIdentity"] == "a"
        holding.cancel()

    run_virtually(story())


def test_a_candidate_survives_refusals_and_an_api_server_that_is_away() -> None:
    async def story() -> None:
        api = FakeApi()
        way = api.way

        async def forbidden() -> None:
            raise KubeForbidden(403, "Forbidden", "leases is forbidden")

        ours = lease(api)
        candidate = asyncio.create_task(ours.acquire())
        for trouble in (forbidden, api.refuse, api.hang):
            api.way = trouble
            await asyncio.sleep(25)
            assert not candidate.done()
        api.way = way
        await candidate
        assert ours.leads

    run_virtually(story())


def test_the_same_process_again_need_not_wait() -> None:
    async def story() -> None:
        api = FakeApi()
        await lease(api, "pod-0").acquire()
        at_s = now()
        await lease(api, "pod-0").acquire()
        assert now() - at_s < 0.1
        assert spec(api)["leaseTransitions"] == 0

    run_virtually(story())


def test_times_that_would_allow_two_leaders_are_refused() -> None:
    with pytest.raises(ValueError, match=r"deadline \(20 s\).*duration \(15 s\)"):
        LeaseSettings(namespace="ns", name="n", identity="a", renew_deadline_s=20)
