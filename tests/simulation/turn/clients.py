"""A client: numbered requests in a pipeline, repeated in order under the same numbers until they are answered."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import hiredis

from fairlead import Complete, Delivery, Extend, Fail, NewMessage, Release, Start
from fairlead.errors import FairleadError, SessionExpired, Unauthenticated, Unavailable
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Stats
from fairlead.verbs.sessions import OpenSession
from fairlead.verbs.settle import Goodbye, Settle
from fairlead.wire.error_lines import read_error
from fairlead.wire.numbered import Numbered, pack_place
from fairlead.wire.packed import decode_answer, encode_request
from fairlead.wire.subscriptions import Cancel, Consume, Credit, Pushed, read_push

if TYPE_CHECKING:
    from tests.simulation.turn.links import Link

PLAIN, ORDERED, NOWHERE = "plain", "ordered", "nowhere"
STREAMS = ("s1", "s2", "s3")


class Session:
    def __init__(self, name: str) -> None:
        self.name = name
        self.last = 0
        self.arrived = 0
        self.is_open = False
        #: For the account: whether a power cut may have undone its opening, and what the server was told.
        self.is_durable = False
        self.may_be_lost = False
        self.told_arrived = 0


class Subscribed:
    """A subscription, as far as its client knows it. `asked` is the request that began it."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.number = 0
        #: Messages that it may still be sent.
        self.credit = asked.request.credit if isinstance(asked.request, Consume) else 0
        self.is_ending = False


class Asked:
    """One request of a client. `number` 0: it has no session, and is sent once."""

    def __init__(self, client: Client, request: Request[Any] | None, *, numbered: bool) -> None:
        self.client = client
        self.request = request
        self.is_numbered = numbered
        self.session: Session | None = None
        self.number = 0
        self.is_over = False
        self.is_refused = False
        #: The secret with which it greets the server, "" for none; None for a request that is no greeting.
        self.greets_with: str | None = None
        #: For the account.
        self.has_come = False
        self.first_sent = self.answered_at = 0
        self.due_ms = 0
        self.had_trouble = False
        self.answer: Any = None
        #: Whether that was written to a connection that the client had left.
        self.is_unread = False
        #: The last commit when it was answered; None also if a power cut may have undone it.
        self.answered_in: int | None = None

    @property
    def is_of_subscription(self) -> bool:
        return isinstance(self.request, (Consume, Credit, Cancel))

    def __str__(self) -> str:
        if self.greets_with is not None:
            return f"{self.client.name} HELLO"
        place = f" {self.session.name}/{self.number}" if self.session is not None else ""
        return f"{self.client.name}{place} {self.request}"

    @property
    def parts(self) -> Sequence[Request[Any]]:
        if self.request is None:
            return ()
        return self.request.requests if isinstance(self.request, Exchange) else (self.request,)

    def parts_of(self, answer: Any) -> list[tuple[Request[Any], Any]]:
        answers = answer if isinstance(self.request, Exchange) else [answer]
        return list(zip(self.parts, answers, strict=True))

    def is_synced(self, answer: Any) -> bool:
        """Whether this answer outlives a power cut. One that tells of claims, starts, mere extensions or of nothing done is
        not synced: what they are lost with is delivered again.
        """
        if self.request is None or self.is_of_subscription or not self.request.durable:
            return False
        for part, told in self.parts_of(answer):
            if isinstance(part, Settle):
                results = zip(part.items, told, strict=True)
                if any(result.ok and not isinstance(item, (Start, Extend)) for item, result in results):
                    return True
            elif not isinstance(part, Claim):
                return True
        return False

    @property
    def waits(self) -> bool:
        return isinstance(self.request, Claim) and self.request.wait is not None

    def command(self) -> bytes:
        if self.greets_with is not None:
            words = ["HELLO", "3", *(["AUTH", "default", self.greets_with] if self.greets_with else [])]
            return " ".join(words).encode() + b"\r\n"
        if self.request is None:
            return b"PING\r\n"
        verb, fields = f"FL.{self.request.verb_name.upper()}", encode_request(self.request)
        words = [verb.encode(), fields]
        if self.session is not None:
            name, number, arrived = self.session.name, self.number, self.session.arrived
            if number % 2:
                place = pack_place(Numbered(session=name, number=number, arrived=arrived), verb)
                words = [b"FL.ONCE", place, fields]
            else:
                words = [b"FL.ONCE", name.encode(), b"%d" % number, b"%d" % arrived, *words]
        return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])

    def read(self, reply: Any) -> Any:
        """The answer, or an error, which is not raised."""
        if isinstance(reply, hiredis.ReplyError):
            return read_error(str(reply))
        is_plain = self.request is None or self.is_of_subscription
        return reply if is_plain else decode_answer(self.request, reply)[0]  # type: ignore[type-var]


