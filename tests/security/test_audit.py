"""The audit is complete: no act without its entry, no entry without an act, and never what messages say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead import Fail, NewMessage
from fairlead.cli import audit as command
from fairlead.decide.dead_filter import DeadFilter
from fairlead.errors import Forbidden, InvalidRequest, KeyNotFound, QueueNotFound, StoreFull
from fairlead.middleware.audit import Audit
from fairlead.middleware.authorize import Authorize
from fairlead.middleware.stack import AdmittedCaller, Layers
from fairlead.model.access import EVERY_RIGHT, AuditRecord
from fairlead.request import Answer, Caller, Request
from fairlead.testing import CommitStep, ManualClock, Storage, stop_before
from fairlead.testing.sizes import size
from fairlead.testing.verbs import replaced_work
from fairlead.verbs.audit import AuditRead
from fairlead.verbs.dead_letters import CancelIntent
from fairlead.verbs.queues import CreateQueue, Purge
from tests.cli.conftest import Commands, Opener
from tests.security.scene import Scene

MINUTE_MS = 60_000
SECRET = "s3cret-words"


class Stage:
    """A queue `q` with two messages ready, one leased, two dead and one held, and whoever acts on it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.broker = broker = scene.broker
        broker.create_queue("q", retry={"policy": "none"})
        self.dead = broker.enqueue_many("q", [NewMessage(b"dead") for _ in range(2)])
        broker.settle([Fail(delivery, error="no") for delivery in broker.claim("q", limit=2)])
        (self.leased,) = broker.enqueue_many("q", [NewMessage(b"leased")])
        broker.claim("q")
        self.ready = broker.enqueue_many(
            "q", [NewMessage(SECRET.encode(), {"h": SECRET}), NewMessage(b"ready")]
        )
        self.held = broker.enqueue("q", b"held")
        broker.hold("q", [self.held])
        self.key = scene.key(*EVERY_RIGHT, name="ops")
        self.guard = scene.as_key(self.key)

    def entries(self) -> list[AuditRecord]:
        """Oldest first."""
        return self.broker.audit.read(limit=10_000)[::-1]


@pytest.fixture
def stage(scene: Scene) -> Stage:
    return Stage(scene)


def test_an_entry_says_when_who_what_how_many_and_from_where(stage: Stage) -> None:
    stage.guard.hold("q", [*stage.ready, "01a1e195-9429-7001-8c23-570efea5bcab"])
    (entry,) = stage.entries()
    assert (entry.verb, entry.queue, entry.count, entry.outcome) == ("hold", "q", 2, "done")
    assert (entry.who, entry.name, entry.source) == (stage.key.info.id, "ops", "test")
    assert entry.at_ms == stage.scene.clock.now_ms()


@pytest.mark.parametrize("hook", ["on_enqueue", "on_failure"])
def test_an_entry_holds_the_length_of_a_script_and_not_the_script(stage: Stage, hook: str) -> None:
    script = f"function {hook}(msg) return {{}} end -- {SECRET}"
    stage.guard.create_queue("new", **{hook: script})
    stage.guard.update_queue("new", **{hook: script + "!"})
    assert [entry.details[hook] for entry in stage.entries()] == [
        f"{len(script)} characters",
        f"{len(script) + 1} characters",
    ]


@pytest.mark.parametrize(
    "verb", ["retry", "drop", "done", "bury", "hold", "unhold", "fail", "prune", "redrive"]
)
def test_a_dry_run_by_filter_leaves_one_that_says_so(stage: Stage, verb: str) -> None:
    filter = {"older_than": "0s"} if verb == "prune" else {"filter": DeadFilter(max_attempts=9)}
    told = getattr(stage.guard, verb)(
        "q.dlq" if verb in ("retry", "redrive", "prune") else "q", dry_run=True, **filter
    )
    (entry,) = stage.entries()
    count = told.matched if verb == "redrive" else len(told.changed)
    assert (entry.verb, entry.outcome, entry.count, entry.details["dry_run"]) == (verb, "done", count, "True")
    assert count > 0
    assert "max_attempts=9" in entry.details.get("filter", "max_attempts=9")


