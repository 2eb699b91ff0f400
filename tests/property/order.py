"""Streams, policies, operators and requests in plain Python, apart from the engine: what each verb does to
the messages of one queue.

Nothing is left to choose but ids and lease tokens, which the specification is told. `claim` therefore says
exactly what a claim of everything hands out, and `may_go` which message of a stream may go at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

READY, WAITING, LEASED, HELD = "ready", "waiting", "leased", "held"


class Rules(NamedTuple):
    """What the queue does after a failure: dies at `attempts` (0: never), else waits so long (None: dies at
    once).
    """

    wait_ms: int | None = 0
    wait_in_stream_ms: int | None = 2000
    attempts: int = 0
    max_attempts: int = 0
    ordering: str = "release"

    def options(self) -> dict[str, object]:
        return {
            "retry": _policy(self.wait_ms, self.attempts),
            "retry_in_stream": _policy(self.wait_in_stream_ms, self.attempts),
            "max_attempts": self.max_attempts,
            "ordering": self.ordering,
        }


def _policy(wait_ms: int | None, attempts: int) -> dict[str, object]:
    if wait_ms is None:
        return {"policy": "none"}
    return {"policy": "fixed", "cooldown": f"{wait_ms}ms", "attempts": attempts or None}


class Word(NamedTuple):
    """One item of a settle."""

    verb: str
    id: str
    token: str
    keep_order: bool = False
    retry_in_ms: int | None = None
    dead: bool = False


@dataclass
class Message:
    id: str
    stream: str | None
    seq: int
    where: str = READY
    due_ms: int = 0
    attempts: int = 0
    failures: int = 0
    rule: str = ""
    dead: bool = False
    let_by: bool = False
    token: str = ""
    consumer: str = ""
    started: bool = False
    ends_ms: int = 0

    def rest(self, where: str, due_ms: int = 0) -> None:
        self.where, self.due_ms, self.token, self.consumer = where, due_ms, "", ""


@dataclass
class Order:
    """One queue and its dead letters. Only one clock: nothing here is about setting it."""

    rules: Rules
    lease_ms: int
    now_ms: int
    messages: dict[str, Message] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    #: Streams that an operator has opened: who comes after that seq may pass who waits up to it.
    opened: dict[str, int] = field(default_factory=dict)
    _last_seq: int = 0

    # Order

    def stream(self, name: str) -> list[Message]:
        return sorted(
            (m for m in self.messages.values() if m.stream == name and not m.dead), key=lambda m: m.seq
        )

    def may_pass(self, later: Message, earlier: Message) -> bool:
        if earlier.where in (WAITING, HELD):
            return later.let_by or earlier.seq <= self.opened.get(later.stream or "", 0) < later.seq
        return earlier.where == READY and not self.may_go(earlier)

    def may_go(self, message: Message, beside: Sequence[Message] = ()) -> bool:
        """Next, or in a run beside those that go with it."""
        before = (
            []
            if message.stream is None
            else [m for m in self.stream(message.stream) if m.seq < message.seq and m not in beside]
        )
        return (
            message.where == READY
            and not message.dead
            and all(self.may_pass(message, earlier) for earlier in before)
        )

    def run(self, name: str, most: int) -> list[Message]:
        """The first that may go, and without a gap those behind it that may."""
        going: list[Message] = []
        for message in self.stream(name):
            if len(going) == most or (going and not self.may_go(message, going)):
                break
            if self.may_go(message, going):
                going.append(message)
        return going

    def everything(self, most: int) -> list[str]:
        names = {m.stream for m in self.messages.values() if m.stream is not None and not m.dead}
        single = [m.id for m in self.messages.values() if m.stream is None and self.may_go(m)]
        return single + [m.id for name in names for m in self.run(name, most)]

    # Verbs

    def enqueue(self, message_id: str, stream: str | None, delay_ms: int = 0) -> None:
        self._last_seq += 1
        self.messages[message_id] = Message(
            message_id, stream if self.rules.ordering != "none" else None, self._last_seq
        )
        if delay_ms:
            self.messages[message_id].rest(WAITING, self.now_ms + delay_ms)

    def lease(self, message_id: str, token: str, consumer: str, started: bool) -> None:
        message = self.messages[message_id]
        message.where, message.token, message.consumer = LEASED, token, consumer
        message.started, message.ends_ms = started, self.now_ms + self.lease_ms

    def settle(self, words: Sequence[Word]) -> list[str]:
        """The outcome of each; who is let by is known when all have failed who do."""
        outcomes, switches, over = [], [], set()
        for word in words:
            message = self.messages.get(word.id)
            if message is None and word.id not in over:
                outcomes.append("not_found")
            elif message is None or word.id in over or message.where != LEASED or message.token != word.token:
                outcomes.append("lost_lease")
            else:
                outcomes.append(self._hear(message, word))
                if word.verb != "start":
                    over.add(word.id)
                if word.verb == "release" and not word.keep_order and not message.dead:
                    switches.append(message)
        for message in switches:
            self._switch(message)
        self._tidy()
        return outcomes

    def _hear(self, message: Message, word: Word) -> str:
        if word.verb == "start":
            message.started = True
            return "started"
        if word.verb == "complete":
            self._end(message)
            return "completed"
        if word.verb == "release" or message.dead:
            message.rest(READY)
            return "released"
        return self._fail(message, word.retry_in_ms, word.dead)

    def _switch(self, message: Message) -> None:
        if message.stream is not None and self.rules.ordering == "release":
            message.let_by |= any(
                m.where in (WAITING, HELD) and m.seq < message.seq for m in self.stream(message.stream)
            )

    def _fail(self, message: Message, retry_in_ms: int | None = None, dead: bool = False) -> str:
        rules = self.rules
        message.attempts += 1
        if rules.max_attempts and message.attempts >= rules.max_attempts:
            return self.bury(message, "max_attempts")
        if dead or retry_in_ms is not None:
            return (
                self.bury(message, "instruction")
                if dead
                else self._again(message, retry_in_ms or 0, "instruction")
            )
        named, wait_ms = (
            ("retry", rules.wait_ms)
            if message.stream is None
            else ("retry_in_stream", rules.wait_in_stream_ms)
        )
        if wait_ms is None or (rules.attempts and message.attempts >= rules.attempts):
            return self.bury(message, f"{named}.{'none' if wait_ms is None else 'fixed'}")
        return self._again(message, wait_ms, f"{named}.fixed")

    def _again(self, message: Message, wait_ms: int, rule: str) -> str:
        message.failures, message.rule = message.failures + 1, rule
        message.rest(WAITING if wait_ms else READY, self.now_ms + wait_ms if wait_ms else 0)
        return "retry"

    def bury(self, message: Message, rule: str) -> str:
        message.failures, message.rule, message.dead, message.let_by = message.failures + 1, rule, True, False
        message.rest(READY)
        return "dead"

    def goodbye(self, consumer: str) -> None:
        for message in self.messages.values():
            if message.where == LEASED and message.consumer == consumer:
                message.rest(READY)

    def redrive(self, message: Message) -> None:
        """A new life at the tail of its stream; what is known of the old one stays."""
        self._last_seq += 1
        message.dead, message.attempts, message.seq, message.rule = False, 0, self._last_seq, ""

    def operate(self, verb: str, message: Message) -> bool:
        """Whether it does anything. A lease in the way is revoked."""
        waits = message.where in (WAITING, HELD)
        if verb == "drop" or (verb == "done" and not message.dead):
            self._end(message)
        elif verb == "bury" and not message.dead:
            self.bury(message, "operator")
        elif verb == "hold" and not message.dead and message.where != HELD:
            message.rest(HELD)
        elif (verb == "unhold" and message.where == HELD) or (verb == "retry" and waits and message.attempts):
            message.rest(READY)
            message.attempts = 0 if verb == "retry" else message.attempts
        elif verb == "retry" and message.dead and message.where == READY:
            self.redrive(message)
        elif verb == "fail" and message.where == LEASED and not message.dead:
            self._fail(message)
        else:
            return False
        self._tidy()
        return True

    def release_stream(self, name: str) -> bool:
        members = self.stream(name)
        if not members or members[0].where not in (WAITING, HELD):
            return False
        opened = self.opened.get(name, 0)
        if opened < members[0].seq:
            self.opened[name] = members[0].seq
            return True
        behind = next((m for m in members if m.seq > opened), None)
        if behind is not None and behind.where in (WAITING, HELD):
            # It may still pass those that it could pass before.
            self.opened[name], behind.let_by = behind.seq, True
        return True

    def _end(self, message: Message) -> None:
        del self.messages[message.id]
        self.gone.add(message.id)

    def _tidy(self) -> None:
        """An opened stream closes with the message it was opened for."""
        for name, seq in list(self.opened.items()):
            if not any(m.seq <= seq for m in self.stream(name)):
                del self.opened[name]

    # Time

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        over = sorted(
            (m for m in self.messages.values() if m.where == LEASED and m.ends_ms <= self.now_ms),
            key=lambda m: m.seq,
        )
        worked_on = {m.id for m in over if m.started and not m.dead and self._first_of_run(m)}
        for message in over:
            if message.id in worked_on:
                self._fail(message)
            else:
                message.rest(READY)
        for message in self.messages.values():
            if message.where == WAITING and message.due_ms <= self.now_ms:
                message.rest(READY)
        self._tidy()

    def _first_of_run(self, message: Message) -> bool:
        run = [
            m
            for m in self.messages.values()
            if m.where == LEASED and m.token == message.token and m.stream == message.stream
        ]
        return message.stream is None or message.seq == min(m.seq for m in run)
