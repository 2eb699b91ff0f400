# steps.py
"""What happens to an order: its amount becomes euros, then it is paid."""

import json
from pathlib import Path

import bank
import pandas as pd

from fairlead import StepFailed


def price(orders: pd.DataFrame):
    """All orders of a batch at once. A bad row fails alone, and says why."""
    rates = json.loads(Path("rates.json").read_text())
    items = pd.DataFrame([json.loads(payload) for payload in orders["payload"]])
    cents = (items["amount"] * items["currency"].map(rates) * 100).round()
    return [
        StepFailed(f"no rate for {currency} in rates.json", reason="validation_failure")
        if pd.isna(value)
        else {"cents": int(value)}
        for currency, value in zip(items["currency"], cents, strict=True)
    ]


def charge(item, step):
    """One order at a time, each with what the step before made of it."""
    text = bank.statement_text(item["note"])
    bank.pay(item["shop"], step.value["cents"], text, key=item["order"])
