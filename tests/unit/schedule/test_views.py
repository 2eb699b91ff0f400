"""A view of a line or a heap behaves as the original would, and leaves it alone until it is settled."""

from __future__ import annotations

import random

import pytest

from fairlead.schedule.views import Heap, HeapView, Line, LineView


@pytest.mark.parametrize("seed", range(50))
def test_a_line_and_its_view_give_the_same(seed: int) -> None:
    chance = random.Random(seed)
    items = [chance.randrange(5) for _ in range(chance.randrange(6))]
    expected, base = Line(items), Line(items)
    view = LineView(base)
    for _ in range(30):
        kind = chance.choice(["append", "appendleft", "popleft", "popleft", "look"])
        if kind == "popleft" and len(expected):
            assert view.popleft() == expected.popleft()
        elif kind == "append":
            item = chance.randrange(5)
            expected.append(item)
            view.append(item)
        elif kind == "appendleft":
            item = chance.randrange(5)
            expected.appendleft(item)
            view.appendleft(item)
        assert view.find_first() == expected.find_first()
        assert (len(view), view.all()) == (len(expected), expected.all())
        assert base.all() == items
    assert view.settle() is base
    assert base.all() == expected.all()


@pytest.mark.parametrize("seed", range(50))
def test_a_heap_and_its_view_give_the_same(seed: int) -> None:
    chance = random.Random(seed)
    expected, base = Heap[tuple[int, str]](), Heap[tuple[int, str]]()
    for _ in range(chance.randrange(20)):
        item = chance.randrange(6), chance.choice("xy")
        expected.push(item)
        base.push(item)
    before = list(base.items)
    view = HeapView(base)
    for _ in range(40):
        if len(expected) and chance.random() < 0.6:
            assert view.first() == expected.first()
            assert view.pop() == expected.pop()
        else:
            item = chance.randrange(6), chance.choice("xy")
            expected.push(item)
            view.push(item)
        assert (len(view), view.all()) == (len(expected), expected.all())
        assert base.items == before
    assert view.settle() is base
    assert base.all() == expected.all()
