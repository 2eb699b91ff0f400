from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.cli.stats_samples import Rates, StatsSample, key_shares, rates_between, stats_document
from fairlead.model.views import KeyStats, QueueStats, Totals
from tests.cli_views.values import key, queue


def test_the_first_look_has_no_rates() -> None:
    assert rates_between(None, StatsSample(5.0, (queue(),))) == {}


def test_rates_are_changes_by_the_time_between_two_looks() -> None:
    before, now = (
        StatsSample(10.0, (queue(ready=100, dead=1),)),
        StatsSample(12.0, (queue(ready=40, waiting=8, leased=6, dead=2),)),
    )
    assert rates_between(before, now)["emails"].change == {
        "ready": -30,
        "waiting": 4,
        "leased": 3,
        "dead": 0.5,
    }


def test_a_queue_that_was_not_there_before_has_no_rates_yet() -> None:
    assert list(
        rates_between(StatsSample(1.0, (queue("old"),)), StatsSample(2.0, (queue("new"), queue("old"))))
    ) == ["old"]


def test_two_looks_at_the_same_moment_say_nothing() -> None:
    assert rates_between(StatsSample(1.0, (queue(),)), StatsSample(1.0, (queue(ready=5),))) == {}


def test_a_key_is_due_what_its_weight_says_and_got_what_was_delivered_to_it() -> None:
    before = queue(keys=(replace(key("acme", weight=3), delivered=100), replace(key("globex"), delivered=7)))
    now = replace(
        before, keys=(replace(key("acme", weight=3), delivered=160), replace(key("globex"), delivered=47))
    )
    acme, globex = key_shares(before, now, 10.0)
    assert (acme.key, acme.fair, acme.got, acme.out_per_s) == ("acme", 0.75, 0.6, 6.0)
    assert (globex.key, globex.fair, globex.got, globex.out_per_s) == ("globex", 0.25, 0.4, 4.0)


def test_nobody_got_a_share_of_nothing() -> None:
    stats = queue(keys=(key("acme", pending=3),))
    assert [share.got for share in key_shares(stats, stats, 1.0)] == [None]
    assert [(share.got, share.out_per_s) for share in key_shares(None, stats, 0.0)] == [(None, None)]


def test_what_a_key_got_before_it_was_seen_is_not_known() -> None:
    before, now = (
        queue(keys=(key("acme"),)),
        queue(keys=(replace(key("acme"), delivered=4), replace(key("initech"), delivered=9))),
    )
    assert {share.key: (share.got, share.out_per_s) for share in key_shares(before, now, 1.0)} == {
        "acme": (1.0, 4.0),
        "initech": (0.0, None),
    }


def counted(totals: Totals, **delivered: int) -> QueueStats:
    keys = tuple(KeyStats(name, 1, 0, 10_000, True, count) for name, count in delivered.items())
    return QueueStats("q", 0, 0, 0, 0, 0, 0, 0, 0, False, keys, totals=totals)


def test_flows_are_known_even_when_no_count_changes() -> None:
    before, now = (
        StatsSample(1.0, (counted(Totals(100, 90, 80, 10)),)),
        StatsSample(3.0, (counted(Totals(160, 130, 118, 12)),)),
    )
    assert rates_between(before, now)["q"].flow == {
        "enqueued": 30,
        "delivered": 20,
        "completed": 19,
        "failed": 1,
    }


def test_totals_that_shrank_are_those_of_a_broker_started_anew() -> None:
    before, now = (
        StatsSample(1.0, (counted(Totals(100, 90, 80, 10), a=50),)),
        StatsSample(2.0, (counted(Totals(8, 4, 2, 0), a=4),)),
    )
    assert rates_between(before, now)["q"].flow == {
        "enqueued": 8,
        "delivered": 4,
        "completed": 2,
        "failed": 0,
    }
    assert [share.out_per_s for share in key_shares(before.queues[0], now.queues[0], 1.0)] == [4]


def test_a_share_is_one_of_all_that_went_out_also_to_keys_that_ran_dry_since() -> None:
    before, now = counted(Totals(0, 100, 0, 0), a=10, b=10), counted(Totals(0, 200, 0, 0), a=50, b=30)
    assert {share.key: (share.got, share.out_per_s) for share in key_shares(before, now, 10.0)} == {
        "a": (0.4, 4.0),
        "b": (0.2, 2.0),
    }


def test_the_heaviest_key_comes_first_and_then_the_longest_backlog() -> None:
    now = queue(keys=(key("a", pending=1), key("b", pending=9), key("c", weight=5)))
    assert [share.key for share in key_shares(None, now, 0.0)] == ["c", "b", "a"]


@pytest.mark.parametrize("keys", [False, True])
def test_the_document_has_every_field_and_rates_only_when_they_are_known(keys: bool) -> None:
    look = StatsSample(1.0, (queue("a", ready=1, keys=(key("k"),)), queue("b")))
    shared = {"a": key_shares(None, look.queues[0], 0.0)} if keys else None
    first, second = stats_document(look, {"a": Rates({}, {"ready": 2.0})}, keys=shared)["queues"]
    assert set(QueueStats.__slots__) <= set(first)
    assert (first["queue"], first["ready"], first["rates"], second["rates"]) == (
        "a",
        1,
        {"ready_change": 2.0},
        None,
    )
    share = {
        "key": "k",
        "weight": 1,
        "pending": 0,
        "more": False,
        "out_per_s": None,
        "fair": 1.0,
        "got": None,
    }
    assert first.get("shares") == ([share] if keys else None)
    assert ("shares" in second) == keys
