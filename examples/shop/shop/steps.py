# shop/steps.py
"""What happens to an order, step by step."""

from fairlead import StepFailed
from shop import bank


def parse(item):
    amount = str(item["amount"]).replace(",", ".")
    try:
        return {"cents": round(float(amount) * 100)}
    except ValueError:
        raise StepFailed(f"{item['amount']!r} is no amount of money", reason="validation_failure") from None


def charge(item, step):
    receipt = bank.pay(item["customer"], step.value["cents"], key=step.id)
    print(f"charged {item['customer']} {step.value['cents']} cents, try {step.attempts + 1}")
    return {"receipt": receipt}


def refund(item, step):
    bank.pay(item["customer"], -item["cents"], key=step.id)
    print(f"refunded {item['customer']} {item['cents']} cents")
