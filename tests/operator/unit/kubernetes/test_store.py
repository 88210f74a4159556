"""What the Store keeps, whose it is, and which of two versions counts."""

from __future__ import annotations

from typing import Any

from slackwater_operator.kubernetes.store import GROUP_LABEL, Key, Store

Object = dict[str, Any]
FLIGHTS = Key("ns", "flights")


def obj(kind: str, name: str, version: int, *, of: str = "flights", uid: str = "u", **more: Any) -> Object:
    labels = {GROUP_LABEL: of} if of else {}
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": labels,
        "managedFields": [{"manager": "x"}],
    }
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}


def test_an_older_version_never_replaces_a_newer_one() -> None:
    store = Store()
    assert store.put(obj("Pod", "flights-0", 10, status={"phase": "Running"}))
    assert not store.put(obj("Pod", "flights-0", 9, status={"phase": "Pending"}))
    assert not store.put(obj("Pod", "flights-0", 10, status={"phase": "Pending"}))
    assert store.pods(FLIGHTS)[0]["status"]["phase"] == "Running"
    assert store.put(obj("Pod", "flights-0", 100, status={"phase": "Failed"}))
    assert store.pods(FLIGHTS)[0]["status"]["phase"] == "Failed"


def test_an_object_that_nests_deep_is_kept_as_it_is() -> None:
    store, spec = Store(), Object()
    for _ in range(5_000):
        spec = {"a": spec}
    assert store.put(obj("ConsumerGroup", "flights", 10, spec=spec))
    assert store.group(FLIGHTS) is not None


def test_a_successor_of_the_same_name_counts_and_the_old_ones_deletion_does_not() -> None:
    store = Store()
    store.put(obj("Pod", "flights-0", 10, uid="old"))
    store.put(obj("Pod", "flights-0", 20, uid="new"))
    assert not store.drop("Pod", "ns", "flights-0", "old")
    assert not store.put(obj("Pod", "flights-0", 15, uid="old"))
    assert [pod["metadata"]["uid"] for pod in store.pods(FLIGHTS)] == ["new"]
    assert store.drop("Pod", "ns", "flights-0", "new")
    assert store.pods(FLIGHTS) == []


def test_an_answer_that_comes_after_the_deletion_does_not_bring_the_object_back() -> None:
    store = Store()
    gone = obj("ConsumerGroup", "flights", 11)
    gone["metadata"] |= {"deletionTimestamp": "2026-11-28T20:00:00Z"}
    store.put(gone)
    assert store.group(FLIGHTS) is None
    store.put(obj("ConsumerGroup", "flights", 10))
    store.put(gone)
    assert store.group(FLIGHTS) is None
    ending = obj("Pod", "flights-0", 12)
    ending["metadata"] |= gone["metadata"] | {"name": "flights-0", "resourceVersion": "12"}
    store.put(ending)
    assert store.pods(FLIGHTS), "it has its grace period"


def test_only_fields_that_are_read_are_kept() -> None:
    store = Store()
    spec = {"nodeName": "node-1", "containers": [{"image": "x"}]}
    store.put(obj("Pod", "flights-0", 1, spec=spec, status={"podIP": "10.0.0.1"}))
    store.put(obj("ConfigMap", "flights-1", 1, data={"worker.yaml": "x" * 1000}))
    store.put(obj("StatefulSet", "flights", 1, spec={"replicas": 3}))
    [pod], [config] = store.pods(FLIGHTS), store.configmaps(FLIGHTS)
    assert pod["spec"] == {"nodeName": "node-1"}
    assert pod["status"] == {"podIP": "10.0.0.1"}
    assert "managedFields" not in pod["metadata"]
    assert "data" not in config
    assert (store.statefulset_named("ns", "flights") or {})["spec"] == {"replicas": 3}


def test_all_sets_of_a_group_and_their_pods_are_its() -> None:
    """Also where another group is called as one of them: the label says whose an object is."""
    store, other = Store(), Key("ns", "flights-a")
    for name in ("flights-b", "flights"):
        store.put(obj("StatefulSet", name, 1))
        store.put(obj("Pod", f"{name}-0", 1))
    store.put(obj("StatefulSet", "flights-a", 1, of="flights-a"))
    store.put(obj("Pod", "flights-a-0", 1, of="flights-a"))
    assert [statefulset["metadata"]["name"] for statefulset in store.statefulsets(FLIGHTS)] == [
        "flights",
        "flights-b",
    ]
    assert [pod["metadata"]["name"] for pod in store.pods(FLIGHTS)] == ["flights-0", "flights-b-0"]
    assert [statefulset["metadata"]["name"] for statefulset in store.statefulsets(other)] == ["flights-a"]
    for name, of in (("flights-a", "flights-a"), ("flights-b", "flights")):
        there = store.statefulset_named("ns", name)
        assert there is not None
        assert there["metadata"]["labels"]["slackwater.dev/group"] == of
    assert store.statefulset_named("elsewhere", "flights-a") is None
    store.drop("StatefulSet", "ns", "flights")
    assert store.statefulset_named("ns", "flights") is None
    assert [statefulset["metadata"]["name"] for statefulset in store.statefulsets(FLIGHTS)] == ["flights-b"]
    assert store.statefulsets(Key("ns", "none")) == []


def test_an_object_of_the_groups_name_without_its_label_is_not_the_groups() -> None:
    store = Store()
    assert not store.put(obj("StatefulSet", "flights", 1, of=""))
    assert not store.put(obj("Secret", "flights", 1))
    assert store.statefulsets(FLIGHTS) == []
    assert store.statefulset_named("ns", "flights") is None


def test_groups_are_those_whose_own_object_is_there() -> None:
    store = Store()
    store.put(obj("Pod", "flights-0", 1))
    assert store.groups() == []
    store.put(obj("ConsumerGroup", "flights", 2, of=""))
    assert store.groups() == [FLIGHTS]
    assert store.group(FLIGHTS) is not None
    store.drop("ConsumerGroup", "ns", "flights")
    assert store.groups() == []
    assert len(store.pods(FLIGHTS)) == 1


def test_a_change_of_label_moves_the_object_and_wakes_both_groups() -> None:
    store = Store()
    store.put(obj("ConfigMap", "c", 1))
    woken: list[Key] = []
    store.on_change(woken.append)
    store.put(obj("ConfigMap", "c", 2, of="other"))
    assert store.configmaps(FLIGHTS) == []
    assert len(store.configmaps(Key("ns", "other"))) == 1
    assert woken == [FLIGHTS, Key("ns", "other")]


def test_an_unchanged_object_calls_no_listener() -> None:
    store = Store()
    store.put(obj("ConfigMap", "c", 2))
    woken: list[Key] = []
    store.on_change(woken.append)
    store.put(obj("ConfigMap", "c", 2))
    store.put(obj("ConfigMap", "c", 1))
    store.drop("ConfigMap", "ns", "another")
    assert woken == []


def test_words_that_all_objects_share_are_in_memory_once() -> None:
    store = Store()
    for number in range(2):
        store.put(obj("Pod", f"flights-{number}", 1, status={"pha" + "se": "".join(["Run", "ning"])}))
    first, second = store.pods(FLIGHTS)
    assert first["status"]["phase"] is second["status"]["phase"]


def test_nothing_is_left_of_a_group_that_is_gone() -> None:
    store = Store()
    store.put(obj("ConsumerGroup", "flights", 1, of=""))
    store.put(obj("Pod", "flights-0", 1))
    store.drop("ConsumerGroup", "ns", "flights")
    store.drop("Pod", "ns", "flights-0")
    assert store._groups == {}
    assert store._owner == {}
