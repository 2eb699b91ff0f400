"""One simulated life of a broker: a seed decides what is asked of it, what its hooks answer and when it is
cut off.
"""

from __future__ import annotations

from fairlead import Complete, DeadFilter
from fairlead.errors import InvalidRequest, MessageNotFound, QueueExists, QueueFull, QueueNotFound, StoreFull
from fairlead.model.ids import show_id
from fairlead.testing.sizes import read_size
from fairlead.testing.storage import ProcessEnded, Trouble
from tests.simulation.picture import BrokenPromise, Doing, must
from tests.simulation.traffic import KEYS, QUEUES, random_filter, random_options
from tests.simulation.working import Working

VERBS = {
    "enqueue": 22,
    "claim": 22,
    "settle": 20,
    "part_ways": 8,
    "ack_or_nack": 2,
    "exchange": 8,
    "operate": 8,
    "redrive": 2,
    "quarantine": 1,
    "goodbye": 1,
    "advance": 8,
    "set_clock": 1,
    "restart": 2,
    "administer": 4,
    "look": 2,
}

OPERATOR_VERBS = [
    "retry",
    "drop",
    "done",
    "bury",
    "hold",
    "hold",
    "unhold",
    "fail",
    *["release_stream"] * 4,
    "drain",
    "prune",
]


