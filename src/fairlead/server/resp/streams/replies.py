"""Replies in the words of Redis, because programs check the first word of an error."""

from __future__ import annotations

NO_ARRAY = {2: b"*-1\r\n", 3: b"_\r\n"}
NO_BULK = {2: b"$-1\r\n", 3: b"_\r\n"}
BUSY_GROUP = b"-BUSYGROUP Consumer Group name already exists\r\n"
NO_KEY = b"-ERR no such key\r\n"
NO_KEY_FOR_GROUP = (
    b"-ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM"
    b" option to create an empty stream automatically.\r\n"
)


def no_group(key: str, group: str) -> bytes:
    line = f"-NOGROUP No such key {key!r} or consumer group {group!r}"
    return " ".join(line.splitlines()).encode(errors="replace") + b"\r\n"
