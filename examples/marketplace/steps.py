# steps.py
"""What happens to an order: its amount becomes euros, then it is paid."""

import json
from pathlib import Path

import bank

from fairlead import StepFailed


def price(item):
    rates = json.loads(Path("rates.json").read_text())
    if item["currency"] not in rates:
        raise StepFailed(f"no rate for {item['currency']} in rates.json", reason="validation_failure")
    return {"cents": round(item["amount"] * rates[item["currency"]] * 100)}


def charge(item, step):
    text = bank.statement_text(item["note"])
    bank.pay(item["shop"], step.value["cents"], text, key=item["order"])