class Client:
    """`keys`: the secrets with which it may greet the server, each good until it is revoked. Without one it needs none."""

    def __init__(self, number: int, rng: random.Random, keys: Sequence[str] = ()) -> None:
        self.name = f"c{number}"
        self.rng = rng
        self.link: Link | None = None
        self.held: list[Delivery] = []
        self.most = rng.choice([1, 3, 10])
        self.eagerness = rng.choice([0.2, 0.5, 0.8])
        self.session: Session | None = None
        self._sessions = 0
        #: Not answered, in the order of their numbers; which of them are to be sent on this link.
        self.pending: list[Asked] = []
        self._unsent: list[Asked] = []
        self._messages = 0
        self.is_done = False
        self.keys = list(keys)
        self._subscribes = rng.random() < 0.4
        self._max_per_stream = rng.choice([1, 1, 3])
        self._token = f"loop of {self.name}" if rng.random() < 0.5 else None
        self.subscribed: Subscribed | None = None

    @property
    def is_quiet(self) -> bool:
        return not self.pending and not self._unsent and self.subscribed is None

    @property
    def key(self) -> str:
        return self.keys[0] if self.keys else ""

    def connected(self, link: Link) -> None:
        self.link = link
        self.subscribed = None
        if self.keys or self._subscribes:
            greeting = Asked(self, None, numbered=False)
            greeting.greets_with = link.key = self.key
            link.send(greeting, greeting.command())
        for asked in [asked for asked in self.pending if not asked.is_numbered]:
            # Nobody knows what became of it.
            self.pending.remove(asked)
        self._unsent = list(self.pending)

    def disconnect(self) -> None:
        self.link = self.subscribed = None

    # Requests

    def step(self) -> None:
        assert self.link is not None
        if self.session is None:
            self._sessions += 1
            self.session = Session(f"{self.name}.{self._sessions}")
        if not self.session.is_open:
            if not any(isinstance(asked.request, OpenSession) for asked in self.pending):
                self._ask(Asked(self, OpenSession(self.session.name), numbered=False))
            return
        while self._unsent and self.rng.random() < 0.9:
            self._send(self._unsent.pop(0))
        if self._subscribes:
            self._look_after_subscription()
        if self._unsent or self.is_done:
            return
        while len(self.pending) < self.most and self.rng.random() < self.eagerness:
            request = self._next_request()
            if request is not None:
                is_plain = isinstance(request, (Stats, Goodbye)) or self.rng.random() < 0.05
                self._ask(Asked(self, request, numbered=not is_plain))
            elif self.rng.random() < 0.3:
                self._ask(Asked(self, None, numbered=False))

    def _look_after_subscription(self) -> None:
        rng, subscribed = self.rng, self.subscribed
        if subscribed is None:
            if not self.is_done and rng.random() < 0.2:
                queue: Any = rng.choice([PLAIN, ORDERED, [PLAIN, ORDERED]])
                request = Consume(queue, rng.choice([1, 3, 20]), self.name, self._max_per_stream, self._token)
                self.subscribed = Subscribed(Asked(self, request, numbered=False))
                self._ask(self.subscribed.asked)
        elif subscribed.number and not subscribed.is_ending:
            if self.is_done or rng.random() < 0.03:
                subscribed.is_ending = True
                self._ask(Asked(self, Cancel(subscribed.number), numbered=False))
            elif subscribed.credit < 3 and rng.random() < 0.5:
                count = rng.choice([1, 5])
                subscribed.credit += count
                self._ask(Asked(self, Credit(subscribed.number, count), numbered=False))

    def _ask(self, asked: Asked) -> None:
        self.pending.append(asked)
        self._send(asked)

    def _send(self, asked: Asked) -> None:
        assert self.link is not None
        if asked.is_numbered and asked.session is None:
            assert self.session is not None
            self.session.last += 1
            asked.session, asked.number = self.session, self.session.last
        self.link.send(asked, asked.command())

    def _next_request(self) -> Request[Any] | None:
        rng = self.rng
        roll = rng.random()
        if roll < 0.28:
            return self._enqueue()
        if roll < 0.55:
            return self._claim(wait=rng.choice([None, None, None, "300ms", "300ms", "5s", "60s"]))
        if roll < 0.78:
            return self._settle()
        if roll < 0.9:
            parts = [self._settle(), self._enqueue(), self._claim(wait=None) if rng.random() < 0.6 else None]
            chosen = [part for part in parts if part is not None]
            return Exchange(chosen) if chosen else None
        if roll < 0.92:
            return Goodbye(self.name)
        if roll < 0.97:
            return Stats(PLAIN)
        return Enqueue(NOWHERE, self._payload()) if roll < 0.98 else None

    def _payload(self) -> bytes:
        self._messages += 1
        return f"{self.name}-{self._messages}".encode()

    def _enqueue(self) -> Request[Any]:
        rng = self.rng
        if rng.random() < 0.5:
            delay = "2s" if rng.random() < 0.1 else None
            return Enqueue(PLAIN, self._payload(), delay=delay)
        queue = rng.choice([PLAIN, ORDERED])
        size = rng.choice([0, 0, 0, 3000])
        return EnqueueMany(
            queue,
            [
                NewMessage(
                    self._payload() + bytes(size),
                    fairness_key=rng.choice("ab"),
                    stream=rng.choice(STREAMS) if queue == ORDERED else None,
                )
                for _ in range(rng.randint(1, 3))
            ],
        )

    def _claim(self, wait: str | None) -> Request[Any]:
        rng = self.rng
        queue: Any = rng.choice([PLAIN, PLAIN, ORDERED, [PLAIN, ORDERED]])
        return Claim(queue, rng.choice([1, 1, 3]), wait, self.name, started=rng.random() < 0.8)

    def _settle(self) -> Request[Any] | None:
        items: list[Any] = []
        for _ in range(self.rng.randint(1, 3)):
            if not self.held:
                break
            at = self.rng.randrange(len(self.held))
            held = self.held[at]
            roll = self.rng.random()
            if roll < 0.1:
                items.append(Extend(held))
            elif roll < 0.15:
                items.append(Start(held))
            else:
                # Now and then it settles the same delivery again.
                if self.rng.random() < 0.95:
                    del self.held[at]
                if roll < 0.75:
                    items.append(Complete(held))
                elif roll < 0.88 or held.queue == ORDERED:
                    items.append(Release(held))
                else:
                    items.append(Fail(held, "no good", dead=roll > 0.96))
        return Settle(items) if items else None

    # Answers

    def take(self, replies: Sequence[tuple[Asked | None, Any]]) -> None:
        """Without a request it is a push."""
        for asked, reply in replies:
            if asked is None:
                self._take_push(read_push(reply))
                continue
            if asked.is_over:
                continue
            answer = asked.read(reply)
            if isinstance(answer, Unauthenticated):
                self._take_next_key()
                return
            if asked.greets_with is not None:
                continue
            if (
                isinstance(answer, SessionExpired)
                and asked.session is self.session
                and asked.session is not None
            ):
                self._begin_again()
                return
            if isinstance(answer, Unavailable) and asked.is_numbered:
                if asked not in self._unsent:
                    self._unsent.append(asked)
                    self._unsent.sort(key=lambda one: one.number)
                continue
            self._over(asked, answer)

    def _over(self, asked: Asked, answer: Any) -> None:
        asked.is_over = True
        self.pending.remove(asked)
        if asked.is_of_subscription:
            self._over_of_subscription(asked, answer)
            return
        if isinstance(asked.request, OpenSession):
            if not isinstance(answer, FairleadError) and self.session is not None:
                self.session.is_open = True
            return
        if asked.session is not None:
            waiting = [one.number for one in self.pending if one.session is asked.session]
            asked.session.arrived = min(waiting, default=asked.session.last + 1) - 1
        if isinstance(answer, FairleadError) or asked.request is None:
            return
        for part, found in asked.parts_of(answer):
            if isinstance(part, Claim):
                self.held += found

    def _over_of_subscription(self, asked: Asked, answer: Any) -> None:
        subscribed = self.subscribed
        if subscribed is None:
            return
        if isinstance(asked.request, Consume) and subscribed.asked is asked:
            if isinstance(answer, FairleadError):
                self.subscribed = None
            else:
                subscribed.number = answer
        elif isinstance(asked.request, Cancel) and asked.request.subscription == subscribed.number:
            self.subscribed = None

    def _take_push(self, push: Pushed) -> None:
        subscribed = self.subscribed
        if subscribed is None or push.subscription != subscribed.number:
            return
        if push.error is not None:
            self.subscribed = None
            return
        known = {(one.id, one.lease) for one in self.held}
        self.held += [one for one in push.deliveries if (one.id, one.lease) not in known]
        subscribed.credit -= len(push.deliveries)

    def _take_next_key(self) -> None:
        """Its key was revoked. Nobody will know what became of its requests, and its session belongs to that key."""
        assert self.link is not None
        if len(self.keys) > 1 and self.link.key == self.key:
            del self.keys[0]
        self.link.leave()
        self.disconnect()
        self.session = None
        self.pending, self._unsent = [], []

    def _begin_again(self) -> None:
        """The server knows nothing of the session, so nothing of it took place: its requests are new ones."""
        assert self.link is not None
        self.link.leave()
        self.disconnect()
        self.session = None
        self.pending = [Asked(self, one.request, numbered=True) for one in self.pending if one.is_numbered]