def test_a_dry_run_by_filter_that_fails_leaves_one_too(stage: Stage) -> None:
    with pytest.raises(InvalidRequest):
        stage.guard.redrive("q", filter=DeadFilter(error_regex="("), dry_run=True)
    (entry,) = stage.entries()
    assert (entry.verb, entry.outcome) == ("redrive", "invalid_request")


@pytest.mark.parametrize("verb", ["retry", "drop", "done", "bury", "hold", "unhold", "fail", "redrive"])
def test_a_dry_run_by_id_leaves_none(stage: Stage, verb: str) -> None:
    getattr(stage.guard, verb)("q", ids=[stage.held, *stage.dead], dry_run=True)
    assert stage.entries() == []


def test_looking_without_the_right_to_read_payloads_leaves_none_and_shows_none(stage: Stage) -> None:
    guard = stage.scene.with_grants("consume:q")
    assert [info.payload for info in guard.peek("q")] == [b"", b""]
    assert guard.find(stage.ready[0]).headers == {"h": ""}
    assert stage.entries() == []


def test_a_filter_by_what_headers_hold_takes_the_right_to_read_them(stage: Stage) -> None:
    guard = stage.scene.with_grants("admin:q")
    with pytest.raises(Forbidden):
        guard.drop("q", filter=DeadFilter(header=("h", SECRET)), dry_run=True)


def test_options_given_by_position_are_told_like_those_by_name(stage: Stage) -> None:
    stage.guard.drop("q", stage.ready)
    stage.guard.drop("q", ids=[stage.held])
    by_position, by_name = stage.entries()
    assert by_position.details["ids"].startswith("2: ")
    assert by_name.details["ids"].startswith("1: ")


def test_an_act_that_was_refused_by_the_engine_says_why_and_one_without_the_right_was_none(
    stage: Stage,
) -> None:
    for call in (lambda: stage.guard.purge("missing"), lambda: stage.guard.update_queue("q", nonsense=1)):
        with pytest.raises((QueueNotFound, InvalidRequest)):
            call()
    with pytest.raises(Forbidden):
        stage.scene.with_grants("consume:q").purge("q")
    assert [entry.outcome for entry in stage.entries()] == ["queue_not_found", "invalid_request"]


def test_an_act_that_failed_in_an_unforeseen_way_is_written_down_as_failed(
    stage: Stage,
) -> None:
    def breaks(work: object) -> None:
        raise ZeroDivisionError

    with replaced_work(Purge, breaks), pytest.raises(ZeroDivisionError):
        stage.guard.purge("q")
    assert [entry.outcome for entry in stage.entries()] == ["failed"]


def test_an_act_is_answered_also_where_its_end_cannot_be_written_down(stage: Stage) -> None:
    def notes_the_end(step: CommitStep) -> bool:
        return any(change.record.outcome == "done" for change in step.changes("audit"))

    with stop_before(stage.broker, notes_the_end, StoreFull("the disk", 0, 1)):
        assert [message.id for message in stage.guard.drain("q")] == stage.ready
        assert stage.guard.keys.rotate(stage.key.info.id).secret
    assert [(entry.verb, entry.outcome) for entry in stage.entries()] == [
        ("drain", "asked"),
        ("keys.rotate", "asked"),
    ]


def test_an_option_whose_name_is_no_text_leaves_an_entry_that_can_be_read(stage: Stage) -> None:
    with pytest.raises(InvalidRequest):
        stage.guard.do(CreateQueue("other", {1: 2}))  # type: ignore[dict-item]
    (entry,) = stage.entries()
    assert (entry.outcome, entry.details) == ("invalid_request", {"1": "2"})