class Life(Working):
    def run(self, steps: int) -> None:
        #: Lives differ in what they are mostly about.
        self.habits = {verb: weight * self.rng.choice([0.3, 1, 1, 4]) for verb, weight in VERBS.items()}
        with self._sizes():
            for name in QUEUES[: self.rng.choice([1, 1, 2])]:
                self.create(name)
            for number in range(steps):
                self.say(f"-- {number}")
                self.step()
            self.drain()

    def step(self) -> None:
        verb = self.rng.choices(list(self.habits), list(self.habits.values()))[0]
        trouble = self._draw_trouble()
        try:
            getattr(self, verb)()
        except ProcessEnded:
            self.say("   cut off")
            self._survive(power=trouble == "power")
        except StoreFull:
            self.say("   the disk was full")
        except (QueueNotFound, QueueFull, QueueExists) as refused:
            self.say(f"   refused: {refused}")
        finally:
            self.store.arm(0, "before")
        self.witness.doing = Doing("nothing")
        self.check()

    def _draw_trouble(self) -> Trouble | None:
        if self.rng.random() >= self.danger:
            return None
        choices: list[Trouble] = ["before", "after", "after", "power", "full"]
        nth, trouble = self.rng.choice([1, 1, 1, 2, 3]), self.rng.choice(choices)
        self.say(f"   trouble: {trouble} at commit {nth}")
        self.store.arm(nth, trouble)
        return trouble

    # Queues and configuration

    def create(self, name: str) -> None:
        options = random_options(self.rng)
        with self.doing("create", queue=name):
            self.say(f"   {options}")
            self.broker.create_queue(name, **options)

    def administer(self) -> None:
        rng, name = self.rng, self.any_queue()
        verb = rng.choice(
            [
                "create",
                "create",
                "update",
                "update",
                "pause",
                "resume",
                "resume",
                "purge",
                "delete",
                "throttle",
                "weight",
                "cancel",
            ]
        )
        with self.doing(verb, queue=name):
            if verb == "create":
                self.create(rng.choice(QUEUES))
            elif verb == "update":
                options = random_options(rng)
                self.say(f"   {options}")
                try:
                    self.broker.update_queue(name, **options)
                except InvalidRequest as refused:
                    if "ordering" not in str(refused):
                        raise
            elif verb == "throttle":
                self.throttle()
            elif verb == "weight":
                self.broker.config.set(f"weight:{name}:{rng.choice(KEYS)}", rng.randint(1, 5))
            elif verb == "cancel":
                for intent in self.broker.intents():
                    if intent.kind == "redrive":
                        self.broker.cancel_intent(intent.intent_id)
            elif verb == "delete":
                self.broker.delete_queue(name)
            elif verb == "purge":
                self.witness.doing.queue = name = name + ".dlq" if rng.random() < 0.2 else name
                self.broker.purge(name)
            else:
                getattr(self.broker, verb)(name)

    def throttle(self) -> None:
        if self.rng.random() < 0.5:
            self.broker.config.set("throttle:t:rate", self.rng.choice([0.2, 2, 50]))
        elif "throttle:t:rate" in self.broker.config.list():
            self.broker.config.delete("throttle:t:rate")

    # Operators

    def operate(self) -> None:
        rng, name = self.rng, self.any_queue(dead=0.1)
        verb = rng.choice(OPERATOR_VERBS)
        if verb == "release_stream":
            self.release_stream(name, rng.choice(self.streams))
        elif verb in ("drain", "prune"):
            with self.doing(verb, queue=name):
                getattr(self.broker, verb)(name)
        else:
            everyone = [show_id(seen.id) for seen in self.witness.now.messages.values()]
            by_filter = rng.random() < 0.15
            ids = None if by_filter else rng.sample(everyone, min(len(everyone), rng.randint(1, 3)))
            with self.doing(verb, queue=name, ids=ids):
                try:
                    result = getattr(self.broker, verb)(
                        name, ids, filter=random_filter(rng) if by_filter else None
                    )
                    self.say(f"   {len(result.changed)} changed")
                except (InvalidRequest, MessageNotFound) as refused:
                    # A single message that cannot be retried is an error.
                    must(verb == "retry" and ids is not None and len(ids) == 1, str(refused))

    def redrive(self) -> None:
        rng, name = self.rng, self.any_queue(dead=0.3)
        with self.doing("redrive", queue=name):
            rate = rng.choice([None, None, 0.5, 20])
            dead = [seen for seen in self.witness.now.messages.values() if seen.dead_since]
            ids = (
                [show_id(seen.id) for seen in rng.sample(dead, min(2, len(dead)))]
                if rate is None and rng.random() < 0.4
                else None
            )
            self.broker.redrive(
                name,
                ids=ids,
                filter=random_filter(rng),
                count=rng.choice([None, None, 2]),
                rate=rate,
                clear_progress=rng.random() < 0.2,
            )

    # Time

    def advance(self) -> None:
        ms = self.rng.choice(
            [1, 500, 2000, 2000, 6000, 11_000, 40_000, 700_000 if self.rng.random() < 0.2 else 1000]
        )
        with self.doing("advance"):
            self.say(f"   {ms} ms")
            self.clock.advance(ms=ms)

    def set_clock(self) -> None:
        ms = self.rng.choice([-3_600_000, -5000, -300, 300, 5000, 60_000])
        with self.doing("set the clock"):
            self.say(f"   by {ms} ms")
            self.clock.jump(ms=ms)

    def restart(self) -> None:
        with self.doing("restart"):
            self.broker.close()
            self.clock.advance(ms=self.rng.choice([0, 0, 3000]))
            self._reopen()

    def look(self) -> None:
        """Questions change nothing and do not fail, whatever the state."""
        name = self.any_queue()
        with self.doing("look", queue=name):
            commits = self.store.commits
            self.broker.failure_metrics(name)
            self.broker.stats(name, keys=True)
            self.broker.explain_queue(name)
            for seen in list(self.witness.now.messages.values())[:3]:
                if self.witness.now.queues[seen.queue_id].name:
                    self.broker.explain(show_id(seen.id))
            must(self.store.commits == commits, "a question changed something")

    # The end

    def drain(self) -> None:
        """With nothing in the way, everything can be worked off: nothing is stuck, and nothing is left
        behind.
        """
        self.say("-- drain")
        broker = self.broker
        self.witness.doing = Doing("drain down")
        for key in broker.config.list():
            broker.config.delete(key)
        names = [info.name for info in broker.queues()]
        for name in names:
            broker.resume(name)
        for name in [name for name in names if not name.endswith(".dlq")]:
            broker.update_queue(
                name,
                max_unsettled_per_key=0,
                max_unsettled_per_consumer=0,
                failure_breaker=None,
                dead_retention=None,
                max_deliveries=0,
                on_enqueue=None,
                on_failure=None,
                ttl=None,
                retain_completed=None,
            )
            with self.doing("unhold", queue=name):
                broker.unhold(name, filter=DeadFilter())
        self._work_off(names)
        while any(seen.dead_since for seen in self.witness.now.messages.values()):
            with self.doing("advance"):
                # A dead letter that is leased is not redriven.
                self.clock.advance(seconds=60)
            for name in names:
                with self.doing("redrive", queue=name):
                    broker.redrive(name)
            self._work_off(names)
        with self.doing("advance"):
            # Until the session is forgotten, which is looked after once a minute.
            self.clock.advance(ms=read_size("session_kept_ms") + 3_600_000)
            self.clock.advance(seconds=60)
        self.check()
        must(
            not self.witness.now.messages,
            f"left: {[self.witness.say(seen) for seen in self.witness.now.messages.values()]}",
        )
        left = self.stored.left()
        must(not left, f"without messages these are left: {left}")
        broker.close()

    def _work_off(self, names: list[str]) -> None:
        live = [name for name in names if not name.endswith(".dlq")]
        for _ in range(200):
            with self.doing("claim", claims_from=live):
                got = self.broker.claim(live, limit=50, max_per_stream=50) if live else []
                self._receive(got)
            if got:
                items = [Complete(d) for d in got]
                with self.doing("settle", items=items):
                    self._hear(items, self.broker.settle(items))
            else:
                with self.doing("advance"):
                    self.clock.advance(seconds=60)
            self.check()
            if (
                not any(not seen.dead_since for seen in self.witness.now.messages.values())
                and not self.stored.intents()
            ):
                return
        raise BrokenPromise(
            f"stuck: {[self.witness.say(seen) for seen in self.witness.now.messages.values() if not seen.dead_since]}"
        )
