# shop/bank.py
"""A bank in a file, for want of a real one. It does not answer the first time it hears of a large payment."""

import fcntl
import json
from pathlib import Path

ACCOUNTS = Path("bank.json")


def pay(customer: str, cents: int, key: str) -> str:
    """The receipt. Asked again with the same key, the bank says what it said before and pays nothing twice."""
    with ACCOUNTS.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        book = json.loads(file.read() or '{"asked": [], "paid": {}}')
        answers = abs(cents) < 3000 or key in book["asked"]
        book["asked"].append(key)
        if answers:
            book["paid"].setdefault(key, [customer, cents])
        file.truncate(0)
        file.write(json.dumps(book, indent=1))
    if not answers:
        raise ConnectionError("the bank does not answer")
    return f"receipt {list(book['paid']).index(key) + 1}"