def test_what_is_done_with_keys_says_which(stage: Stage) -> None:
    made = stage.guard.keys.create("k", ["produce:q"])
    rotated = stage.guard.keys.rotate(made.info.id)
    stage.guard.keys.revoke(rotated.info.id)
    with pytest.raises(KeyNotFound):
        stage.guard.keys.revoke(rotated.info.id)
    create, rotate, revoke = stage.entries()
    assert (create.details["key"], create.details["grants"]) == (made.info.id, "produce:q")
    assert (rotate.details["key"], rotate.details["new"]) == (made.info.id, rotated.info.id)
    assert revoke.details["key"] == rotated.info.id


def test_where_keys_are_off_and_on_a_directory_it_is_said_who(stage: Stage) -> None:
    anonymous = AdmittedCaller(Layers(stage.broker), Caller(None, "anonymous", "ipv4:127.0.0.1:1"))
    anonymous.pause("q")
    stage.scene.local().resume("q")
    assert [(entry.who, entry.source) for entry in stage.entries()] == [
        ("anonymous", "ipv4:127.0.0.1:1"),
        ("local:ann", "data directory"),
    ]


def test_the_entry_of_a_cancelled_operation_names_its_queue_also_if_the_operation_ends_meanwhile(
    stage: Stage,
) -> None:
    intent_id = stage.broker.redrive("q", rate=0.0001).intent_id
    audit = Audit(stage.broker.do, stage.broker)

    def end_first(request: Request[Answer], caller: Caller) -> Answer:
        """What lies between the check of the right and the audit."""
        assert stage.broker.cancel_intent(intent_id)
        return audit(request, caller)

    cancel = Authorize(end_first, stage.broker, CancelIntent)
    assert cancel(CancelIntent(intent_id), stage.guard.caller) is False
    (entry,) = stage.entries()
    assert (entry.verb, entry.queue, entry.outcome) == ("cancel_intent", "q.dlq", "done")


# A crash


@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_an_act_that_a_crash_cut_short_stays_asked(kind: str, tmp_path: Path) -> None:
    store = Storage(None if kind == "memory" else tmp_path / "data")
    broker = store.open_broker(clock=ManualClock())
    broker.create_queue("q")
    broker.enqueue("q", b"x")
    begun, go_on = threading.Event(), threading.Event()

    def stuck(work: Callable[[], object]) -> int:
        begun.set()
        go_on.wait()
        return 0

    guard = AdmittedCaller(Layers(broker), Caller(None, "anonymous", "x"))
    guard.pause("q")
    thread = threading.Thread(target=lambda: _quietly(lambda: guard.purge("q")))
    with replaced_work(Purge, stuck):
        thread.start()
        assert begun.wait(60)
    with store.reopen().open_broker(clock=ManualClock()) as again:
        assert [(record.number, record.verb, record.outcome) for record in again.audit.read()] == [
            (2, "purge", "asked"),
            (1, "pause", "done"),
        ]
        AdmittedCaller(Layers(again), Caller(None, "anonymous", "x")).resume("q")
        assert again.audit.read()[0].number == 3
    go_on.set()
    thread.join(60)


def _quietly(call: Callable[[], object]) -> None:
    """What a broker says whose store was taken away from under it is of no interest."""
    try:
        call()
    except Exception:
        return


# Reading


def test_the_audit_is_read_newest_first_in_pages_and_by_filter(stage: Stage) -> None:
    for n in range(5):
        stage.guard.config.set(f"k{n}", "v")
        stage.scene.clock.advance(ms=MINUTE_MS)
    stage.scene.local().pause("q")
    read = stage.broker.audit.read
    assert [entry.number for entry in read(limit=2)] == [6, 5]
    assert [entry.number for entry in read(limit=2, before=5)] == [4, 3]
    assert [entry.number for entry in read(before=1)] == []
    assert [entry.number for entry in read(verb="pause")] == [6]
    assert [entry.number for entry in read(queue="q")] == [6]
    assert [entry.number for entry in read(who="ops")] == [5, 4, 3, 2, 1]
    assert [entry.number for entry in read(who=stage.key.info.id, limit=1)] == [5]
    assert [entry.number for entry in read(since=stage.scene.clock.now_ms() - MINUTE_MS)] == [6, 5]


