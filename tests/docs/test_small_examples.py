from __future__ import annotations

import pytest

from examples import orders


def test_the_orders_example_keeps_each_order_in_order_and_lets_the_other_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders.main()
    *steps, on_enqueue, on_failure = capsys.readouterr().out.splitlines()
    assert [" ".join(step.split()) for step in steps if "A-1" in step] == [
        "acme A-1 reserve completed",
        "acme A-1 charge retry on_failure",
        "acme A-1 charge completed",
        "acme A-1 ship completed",
    ]
    assert [step.split()[2] for step in steps if "G-7" in step] == ["reserve", "charge", "ship"]
    assert (on_enqueue, on_failure) == ("on_enqueue: 6 calls, 0 failed", "on_failure: 1 calls, 0 failed")
