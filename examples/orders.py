"""Orders of many shops in one queue: Lua decides whose they are and what follows a failure, streams keep each
order's steps in order.

Run it: `python -m examples.orders`. It works in a temporary directory.
"""

from __future__ import annotations

import tempfile

import fairlead

ON_ENQUEUE = """
function on_enqueue(msg)
  return {
    fairness_key = msg.headers["shop"],
    stream = msg.headers["order"],
    weight = tonumber(fairlead.get("weight:" .. msg.headers["shop"])),
  }
end
"""
ON_FAILURE = """
function on_failure(msg)
  if msg.reason == "validation_failure" or msg.attempts >= 3 then
    return { action = "dlq" }
  end
  return { action = "retry", delay_ms = 200 * msg.attempts }
end
"""


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-orders-") as path,
        fairlead.open(path, durability="os") as broker,
    ):
        broker.create_queue("orders", on_enqueue=ON_ENQUEUE, on_failure=ON_FAILURE)
        for shop, order in (("acme", "A-1"), ("globex", "G-7")):
            headers = {"shop": shop, "order": order}
            broker.enqueue_many(
                "orders", [fairlead.NewMessage(step, headers) for step in (b"reserve", b"charge", b"ship")]
            )

        left = broker.stats("orders").ready
        while left:
            for delivery in broker.claim("orders", wait="5s"):
                if delivery.stream == "A-1" and delivery.payload == b"charge" and not delivery.attempts:
                    (result,) = broker.settle(
                        [
                            fairlead.Fail(
                                delivery, error="the bank does not answer", reason="transport_unavailable"
                            )
                        ]
                    )
                else:
                    (result,) = broker.settle([fairlead.Complete(delivery)])
                    left -= 1
                print(
                    f"{delivery.fairness_key:7} {delivery.stream} {delivery.payload.decode():8} {result.outcome} {result.rule}".rstrip()
                )
        for hook in broker.stats("orders").hooks:
            print(f"{hook.function}: {hook.calls} calls, {hook.failures} failed")


if __name__ == "__main__":
    main()
