"""Rebalances are counted once, and laid at the right door."""

from __future__ import annotations

from slackwater_operator.controller.rebalances import RebalanceWatch
from slackwater_operator.model.group import CLASSIC_TERMS, terms


def causes(watch: RebalanceWatch, *generations: tuple[int, bool, int], **more: object) -> list[str]:
    rebalances = watch.observe(generations, now_ms=more.pop("now_ms", 0), restarting=False, **more)  # type: ignore[arg-type]
    return [rebalance.cause for rebalance in rebalances]


def test_generations_of_before_the_start_are_not_counted() -> None:
    watch = RebalanceWatch()
    assert causes(watch, (4, False, 0), (5, True, 1)) == []
    assert causes(watch, (4, False, 0), (5, True, 1)) == []


def test_both_halves_of_a_cooperative_rebalance_are_one() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0))
    watch.scaled(100)
    assert causes(watch, (5, False, 110), (5, False, 111)) == ["scale"]
    assert causes(watch, (5, False, 110), (6, False, 150), (6, True, 151)) == []
    assert causes(watch, (8, False, 90_000)) == ["unplanned"]


def test_a_rebalance_without_a_known_cause_is_unplanned_and_reported() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0))
    assert causes(watch, (5, False, 500), now_ms=500, forced="the coordinator moved") == ["unplanned"]
    assert watch.unplanned(1_000, CLASSIC_TERMS) == ("generation 5: the coordinator moved",)
    assert watch.unplanned(1_000, terms(consumer_protocol=True)) == ("epoch 5: the coordinator moved",)
    assert watch.unplanned(700_000, CLASSIC_TERMS) == ()


def test_a_rebalance_before_or_after_a_worker_is_found_to_be_away_is_its() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0))
    assert causes(watch, (5, False, 500), now_ms=500) == ["unplanned"]
    watch.away("flights-1 on node node-2 stopped responding", 2_000)
    watch.away("", 90_000)
    assert causes(watch, (6, False, 100_000), now_ms=100_000) == ["unplanned"], "it is back"
    lost = "flights-1 on node node-2 stopped responding"
    assert watch.unplanned(100_000, CLASSIC_TERMS) == (f"generation 5: {lost}", f"generation 6: {lost}")


def test_a_worker_that_is_away_long_after_a_rebalance_is_not_its_cause() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0))
    causes(watch, (5, False, 500), now_ms=500)
    watch.away("flights-1 on node node-2 stopped responding", 60_500)
    assert watch.unplanned(61_000, CLASSIC_TERMS) == ("generation 5: no known cause",)


def test_a_rebalance_that_a_rollout_announced_is_the_rollouts() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0))
    watch.announced(1_000)
    assert causes(watch, (5, False, 1_500), now_ms=2_000, forced="a broker went away") == ["rollout"]
    assert watch.unplanned(2_000, CLASSIC_TERMS) == ()
    assert causes(watch, (6, False, 90_000), now_ms=90_000) == ["unplanned"]


def test_a_rebalance_near_a_change_of_the_topics_is_theirs() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0))
    watch.topics_changed(30_000)
    assert causes(watch, (5, False, 20_000), now_ms=31_000) == ["topics"]
    assert watch.unplanned(31_000, CLASSIC_TERMS) == ()
    assert causes(watch, (6, False, 95_000), now_ms=95_000) == ["unplanned"]


def test_a_rebalance_without_a_cause_waits_for_an_observation_of_the_topics() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0))
    assert causes(watch, (5, False, 20_000), now_ms=21_000, topics_ms=15_000) == []
    assert not watch.awaits(19_999)
    assert watch.awaits(20_000)
    assert causes(watch, (5, False, 20_000), now_ms=26_000, topics_ms=25_000) == ["unplanned"]
    assert not watch.awaits(30_000)
    assert causes(watch, (6, False, 40_000), now_ms=41_000, topics_ms=25_000, forced="a broker") == [
        "unplanned"
    ]
    assert causes(watch, (7, False, 50_000), now_ms=51_000, topics_ms=25_000) == []
    assert causes(watch, (7, False, 50_000), now_ms=110_000, topics_ms=25_000) == ["unplanned"], (
        "not for ever"
    )


def test_of_a_scale_step_and_a_change_of_the_topics_the_nearer_one_is_the_cause() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0), topics_ms=0)
    watch.scaled(1_000)
    assert causes(watch, (5, False, 2_000), now_ms=3_000, topics_ms=0) == ["scale"], "at once"
    assert causes(watch, (6, False, 41_000), now_ms=42_000, topics_ms=35_000) == [], "a look may tell more"
    assert watch.awaits(45_000)
    watch.topics_changed(45_000)
    assert causes(watch, (6, False, 41_000), now_ms=45_100, topics_ms=45_000) == ["topics"]
    watch.scaled(47_000)
    watch.topics_changed(45_000)  # it is told again as long as nobody has heard it
    assert causes(watch, (7, False, 48_000), now_ms=49_000, topics_ms=45_000) == ["scale"]


def test_without_a_change_of_the_topics_a_late_rebalance_is_still_the_scale_steps() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0), topics_ms=0)
    watch.scaled(1_000)
    assert causes(watch, (5, False, 41_000), now_ms=42_000, topics_ms=35_000) == []
    assert causes(watch, (5, False, 41_000), now_ms=45_100, topics_ms=45_000) == ["scale"]


def test_of_a_rollout_and_a_change_of_the_topics_the_nearer_one_is_the_cause() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0), topics_ms=0)
    watch.announced(1_000)
    causes(watch, topics_ms=35_000)
    watch.topics_changed(45_000)
    assert causes(watch, (5, False, 41_000), now_ms=45_100, topics_ms=45_000) == ["topics"]


def test_a_step_before_a_change_of_the_topics_was_seen_keeps_its_own_rebalance() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0), topics_ms=0)
    watch.scaled(40_000)
    watch.topics_changed(45_000)
    assert causes(watch, (5, False, 41_000), now_ms=45_100, topics_ms=45_000) == ["scale"]


def test_a_rebalance_during_a_restart_belongs_to_the_rollout() -> None:
    watch = RebalanceWatch()
    causes(watch, (4, False, 0))
    rebalances = watch.observe([(5, False, 500)], now_ms=500, restarting=True, took_ms={5: 70})
    assert [(rebalance.cause, rebalance.took_ms) for rebalance in rebalances] == [("rollout", 70)]
