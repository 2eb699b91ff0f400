"""The ledger must be able to say no: histories written by hand, each with one thing wrong."""

from __future__ import annotations

from typing import Any

from .bulk import HELD, LEFT_OUT, SELECTED, half_done
from .history import History
from .journal import Line, make_payload, read_tag
from .ledger import check

START_MS = 1_000_000
LEASE_MS = 300


class Story:
    """Writes journal lines: an operation per call, 10 ms apart unless told otherwise."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.lives: list[list[Line]] = []
        self.now_ms = START_MS
        self.number = 0

    def tell(self, do: str, answer: Line | None, *, refused: bool = False, **told: Any) -> None:
        """`answer=None` leaves the operation open, as a kill does."""
        self.number += 1
        self._line({"op": self.number, "ev": "begin", "do": do, **told})
        if refused:
            self._line({"op": self.number, "ev": "refused", "error": "queue_full"})
        elif answer is not None:
            self._line({"op": self.number, "ev": "done", **answer})

    def enqueue(
        self,
        tag: str,
        *,
        confirmed: bool = True,
        refused: bool = False,
        id: str = "",
        dedup: str | None = None,
        delay: int = 0,
    ) -> None:
        answer = {"ids": [id or "id-" + tag]} if confirmed else None
        self.tell("enqueue", answer, refused=refused, queue="q", messages=[[tag, dedup, delay]])

    def claim(
        self, tag: str, lease: str, *, attempts: int = 0, queue: str = "q", id: str = "", **record: Any
    ) -> None:
        delivery = {
            "id": id or "id-" + tag,
            "tag": tag,
            "queue": queue,
            "lease": lease,
            "attempts": attempts,
            "until": self.now_ms + LEASE_MS,
        }
        delivery |= {"source": "", "dead_since": 0, "failures": 0, "last_error": ""}
        if queue.endswith(".dlq"):
            delivery |= {"source": "q", "dead_since": 5, "failures": 1, "last_error": "bang"}
        delivery |= record
        self.tell("claim", {"deliveries": [delivery]}, queue=queue, consumer="c", started=True)

    def settle(
        self,
        kind: str,
        tag: str,
        lease: str,
        outcome: str | None,
        *,
        error: str = "",
        until: int = 0,
        due: int = 0,
    ) -> None:
        self.tell(
            "settle",
            {"results": [[outcome, due, until]]} if outcome else None,
            items=[[kind, "id-" + tag, lease, error, 0]],
        )

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def kill(self) -> None:
        self.lives.append(self.lines)
        self.lines = []

    def rules_broken(self) -> list[str]:
        self.kill()
        history = History()
        for life in self.lives:
            history.add_life(life)
        return sorted({problem.rule for problem in check(history)})

    def _line(self, line: Line) -> None:
        self.now_ms += 5
        self.lines.append({**line, "life": len(self.lives), "at": self.now_ms})


def a_clean_story() -> Story:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.settle("fail", "a", "1", "retry")
    story.claim("a", "2", attempts=1)
    story.kill()
    story.wait(LEASE_MS)
    story.claim("a", "10", attempts=2)
    story.settle("complete", "a", "10", "completed")
    return story


def test_a_history_that_keeps_every_rule_passes() -> None:
    assert a_clean_story().rules_broken() == []


def test_a_confirmed_enqueue_that_never_comes_out_is_lost() -> None:
    story = a_clean_story()
    story.enqueue("b")
    assert story.rules_broken() == ["lost"]


def test_an_unconfirmed_enqueue_may_vanish_or_come_out() -> None:
    story = a_clean_story()
    story.enqueue("b", confirmed=False)
    story.enqueue("c", confirmed=False)
    story.kill()
    story.claim("c", "11")
    story.settle("complete", "c", "11", "completed")
    assert story.rules_broken() == []


def test_a_purge_that_began_explains_a_loss_but_not_of_what_came_later() -> None:
    story = a_clean_story()
    story.enqueue("b")
    story.tell("purge", None, queue="q")
    story.kill()
    assert story.rules_broken() == []
    story.enqueue("c")
    assert story.rules_broken() == ["lost"]


def test_a_delivery_nobody_enqueued_is_a_phantom() -> None:
    story = a_clean_story()
    story.claim("ghost", "11")
    assert story.rules_broken() == ["phantom"]


def test_a_delivery_of_a_refused_enqueue_is_a_phantom() -> None:
    story = a_clean_story()
    story.enqueue("b", refused=True)
    story.claim("b", "11")
    assert story.rules_broken() == ["phantom"]


def test_a_delivery_out_of_a_deleted_queue_is_a_phantom() -> None:
    story = Story()
    story.enqueue("a")
    story.tell("delete_queue", {"result": "None"}, queue="q")
    story.claim("a", "1")
    assert story.rules_broken() == ["phantom"]


def test_one_wrong_byte_in_a_body_is_seen() -> None:
    payload = make_payload("a", 100)
    assert read_tag(payload) == "a"
    assert read_tag(payload[:-1] + b"!") != "a"
    assert read_tag(payload[:-1]) != "a"


def test_a_delivery_after_a_confirmed_complete_is_seen() -> None:
    story = a_clean_story()
    story.kill()
    story.wait(10 * LEASE_MS)
    story.claim("a", "11", attempts=2)
    assert story.rules_broken() == ["redelivered"]


def test_a_complete_cut_off_by_a_kill_may_be_redelivered_once_its_lease_is_over() -> None:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.settle("complete", "a", "1", None)
    story.kill()
    story.wait(LEASE_MS)
    story.claim("a", "2", attempts=1)
    story.settle("complete", "a", "2", "completed")
    assert story.rules_broken() == []


def test_a_duplicate_while_the_lease_runs_is_unexplained_also_across_a_kill() -> None:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.kill()
    story.claim("a", "2")
    story.settle("complete", "a", "2", "completed")
    assert story.rules_broken() == ["duplicate"]


def test_an_extension_moves_the_moment_from_which_a_duplicate_is_explained() -> None:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.settle("extend", "a", "1", "extended", until=story.now_ms + 10 * LEASE_MS)
    story.wait(LEASE_MS)
    story.claim("a", "2", attempts=1)
    story.settle("complete", "a", "2", "completed")
    assert story.rules_broken() == ["duplicate"]


def test_a_release_and_a_goodbye_explain_a_duplicate() -> None:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.settle("release", "a", "1", "released")
    story.claim("a", "2")
    story.tell("goodbye", {"count": 1}, consumer="c")
    story.claim("a", "3")
    story.settle("complete", "a", "3", "completed")
    assert story.rules_broken() == []


def test_attempts_that_go_down_without_a_redrive_are_seen() -> None:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1", attempts=2)
    story.settle("fail", "a", "1", "retry")
    story.claim("a", "2", attempts=2)
    story.settle("complete", "a", "2", "completed")
    assert story.rules_broken() == ["attempts"]


def test_a_delivery_that_counts_twice_is_seen() -> None:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.settle("fail", "a", "1", "retry")
    story.claim("a", "2", attempts=2)
    story.settle("complete", "a", "2", "completed")
    assert story.rules_broken() == ["attempts"]


def test_a_claim_that_answers_after_its_leases_were_lost_may_tell_what_happened_since() -> None:
    story = Story()
    story.enqueue("a")
    story.tell("claim", None, queue="q", consumer="c", started=True)
    slow = story.number
    story.tell("goodbye", {"count": 1}, consumer="c")
    story.claim("a", "2")
    story.settle("fail", "a", "2", "retry")
    story.claim("a", "1", attempts=1)
    answer = story.lines.pop()
    story.lines.pop()
    story.lines.append({**answer, "op": slow})
    story.claim("a", "3", attempts=1)
    story.settle("complete", "a", "3", "completed")
    assert story.rules_broken() == []


def test_a_dead_letter_that_lost_its_record_is_seen() -> None:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.settle("fail", "a", "1", "dead", error="bang")
    story.claim("a", "2", attempts=1, queue="q.dlq", failures=0)
    story.settle("complete", "a", "2", "completed")
    assert story.rules_broken() == ["record"]


def test_a_dead_letter_with_another_error_is_seen() -> None:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.settle("fail", "a", "1", "dead", error="whimper")
    story.claim("a", "2", attempts=1, queue="q.dlq")
    story.settle("complete", "a", "2", "completed")
    assert story.rules_broken() == ["record"]


def test_the_dead_come_back_only_by_redrive() -> None:
    def story(redrive: bool) -> Story:
        s = Story()
        s.enqueue("a")
        s.claim("a", "1")
        s.settle("fail", "a", "1", "dead", error="bang")
        if redrive:
            s.tell("redrive", {"result": ""}, queue="q")
        s.claim("a", "2", attempts=0 if redrive else 1)
        s.settle("complete", "a", "2", "completed")
        return s

    assert story(redrive=True).rules_broken() == []
    assert story(redrive=False).rules_broken() == ["duplicate"]


def test_a_former_holder_whose_settle_took_effect_is_seen() -> None:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.wait(LEASE_MS)
    story.claim("a", "2", attempts=1)
    story.settle("extend", "a", "1", "extended", until=story.now_ms)
    story.settle("complete", "a", "2", "completed")
    assert story.rules_broken() == ["fencing"]


def test_a_lease_that_is_lost_while_it_runs_is_seen() -> None:
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.kill()
    story.settle("complete", "a", "1", "lost_lease")
    story.wait(LEASE_MS)
    story.claim("a", "2", attempts=1)
    story.settle("complete", "a", "2", "completed")
    assert story.rules_broken() == ["fencing"]


def test_a_delivery_before_its_delay_or_retry_time_is_early() -> None:
    story = Story()
    story.enqueue("a", delay=500)
    story.claim("a", "1")
    assert "early" in story.rules_broken()
    story = Story()
    story.enqueue("a")
    story.claim("a", "1")
    story.settle("fail", "a", "1", "retry", due=story.now_ms + 500)
    story.claim("a", "2", attempts=1)
    story.settle("complete", "a", "2", "completed")
    assert story.rules_broken() == ["early"]


def test_one_dedup_key_with_two_messages_is_seen() -> None:
    story = a_clean_story()
    for tag, lease in (("b", "11"), ("c", "12")):
        story.enqueue(tag, dedup="k")
        story.claim(tag, lease)
        story.settle("complete", tag, lease, "completed")
    assert story.rules_broken() == ["dedup"]


def test_a_dedup_hit_shares_the_fate_of_its_twin() -> None:
    story = a_clean_story()
    story.enqueue("b", dedup="k")
    story.enqueue("c", dedup="k", id="id-b")
    story.claim("b", "11")
    story.settle("complete", "b", "11", "completed")
    assert story.rules_broken() == []


def test_one_enqueue_stored_twice_and_two_under_one_id_are_seen() -> None:
    story = Story()
    story.enqueue("a", confirmed=False)
    for message_id, lease in (("id-a", "1"), ("id-b", "2")):
        story.claim("a", lease, id=message_id)
    assert "identity" in story.rules_broken()
    story = Story()
    story.enqueue("a", id="x")
    story.enqueue("b", id="x")
    assert "identity" in story.rules_broken()


def drain_after(verb: str, *, selected: int, held: int = HELD, dead: int = LEFT_OUT) -> list[tuple[str, str]]:
    assert verb in ("purge", "delete_queue")
    return [("selected/1", "bulk")] * selected + [("held/1", "bulk")] * held + [("dead/1", "bulk.dlq")] * dead


def test_an_operation_that_stopped_half_way_is_seen() -> None:
    assert half_done("purge", True, drain_after("purge", selected=0)) == []
    assert half_done("purge", False, drain_after("purge", selected=SELECTED)) == []
    assert half_done("purge", True, drain_after("purge", selected=SELECTED)) != []
    assert half_done("purge", False, drain_after("purge", selected=10_000)) != []
    assert half_done("delete_queue", False, drain_after("delete_queue", selected=0, held=0, dead=0)) == []
    assert half_done("delete_queue", False, drain_after("delete_queue", selected=0, held=0)) != []


def test_an_operation_that_touched_what_it_should_leave_is_seen() -> None:
    assert half_done("purge", True, drain_after("purge", selected=0, held=HELD - 1)) != []
    assert half_done("purge", True, drain_after("purge", selected=0, dead=LEFT_OUT - 1)) != []


def test_a_redrive_moves_all_it_selected_or_nothing() -> None:
    untouched = [("held/1", "bulk.dlq")] * HELD + [("left-out/1", "bulk.dlq")] * LEFT_OUT
    assert half_done("redrive", True, [*untouched, *[("selected/1", "bulk")] * SELECTED]) == []
    assert half_done("redrive", False, [*untouched, *[("selected/1", "bulk.dlq")] * SELECTED]) == []
    assert (
        half_done(
            "redrive",
            False,
            [*untouched, *[("selected/1", "bulk")] * 9, *[("selected/1", "bulk.dlq")] * (SELECTED - 9)],
        )
        != []
    )
    assert half_done("redrive", True, [*untouched[1:], *[("selected/1", "bulk")] * SELECTED]) != []


def test_a_claim_repeated_through_an_outage_may_have_leased_what_nobody_saw() -> None:
    def story(outage: bool) -> Story:
        s = Story()
        s.enqueue("a")
        s.claim("a", "1")
        s.settle("fail", "a", "1", "retry")
        s.tell("claim", None, queue="q", consumer="c", started=True)
        through = s.number
        if outage:
            s.tell("outage", {})
        s._line({"op": through, "ev": "done", "deliveries": []})
        s.claim("a", "3", attempts=2)
        s.settle("complete", "a", "3", "completed")
        return s

    assert story(outage=True).rules_broken() == []
    assert story(outage=False).rules_broken() == ["attempts"]


def test_what_a_process_that_died_had_begun_is_over_with_its_death() -> None:
    """Beside others that live on: a claim of theirs that was cut off explains nothing that comes later."""

    def story(died: bool) -> Story:
        s = Story()
        s.enqueue("a")
        s.tell("claim", None, queue="q", consumer="c", started=True)
        if died:
            s._line({"ev": "died", "who": 0})
        s.claim("a", "1")
        s.settle("fail", "a", "1", "retry")
        s.claim("a", "2", attempts=2)
        s.settle("complete", "a", "2", "completed")
        return s

    assert story(died=False).rules_broken() == []
    assert story(died=True).rules_broken() == ["attempts"]


def test_what_a_killed_client_held_may_come_back_from_then_on() -> None:
    def story(who: int, *, killed_first: bool = True) -> Story:
        s = Story()
        s.enqueue("a")
        s.claim("a", "1")
        if killed_first:
            s.tell("client_killed", {}, who=who)
        s.claim("a", "2")
        s.settle("complete", "a", "2", "completed")
        if not killed_first:
            s.tell("client_killed", {}, who=who)
        return s

    assert story(0).rules_broken() == []
    assert story(1).rules_broken() == ["duplicate"]
    assert story(0, killed_first=False).rules_broken() == ["duplicate"]
