"""A consumer in a process of its own, hence on a connection of its own: `python -m tests.doors.fila.holder
ADDRESS QUEUE`.

Prints the id of the first message it gets, reads no more, and prints for every "ack" or "nack" on its
standard input what came of it. Two clients in one process would share one connection: gRPC keeps a single one
per address.
"""

from __future__ import annotations

import sys

import fila


def main(address: str, queue: str) -> None:
    with fila.Client(address) as client:
        messages = client.consume(queue)
        message = next(messages)
        messages.close()  # ends the stream, not the connection
        print(message.id, flush=True)
        for line in sys.stdin:
            try:
                if line.strip() == "ack":
                    client.ack(queue, message.id)
                else:
                    client.nack(queue, message.id, "from the holder")
                print("done", flush=True)
            except fila.FilaError as error:
                print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
