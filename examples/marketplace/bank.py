# bank.py
"""A stand-in for a bank, with the faults of real banks. It writes payments to books/, to one file for each
process.
"""

import ctypes
import os
import zlib
from functools import cache
from pathlib import Path

BOOKS = Path("books")
MAX_TEXT = 140


def statement_text(note: str) -> bytes:
    """The text on the customer's statement. A stand-in for a C library that does not check the length of a
    text.
    """
    if len(note) > MAX_TEXT:
        ctypes.string_at(0)  # the end of this process
    return note.encode()


def pay(shop: str, cents: int, text: bytes, key: str) -> None:
    """Record a payment. The first try of one order in fifty finds that the bank does not answer."""
    if zlib.crc32(key.encode()) % 50 == 0 and _is_new(key):
        raise ConnectionError("the bank does not answer")
    os.write(_page(os.getpid()), f"{key},{shop},{cents}\n".encode())


def _is_new(key: str) -> bool:
    seen = BOOKS / "not answered"
    seen.mkdir(parents=True, exist_ok=True)
    try:
        (seen / key).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@cache
def _page(process: int) -> int:
    """The file of a process. Each line is one write, so a killed process leaves whole lines."""
    BOOKS.mkdir(exist_ok=True)
    return os.open(BOOKS / f"{process}.csv", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
