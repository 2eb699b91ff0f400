# steps.py
"""The steps of an order: convert its amount to euros, then pay it."""

import json
from pathlib import Path

import bank
import pandas as pd

from fairlead import StepFailed


def price(orders: pd.DataFrame):
    """Price all orders of a batch at once. A bad row fails alone, with its reason."""
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
    """Pay one order, at the price from the step before."""
    text = bank.statement_text(item["note"])
    bank.pay(item["shop"], step.value["cents"], text, key=item["order"])
