"""What the victim says about its operations: once before it sends one, once after it was confirmed.

A line is one `os.write` to a file opened with O_APPEND, so it survives the SIGKILL of its writer, and the
order of lines is an order in which things can have happened. Only the very last line of a killed process may
be torn.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fairlead
from fairlead.errors import Rejected, Unavailable
from fairlead.model.settle import Settlement

Line = dict[str, Any]


class Journal:
    """Of one life, or of several processes that share the file; each of those has a life of its own."""

    def __init__(self, path: Path, life: int, now_ms: Callable[[], int]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._life = life
        self._now_ms = now_ms
        self._numbers = itertools.count(life * 1_000_000_000 + 1)

    def begin(self, do: str, **fields: Any) -> int:
        number = next(self._numbers)
        self._write({"op": number, "ev": "begin", "do": do, **fields})
        return number

    def done(self, number: int, **fields: Any) -> None:
        self._write({"op": number, "ev": "done", **fields})

    def refused(self, number: int, error: Exception) -> None:
        self._write({"op": number, "ev": "refused", "error": getattr(error, "code", repr(error))})

    def unknown(self, number: int) -> None:
        """It is over, and nobody knows whether it took effect."""
        self._write({"op": number, "ev": "unknown"})

    def died(self, life: int) -> None:
        """A process that shares the file was killed, and nothing that it has sent is on its way any longer."""
        self._write({"ev": "died", "who": life})

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, line: Line) -> None:
        line["life"] = self._life
        line["at"] = self._now_ms()
        # A line end on both sides: what a killed process wrote last may be torn, and must not spoil the line
        # of another.
        os.write(self._fd, b"\n" + json.dumps(line, separators=(",", ":")).encode() + b"\n")


def read_journal(path: Path) -> Iterator[Line]:
    """A torn line was never written, as far as anyone can tell."""
    if not path.exists():
        return
    for raw in path.read_bytes().split(b"\n"):
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(raw)


def make_payload(tag: str, size: int = 64) -> bytes:
    """A body that can be told from every other and shows a single wrong byte."""
    return f"{tag}\n{size}\n".encode() + _filler(tag, size)


def read_tag(payload: bytes) -> str:
    """The tag of a body made by `make_payload`; a body that was changed gives a tag nobody ever enqueued."""
    try:
        tag, size, filler = payload.split(b"\n", 2)
        if filler == _filler(tag.decode(), int(size)):
            return tag.decode()
    except ValueError:
        pass
    return "damaged:" + payload[:40].hex()


def _filler(tag: str, size: int) -> bytes:
    digest = hashlib.blake2b(tag.encode()).hexdigest().encode()
    return (digest * (size // len(digest) + 1))[:size]


class RecordedBroker:
    """The broker's verbs, each told to the journal before and after. A refused operation returns None or an
    empty list.
    """

    def __init__(self, broker: fairlead.Broker, journal: Journal) -> None:
        self.broker = broker
        self.journal = journal

    def enqueue(self, queue: str, messages: Sequence[tuple[str, fairlead.NewMessage]]) -> list[str]:
        """Pairs of tag and message."""
        told = [[tag, m.dedup_key, delay_ms(m.delay)] for tag, m in messages]
        batch = [m for _, m in messages]
        return (
            self._run(
                "enqueue",
                lambda: self.broker.enqueue_many(queue, batch),
                lambda ids: {"ids": ids},
                queue=queue,
                messages=told,
            )
            or []
        )

    def quarantine(
        self, queue: str, messages: Sequence[tuple[str, fairlead.NewMessage]], reason: str, error: str
    ) -> list[str]:
        told = [[tag, None, 0] for tag, _ in messages]
        batch = [m for _, m in messages]
        call = lambda: self.broker.quarantine(queue, batch, reason=reason, error=error)  # noqa: E731 a name would only repeat the verb
        return (
            self._run("quarantine", call, lambda ids: {"ids": ids}, queue=queue, messages=told, error=error)
            or []
        )

    def claim(self, queue: str | list[str], **options: Any) -> list[fairlead.Delivery]:
        told = {"consumer": options.get("consumer", ""), "started": options.get("started", True)}
        call = lambda: self.broker.claim(queue, **options)  # noqa: E731 as above
        return (
            self._run(
                "claim",
                call,
                lambda got: {"deliveries": [tell_delivery(d) for d in got]},
                queue=queue,
                **told,
            )
            or []
        )

    def settle(self, items: Sequence[Settlement]) -> list[fairlead.SettleResult]:
        if not items:
            return []
        told = [[*_name(i), getattr(i, "error", ""), delay_ms(getattr(i, "duration", None))] for i in items]
        answer = lambda results: {"results": [[r.outcome, r.due_ms, r.lease_until] for r in results]}  # noqa: E731 as above
        return self._run("settle", lambda: self.broker.settle(items), answer, items=told) or []

    def by_id(self, verb: str, queue: str, message_id: str) -> None:
        """`ack` or `nack`: whoever holds the message now."""
        act = getattr(self.broker, verb)
        self._run(
            verb, lambda: act(queue, message_id), lambda r: {"outcome": r.outcome}, queue=queue, id=message_id
        )

    def operate(self, verb: str, queue: str, **options: Any) -> Any:
        """create_queue, purge, delete_queue, redrive. One with a rate is confirmed when it begins, and goes
        on by itself.
        """
        act = getattr(self.broker, verb)
        return self._run(
            verb,
            lambda: act(queue, **options),
            lambda result: {"result": str(result)},
            queue=queue,
            goes_on="rate" in options,
        )

    def goodbye(self, consumer: str) -> None:
        self._run(
            "goodbye",
            lambda: self.broker.goodbye(consumer),
            lambda count: {"count": count},
            consumer=consumer,
        )

    def _run(self, do: str, call: Callable[[], Any], answer: Callable[[Any], Line], **told: Any) -> Any:
        number = self.journal.begin(do, **told)
        try:
            result = call()
        except (Rejected, Unavailable) as error:
            self.journal.refused(number, error)
            return None
        self.journal.done(number, **answer(result))
        return result


def delay_ms(duration: object) -> int:
    """The workload writes its durations in whole milliseconds: "200ms"."""
    return int(duration.removesuffix("ms")) if isinstance(duration, str) else 0


def _name(item: Settlement) -> tuple[str, str, str]:
    return type(item).__name__.lower(), item.delivery.id, item.delivery.lease


def tell_delivery(d: fairlead.Delivery) -> Line:
    last = d.failures[-1] if d.failures else None
    return {
        "id": d.id,
        "tag": read_tag(d.payload),
        "queue": d.queue,
        "lease": d.lease,
        "attempts": d.attempts,
        "until": d.lease_until,
        "source": d.source,
        "dead_since": d.dead_since,
        "failures": len(d.failures),
        "last_error": last.error if last else "",
    }
