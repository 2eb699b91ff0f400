"""With `--sample`, sweeps and random tests run in part: `make test` passes it, `.ci/run` runs everything.

`@pytest.mark.sample(8)` on a test, or as `pytestmark` of a module: of each test function's cases that the run
would include, eight are drawn anew on each run. Of several parameters each value is in the sample at least once,
which may take more than eight. The name of a case that fails is all that its replay needs.
`sampled(100, of=400)` is a number of examples or runs for tests that draw these themselves. Hypothesis tests
without a number of their own try a quarter of the examples.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import settings

_is_on = False


def sampled(part: int, *, of: int) -> int:
    return part if _is_on else of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", action="store_true", help="run sweeps and random tests in part, drawn anew")


def pytest_configure(config: pytest.Config) -> None:
    global _is_on
    _is_on = config.getoption("sample")
    if _is_on:
        settings.register_profile("sample", settings.default, max_examples=settings.default.max_examples // 4)
        settings.load_profile("sample")


@pytest.hookimpl(trylast=True)  # the sample is one of the cases that other options leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("sample"):
        return
    # The processes of pytest-xdist must choose the same cases.
    chance = random.Random(getattr(config, "workerinput", {}).get("testrunuid"))
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for of_one_test in cases.values():
        mark = of_one_test[0].get_closest_marker("sample")
        if mark is not None:
            left_out.update(set(of_one_test) - draw(of_one_test, mark.args[0], chance))
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def draw(cases: list[pytest.Item], count: int, chance: random.Random) -> set[pytest.Item]:
    in_any_order = chance.sample(cases, len(cases))
    drawn: set[pytest.Item] = set()
    seen: set[tuple[str, str]] = set()
    for case in in_any_order:
        values = {(name, repr(value)) for name, value in case.callspec.params.items()}  # type: ignore[attr-defined]
        if len(values) > 1 and not values <= seen:
            drawn.add(case)
            seen |= values
    for case in in_any_order:
        if len(drawn) >= count:
            break
        drawn.add(case)
    return drawn
