"""What random traffic once found broken, kept as the shortest sequences that show it."""

from __future__ import annotations

from typing import Any

from fairlead import Complete, DeadFilter, Fail, NewMessage, Release
from fairlead.testing import ManualClock, Storage, laws

HOUR_MS = 3_600_000


class Restartable:
    """A broker in memory that can be closed and opened again on the same data."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.store = Storage()
        self.broker = self.store.open_broker(clock=self.clock, durability="os")
        self.broker.create_queue("mail", **options)

    def restart(self, clock_ms: int = 0) -> None:
        """The clock may be set while nobody looks."""
        self.broker.close()
        self.clock.jump(ms=clock_ms)
        self.store = self.store.reopen()
        self.broker = self.store.open_broker(clock=self.clock, durability="os")


def test_a_purge_takes_waiting_messages_also_when_the_clock_was_set_back_over_a_restart() -> None:
    world = Restartable()
    world.broker.enqueue("mail", b"later", delay="2h")
    world.restart(clock_ms=-HOUR_MS)
    assert world.broker.purge("mail") == 1
    assert world.broker.stats("mail").waiting == 0


def test_ids_made_after_a_restart_sort_behind_all_that_are_stored_whatever_the_clock_says() -> None:
    world = Restartable()
    before = [world.broker.enqueue("mail", b"") for _ in range(20)]
    world.restart(clock_ms=-HOUR_MS)
    assert world.broker.enqueue("mail", b"") > max(before)


def test_a_dead_letter_that_outlived_its_retention_while_leased_goes_when_it_is_released() -> None:
    world = Restartable(dead_retention="10s")
    world.broker.quarantine("mail", [NewMessage(b"bad")], reason="unknown", error="")
    (held,) = world.broker.claim("mail.dlq")
    world.clock.advance(seconds=11)
    assert world.broker.stats("mail.dlq").leased == 1
    world.broker.settle([Release(held)])
    world.broker.run_due()
    assert world.broker.stats("mail").dead == 0


def test_a_redrive_by_ids_takes_the_longest_dead_first_whatever_the_order_of_the_ids() -> None:
    world = Restartable()
    dead = world.broker.quarantine(
        "mail", [NewMessage(b"%d" % n) for n in range(3)], reason="unknown", error=""
    )
    world.broker.redrive("mail", ids=dead[::-1], count=2)
    assert [d.id for d in world.broker.claim("mail", limit=10)] == dead[:2]
    assert [info.id for info in world.broker.peek("mail.dlq")] == dead[2:]


def test_a_dead_letter_has_no_time_to_live_any_more_and_shows_none() -> None:
    world = Restartable(retry="none")
    message_id = world.broker.enqueue("mail", b"", ttl="1h")
    assert world.broker.find(message_id).expires_at is not None
    world.broker.settle([Fail(d) for d in world.broker.claim("mail")])
    assert world.broker.find(message_id).expires_at is None


def test_a_life_that_ended_under_a_lease_ends_again_when_the_time_is_earlier_after_a_power_cut() -> None:
    """The last mark of the time may be some seconds old, and a machine that restarts with its clock set back
    has no other.
    """
    world = Restartable()
    message_id = world.broker.enqueue("mail", b"", ttl="5s")
    (held,) = world.broker.claim("mail")
    world.clock.advance(ms=6000)
    world.store.close()
    world.clock = ManualClock(now_ms=world.clock.now_ms() - HOUR_MS)
    world.restart()
    world.broker.settle([Release(held)])
    assert laws(world.store) == []
    assert world.broker.find(message_id).where == "ready"
    world.clock.advance(ms=5000)
    assert world.broker.stats("mail").ready == 0


def test_leases_that_expire_together_come_back_in_their_order_also_after_a_restart() -> None:
    world = Restartable(visibility_timeout="5s")
    first, second, third = [world.broker.enqueue("mail", b"") for _ in range(3)]
    world.broker.settle([Fail(d) for d in world.broker.claim("mail")])
    assert [d.id for d in world.broker.claim("mail", limit=3)] == [second, third, first]
    world.restart()
    world.clock.advance(seconds=6)
    assert [d.id for d in world.broker.claim("mail", limit=3)] == [second, third, first]


def test_a_key_at_its_limit_stays_at_it_after_it_ran_dry_in_the_ring() -> None:
    world = Restartable(max_unsettled_per_key=1, ttl="2500ms", visibility_timeout="5s")
    world.broker.enqueue_many("mail", [NewMessage(b"", fairness_key="b")] * 2)
    assert len(world.broker.claim("mail", limit=3, consumer="ann")) == 1
    world.broker.quarantine("mail", [NewMessage(b"", fairness_key="b")] * 2, reason="unknown", error="")
    world.restart(clock_ms=3000)
    world.broker.run_due()
    world.broker.goodbye("ann")
    held = []
    for _ in range(2):
        world.broker.redrive("mail", filter=DeadFilter(key="b"), count=1)
        held += world.broker.claim("mail")
    assert len(held) == 1
    world.broker.settle([Complete(held[0])])
    assert len(world.broker.claim("mail", limit=5)) == 1