def test_the_audit_is_for_admins_of_everything(stage: Stage) -> None:
    for grants in (
        ["admin:q"],
        ["admin:shop/*"],
        ["read-payload:*", "produce:*", "consume:*", "redrive:*", "quarantine:*"],
    ):
        with pytest.raises(Forbidden):
            stage.scene.with_grants(*grants).audit.read()
    assert stage.scene.with_grants("admin:*").audit.read() == []


def test_the_oldest_entries_make_room_beyond_a_million(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("audit_records"), 3)
    monkeypatch.setattr(size("audit_page_records"), 2)
    for _ in range(8):
        stage.guard.pause("q")
    assert [entry.number for entry in stage.broker.audit.read()] == [8, 7, 6, 5]


# `fairlead audit`


def test_the_command_shows_what_was_done_on_the_directory_oldest_first(cli: Commands) -> None:
    cli.ok("queue", "create", "orders")
    cli.ok("queue", "push", "orders", "hello")
    cli.ok("queue", "purge", "orders", "--yes")
    shown = cli.json("audit")
    assert [(entry["verb"], entry["queue"], entry["count"], entry["outcome"]) for entry in shown] == [
        ("create_queue", "orders", None, "done"),
        ("purge", "orders", 1, "done"),
    ]
    assert all(entry["who"].startswith("local:") and entry["source"] == "data directory" for entry in shown)
    lines = cli.ok("audit").lines
    assert [line.split()[2:4] for line in lines[1:]] == [["create_queue", "orders"], ["purge", "orders"]]
    assert [entry["verb"] for entry in cli.json("audit", "--limit", "1")] == ["purge"]
    assert [entry["verb"] for entry in cli.json("audit", "--verb", "create_queue")] == ["create_queue"]
    assert cli.json("audit", "--queue", "elsewhere") == []
    assert "no entry matches" in cli.ok("audit", "--who", "somebody").out


def test_the_command_shows_only_the_last_so_much_time(
    cli: Commands, broker: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("queue", "create", "orders")
    assert len(cli.json("audit", "--since", "1h")) == 1
    later = command.now_ms() + 2 * 60 * MINUTE_MS
    monkeypatch.setattr(command, "now_ms", lambda: later)
    assert cli.json("audit", "--since", "1h") == []
    assert cli("audit", "--since", "yesterday").code == 3


def test_what_a_key_is_called_cannot_fool_a_terminal(cli: Commands) -> None:
    made = cli("key", "create", "a\x1b[2Jb\nc")
    assert made.code == 0
    for ran in (made, cli.ok("key", "list"), cli.ok("audit"), cli.ok("audit", "-o", "json")):
        assert "\x1b" not in ran.out + ran.err


def test_followers_see_each_entry_when_it_is_written_and_when_it_is_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_PAUSE_S", 0)
    record = stage.broker.audit_trail.begin("ann", "ann", "here", "purge", "q")
    news = command._news(stage.guard, stage.entries(), AuditRead(limit=10))
    stage.broker.audit_trail.finish(record, "done", 7)
    stage.guard.pause("q")
    assert [(entry.verb, entry.outcome, entry.count) for entry in next(news)] == [
        ("purge", "done", 7),
        ("pause", "done", None),
    ]
    assert next(news) == []
    text = command._line(stage.entries()[0]).plain
    assert text.split(" ", 1)[1] == "ann purge q count=7 done from here"


def test_the_audit_is_not_lost_with_a_backup(tmp_path: Path, cli: Commands) -> None:
    cli.ok("queue", "create", "orders")
    cli.ok("backup", tmp_path / "copy")
    restored = Commands(tmp_path / "restored")
    assert restored("restore", tmp_path / "copy").code == 0
    assert [entry["verb"] for entry in restored.json("audit")][:1] == ["create_queue"]
