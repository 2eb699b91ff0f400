"""The options of a client. Works without pyarrow."""

from __future__ import annotations

import os
import secrets
import socket

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.model.addresses import join_address, split_address
from fairlead.model.durations import Duration, to_ms
from fairlead.model.limits import MAX_CONSUMER_BYTES


class Options(msgspec.Struct, frozen=True):
    address: str
    consumer: str
    retry_for_ms: int = 30_000
    timeout_ms: int = 30_000
    heartbeat_cap_ms: int | None = 600_000
    #: The Flight address, instead of the one from the server's greeting.
    flight: str | None = None


def default_consumer() -> str:
    """A unique name that shows the host and the process."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(3)}"


def read_options(
    address: str,
    *,
    consumer: str | None,
    retry_for: Duration,
    timeout: Duration,
    heartbeat_cap: Duration | None,
    flight: str | None = None,
) -> Options:
    """The checked arguments of `connect`."""
    return Options(
        address,
        _check_consumer(default_consumer() if consumer is None else consumer),
        to_ms(retry_for, "retry_for"),
        max(1, to_ms(timeout, "timeout")),
        None if heartbeat_cap is None else to_ms(heartbeat_cap, "heartbeat_cap"),
        flight if flight is None else join_address(*split_address(flight)),
    )


def _check_consumer(consumer: object) -> str:
    if not isinstance(consumer, str) or not 0 < len(consumer.encode()) <= MAX_CONSUMER_BYTES:
        raise InvalidRequest("consumer", f"text of 1 to {MAX_CONSUMER_BYTES} bytes", consumer)
    return consumer
