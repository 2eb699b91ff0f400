# bank.py
"""A bank for want of a real one, with the faults of real ones. What it was paid is in books/, a file for each
process.
"""

import ctypes
import os
import zlib
from functools import cache
from pathlib import Path

BOOKS = Path("books")
MOST_TEXT = 140


def statement_text(note: str) -> bytes:
    """What the customer will read on the statement. Stands for a library in C that does not look how long a
    text is.
    """
    if len(note) > MOST_TEXT:
        ctypes.string_at(0)  # the end of this process
    return note.encode()


def pay(shop: str, cents: int, text: bytes, key: str) -> None:
    """One order in fifty finds nobody at the bank when it is first tried."""
    if zlib.crc32(key.encode()) % 50 == 0 and _is_new(key):
        raise ConnectionError("the bank does not answer")
    os.write(_page(os.getpid()), f"{key},{shop},{cents}\n".encode())


def _is_new(key: str) -> bool:
    heard_of = BOOKS / "not answered"
    heard_of.mkdir(parents=True, exist_ok=True)
    try:
        (heard_of / key).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@cache
def _page(process: int) -> int:
    """Lines are appended whole, and are there when this process is not."""
    BOOKS.mkdir(exist_ok=True)
    return os.open(BOOKS / f"{process}.csv", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
