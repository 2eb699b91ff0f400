"""One life: a seed decides what the clients send, what of it arrives when, and what breaks."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from fairlead import Complete
from fairlead.errors import FairleadError
from fairlead.model.access import read_grants
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock, laws
from fairlead.testing.engine import engine_of
from fairlead.testing.faulty import FaultyStore, Killed
from tests.simulation.turn.account import Account, BrokenPromise
from tests.simulation.turn.clients import ORDERED, PLAIN, Client, Session
from tests.simulation.turn.links import Link
from tests.simulation.turn.machine import Server

CLIENTS = 10
#: Of a client, where the server asks for keys: so often its key may be revoked, and one is left.
KEYS = 4
LEASE_MS = 30_000
#: What happens, and how often.
HABITS = {
    "ask": 30,
    "to_server": 30,
    "run": 20,
    "to_client": 20,
    "sync": 20,
    "pool": 6,
    "rest": 4,
    "time": 8,
    "break": 2,
    "crash": 0.2,
    "trouble": 2,
    "revoke": 0.3,
}


class Life:
    """`say` is told what happens, for a replay that people read."""

    def __init__(self, seed: int, say: Callable[[str], None] = lambda line: None) -> None:
        self.rng = rng = random.Random(seed)
        self.say = say
        self.clock = ManualClock()
        self.clock.origin = b"boot 0"
        self.inner = DictionaryStore()
        self.store = FaultyStore(self.inner, forgets=True)
        self.account = Account(self.clock, lambda: self.inner.last_commit)
        self._asks_for_keys = rng.random() < 0.5
        self.server = self._start()
        broker = self.server.broker
        for queue in (PLAIN, ORDERED):
            broker.create_queue(
                queue, visibility_timeout=f"{LEASE_MS}ms", retry={"policy": "immediate", "attempts": 1000}
            )
        self.clients = [
            Client(number, random.Random(rng.random()), self._keys_of(number)) for number in range(CLIENTS)
        ]
        #: All that the server or a client still has an end of.
        self.links: list[Link] = []
        self.habits = {name: weight * rng.choice([0.3, 1, 1, 4]) for name, weight in HABITS.items()}
        self.crashes = self.breaks = 0

    def run(self, steps: int) -> None:
        names, weights = list(self.habits), list(self.habits.values())
        for _ in range(steps):
            self._survive(getattr(self, f"_{self.rng.choices(names, weights)[0]}"))
        self._heal()
        self._settle_up()

    def _keys_of(self, number: int) -> list[str]:
        if not self._asks_for_keys:
            return []
        ids = [f"client{'abcdefghij'[number]}{'abcdefghij'[key]:a>5}" for key in range(KEYS)]
        secrets = [f"fl_{key_id}_{'k' * 43}" for key_id in ids]
        for secret in secrets:
            assert self.server.broker.key_ring.adopt(secret, secret, read_grants(["produce:*", "consume:*"]))
        return secrets

    def _survive(self, step: Callable[[], None]) -> None:
        """A fault of the store may end the process in the middle of it."""
        try:
            step()
        except Killed:
            self.say("the process dies in a step of the store")
            self._die(power=self.rng.random() < 0.5)

    # Clients

    def _ask(self) -> None:
        for client in self.rng.sample(self.clients, 3):
            self._let_ask(client)

    def _let_ask(self, client: Client) -> None:
        if client.link is None:
            room = self.rng.choice([50, 1000, 100_000, 100_000])
            client.connected(self._new_link(client, room))
            self.say(f"{client.name} connects")
        before = len(client.pending)
        client.step()
        for asked in client.pending[before:]:
            self.say(f"{asked}")

    def _new_link(self, client: Client, room: int) -> Link:
        link = Link(self.server, client, self.account, room)
        self.links.append(link)
        return link

    def _to_client(self) -> None:
        links = [one.link for one in self.clients if one.link is not None and one.link.has_answers]
        for link in self.rng.sample(links, min(4, len(links))):
            self._read(link, self.rng.choice([1, 100, *[1 << 20] * 6]))
        self._notice_closed()

    def _read(self, link: Link, most: int) -> None:
        link.client.take(link.read(most))

    def _notice_closed(self) -> None:
        for client in self.clients:
            if client.link is not None and client.link.is_closed:
                client.disconnect()
        self.links = [link for link in self.links if not link.is_lost or link.client.link is link]

    # The network

    def _to_server(self) -> None:
        # What a client has sent over a connection that it left may arrive much later.
        links = [
            link for link in self.links if link.may_deliver and not (link.is_left and self.rng.random() < 0.9)
        ]
        for link in self.rng.sample(links, min(4, len(links))):
            link.deliver(self.rng.choice([1, 30, *[1 << 20] * 6]))

    def _break(self) -> None:
        links = [link for link in self.links if not link.is_lost]
        if not links:
            return
        link = self.rng.choice(links)
        self.breaks += 1
        if not link.is_left:
            how = self.rng.choice(["left", "left", "lost", "half"])
            self.say(f"the connection of {link.client.name} is {how}")
            if how == "half":
                link.end_sending()
                return
            link.leave()
            if link.client.link is link:
                link.client.disconnect()
            if how == "left":
                return
        elif self.rng.random() < 0.7:
            # The server does not know yet.
            return
        link.lose()

    # The server

    def _run(self) -> None:
        self.server.loop.run()

    def _sync(self) -> None:
        if self.server.syncs.has_work:
            self.server.syncs.step()

    def _pool(self) -> None:
        if self.server.pool.jobs:
            self.server.run_job()

    def _rest(self) -> None:
        """Nothing that could go on waits."""
        self.server.run_all()
        self.account.check_given_back(self._find_leased)
        found = {queue: self.server.broker.stats(queue) for queue in (PLAIN, ORDERED)}
        # Behind a message that is leased, the others of its stream wait.
        ready = {queue: one.ready for queue, one in found.items() if queue == PLAIN or not one.leased}
        for link in self.links:
            self._check_standing(link, ready)
            asked = link.unanswered
            if asked is None or link.is_lost or link.is_closing() or link.is_stuck:
                continue
            self.account.must(asked.waits, f"the server has nothing to do, and does not answer: {asked}")
            claim = asked.parts[0]
            left = {queue: ready[queue] for queue in claim.queues() if ready.get(queue)}
            self.account.must(not left, f"{left} are ready, and a claim waits: {asked}")

    def _find_leased(self) -> dict[str, int]:
        found = [
            one
            for queue in (PLAIN, ORDERED)
            for one in self.server.broker.peek(queue, where="leased", limit=1000)
        ]
        return {one.id: one.deliveries for one in found}

    def _check_standing(self, link: Link, ready: dict[str, int]) -> None:
        if link.is_lost or link.is_closing() or link.is_stuck or link.has_ended:
            return
        for standing in link.subscriptions.values():
            queues = standing.request.queue
            queues = [queues] if isinstance(queues, str) else queues
            left = {queue: ready[queue] for queue in queues if ready.get(queue)}
            is_waiting = len(standing.sent) < standing.acknowledged and not standing.is_over
            self.account.must(not (left and is_waiting), f"{left} are ready, and {standing.asked} has credit")

    def _time(self) -> None:
        ms = self.rng.choice([1, 10, 100, 300, 300, 300, 300, 2000, 6000, LEASE_MS + 1000])
        self.say(f"{ms} ms pass")
        # What is due is put off, as the timer does.
        with contextlib.suppress(FairleadError):
            self.clock.advance(ms=ms)

    def _trouble(self) -> None:
        fault, method = self.rng.choice(
            [
                ("fail", "write"),
                ("fail", "write"),
                ("fail", "sync"),
                ("die_before", "write"),
                ("die_after", "write"),
                ("die_after", "sync"),
            ]
        )
        self.say(f"the next {method} will {fault}")
        self.account.trouble()
        store = self.store
        store.arm(self.rng.choice([1, 1, 2]), fault, only=(method,))  # type: ignore[arg-type]
        self.account.may_fail = lambda: self.store is store and not store.struck
        for client in self.clients:
            for asked in client.pending:
                asked.had_trouble = True

    def _revoke(self) -> None:
        clients = [client for client in self.clients if len(client.keys) > 1]
        if not clients:
            return
        client = self.rng.choice(clients)
        self.say(f"the key of {client.name} is revoked")
        self.account.may_be_revoked.add(client.key)
        with contextlib.suppress(FairleadError):
            self.server.broker.keys.revoke(client.key.split("_")[1])
            self.account.moment += 1
            self.account.revoked_at[client.key] = self.account.moment

    def _crash(self) -> None:
        self._die(power=self.rng.random() < 0.6)

    def _die(self, *, power: bool) -> None:
        self.crashes += 1
        self.account.trouble()
        self.server.die()
        for link in self.links:
            link.die()
        if power:
            unsynced = self.store.unsynced
            kept = self.rng.choice([0, unsynced, self.rng.randint(0, unsynced)])
            self.say(f"the power fails: {unsynced - kept} of {unsynced} writes are lost")
            self.store.cut_power(kept=kept)
            self.clock.origin = b"boot %d" % self.crashes
            sessions = [client.session for client in self.clients if client.session is not None]
            self.account.power_cut(self.inner.last_commit, sessions)
        else:
            self.say("the process is killed")
        if self.rng.random() < 0.3:
            self.clock.advance(ms=self.rng.choice([100, 5000]))
        self.server = self._start()
        self._check_laws()

    def _start(self) -> Server:
        self.store = FaultyStore(DictionaryStore(self.inner.data), forgets=True)
        server = Server(self.store, self.clock, self.rng, asks_for_keys=self._asks_for_keys)
        # What it wrote while it opened is no part of the story.
        engine_of(server.broker).confirm(synced=True)
        return server

    def _check_laws(self) -> None:
        broken = laws(self.server.broker)
        self.account.must(not broken, "; ".join(broken))

    # The end

    def _heal(self) -> None:
        """Nothing breaks any more, and nobody begins anything new: everything is answered."""
        self.say("-- nothing breaks any more")
        self.store.arm(0, "fail")
        for client in self.clients:
            client.is_done = True
        for _ in range(3000):
            self._round()
            if all(client.is_quiet for client in self.clients):
                return
        stuck = [str(asked) for client in self.clients for asked in client.pending]
        raise BrokenPromise(f"never answered: {stuck}")

    def _round(self) -> None:
        for client in self.clients:
            if client.is_quiet:
                continue
            if client.link is None:
                client.connected(self._new_link(client, 1 << 20))
            client.step()
        for link in self.links:
            if link.may_deliver:
                link.deliver(1 << 20)
        self._rest()
        for link in self.links:
            if link.is_left:
                link.lose()
            elif link.client.link is link and link.has_answers:
                self._read(link, 1 << 20)
        self._notice_closed()
        self.clock.advance(ms=500)

    def _settle_up(self) -> None:
        for link in self.links:
            link.lose()
        self.server.run_all()
        self._check_laws()
        # All leases end.
        self.clock.advance(ms=LEASE_MS + 10_000)
        live: dict[str, list[bytes]] = {PLAIN: [], ORDERED: []}
        broker = self.server.broker
        for queue, payloads in live.items():
            while deliveries := broker.claim(queue, limit=100):
                payloads += [delivery.payload for delivery in deliveries]
                broker.settle([Complete(delivery) for delivery in deliveries])
        dead = [one.payload for queue in live for one in broker.claim(f"{queue}.dlq", limit=1000)]
        self.account.settle_up(live, dead)
        broker.close()


__all__ = ["Life", "Session"]
