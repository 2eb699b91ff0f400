"""An asyncio producer: every line of its input becomes a message.

Run it: `python examples/producer.py mails < mails.jsonl`, with a server at 127.0.0.1:5554 or where `--addr`
says. Interrupted and run again within the queue's `dedup` window, it sends nothing twice.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
from collections.abc import Iterable

import fairlead.aio

#: Lines under way at a time. Each is a call of its own; the client sends together what comes together.
AT_A_TIME = 500


async def produce(address: str, queue: str, lines: Iterable[bytes]) -> int:
    """The number of lines, once each of them is on the server's disk."""
    sent = 0
    room = asyncio.Semaphore(AT_A_TIME)
    async with await fairlead.aio.connect(address) as client, asyncio.TaskGroup() as sending:

        async def send(line: bytes) -> None:
            nonlocal sent
            try:
                await client.enqueue(queue, line, dedup_key=hashlib.sha256(line).hexdigest())
                sent += 1
            finally:
                room.release()

        for line in lines:
            await room.acquire()
            sending.create_task(send(line.rstrip(b"\n")))
    return sent


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Send each line as a message.")
    arguments.add_argument("queue")
    arguments.add_argument("--addr", default="127.0.0.1:5554")
    given = arguments.parse_args()
    print(asyncio.run(produce(given.addr, given.queue, sys.stdin.buffer)), "sent")
