"""What every contender does, and the two loops that sync and asyncio clients share."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter, sleep
from typing import Any, Protocol

PAYLOAD_BYTES = 1024
#: How long a consumer has been waiting when its message is sent: long enough that the server knows of it.
_SETTLED_S = 0.002


class NotThere(Exception):
    """A contender that cannot take part, with the reason why."""


class Contender(Protocol):
    """`ways` of waiting for a message (`claim`: ask for one and wait, `consume`: a loop that is sent them) and `styles`
    of concurrency it has.
    """

    name: str
    settings: str
    ways: Sequence[str]
    styles: Sequence[str]

    def prepare(self, bodies: Sequence[bytes], batch: int) -> list[Any]:
        """Whatever a user would have at hand before sending, batch by batch; not measured."""

    def lifecycles(self, batches: list[Any], seconds: float) -> int:
        """Enqueue a batch, take it, complete it, and so on over `batches` again and again. Returns how many
        messages.
        """

    def latencies_ms(self, bodies: Sequence[bytes], way: str) -> list[float]:
        """From just before a message is sent until its consumer has it, one at a time, to a consumer that was
        waiting.
        """

    def singles(self, bodies: Sequence[bytes], style: str, producers: int, seconds: float) -> int:
        """So many producers, each sending one message after another. Returns how many messages were confirmed."""

    def clear(self) -> None:
        """Empty the queue; not measured."""

    def server_cpu_s(self) -> float:
        """CPU seconds of the server process so far, 0 where there is none."""

    def close(self) -> None: ...


def make_bodies(count: int) -> list[bytes]:
    """Bodies that do not compress and are not the same object."""
    noise = os.urandom(1 << 20)
    at = random.Random(0).randrange
    starts = [at(len(noise) - PAYLOAD_BYTES) for _ in range(count)]
    return [noise[start : start + PAYLOAD_BYTES] for start in starts]


def in_batches(made: Sequence[Any], batch: int) -> list[list[Any]]:
    return [list(made[at : at + batch]) for at in range(0, len(made) - batch + 1, batch)]


def cycle_for(batches: Sequence[Any], seconds: float, step: Callable[[Any], int]) -> int:
    done, until = 0, perf_counter() + seconds
    while True:
        for some in batches:
            done += step(some)
            if perf_counter() >= until:
                return done


def threads_for(senders: Sequence[Callable[[bytes], object]], bodies: Sequence[bytes], seconds: float) -> int:
    """One thread for each sender; the first error of any thread is raised here."""
    done, errors = [0] * len(senders), list[BaseException]()
    gate = threading.Barrier(len(senders) + 1)
    until = 0.0

    def produce(at: int, send: Callable[[bytes], object]) -> None:
        sent, count = 0, len(bodies)
        gate.wait()
        try:
            while perf_counter() < until:
                send(bodies[sent % count])
                sent += 1
        except BaseException as error:
            errors.append(error)
        done[at] = sent

    threads = [threading.Thread(target=produce, args=(at, send)) for at, send in enumerate(senders)]
    for thread in threads:
        thread.start()
    until = perf_counter() + seconds
    gate.wait()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(done)


async def tasks_for(
    send: Callable[[bytes], Awaitable[object]], bodies: Sequence[bytes], producers: int, seconds: float
) -> int:
    until = perf_counter() + seconds

    async def produce() -> int:
        sent, count = 0, len(bodies)
        while perf_counter() < until:
            await send(bodies[sent % count])
            sent += 1
        return sent

    return sum(await asyncio.gather(*(produce() for _ in range(producers))))


def ping(
    send: Callable[[bytes], object], receive: Callable[[], Callable[[], object]], bodies: Sequence[bytes]
) -> list[float]:
    """`receive` waits for one message and returns what completes it. The consumer has a thread of its own."""
    arrived, errors = list[float](), list[BaseException]()
    waiting = threading.Semaphore(0)

    def consume() -> None:
        try:
            for _ in bodies:
                waiting.release()
                complete = receive()
                arrived.append(perf_counter())
                complete()
        except BaseException as error:
            errors.append(error)
        finally:
            waiting.release()

    thread = threading.Thread(target=consume)
    thread.start()
    sent = []
    for body in bodies:
        waiting.acquire()
        if errors:
            break
        sleep(_SETTLED_S)
        sent.append(perf_counter())
        send(body)
    thread.join()
    if errors:
        raise errors[0]
    return [(there - here) * 1e3 for here, there in zip(sent, arrived, strict=True)]


async def aping(
    send: Callable[[bytes], Awaitable[object]],
    receive: Callable[[], Awaitable[Callable[[], Awaitable[object]]]],
    bodies: Sequence[bytes],
) -> list[float]:
    """As `ping`, with two tasks."""
    arrived, sent = list[float](), list[float]()
    waiting = asyncio.Semaphore(0)

    async def consume() -> None:
        for _ in bodies:
            waiting.release()
            complete = await receive()
            arrived.append(perf_counter())
            await complete()

    async def produce() -> None:
        for body in bodies:
            await waiting.acquire()
            await asyncio.sleep(_SETTLED_S)
            sent.append(perf_counter())
            await send(body)

    await asyncio.gather(consume(), produce())
    return [(there - here) * 1e3 for here, there in zip(sent, arrived, strict=True)]
